//! Text of a DPU's state: the deciding fields, in which numbers that only name things are replaced by their ranks.
//! Two states are equal if their texts are equal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The fields of a `Dpu` that decide its behaviour.
pub(crate) const DECIDES: &[&str] = &["objects", "table", "loading", "writing"];
/// The fields that do not, here: settings, chance with one slot, counts, times, and fields that the world
/// models itself.
pub(crate) const OVER: &[&str] = &[
    "config",
    "rng",
    "shadow",
    "fixed",
    "under_way",
    "copying",
    "storing",
    "loads",
    "next_op",
    "network",
    "intra",
    "budget",
    "switched",
    "stats",
];

/// Returns the fields of a struct in its `Debug` text.
pub(crate) fn fields(text: &str) -> BTreeMap<&str, &str> {
    let open = text.find('{').expect("a struct with fields") + 1;
    let inside = &text[open..text.rfind('}').expect("it ends")];
    let (mut depth, mut from, mut fields) = (0, 0, BTreeMap::new());
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                fields.extend(inside[from..at].trim().split_once(": "));
                from = at + 1;
            }
            _ => {}
        }
    }
    fields
}

/// Returns the leading digits of a text, and the rest.
pub(crate) fn number_at(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Replaces each number behind `key` by its rank among `live`, or by `None` if it has ended.
pub(crate) fn ranked(text: &str, key: &str, live: &[u64]) -> String {
    let mut parts = text.split(key);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = number_at(part);
        let rank = live.iter().position(|live| live.to_string() == number);
        write!(out, "{key}{rank:?}{rest}").unwrap();
    }
    out
}
