//! Concurrent look-ups of words by either method, with a check of every answer.

use super::dictionary::Words;
use crate::outcome::Failure;
use farmem::hash_table::{HashTable, Step, Value};
use farmem::{Answer, Client, Completed, Ticket};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::Instant;

/// Method of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// One-sided READs, one per pointer.
    Reads,
    /// One traversal.
    Traversals,
}

impl Method {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reads => "READs",
            Self::Traversals => "traversals",
        }
    }
}

/// Counts of a sweep.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) lookups: u64,
    /// Number of requests of this host. Each costs the host one round trip.
    pub(crate) requests: u64,
    /// Number of visited chain nodes, counted at the host or at the memory node.
    pub(crate) visited: u64,
    pub(crate) wrong: u64,
}

/// Look-up in flight.
struct Flight {
    word: usize,
    begin: Instant,
}

/// Looks up the words with these numbers, `depth` at a time.
#[expect(
    clippy::too_many_arguments,
    reason = "one loop, two methods, two uses; a struct would only rename the list"
)]
pub(crate) fn sweep(
    client: &mut Client,
    table: &HashTable,
    words: &Words,
    numbers: impl Iterator<Item = usize>,
    method: Method,
    depth: usize,
    mut latency: Option<&mut Histogram<u64>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut numbers = numbers.peekable();
    let mut under_way: BTreeMap<Ticket, Flight> = BTreeMap::new();
    while numbers.peek().is_some() || !under_way.is_empty() {
        while under_way.len() < depth
            && let Some(word) = numbers.next()
        {
            let key = words.get(word).key;
            let buf = client.buffer(0);
            let op = match method {
                Method::Reads => table.first_read(key, buf),
                Method::Traversals => table.find_op(key, buf),
            };
            let ticket = client.submit(op)?;
            tally.requests += u64::from(method == Method::Reads);
            under_way.insert(ticket, Flight { word, begin: Instant::now() });
        }
        let Some(completed) = client.next_completed()? else { continue };
        let Some(flight) = under_way.remove(&completed.ticket) else { continue };
        let Some(found) = settle(client, words, method, &mut tally, &mut under_way, &flight, completed)?
        else {
            continue; // another READ is under way for it
        };
        if let Some(latency) = &mut latency {
            latency.saturating_record(u64::try_from(flight.begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        tally.lookups += 1;
        tally.wrong += u64::from(found != Some(words.get(flight.word).value));
        if tally.lookups % 1024 == 0 {
            progress(tally.lookups);
        }
    }
    Ok(tally)
}

/// Returns the result of a completed look-up: found or missing. Returns `None` while the look-up follows the
/// next pointer.
fn settle(
    client: &mut Client,
    words: &Words,
    method: Method,
    tally: &mut Tally,
    under_way: &mut BTreeMap<Ticket, Flight>,
    flight: &Flight,
    completed: Completed,
) -> Result<Option<Option<Value>>, Failure> {
    let answer = HashTable::found(&completed);
    let Completed { result, buf, .. } = completed;
    match (method, result?) {
        (Method::Traversals, Answer::Traversed(end)) => {
            tally.requests += u64::from(end.requests);
            tally.visited += u64::from(end.iterations);
            client.recycle(buf);
            Ok(Some(answer))
        }
        _ => {
            tally.visited += 1;
            match HashTable::step(words.get(flight.word).key, &buf) {
                Step::Found(value) => {
                    client.recycle(buf);
                    Ok(Some(Some(value)))
                }
                Step::Missing => {
                    client.recycle(buf);
                    Ok(Some(None))
                }
                Step::Next(addr) => {
                    let ticket = client.submit(HashTable::read_of(addr, buf))?;
                    tally.requests += 1;
                    under_way.insert(ticket, Flight { word: flight.word, begin: flight.begin });
                    Ok(None)
                }
            }
        }
    }
}
