//! The permissions of one domain in one vma, as disjoint spans.

use crate::api::PermName;
use crate::record::Span;
use alloc::vec::Vec;

/// Returns `spans` with `change` in place of what was there: ascending, disjoint, neighbours of one class
/// joined, without `None`.
pub(crate) fn overlay(spans: &[Span], change: Span) -> Vec<Span> {
    let (from, to) = (change.base, change.base + change.len);
    let mut all = Vec::with_capacity(spans.len() + 2);
    all.extend(spans.iter().filter_map(|span| cut(span, 0, from)));
    all.push(change);
    all.extend(spans.iter().filter_map(|span| cut(span, to, u64::MAX)));
    let mut joined: Vec<Span> = Vec::with_capacity(all.len());
    for span in all.into_iter().filter(|span| span.perm != PermName::None) {
        match joined.last_mut() {
            Some(last) if last.perm == span.perm && last.base + last.len == span.base => last.len += span.len,
            _ => joined.push(span),
        }
    }
    joined
}

/// Returns the permissions in `base..base + len`, with gaps as `None`, so that they can be restored.
pub(crate) fn slice(spans: &[Span], base: u64, len: u64) -> Vec<Span> {
    let end = base + len;
    let mut parts = Vec::new();
    let mut at = base;
    for part in spans.iter().filter_map(|span| cut(span, base, end)) {
        if at < part.base {
            parts.push(Span { base: at, len: part.base - at, perm: PermName::None });
        }
        at = part.base + part.len;
        parts.push(part);
    }
    if at < end {
        parts.push(Span { base: at, len: end - at, perm: PermName::None });
    }
    parts
}

/// Returns the part of `span` in `from..to`.
fn cut(span: &Span, from: u64, to: u64) -> Option<Span> {
    let base = span.base.max(from);
    let end = (span.base + span.len).min(to);
    (base < end).then(|| Span { base, len: end - base, perm: span.perm })
}

/// Returns true if the spans are ascending, disjoint, joined, not empty and inside `base..base + len`.
pub(crate) fn sound(spans: &[Span], base: u64, len: u64) -> bool {
    let inside = |span: &Span| {
        let end = span.base.checked_add(span.len);
        span.len > 0
            && span.perm != PermName::None
            && span.base >= base
            && end.is_some_and(|end| end <= base + len)
    };
    let apart = |pair: &[Span]| {
        let end = pair[0].base + pair[0].len;
        end < pair[1].base || (end == pair[1].base && pair[0].perm != pair[1].perm)
    };
    !spans.is_empty() && spans.iter().all(inside) && spans.windows(2).all(apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERMS: [PermName; 3] = [PermName::None, PermName::Read, PermName::ReadWrite];

    fn flat(spans: &[Span], base: u64, len: u64) -> Vec<PermName> {
        let at = |i: u64| {
            spans.iter().find(|s| s.base <= i && i < s.base + s.len).map_or(PermName::None, |s| s.perm)
        };
        (base..base + len).map(at).collect()
    }

    proptest! {
        /// Spans agree byte by byte with a plain array, and laying a slice over restores the earlier state.
        #[test]
        fn spans_are_an_array_of_permissions(steps in prop::collection::vec((0u64..48, 1u64..16, 0usize..3), 1..30)) {
            let mut model = alloc::vec![PermName::None; 64];
            let mut spans = Vec::new();
            for (base, len, perm) in steps {
                let change = Span { base, len, perm: PERMS[perm] };
                let before = slice(&spans, base, len);
                prop_assert_eq!(before.iter().map(|s| s.len).sum::<u64>(), len);
                let after = overlay(&spans, change);
                let back = before.iter().fold(after.clone(), |spans, &part| overlay(&spans, part));
                prop_assert_eq!(&back, &spans);
                model[usize::try_from(base).unwrap()..usize::try_from(base + len).unwrap()].fill(PERMS[perm]);
                spans = after;
                prop_assert_eq!(flat(&spans, 0, 64), model.clone());
                prop_assert!(spans.is_empty() || sound(&spans, 0, 64));
            }
        }
    }
}
