//! `LATENCY`: the times of commands, and slow moments.

use super::{Args, CommandResult, Context, count, is};
use crate::failure::Failure;
use crate::statistics::{Moments, Statistics};
use farmem_protocols::commands::find;
use farmem_protocols::resp::Writer;

/// Writes a report about the slow moments for people.
fn report(statistics: &Statistics) -> String {
    if statistics.threshold == 0 {
        return "Slow moments are not watched for. Set latency-monitor-threshold to the milliseconds of a slow one.\n".into();
    }
    if statistics.slow_moments.is_empty() {
        return format!("No command took {} ms or more.\n", statistics.threshold);
    }
    let line = |(event, slow): (&&str, &Moments)| {
        let sum: u64 = slow.moments.iter().map(|(_, millis)| millis).sum();
        let len = slow.moments.len() as u64;
        format!(
            "{event}: {len} slow moments, {} ms on average, {} ms at most.\n",
            sum / len.max(1),
            slow.longest
        )
    };
    let lines: String = statistics.slow_moments.iter().map(line).collect();
    lines + "SLOWLOG GET shows the commands.\n"
}

pub(super) fn latency(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let statistics = &mut context.world.statistics;
    match args {
        [_, what] if is(what, "LATEST") => {
            out.array(statistics.slow_moments.len());
            for (event, slow) in &statistics.slow_moments {
                let &(at, millis) = slow.moments.back().expect("an event has a moment");
                out.array(4);
                out.bulk(event.as_bytes());
                [at, number(millis), number(slow.longest)].into_iter().for_each(|number| out.integer(number));
            }
        }
        [_, what] if is(what, "DOCTOR") => out.verbatim(*b"txt", report(statistics).as_bytes()),
        [_, what, event] if is(what, "HISTORY") => {
            let known = statistics.slow_moments.iter().find(|(name, _)| is(event, name));
            out.array(known.map_or(0, |(_, slow)| slow.moments.len()));
            for &(at, millis) in known.iter().flat_map(|(_, slow)| &slow.moments) {
                out.array(2);
                out.integer(at);
                out.integer(number(millis));
            }
        }
        [_, what, events @ ..] if is(what, "RESET") => {
            let before = statistics.slow_moments.len();
            statistics
                .slow_moments
                .retain(|name, _| !events.is_empty() && !events.iter().any(|event| is(event, name)));
            out.integer(count(before - statistics.slow_moments.len()));
        }
        [_, what, names @ ..] if is(what, "HISTOGRAM") => {
            let is_asked = |name: &str| {
                let is_of = |asked: &&[u8]| {
                    find(asked).is_some_and(|command| {
                        name == command.name || name.split('|').next() == Some(command.name)
                    })
                };
                names.is_empty() || names.iter().any(is_of)
            };
            let asked: Vec<_> = statistics
                .used()
                .filter(|(command, calls)| calls.calls > 0 && is_asked(command.name))
                .collect();
            out.map(asked.len());
            for (command, calls) in asked {
                out.bulk(command.name.as_bytes());
                out.map(2);
                out.bulk(b"calls");
                out.integer(number(calls.calls));
                out.bulk(b"histogram_usec");
                let histogram = calls.histogram();
                out.map(histogram.len());
                for (bound, calls) in histogram {
                    out.integer(number(bound));
                    out.integer(number(calls));
                }
            }
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}
