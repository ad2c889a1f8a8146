//! The flags of meta commands: letters, some with a value behind them.

use super::reply::BAD_LINE;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use farmem_protocols::memcached::{short, signed, unsigned};
use std::borrow::Cow;

/// Words of a meta command at most.
const WORDS_MAX: usize = 18;
/// Bytes of an opaque value, with its letter.
const OPAQUE_LEN_MAX: usize = 32;

/// The parsed flags of a request.
#[derive(Debug)]
pub(super) struct Flags<'a> {
    /// The words themselves: replies are in their order.
    pub(super) words: &'a [&'a [u8]],
    pub(super) key: Cow<'a, [u8]>,
    /// The key came in base64.
    pub(super) binary: bool,
    pub(super) value: bool,
    pub(super) quiet: bool,
    /// The request does not count as a use.
    pub(super) no_update: bool,
    /// A missing item is made, with this time.
    pub(super) vivify: Option<i32>,
    pub(super) ttl: Option<i32>,
    /// A client that finds less time left must write the item again.
    pub(super) recache: Option<i32>,
    pub(super) client_flags: u32,
    pub(super) cas: Option<u64>,
    pub(super) mode: Option<u8>,
    pub(super) initial: u64,
    pub(super) delta: u64,
    pub(super) stale: bool,
}

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

impl<'a> Flags<'a> {
    /// Parses the flags of a request of this key.
    ///
    /// # Errors
    ///
    /// The text for the client.
    pub(super) fn read(key: &'a [u8], words: &'a [&'a [u8]]) -> Result<Self, &'static str> {
        let mut flags = Self {
            words,
            key: Cow::Borrowed(key),
            binary: false,
            value: false,
            quiet: false,
            no_update: false,
            vivify: None,
            ttl: None,
            recache: None,
            client_flags: 0,
            cas: None,
            mode: None,
            initial: 0,
            delta: 1,
            stale: false,
        };
        let (mut seen, mut wrong) = (0_u128, None);
        for word in words {
            let letter = word[0];
            if letter >= 127 || seen & 1 << letter != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << letter;
            if let Err(text) = flags.note(letter, &word[1..])? {
                wrong = Some(text);
            }
        }
        wrong.map_or(Ok(flags), Err)
    }

    /// Notes one flag. The outer error ends the parsing; the inner one is reported at its end.
    fn note(&mut self, letter: u8, rest: &[u8]) -> Result<Result<(), &'static str>, &'static str> {
        let switch = match letter {
            b'v' => &mut self.value,
            b'u' => &mut self.no_update,
            b'q' => &mut self.quiet,
            b'I' => &mut self.stale,
            _ => return self.note_value(letter, rest),
        };
        *switch = true;
        Ok(Ok(()))
    }

    /// Notes a flag, which may have a value behind its letter.
    fn note_value(&mut self, letter: u8, rest: &[u8]) -> Result<Result<(), &'static str>, &'static str> {
        let time = || signed(rest).ok_or(BAD_TOKEN);
        let number = |text| unsigned(rest).ok_or(text);
        Ok(match letter {
            b'b' => match STANDARD.decode(&*self.key) {
                Ok(key) if !key.is_empty() => {
                    (self.key, self.binary) = (Cow::Owned(key), true);
                    Ok(())
                }
                _ => Err("CLIENT_ERROR error decoding key"),
            },
            b'N' => time().map(|time| self.vivify = Some(time)),
            b'T' => time().map(|time| self.ttl = Some(time)),
            b'R' => time().map(|time| self.recache = Some(time)),
            b'F' => short(rest).ok_or(BAD_LINE).map(|flags| self.client_flags = flags),
            b'C' => number(BAD_TOKEN).map(|cas| self.cas = Some(cas)),
            b'J' => {
                number("CLIENT_ERROR invalid numeric initial value").map(|initial| self.initial = initial)
            }
            b'D' => number("CLIENT_ERROR invalid numeric delta value").map(|delta| self.delta = delta),
            b'M' => match rest {
                &[mode] => {
                    self.mode = Some(mode);
                    Ok(())
                }
                _ => Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => Ok(()),
            _ => return Err("CLIENT_ERROR invalid flag"),
        })
    }

    /// Returns whether a flag has this letter.
    pub(super) fn has(&self, letter: u8) -> bool {
        self.words.iter().any(|word| word[0] == letter)
    }

    /// Returns whether a word that the reply repeats is too long.
    pub(super) fn has_long_opaque(&self) -> bool {
        self.words.iter().any(|word| word[0] == b'O' && word.len() > OPAQUE_LEN_MAX)
    }

    /// Appends the key in the client's form. A key that is not a word goes in base64, whatever form it had in the
    /// request.
    pub(super) fn say_key(&self, was_binary: bool, out: &mut Vec<u8>) {
        if was_binary || !is_word(&self.key) {
            out.extend_from_slice(STANDARD.encode(&*self.key).as_bytes());
            out.extend_from_slice(b" b");
        } else {
            out.extend_from_slice(&self.key);
        }
    }
}

/// Returns whether a key can stand in a line.
fn is_word(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte > b' ' && byte != 127)
}

/// Returns whether there are more words than a meta command has.
pub(super) const fn too_many(words: usize) -> bool {
    words > WORDS_MAX + 1
}
