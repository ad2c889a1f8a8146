//! Writes of items to the store.

use crate::command::execute::{check_room, run};
use crate::command::{Args, Context, item};
use crate::failure::Failure;
use crate::store::Ends;
use crate::store::item::Head;
use farmem_protocols::commands::find;
use farmem_protocols::resp::{Protocol, Writer};

/// Seconds up to which a number is a duration. A larger one is a date, in seconds since 1970.
const LENGTH_MAX: i32 = 30 * 24 * 3600;
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
    let meta = item::meta(head, ends);
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
