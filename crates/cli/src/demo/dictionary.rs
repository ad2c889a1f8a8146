//! Words of the demo and their values.

use crate::outcome::Failure;
use crate::output;
use farmem::hash_table::{Key, VALUE_LEN, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// Path of the word list in Debian's wamerican-insane.
const DICTIONARY: &str = "/usr/share/dict/american-english-insane";
/// Source of generated words.
const GENERATED_LIST: &str = "a generated list";
/// Number of words in the generated list, close to the number in the dictionary.
const GENERATED: u64 = 663_000;

/// Key of a word, and the expected value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Value,
}

/// Distinct words.
#[derive(Debug)]
pub(crate) struct Words {
    source: String,
    entries: Vec<Entry>,
}

impl Words {
    /// Reads `file` or the dictionary. Without either, prints a note and generates a list.
    pub(crate) fn read(file: Option<&Path>, limit: Option<u64>) -> Result<Self, Failure> {
        let limit = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let path = file.unwrap_or_else(|| Path::new(DICTIONARY));
        let (source, text) = match std::fs::read(path) {
            Ok(bytes) => (path.display().to_string(), bytes),
            Err(error) if file.is_some() => {
                let message = format!("cannot read {}: {error}", path.display());
                return Err(Failure::environment(message, "name a file with one word per line"));
            }
            Err(_) => {
                output::note(&format!(
                    "note: {DICTIONARY} is absent, words are generated; `make setup` installs wamerican-insane"
                ));
                (GENERATED_LIST.to_owned(), generated())
            }
        };
        let words = Self::of(source, &text, limit);
        if words.entries.is_empty() {
            return Err(Failure::environment(
                format!("{} holds no word", words.source),
                "name a file with one word per line",
            ));
        }
        Ok(words)
    }

    /// Generates this many words.
    pub(crate) fn generate(count: usize) -> Self {
        Self::of(GENERATED_LIST.to_owned(), &generated(), count)
    }

    fn of(source: String, text: &[u8], limit: usize) -> Self {
        let mut seen = BTreeSet::new();
        let words = text.split(|&b| b == b'\n').filter(|w| !w.is_empty() && seen.insert(*w)).take(limit);
        Self { source, entries: words.zip(1..).map(|(word, line)| entry(word, line)).collect() }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the keys and values to load.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        self.entries.iter().map(|e| (e.key, e.value))
    }

    /// Returns the numbers of every `stride`-th word.
    pub(crate) fn every(&self, stride: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.entries.len()).step_by(stride.max(1))
    }

    pub(crate) fn get(&self, number: usize) -> &Entry {
        &self.entries[number]
    }
}

/// Returns the value of a word: its line number, its length, and as many of its bytes as fit.
fn entry(word: &[u8], line: u64) -> Entry {
    let mut value = [0; VALUE_LEN];
    value[..8].copy_from_slice(&line.to_le_bytes());
    let kept = word.len().min(VALUE_LEN - 8);
    value[8..8 + kept].copy_from_slice(&word[..kept]);
    Entry { key: Key::of(word), value }
}

/// Returns a generated list of pronounceable words, always the same: each word spells the digits of a counter
/// as syllables.
fn generated() -> Vec<u8> {
    const SYLLABLES: [&str; 16] =
        ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va"];
    let mut text = Vec::new();
    for number in 0..GENERATED {
        let mut rest = number;
        loop {
            text.extend_from_slice(SYLLABLES[usize::try_from(rest % 16).unwrap_or_default()].as_bytes());
            rest /= 16;
            if rest == 0 {
                break;
            }
        }
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generated list is always the same and has as many distinct words as the dictionary.
    #[test]
    fn generated_words_are_words() {
        let text = generated();
        assert_eq!(text, generated());
        let words: BTreeSet<&[u8]> = text.split(|&b| b == b'\n').filter(|word| !word.is_empty()).collect();
        assert_eq!(words.len() as u64, GENERATED);
        assert!(words.iter().all(|word| word.len() % 2 == 0 && word.iter().all(u8::is_ascii_lowercase)));
    }

    /// A value contains the line number, and as much of the word as fits after it.
    #[test]
    fn a_value_knows_its_word() {
        let long = [b'x'; 100];
        for (word, kept) in [(&b"far"[..], &b"far"[..]), (&long, &long[..VALUE_LEN - 8]), (b"", b"")] {
            let Entry { key, value } = entry(word, 7);
            assert_eq!(key, Key::of(word));
            assert_eq!(value[..8], 7_u64.to_le_bytes());
            assert_eq!(&value[8..8 + kept.len()], kept);
            assert!(value[8 + kept.len()..].iter().all(|&byte| byte == 0));
        }
    }
}
