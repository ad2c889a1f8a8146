//! Commands: what they read and change, and how they parse their words.
//!
//! Key type: [`Context`], the state that a command reads and changes. `execute` is the path of every request;
//! `handlers` has the function of each command of the table ([`farmem_protocols::commands`]). The other files are
//! those functions. Names, arity and error texts are Redis's.

mod acl;
mod blocking;
mod client;
mod collections;
mod config;
pub(crate) mod execute;
pub(crate) mod handlers;
mod hashes;
mod info;
mod introspection;
pub(crate) mod item;
mod keys;
mod latency;
mod lcs;
mod lists;
mod long_double;
mod numbers;
pub(crate) mod ready;
mod rights;
pub(crate) mod server;
mod sets;
mod slowlog;
mod sort;
mod sorted;
mod sorted_ranges;
mod strings;
mod transactions;

use crate::failure::Failure;
use crate::session::Session;
use crate::store::Store;
use crate::world::World;
use farmem_protocols::resp::Writer;

/// The words of a request; the first one names the command.
pub(crate) type Args<'a> = &'a [&'a [u8]];
/// The outcome of a command. A command that fails has its reply written by the caller.
pub(crate) type CommandResult = Result<(), Failure>;
/// The function of a command.
pub(crate) type Handler = fn(&mut Context<'_>, Args<'_>, &mut Writer<'_>) -> CommandResult;

/// The state that a command reads and changes.
pub(crate) struct Context<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) session: &'a mut Session,
    pub(crate) world: &'a mut World,
    /// The function of each row of the table of commands. `EXEC` runs other commands by it.
    pub(crate) handlers: &'static [Handler],
    /// The request for the append log in place of the client's, if the client's request makes a random choice.
    pub(crate) logged_request: Option<Vec<Vec<u8>>>,
}

impl Context<'_> {
    pub(crate) const fn db(&self) -> u8 {
        self.session.db
    }

    /// Drops the open transaction and the watched keys of the client.
    pub(crate) fn abandon_transaction(&mut self) {
        self.session.queue = None;
        self.world.unwatch(self.store, self.session);
    }
}

/// Parses a whole number.
pub(crate) fn integer(arg: &[u8]) -> Result<i64, Failure> {
    farmem_protocols::resp::integer(arg).ok_or(Failure::NOT_INTEGER)
}

/// Parses a number with a fraction, as Redis does: without spaces, and not NaN.
pub(crate) fn float(arg: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(arg).ok()?;
    let number: f64 = match text.to_ascii_lowercase().as_str() {
        "inf" | "+inf" | "infinity" | "+infinity" => return Some(f64::INFINITY),
        "-inf" | "-infinity" => return Some(f64::NEG_INFINITY),
        other => other.parse().ok()?,
    };
    // Redis refuses a number that is too large for a double.
    number.is_finite().then_some(number)
}

/// Returns whether a word equals another, in upper or lower case.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Converts a count to the number of a reply.
pub(crate) fn count(n: usize) -> i64 {
    i64::try_from(n).expect("fewer than memory has")
}
