//! The journal of a world: the digest of every event, the counts of notes, and, on request, trace lines.

use crate::Digest;
use farmem_machine::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Write as _};

/// The book of one world.
#[derive(Debug)]
pub struct Journal {
    digest: Digest,
    notes: BTreeMap<String, u64>,
    lines: Option<VecDeque<String>>,
    lines_max: usize,
    /// Buffer for the name of a note.
    name: String,
}

impl Journal {
    /// Returns an empty journal that keeps the last `lines_max` lines; 0 keeps none.
    #[must_use]
    pub fn new(lines_max: usize) -> Self {
        let lines = (lines_max > 0).then(VecDeque::new);
        Self { digest: Digest::default(), notes: BTreeMap::new(), lines, lines_max, name: String::new() }
    }

    /// Returns true if lines are kept: only then is formatting one worthwhile.
    #[must_use]
    pub const fn is_tracing(&self) -> bool {
        self.lines.is_some()
    }

    /// Writes a line, if lines are kept.
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            if lines.len() == self.lines_max {
                lines.pop_front();
            }
            lines.push_back(line());
        }
    }

    /// Takes the lines written since the last call.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(|lines| lines.drain(..).collect()).unwrap_or_default()
    }

    /// Counts a role's note under its kind and name, and adds it to the digest.
    pub fn note(&mut self, kind: &str, role_id: &dyn Debug, note: &dyn Debug) {
        self.name.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.name, "{note:?}");
        self.digest.bytes(self.name.as_bytes());
        if self.is_tracing() {
            let line = format!("  {role_id:?} notes {}", self.name);
            self.line(|| line);
        }
        let mark = mark(kind, &self.name);
        match self.notes.get_mut(&mark) {
            Some(count) => *count += 1,
            None => {
                self.notes.insert(mark, 1);
            }
        }
    }

    /// Adds an event to the digest.
    pub fn event(&mut self, now: Instant, what: u64, bytes: &[u8]) {
        self.digest.number(now.as_nanos());
        self.digest.number(what);
        self.digest.bytes(bytes);
    }

    /// Returns the digest so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Returns the counts of notes, by `kind.Variant(Inner)` without fields.
    #[must_use]
    pub const fn notes(&self) -> &BTreeMap<String, u64> {
        &self.notes
    }
}

/// Returns a note's name without fields: `Forwarded { node: NodeId(2) }` is `switch.Forwarded`,
/// `Rc(Dropped(AfterGap))` is unchanged.
fn mark(kind: &str, name: &str) -> String {
    let plain = name
        .split('{')
        .next()
        .unwrap_or(name)
        .trim_end()
        .trim_end_matches(|c: char| c.is_ascii_digit() || c == ')');
    let plain = plain.trim_end_matches('(');
    let open = plain.matches('(').count() - plain.matches(')').count();
    format!("{kind}.{plain}{}", ")".repeat(open))
}

#[cfg(test)]
mod tests {
    use super::{Journal, mark};

    /// Notes are counted by kind of event, not by role or object.
    #[test]
    fn fields_are_left_out_of_marks() {
        assert_eq!(mark("switch", "Forwarded { node: NodeId(2) }"), "switch.Forwarded");
        assert_eq!(mark("host", "Rc(Dropped(AfterGap))"), "host.Rc(Dropped(AfterGap))");
        assert_eq!(
            mark("host", "Malformed(Short { what: \"BTH\", need: 12, have: 3 })"),
            "host.Malformed(Short)"
        );
    }

    /// Only the last lines are kept, and none without a trace.
    #[test]
    fn lines_are_bounded() {
        let mut journal = Journal::new(2);
        for n in 0..5 {
            journal.line(|| n.to_string());
        }
        assert_eq!(journal.take_lines(), ["3", "4"]);
        let mut silent = Journal::new(0);
        silent.line(|| unreachable!("lines are not wanted"));
        assert!(silent.take_lines().is_empty());
    }
}
