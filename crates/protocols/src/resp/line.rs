//! The words of a line, with Redis's quotes.

use alloc::vec::Vec;

/// An error: a quote is not closed, or not followed by a space.
pub(crate) struct Unbalanced;

/// Splits a line into words at white space outside quotes. In double quotes `\n`, `\r`, `\t`, `\a`, `\b`,
/// `\xHH` and an escaped character stand for a byte; in single quotes only `\'` does. Appends the words'
/// bytes to `text`, and reports each word's position there.
pub(crate) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    mut word: impl FnMut(usize, usize),
) -> Result<(), Unbalanced> {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&byte| is_space(byte)) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        let from = text.len();
        while let Some(&byte) = line.get(at) {
            at += 1;
            match byte {
                b'"' | b'\'' => {
                    at = quoted(line, at, byte, text)?;
                    break;
                }
                byte if is_space(byte) => break,
                byte => text.push(byte),
            }
        }
        word(from, text.len());
    }
}

/// Returns whether C's `isspace` accepts the character, or it ends a C string.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

/// Parses the text up to the closing `quote` from `at` on; returns where the line continues.
fn quoted(line: &[u8], mut at: usize, quote: u8, text: &mut Vec<u8>) -> Result<usize, Unbalanced> {
    loop {
        let byte = *line.get(at).ok_or(Unbalanced)?;
        at += 1;
        match (byte, line.get(at)) {
            (b'\\', Some(b'x')) if quote == b'"' && hex(line, at + 1).is_some() => {
                text.extend(hex(line, at + 1));
                at += 3;
            }
            (b'\\', Some(&escaped)) if quote == b'"' => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 1;
            }
            (b'\\', Some(b'\'')) if quote == b'\'' => {
                text.push(b'\'');
                at += 1;
            }
            (byte, next) if byte == quote => {
                return if next.is_none_or(|&next| is_space(next)) { Ok(at) } else { Err(Unbalanced) };
            }
            (byte, _) => text.push(byte),
        }
    }
}

fn hex(line: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| line.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let value = digit(at)? * 16 + digit(at + 1)?;
    u8::try_from(value).ok()
}
