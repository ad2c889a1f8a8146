//! `SLOWLOG`: the slowest commands.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::slowlog::Entry;
use farmem_protocols::resp::Writer;

pub(super) fn slowlog(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let slow = &mut context.world.slow;
    match args {
        [_, what] if is(what, "LEN") => out.integer(count(slow.entries.len())),
        [_, what] if is(what, "RESET") => {
            slow.entries.clear();
            out.simple("OK");
        }
        [_, what, wanted @ ..] if is(what, "GET") && wanted.len() < 2 => {
            let wanted = wanted.first().map_or(Ok(10), |wanted| integer(wanted))?;
            if wanted < -1 {
                return Err(Failure::text("ERR count should be greater than or equal to -1"));
            }
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(slow.entries.len());
            out.array(wanted);
            slow.entries.iter().take(wanted).for_each(|entry| write_entry(entry, out));
        }
        _ => {
            let name = String::from_utf8_lossy(args[1]).into_owned();
            return Err(Failure::said(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try SLOWLOG HELP."
            )));
        }
    }
    Ok(())
}

fn write_entry(entry: &Entry, out: &mut Writer<'_>) {
    out.array(6);
    out.integer(i64::try_from(entry.id).unwrap_or(i64::MAX));
    out.integer(entry.at);
    out.integer(i64::try_from(entry.took.as_micros()).unwrap_or(i64::MAX));
    out.array(entry.words.len());
    entry.words.iter().for_each(|word| out.bulk(word));
    out.bulk(entry.address.as_bytes());
    out.bulk(entry.name.as_bytes());
}
