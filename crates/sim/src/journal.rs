//! What a world writes down: the digest of every event, how often each note was taken, and, when asked, lines for people.

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
    /// The note being named; kept for its memory.
    name: String,
}

impl Journal {
    /// An empty book that keeps the last `lines_max` lines; none when that is zero.
    #[must_use]
    pub fn new(lines_max: usize) -> Self {
        let lines = (lines_max > 0).then(VecDeque::new);
        Self { digest: Digest::default(), notes: BTreeMap::new(), lines, lines_max, name: String::new() }
    }

    /// True when lines are kept: only then is it worth making one.
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

    /// Takes the lines written since the last time.
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

    /// The digest so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// How often each note was taken, by `kind.Variant(Inner)`, fields left out.
    #[must_use]
    pub const fn notes(&self) -> &BTreeMap<String, u64> {
        &self.notes
    }
}

/// A note's name without its fields: `Forwarded { node: NodeId(2) }` is `switch.Forwarded`, `Rc(Dropped(AfterGap))` stays whole.
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

    /// Notes are counted by what happened, not by the role or object that it happened to.
    #[test]
    fn fields_are_left_out_of_marks() {
        assert_eq!(mark("switch", "Forwarded { node: NodeId(2) }"), "switch.Forwarded");
        assert_eq!(mark("host", "Rc(Dropped(AfterGap))"), "host.Rc(Dropped(AfterGap))");
        assert_eq!(
            mark("host", "Malformed(Short { what: \"BTH\", need: 12, have: 3 })"),
            "host.Malformed(Short)"
        );
    }

    /// Only the last lines are kept, and none when they are not wanted.
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
