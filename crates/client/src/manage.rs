//! Management of a running rack: listing hosts, domains and allocations, and taking them back.

use crate::answers::answer_to;
use crate::config::RackConfig;
use crate::error::Error;
use crate::link::operator_client;
use farmem_control::api::{
    ErrorCode, Free, Leave, ListObjects, Overview, RackUsage, Request, Response, UnlinkObject, Usage, VmaUse,
};
use farmem_machine::Port;

/// Hosts, domains and allocations of a running rack.
///
/// # Errors
/// [`Error`] when its control plane does not answer.
pub fn usage(config: &RackConfig) -> Result<RackUsage, Error> {
    Ok(operator_client(config)?.call(Usage {})?)
}

/// Frees an allocation of any user: its addresses are refused from then on.
///
/// # Errors
/// [`Error::Refused`] when it is not there any more, or a switch that has to be told does not answer.
pub fn free(config: &RackConfig, vma: &VmaUse) -> Result<(), Error> {
    Ok(operator_client(config)?.call(Free { domain: vma.domain, base: vma.base, id: vma.id })?)
}

/// Takes the names of a domain's objects away; each is freed when no host has it open any more. Answers which they were.
///
/// # Errors
/// [`Error`] when the control plane does not answer.
pub fn unlink_objects(config: &RackConfig, domain: u32) -> Result<Vec<String>, Error> {
    let mut api = operator_client(config)?;
    let listed = api.call(ListObjects { domain: Some(domain) })?.objects;
    let names: Vec<String> = listed.into_iter().filter_map(|object| object.name).collect();
    for name in &names {
        api.call(UnlinkObject { domain, name: name.clone() })?;
    }
    Ok(names)
}

/// Takes a host in this generation out of the rack, with its sessions and connections and the hosts that act for it (PROTOCOL 8.9, 8.59).
///
/// # Errors
/// [`Error::Refused`] when no host of this number is in this generation.
pub fn take_out(config: &RackConfig, host: u16, generation: u16) -> Result<(), Error> {
    let mut api = operator_client(config)?;
    take_out_by(host, generation, |request| Ok(api.call(request)?))
}

/// Takes a memory node out of the rack that has no memory allocated.
///
/// # Errors
/// [`Error::Refused`] when there is no such node, or it has memory allocated.
pub fn take_node_out(config: &RackConfig, node: u16) -> Result<(), Error> {
    Ok(operator_client(config)?.call(Leave { port: Port::node(node).0, generation: None })?)
}

/// Takes a host out by way of `ask`, and those that act for it.
///
/// # Errors
/// Errors of `ask`; that the host is not there only after those that acted for it are out.
pub(crate) fn take_out_by(
    host: u16,
    generation: u16,
    mut ask: impl FnMut(Request) -> Result<Response, Error>,
) -> Result<(), Error> {
    let leave = |host, generation| Leave { port: Port::host(host).0, generation: Some(generation) };
    let left = answer_to(leave(host, generation), &mut ask);
    match &left {
        Err(error) if error.code() != Some(ErrorCode::NotFound) => return left,
        _ => {}
    }
    // No host begins to act for a life that has ended, so all that do are there.
    let acting = answer_to(Overview {}, &mut ask)?.hosts.into_iter();
    for actor in acting.filter(|actor| actor.acts_for.contains(&(host, generation))) {
        match answer_to(leave(actor.host, actor.generation), &mut ask) {
            // The host left by itself, or another caller was faster.
            Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
            left => left?,
        }
    }
    left
}
