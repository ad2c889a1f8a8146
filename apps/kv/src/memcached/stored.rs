//! Writes of items to the store.

use crate::command::execute::{check_room, run};
use crate::command::{Args, Context, item};
use crate::failure::Failure;
use crate::store::NewExpiry;
use crate::store::item::Head;
use farmem_protocols::commands::find;
use farmem_protocols::resp::{Protocol, Writer};

/// Seconds up to which a number is a duration. A larger one is a date, in seconds since 1970.
const LENGTH_MAX: i32 = 30 * 24 * 3600;
/// Returns when an item expires that is written with this time.
pub(super) fn ends(context: &Context<'_>, exptime: i32) -> NewExpiry {
    let now = context.store.now();
    match exptime {
        0 => NewExpiry::Never,
        ..0 => NewExpiry::At(now - 1),
        1..=LENGTH_MAX => NewExpiry::At(now + i64::from(exptime) * 1000),
        _ => NewExpiry::At(i64::from(exptime) * 1000),
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
    ends: NewExpiry,
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
    ends: NewExpiry,
    data: &[u8],
) -> Result<(), Failure> {
    let meta = item::meta(head, ends);
    change(context, &[b"farmem.item", key, &meta, data])
}

/// Changes when an item expires.
pub(super) fn set_end(context: &mut Context<'_>, key: &[u8], ends: NewExpiry) -> Result<(), Failure> {
    match ends {
        NewExpiry::Keep => Ok(()),
        NewExpiry::Never => change(context, &[b"PERSIST", key]),
        NewExpiry::At(end) => change(context, &[b"PEXPIREAT", key, end.to_string().as_bytes()]),
    }
}
