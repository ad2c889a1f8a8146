//! Error replies, with the codes that clients look for.

use std::borrow::Cow;

/// The error reply of a command.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The key has a value of another kind.
    WrongType,
    /// The whole text, which begins with the error code.
    Text(Cow<'static, str>),
}

impl Failure {
    pub(crate) const SYNTAX: Self = Self::text("ERR syntax error");
    pub(crate) const NOT_INTEGER: Self = Self::text("ERR value is not an integer or out of range");
    pub(crate) const NOT_FLOAT: Self = Self::text("ERR value is not a valid float");
    pub(crate) const OUT_OF_RANGE: Self = Self::text("ERR index out of range");
    pub(crate) const NO_KEY: Self = Self::text("ERR no such key");
    pub(crate) const OVERFLOW: Self = Self::text("ERR increment or decrement would overflow");
    pub(crate) const OUT_OF_MEMORY: Self =
        Self::text("OOM command not allowed when used memory > 'maxmemory'.");

    pub(crate) const fn text(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    pub(crate) fn said(text: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(text.into()))
    }

    /// Returns the error for far memory that does not answer or is lost.
    pub(crate) fn far(what: &str, error: &farmem::Error) -> Self {
        Self::said(format!(
            "FARMEMORY {what}: {error}; if its memory node is gone, write the key anew or delete it, drop all lost keys (DEBUG DROP-LOST), or restart this server: what is in --dir comes back"
        ))
    }

    /// Returns the text of the reply.
    pub(crate) fn reply(&self) -> &str {
        match self {
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::Text(text) => text,
        }
    }
}
