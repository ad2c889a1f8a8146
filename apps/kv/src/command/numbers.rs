//! Strings that are numbers.

use super::long_double::LongDouble;
use super::{Args, CommandResult, Context, integer};
use crate::failure::Failure;
use crate::store::NewExpiry;
use farmem_protocols::resp::Writer;

pub(super) fn add(context: &mut Context<'_>, key: &[u8], by: i64, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let old = context.store.string(db, key)?.map_or(Ok(0), integer)?;
    let new = old.checked_add(by).ok_or(Failure::OVERFLOW)?;
    // The record has room for every number, so that the next one is written in place.
    const DIGITS: usize = 20;
    context.store.set_with_room(db, key, new.to_string().as_bytes(), DIGITS, NewExpiry::Keep)?;
    out.integer(new);
    Ok(())
}

pub(super) fn incrby(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let by = integer(args[2])?;
    add(context, args[1], by, out)
}

pub(super) fn decrby(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let by = integer(args[2])?.checked_neg().ok_or(Failure::text("ERR decrement would overflow"))?;
    add(context, args[1], by, out)
}

/// Adds to a text's number, and returns the sum as a text without an exponent.
pub(super) fn sum(old: Option<&[u8]>, by: LongDouble, not_a_number: Failure) -> Result<String, Failure> {
    let old = old.map_or(Some(LongDouble::ZERO), LongDouble::parse).ok_or(not_a_number)?;
    let new = old.plus(by).ok_or(Failure::text("ERR increment would produce NaN or Infinity"))?;
    Ok(new.text())
}

pub(super) fn incrbyfloat(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let old = context.store.string(db, args[1])?;
    let by = LongDouble::parse(args[2]).ok_or(Failure::NOT_FLOAT)?;
    let new = sum(old, by, Failure::NOT_FLOAT)?;
    context.store.set_with_room(db, args[1], new.as_bytes(), new.len(), NewExpiry::Keep)?;
    out.bulk(new.as_bytes());
    Ok(())
}
