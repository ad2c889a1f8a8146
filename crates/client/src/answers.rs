//! Answers of the control plane: conversion to their types, and parsing of addresses.

use crate::error::Error;
use farmem_control::api::{Call, Request, Response};
use farmem_wire::Gid;

/// Sends `call` through `ask` and returns the answer in its type.
///
/// # Errors
/// The errors of `ask`; [`Error::Api`] if the answer belongs to another request.
pub(crate) fn answer_to<C: Call>(
    call: C,
    ask: impl FnOnce(Request) -> Result<Response, Error>,
) -> Result<C::Answer, Error> {
    let request = call.into();
    let name = request.name();
    C::Answer::try_from(ask(request)?).map_err(|_| wrong_answer(name))
}

/// Returns the error for an answer that does not belong to the request `op`.
#[must_use]
pub fn wrong_answer(op: &str) -> Error {
    Error::Api { message: format!("this version does not understand the control plane's answer to {op}") }
}

/// Parses the address that the control plane gave for a host or node.
///
/// # Errors
/// [`Error::Api`] if the text is not an address.
pub fn gid(text: &str) -> Result<Gid, Error> {
    let address: std::net::IpAddr = text.parse().map_err(|_| Error::Api {
        message: format!("the control plane's answer has the invalid address {text:?}"),
    })?;
    Ok(farmem_link::gid_of(address))
}
