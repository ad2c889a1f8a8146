//! `farmem.item`: the command by which the append log has the items of memcached clients.

use super::{Args, CommandResult, Context};
use crate::failure::Failure;
use crate::store::NewExpiry;
use crate::store::item::Head;
use farmem_protocols::resp::Writer;

/// Special expiry times in the log.
const KEEP: i64 = i64::MIN;
const NEVER: i64 = i64::MAX;
/// Bytes of an item's entry in the log, besides key and data: the head, and the expiry time.
const META_LEN: usize = 13 + 8;

/// Returns the third word of the command: the head and the expiry time.
pub(crate) fn meta(head: Head, ends: NewExpiry) -> [u8; META_LEN] {
    let mut meta = [0; META_LEN];
    meta[..13].copy_from_slice(&head.emit());
    let end = match ends {
        NewExpiry::Keep => KEEP,
        NewExpiry::Never => NEVER,
        NewExpiry::At(end) => end.min(NEVER - 1),
    };
    meta[13..].copy_from_slice(&end.to_le_bytes());
    meta
}

/// Executes the command that writes an item: key, head and expiry time, data. Only the append log has it.
pub(super) fn item(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let wrong = Failure::text("ERR no item: the head of one has 21 bytes");
    let Some((head, end)) = Head::parse(args[2]) else { return Err(wrong) };
    let Ok(end) = end.try_into().map(i64::from_le_bytes) else { return Err(wrong) };
    let db = context.db();
    let ends = match end {
        KEEP => NewExpiry::Keep,
        NEVER => NewExpiry::Never,
        end => NewExpiry::At(end),
    };
    match ends {
        NewExpiry::At(end) if end <= context.store.now() => drop(context.store.remove(db, args[1])),
        ends => context.store.set_item(db, args[1], head, args[3], ends)?,
    }
    out.simple("OK");
    Ok(())
}
