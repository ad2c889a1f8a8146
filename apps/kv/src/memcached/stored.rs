//! Items in the store: how they are written, and the command by which the append log has them.

use crate::command::{Args, CommandResult, Context, check_room, find, run};
use crate::failure::Failure;
use crate::store::{Ends, Head};
use farmem_resp::{Protocol, Writer};

/// Seconds up to which a number is a duration. A larger one is a date, in seconds since 1970.
const LENGTH_MAX: i32 = 30 * 24 * 3600;
/// Special expiry times in the log.
const KEEP: i64 = i64::MIN;
const NEVER: i64 = i64::MAX;
/// Bytes of an item's entry in the log, besides key and data: the head, and the expiry time.
const META_LEN: usize = 13 + 8;

/// Returns when an item expires that is written with this time.
pub(super) fn ends(context: &Context<'_>, exptime: i32) -> Ends {
    let now = context.store.now();
    match exptime {
        0 => Ends::Never,
        ..0 => Ends::At(now - 1),
        1..=LENGTH_MAX => Ends::At(now + i64::from(exptime) * 1000),
        _ => Ends::At(i64::from(exptime) * 1000),
    }
}

/// Runs a command that changes something, and drops its reply.
pub(super) fn change(context: &mut Context<'_>, args: Args<'_>) -> Result<(), Failure> {
    let command = find(args[0]).expect("the table has it");
    check_room(context, command.flags(), false)?;
    let mut unread = Vec::new();
    run(context, command, args, &mut Writer::new(&mut unread, Protocol::Resp2))
}

/// Writes an item under a new number, and returns the number.
pub(super) fn put(
    context: &mut Context<'_>,
    key: &[u8],
    (flags, marks): (u32, u8),
    ends: Ends,
    data: &[u8],
) -> Result<u64, Failure> {
    let head = Head { flags, cas: context.store.next_cas(), marks };
    write(context, key, head, ends, data)?;
    Ok(head.cas)
}

/// Writes an item whose number is known.
pub(super) fn write(
    context: &mut Context<'_>,
    key: &[u8],
    head: Head,
    ends: Ends,
    data: &[u8],
) -> Result<(), Failure> {
    let mut meta = [0; META_LEN];
    meta[..13].copy_from_slice(&head.emit());
    let end = match ends {
        Ends::Keep => KEEP,
        Ends::Never => NEVER,
        Ends::At(end) => end.min(NEVER - 1),
    };
    meta[13..].copy_from_slice(&end.to_le_bytes());
    change(context, &[b"farmem.item", key, &meta, data])
}

/// Changes when an item expires.
pub(super) fn set_end(context: &mut Context<'_>, key: &[u8], ends: Ends) -> Result<(), Failure> {
    match ends {
        Ends::Keep => Ok(()),
        Ends::Never => change(context, &[b"PERSIST", key]),
        Ends::At(end) => change(context, &[b"PEXPIREAT", key, end.to_string().as_bytes()]),
    }
}

/// The command that writes an item: key, head and expiry time, data. Only the append log has it.
pub(crate) fn item(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let wrong = Failure::text("ERR no item: the head of one has 21 bytes");
    let Some((head, end)) = Head::parse(args[2]) else { return Err(wrong) };
    let Ok(end) = end.try_into().map(i64::from_le_bytes) else { return Err(wrong) };
    let db = context.db();
    let ends = match end {
        KEEP => Ends::Keep,
        NEVER => Ends::Never,
        end => Ends::At(end),
    };
    match ends {
        Ends::At(end) if end <= context.store.now() => drop(context.store.remove(db, args[1])),
        ends => context.store.set_item(db, args[1], head, args[3], ends)?,
    }
    out.simple("OK");
    Ok(())
}
