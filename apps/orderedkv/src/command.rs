//! The service's commands, under the names that Redis clients know, plus two for ranges.
//!
//! `GET`, `SET`, `DEL`, `EXISTS`, `MGET`, `MSET`, `STRLEN`, `PING`, `ECHO`, `INFO`, `COMMAND`, `QUIT` are
//! Redis's, without options. `HELLO` selects RESP2 or RESP3. Redis has no command for a range of its keys: its
//! `SCAN` is unordered, and `ZRANGEBYLEX` covers the members of one key. `RANGE first last [LIMIT n]` returns
//! alternating keys and values, and `KEYRANGE` the keys alone. As in `ZRANGEBYLEX`, `-` is before all keys and
//! `+` after them, and a range excludes a bound that follows `(`. A key that begins with one of `-`, `+`, `[`
//! and `(` is preceded by `[` or `(`.

use crate::store::{Pair, Store, StoreError};
use farmem::{Client, Error};
use farmem_protocols::resp::{Protocol, Reply, Writer};

/// Bound on the keys of a range, and the default of `LIMIT`.
pub const RANGE_MAX: usize = 10_000;
/// Approximate bound on the bytes of keys and values in one reply: a range ends there.
pub const REPLY_LEN_MAX: usize = 32 << 20;
/// Keys of a range looked up together.
const PIECE: usize = 256;

/// The counters of the service.
#[derive(Default, Debug)]
pub(crate) struct Done {
    /// Number of requests.
    pub(crate) commands: u64,
    /// Number of refused requests.
    pub(crate) refused: u64,
    /// The far-memory error of the newest failed request, until it is examined.
    pub(crate) far: Option<Error>,
}

/// Executes a request.
pub(crate) fn carry_out(store: &mut Store, client: &mut Client, done: &mut Done, args: &[&[u8]]) -> Reply {
    done.commands += 1;
    let reply = match args {
        [] => return Reply::Error("ERR a request has at least one word".into()),
        [name, args @ ..] => command(store, client, done, &name.to_ascii_uppercase(), args),
    };
    let reply = reply.unwrap_or_else(|error| match error {
        CommandError::Args(usage) => Reply::Error(format!("ERR wrong arguments; {usage}")),
        CommandError::Unknown => {
            let name = String::from_utf8_lossy(&args[0][..args[0].len().min(40)]).into_owned();
            Reply::Error(format!("ERR unknown command {name:?}; there are GET SET DEL EXISTS MGET MSET STRLEN RANGE KEYRANGE PING ECHO INFO HELLO QUIT"))
        }
        CommandError::Store(error) => {
            let remedy = error.remedy();
            let said = if remedy.is_empty() { format!("ERR {error}") } else { format!("ERR {error}; {remedy}") };
            if let StoreError::Far(error) = error {
                done.far = Some(error);
            }
            Reply::Error(said)
        }
    });
    done.refused += u64::from(matches!(reply, Reply::Error(_)));
    reply
}

/// Executes `HELLO` of connection `id`: the reply, and all later ones, have the requested protocol version.
pub(crate) fn hello(done: &mut Done, options: &[&[u8]], id: u64, into: &mut Writer<'_>) {
    done.commands += 1;
    let protocol = match options {
        [] => Ok(into.protocol()),
        [_, word, ..] if word.eq_ignore_ascii_case(b"AUTH") => {
            Err("ERR this service has no users and passwords; connect without them")
        }
        // A client's name has no use here.
        [version, rest @ ..] if matches!(rest, []) || is_name(rest) => match *version {
            b"2" => Ok(Protocol::Resp2),
            b"3" => Ok(Protocol::Resp3),
            // Clients know the first word.
            _ => Err("NOPROTO this service speaks protocol versions 2 and 3"),
        },
        _ => Err("ERR wrong arguments; HELLO [2|3 [SETNAME name]]"),
    };
    match protocol {
        Ok(protocol) => {
            into.set_protocol(protocol);
            into.hello("farmem", env!("CARGO_PKG_VERSION"), id);
        }
        Err(refusal) => {
            done.refused += 1;
            into.error(refusal);
        }
    }
}

/// Returns true for the option of `HELLO` that names the client.
const fn is_name(options: &[&[u8]]) -> bool {
    matches!(options, [word, _] if word.eq_ignore_ascii_case(b"SETNAME"))
}

enum CommandError {
    /// The command's usage.
    Args(&'static str),
    Unknown,
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

fn command(
    store: &mut Store,
    client: &mut Client,
    done: &Done,
    name: &[u8],
    args: &[&[u8]],
) -> Result<Reply, CommandError> {
    let bulk = |value: Option<Vec<u8>>| value.map_or(Reply::Nil, Reply::Bulk);
    match (name, args) {
        (b"PING", []) => Ok(Reply::Simple("PONG")),
        (b"PING" | b"ECHO", [text]) => Ok(Reply::Bulk(text.to_vec())),
        (b"PING" | b"ECHO", _) => Err(CommandError::Args("PING [text], ECHO text")),
        (b"GET", [key]) => Ok(bulk(store.get(client, key)?)),
        (b"GET", _) => Err(CommandError::Args("GET key")),
        (b"STRLEN", [key]) => {
            Ok(Reply::Integer(count(store.get(client, key)?.map_or(0, |value| value.len()))))
        }
        (b"STRLEN", _) => Err(CommandError::Args("STRLEN key")),
        (b"SET", [key, value]) => {
            store.set(client, key, value)?;
            Ok(Reply::Simple("OK"))
        }
        (b"SET", _) => Err(CommandError::Args("SET key value: options are none")),
        (b"MSET", [_, _, ..]) if args.len().is_multiple_of(2) => {
            args.chunks(2).try_for_each(|pair| store.set(client, pair[0], pair[1]).map(drop))?;
            Ok(Reply::Simple("OK"))
        }
        (b"MSET", _) => Err(CommandError::Args("MSET key value [key value ...]")),
        (b"MGET", [_, ..]) => {
            let values: Result<Vec<Reply>, StoreError> =
                args.iter().map(|key| Ok(bulk(store.get(client, key)?))).collect();
            Ok(Reply::Array(values?))
        }
        (b"MGET", _) => Err(CommandError::Args("MGET key [key ...]")),
        (b"DEL", [_, ..]) => {
            let removed: Result<Vec<bool>, StoreError> =
                args.iter().map(|key| store.remove(client, key)).collect();
            Ok(Reply::Integer(count(removed?.into_iter().filter(|was| *was).count())))
        }
        (b"DEL", _) => Err(CommandError::Args("DEL key [key ...]")),
        (b"EXISTS", [_, ..]) => {
            let found: Result<Vec<bool>, StoreError> =
                args.iter().map(|key| Ok(store.get(client, key)?.is_some())).collect();
            Ok(Reply::Integer(count(found?.into_iter().filter(|is| *is).count())))
        }
        (b"EXISTS", _) => Err(CommandError::Args("EXISTS key [key ...]")),
        (b"RANGE", _) => range(store, client, args, true),
        (b"KEYRANGE", _) => range(store, client, args, false),
        (b"INFO", _) => Ok(Reply::Bulk(info(store, client, done).into_bytes())),
        // Clients send these at the start; an empty reply suffices.
        (b"COMMAND", _) => Ok(Reply::Array(Vec::new())),
        (b"CLIENT", [word, ..])
            if [&b"SETNAME"[..], b"SETINFO"].iter().any(|name| word.eq_ignore_ascii_case(name)) =>
        {
            Ok(Reply::Simple("OK"))
        }
        _ => Err(CommandError::Unknown),
    }
}

/// The usage of ranges.
const RANGE_USAGE: &str = "RANGE first last [LIMIT n] with n of 1 to 10000, - for the first of all keys, + for the last, ( in front of a key to exclude it, [ in front of a key that begins with -, +, [ or (";

fn range(
    store: &mut Store,
    client: &mut Client,
    args: &[&[u8]],
    with_values: bool,
) -> Result<Reply, CommandError> {
    let (first, last, limit) = match args {
        [first, last] => (first, last, RANGE_MAX),
        [first, last, word, limit] if word.eq_ignore_ascii_case(b"LIMIT") => {
            let limit = std::str::from_utf8(limit).ok().and_then(|text| text.parse().ok());
            let limit = limit.filter(|limit| (1..=RANGE_MAX).contains(limit));
            (first, last, limit.ok_or(CommandError::Args(RANGE_USAGE))?)
        }
        _ => return Err(CommandError::Args(RANGE_USAGE)),
    };
    // For a range that starts at `+` or ends at `-`, no key can be inside.
    if *first == b"+" || *last == b"-" {
        return Ok(Reply::Array(Vec::new()));
    }
    let bound = |text: &[u8], open: &[u8]| {
        let key = text.strip_prefix(b"[").or_else(|| text.strip_prefix(b"(")).unwrap_or(text);
        (text != open).then(|| key.to_vec())
    };
    // A key that the range excludes, as the store returns it.
    let excluded = |text: &[u8]| -> Result<Option<Vec<u8>>, StoreError> {
        Ok(text.strip_prefix(b"(").map(|key| store.kind().canonical(key)).transpose()?)
    };
    let (mut before, end) = (excluded(first)?, excluded(last)?);
    let (mut from, to) = (bound(first, b"-"), bound(last, b"+"));
    let (mut replies, mut bytes, mut left) = (Vec::new(), 0, limit);
    // In pieces, because values are long and a reply is bounded. The last key of a piece is the first of the
    // next.
    while left > 0 && bytes < REPLY_LEN_MAX {
        let wanted = PIECE.min(left) + usize::from(before.is_some());
        let mut piece = store.range(client, from.as_deref(), to.as_deref(), wanted)?;
        let (is_last, next) = (piece.len() < wanted, piece.last().map(|(key, _)| key.clone()));
        // The last key of all is at the end of the last piece.
        piece.pop_if(|(key, _)| Some(&*key) == end.as_ref());
        for (key, value) in not_answered(piece, before.as_deref(), left) {
            bytes += key.len() + value.len();
            left -= 1;
            replies.push(Reply::Bulk(key));
            if with_values {
                replies.push(Reply::Bulk(value));
            }
        }
        if is_last {
            break;
        }
        (from, before) = (next.clone(), next);
    }
    Ok(Reply::Array(replies))
}

/// Returns at most `most` pairs of a piece, without the last key of the previous piece or the excluded first
/// one, which another program may have removed meanwhile.
fn not_answered(piece: Vec<Pair>, before: Option<&[u8]>, most: usize) -> impl Iterator<Item = Pair> {
    let was = usize::from(piece.first().is_some_and(|(key, _)| before == Some(key)));
    piece.into_iter().skip(was).take(most)
}

fn info(store: &Store, client: &Client, done: &Done) -> String {
    let tally = client.tally();
    let mut text = format!(
        "# Server\r\nfarmem_version:{}\r\n# Store\r\nkeys:{}\r\nfirst_tree:{:#x}\r\nlayers_known:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        store.kind().name(),
        store.first().tree().address().0,
        store.trees().count() - 1,
    );
    text += &format!(
        "# Stats\r\ntotal_commands_processed:{}\r\ncommands_refused:{}\r\nfar_requests:{}\r\nfar_visits:{}\r\n",
        done.commands, done.refused, tally.requests, tally.iterations
    );
    text
}

fn count(n: usize) -> i64 {
    i64::try_from(n).expect("fewer than memory has")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two pieces of a range, another program may or may not remove the key with which the first
    /// piece ended: no other key is skipped, and none appears twice.
    #[test]
    fn a_range_goes_on_behind_a_key_that_went() {
        let piece = |keys: &[&str]| keys.iter().map(|key| (key.as_bytes().to_vec(), Vec::new())).collect();
        let answered = |keys: &[&str], before: Option<&str>, most| {
            let pairs = not_answered(piece(keys), before.map(str::as_bytes), most);
            pairs.map(|(key, _)| String::from_utf8(key).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(answered(&["a", "b"], None, 9), ["a", "b"]);
        assert_eq!(answered(&["b", "c", "d"], Some("b"), 9), ["c", "d"]);
        assert_eq!(answered(&["c", "d"], Some("b"), 9), ["c", "d"], "b is not there any more");
        assert_eq!(answered(&["c", "d", "e"], Some("b"), 2), ["c", "d"], "no more than were asked for");
        assert!(answered(&[], Some("b"), 9).is_empty());
    }
}
