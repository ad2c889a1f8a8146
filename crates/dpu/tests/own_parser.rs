//! A custom parser, from the protocol to the tests: the example of docs/prefetching.md.
//!
//! The protocol: lines `R <key>`, `W <key> <value>`, `D <key>`.

use farmem_dpu::parse::kit::{Example, conforms};
use farmem_dpu::parse::{Access, Broken, Op, Parser};

/// Maximum number of needed bytes of a line: the letter, the space and a key.
const LINE_LEN_MAX: usize = 200;

#[derive(Default)]
struct Lines {
    /// The buffered and needed part of the line.
    line: Vec<u8>,
    /// True if the key is complete and the rest of the line is a value.
    in_value: bool,
}

impl Lines {
    fn say(&self, each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        let op = match self.line.first() {
            Some(b'R') => Op::Read,
            Some(b'W') => Op::Write,
            Some(b'D') => Op::Delete,
            _ => return Err(Broken { reason: "a line begins with R, W or D" }),
        };
        let key = self.line.strip_prefix(&[self.line[0], b' '][..]).filter(|key| !key.is_empty());
        each(Access { key: key.ok_or(Broken { reason: "a letter, a space, and a key" })?, op });
        Ok(())
    }
}

impl Parser for Lines {
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    if !self.in_value {
                        self.say(each)?;
                    }
                    *self = Self::default();
                }
                // A value of any length is skipped.
                _ if self.in_value => {}
                b' ' if self.line.len() > 1 => {
                    self.say(each)?;
                    self.in_value = true;
                }
                _ if self.line.len() == LINE_LEN_MAX => {
                    return Err(Broken { reason: "a key has at most 198 bytes" });
                }
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn lost(&mut self, _: u64) -> bool {
        // The end of the line may be among the lost bytes.
        false
    }

    fn kept(&self) -> usize {
        self.line.capacity()
    }
}

#[test]
fn it_conforms() {
    let examples = [
        Example::of(b"R key\n", &[(b"key", Op::Read)]),
        Example::of(b"W k a value of words\n", &[(b"k", Op::Write)]),
        Example::of(b"D k\nR other\n", &[(b"k", Op::Delete), (b"other", Op::Read)]),
    ];
    conforms(Lines::default, &examples);
}
