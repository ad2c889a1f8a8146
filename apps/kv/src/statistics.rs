//! The statistics of commands: calls and times (`INFO commandstats`), errors (`INFO errorstats`), slow moments
//! (`LATENCY`).
//!
//! Key type: [`Statistics`].

use farmem_protocols::commands::{Command, FAST, TABLE, number_of};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Buckets of a histogram of times: the first has calls of up to 1 µs, and each further one covers twice the time of
/// the one before.
const BUCKETS: usize = 32;
/// Kinds of errors that are counted, as in Redis.
const ERROR_KINDS_MAX: usize = 128;
/// Moments of one event that are kept.
const MOMENTS_MAX: usize = 160;

/// The calls of one command.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
    pub(crate) nanos: u64,
    /// Requests that were refused before the command ran.
    pub(crate) rejected: u64,
    /// Calls that ended with an error.
    pub(crate) failed: u64,
    buckets: [u32; BUCKETS],
}

impl Calls {
    /// Returns the upper bounds of the buckets in microseconds, from the first to the last used one. Each has the
    /// number of calls up to its bound.
    pub(crate) fn histogram(&self) -> Vec<(u64, u64)> {
        let last = self.buckets.iter().rposition(|&calls| calls > 0).unwrap_or(0);
        let mut sum = 0;
        let bounds = self.buckets[..=last].iter().enumerate().map(|(bucket, &calls)| {
            sum += u64::from(calls);
            (1 << bucket, sum)
        });
        bounds.filter(|&(_, sum)| sum > 0).collect()
    }

    /// Returns the time in microseconds that a part of the calls, in hundredths, did not exceed.
    pub(crate) fn percentile(&self, hundredths: f64) -> u64 {
        let histogram = self.histogram();
        let all = histogram.last().map_or(0, |(_, sum)| *sum) as f64;
        histogram
            .iter()
            .find(|(_, sum)| *sum as f64 * 100.0 >= all * hundredths)
            .map_or(0, |(bound, _)| *bound)
    }
}

/// The slow moments of one event.
#[derive(Clone, Default, Debug)]
pub(crate) struct Moments {
    /// Seconds since 1970, and milliseconds that it took.
    pub(crate) moments: VecDeque<(i64, u64)>,
    pub(crate) longest: u64,
}

/// The statistics of all commands.
#[derive(Debug)]
pub(crate) struct Statistics {
    commands: Vec<Calls>,
    /// Errors by the first word of their text.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) slow_moments: BTreeMap<&'static str, Moments>,
    /// The least time of a slow moment in milliseconds; 0 for none (`latency-monitor-threshold`).
    pub(crate) threshold: u64,
    /// Whether `INFO latencystats` has the times of commands (`latency-tracking`).
    pub(crate) tracks: bool,
    /// The parts of calls, in hundredths, whose times `INFO latencystats` has (`latency-tracking-info-percentiles`).
    pub(crate) percentiles: Vec<f64>,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            commands: vec![Calls::default(); TABLE.len()],
            errors: BTreeMap::new(),
            slow_moments: BTreeMap::new(),
            threshold: 0,
            tracks: true,
            percentiles: vec![50.0, 99.0, 99.9],
        }
    }
}

impl Statistics {
    /// Counts a call.
    pub(crate) fn called(&mut self, command: &'static Command, took: Duration, failed: bool, now: i64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let calls = &mut self.commands[number_of(command)];
        calls.calls += 1;
        calls.nanos += nanos;
        calls.failed += u64::from(failed);
        let micros = (nanos / 1000).max(1);
        let bucket = (u64::BITS - (micros - 1).leading_zeros()) as usize;
        let count = &mut calls.buckets[bucket.min(BUCKETS - 1)];
        *count = count.saturating_add(1);
        let millis = nanos / 1_000_000;
        if self.threshold > 0 && millis >= self.threshold {
            self.note_slow(if command.has(FAST) { "fast-command" } else { "command" }, now / 1000, millis);
        }
    }

    fn note_slow(&mut self, event: &'static str, at: i64, millis: u64) {
        let event = self.slow_moments.entry(event).or_default();
        event.longest = event.longest.max(millis);
        match event.moments.back_mut() {
            Some((last, longest)) if *last == at => *longest = (*longest).max(millis),
            _ => event.moments.push_back((at, millis)),
        }
        if event.moments.len() > MOMENTS_MAX {
            event.moments.pop_front();
        }
    }

    /// Counts a request that was refused before its command ran.
    pub(crate) fn rejected(&mut self, command: &'static Command) {
        self.commands[number_of(command)].rejected += 1;
    }

    /// Counts the error reply of a command that had no reply when it was called.
    pub(crate) fn failed(&mut self, command: &'static Command, text: &str) {
        self.commands[number_of(command)].failed += 1;
        self.error(text);
    }

    /// Counts an error reply.
    pub(crate) fn error(&mut self, text: &str) {
        let kind = text.split(' ').next().unwrap_or(text);
        if let Some(count) = self.errors.get_mut(kind) {
            *count += 1;
        } else if self.errors.len() < ERROR_KINDS_MAX {
            self.errors.insert(kind.to_owned(), 1);
        }
    }

    /// Returns the commands that clients have sent, with their statistics.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&'static Command, &Calls)> {
        let is_used = |(_, calls): &(&Command, &Calls)| calls.calls + calls.rejected > 0;
        TABLE.iter().zip(&self.commands).filter(is_used)
    }

    /// Forgets all calls and errors (`CONFIG RESETSTAT`).
    pub(crate) fn reset(&mut self) {
        self.commands.fill(Calls::default());
        self.errors.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocols::commands::find;

    /// Three calls: the histogram has each bound up to the longest call's, with all calls up to it.
    #[test]
    fn a_histogram_counts_up() {
        let (mut statistics, get) = (Statistics::default(), find(b"get").unwrap());
        for micros in [1, 3, 100] {
            statistics.called(get, Duration::from_micros(micros), micros == 100, 5_000);
        }
        statistics.rejected(get);
        let (command, calls) = statistics.used().next().unwrap();
        assert_eq!((command.name, calls.calls, calls.failed, calls.rejected), ("get", 3, 1, 1));
        let histogram = calls.histogram();
        assert_eq!((histogram[0], histogram[1], histogram[2]), ((1, 1), (2, 1), (4, 2)));
        assert_eq!(histogram.last(), Some(&(128, 3)));
        assert_eq!((calls.percentile(50.0), calls.percentile(99.9)), (4, 128));
    }
}
