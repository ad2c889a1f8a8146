//! Management of a running rack: listing and reclaiming hosts, domains and allocations.

use crate::answers::answer_to;
use crate::config::RackConfig;
use crate::error::Error;
use crate::link::operator_client;
use farmem_control::api::{
    ErrorCode, Free, Leave, ListObjects, Overview, RackUsage, Request, Response, UnlinkObject, Usage, VmaUse,
};
use farmem_machine::Port;

/// Returns the hosts, domains and allocations of a running rack.
///
/// # Errors
/// [`Error`] if the rack's control plane does not answer.
pub fn usage(config: &RackConfig) -> Result<RackUsage, Error> {
    Ok(operator_client(config)?.call(Usage {})?)
}

/// Frees an allocation of any user. Later accesses to its addresses fail.
///
/// # Errors
/// [`Error::Refused`] if the allocation does not exist any more, or if a switch that must be updated does not
/// answer.
pub fn free(config: &RackConfig, vma: &VmaUse) -> Result<(), Error> {
    Ok(operator_client(config)?.call(Free { domain: vma.domain, base: vma.base, id: vma.id })?)
}

/// Removes the names of a domain's objects, and returns these names. Each object is freed when the last host
/// closes it.
///
/// # Errors
/// [`Error`] if the control plane does not answer.
pub fn unlink_objects(config: &RackConfig, domain: u32) -> Result<Vec<String>, Error> {
    let mut api = operator_client(config)?;
    let listed = api.call(ListObjects { domain: Some(domain) })?.objects;
    let names: Vec<String> = listed.into_iter().filter_map(|object| object.name).collect();
    for name in &names {
        api.call(UnlinkObject { domain, name: name.clone() })?;
    }
    Ok(names)
}

/// Fences this generation of a host, with its sessions and connections and the hosts that act for it
/// (PROTOCOL 8.9, 8.59).
///
/// # Errors
/// [`Error::Refused`] if no host has this number and generation.
pub fn fence_host(config: &RackConfig, host: u16, generation: u16) -> Result<(), Error> {
    let mut api = operator_client(config)?;
    fence_host_by(host, generation, |request| Ok(api.call(request)?))
}

/// Removes a memory node without allocated memory from the rack.
///
/// # Errors
/// [`Error::Refused`] if the node does not exist or has allocated memory.
pub fn remove_node(config: &RackConfig, node: u16) -> Result<(), Error> {
    Ok(operator_client(config)?.call(Leave { port: Port::node(node).0, generation: None })?)
}

/// Fences a host and those that act for it, by requests through `ask`.
///
/// # Errors
/// The errors of `ask`. If the host does not exist, the error comes after those that acted for it were
/// fenced.
pub(crate) fn fence_host_by(
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
    // A host that has ended gets no new actors, so the overview shows all of them.
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
