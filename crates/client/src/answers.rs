//! Answers of the control plane, taken apart: by their type, and the addresses in them.

use crate::error::Error;
use farmem_control::api::{Call, Request, Response};
use farmem_wire::Gid;

/// Extracts the response to `call` from the one that `ask` gets.
///
/// # Errors
/// Errors of `ask`; [`Error::Api`] when the control plane answers another request than this.
pub(crate) fn answer_to<C: Call>(
    call: C,
    ask: impl FnOnce(Request) -> Result<Response, Error>,
) -> Result<C::Answer, Error> {
    let request = call.into();
    let name = request.name();
    C::Answer::try_from(ask(request)?).map_err(|_| wrong_answer(name))
}

/// The control plane answered something else than what was asked.
#[must_use]
pub fn wrong_answer(op: &str) -> Error {
    Error::Api { message: format!("the control plane's answer to {op} is not one this version understands") }
}

/// The address that the control plane gave for a host or node.
///
/// # Errors
/// [`Error::Api`] when it is none.
pub fn gid(text: &str) -> Result<Gid, Error> {
    let address: std::net::IpAddr = text
        .parse()
        .map_err(|_| Error::Api { message: format!("the control plane named {text:?} as an address") })?;
    Ok(farmem_link::gid_of(address))
}
