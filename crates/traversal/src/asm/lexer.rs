//! The tokens of one line of text, and a cursor over them.

use super::{AssembleError, Location, register};
use crate::isa::Reg;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token<'t> {
    /// A mnemonic, register, area, label or defined name.
    Name(&'t str),
    /// A name with a dot in front, dot included.
    Directive(&'t str),
    Number(i128),
    /// `,` `:` `[` `]` `+` `-` `*`
    Mark(char),
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) | Self::Directive(name) => write!(f, "`{name}`"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Mark(mark) => write!(f, "`{mark}`"),
            Self::End => f.write_str("the end of the line"),
        }
    }
}

/// The tokens of one line, each with its column. Behind the last one the cursor returns [`Token::End`] any
/// number of times.
pub(super) struct Cursor<'t> {
    line: usize,
    tokens: Vec<(Token<'t>, usize)>,
    at: usize,
    end_column: usize,
}

impl<'t> Cursor<'t> {
    /// Splits a line; a `;` starts a comment.
    pub(super) fn read(line: usize, text: &'t str) -> Result<Self, AssembleError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        let mut column = 1;
        while let Some(first) = rest.chars().next().filter(|c| *c != ';') {
            let location = Location { line, column };
            let len = match first {
                c if c.is_whitespace() => c.len_utf8(),
                ',' | ':' | '[' | ']' | '+' | '-' | '*' => {
                    tokens.push((Token::Mark(first), column));
                    1
                }
                '.' => {
                    let len = 1 + word_len(&rest[1..]);
                    tokens.push((Token::Directive(&rest[..len]), column));
                    len
                }
                c if is_word(c) => {
                    let len = word_len(rest);
                    tokens.push((word(&rest[..len], location)?, column));
                    len
                }
                c => return Err(location.error(format!("`{c}` has no meaning here"))),
            };
            let (taken, behind) = rest.split_at(len);
            column += taken.chars().count();
            rest = behind;
        }
        Ok(Self { line, tokens, at: 0, end_column: column })
    }

    /// Returns the location of the next token.
    pub(super) fn location(&self) -> Location {
        let column = self.tokens.get(self.at).map_or(self.end_column, |(_, column)| *column);
        Location { line: self.line, column }
    }

    pub(super) fn peek(&self) -> Token<'t> {
        self.tokens.get(self.at).map_or(Token::End, |(token, _)| *token)
    }

    pub(super) fn next(&mut self) -> Token<'t> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Takes `name :` if it comes next.
    pub(super) fn label(&mut self) -> Option<(&'t str, Location)> {
        let location = self.location();
        let (Token::Name(name), Some((Token::Mark(':'), _))) = (self.peek(), self.tokens.get(self.at + 1))
        else {
            return None;
        };
        self.at += 2;
        Some((name, location))
    }

    pub(super) fn try_register(&mut self) -> Option<Reg> {
        let Token::Name(name) = self.peek() else { return None };
        let reg = register(name)?;
        self.at += 1;
        Some(reg)
    }

    pub(super) fn register(&mut self) -> Result<Reg, AssembleError> {
        let (location, found) = (self.location(), self.peek());
        self.try_register()
            .ok_or_else(|| location.error(format!("expected a register, r0 to r10, found {found}")))
    }

    /// Takes the label of a jump.
    pub(super) fn target(&mut self) -> Result<(&'t str, Location), AssembleError> {
        let location = self.location();
        match self.next() {
            Token::Name(name) => Ok((name, location)),
            other => Err(location.error(format!("expected a label, found {other}"))),
        }
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<(), AssembleError> {
        let location = self.location();
        match self.next() {
            Token::Mark(found) if found == mark => Ok(()),
            other => Err(location.error(format!("expected `{mark}`, found {other}"))),
        }
    }

    pub(super) fn expect_end(&mut self) -> Result<(), AssembleError> {
        match self.peek() {
            Token::End => Ok(()),
            other => Err(self.location().error(format!("expected the end of the line, found {other}"))),
        }
    }
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn word_len(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// Parses a name, or a number if it starts with a digit: decimal, `0x` or `0b`, with `_` as a separator.
fn word(text: &str, location: Location) -> Result<Token<'_>, AssembleError> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Token::Name(text));
    }
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = text.strip_prefix("0b") {
        (binary, 2)
    } else {
        (text, 10)
    };
    let digits = digits.replace('_', "");
    let value = i128::from_str_radix(&digits, radix);
    value.map(Token::Number).map_err(|_| location.error(format!("`{text}` is not a number")))
}
