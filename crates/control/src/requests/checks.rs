//! Checks that several requests share: whether members, domains and vmas exist and answer.

use crate::api::{ApiError, ErrorCode};
use crate::errors::{LISTED, error, not_found};
use crate::rack::Rack;
use crate::record::{ChangeKind, Role, VmaRow};
use crate::updates::Reach;
use alloc::format;

impl Rack {
    pub(crate) fn in_flight(&self, kind: impl Fn(&ChangeKind) -> bool) -> usize {
        self.state.changes.values().filter(|change| kind(&change.what)).count()
    }

    /// Returns the vma that holds `addr`, if it belongs to the domain.
    pub(crate) fn owned(&self, domain: u32, addr: u64) -> Result<(u64, &VmaRow), ApiError> {
        let found = self.state.vma_at(addr).filter(|(_, vma)| vma.pending.is_none());
        let Some((base, vma)) = found else {
            return Err(not_found(
                format!("no vma holds {addr:#x}"),
                format!("it may have been freed; {LISTED}"),
            ));
        };
        if vma.domain != domain {
            let message = format!("the vma at {base:#x} does not belong to domain {domain}");
            return Err(error(ErrorCode::NotOwner, message, "ask as the domain that allocated it"));
        }
        Ok((base, vma))
    }

    pub(crate) fn domain_known(&self, domain: u32) -> Result<(), ApiError> {
        if self.state.domains.contains_key(&domain) {
            return Ok(());
        }
        Err(not_found(format!("there is no domain {domain}"), "make one with `create_domain`"))
    }

    pub(crate) fn host_present(&self, host: u16) -> Result<(), ApiError> {
        if self.state.hosts.get(&host).is_some_and(|row| row.present) {
            return Ok(());
        }
        Err(not_found(format!("there is no host {host}"), "join with `join_host`; its answer has the number"))
    }

    /// Refuses a request if the switch has not joined or cannot be updated.
    pub(crate) fn switch_joined(&self) -> Result<(), ApiError> {
        if self.state.switch.is_none() {
            return Err(self.state.unavailable(Role::Switch, "has not joined"));
        }
        self.switch_answers()
    }

    /// Refuses a request if the switch has joined but cannot be updated.
    pub(crate) fn switch_answers(&self) -> Result<(), ApiError> {
        match (&self.state.switch, self.state.reach(Role::Switch)) {
            (None, _) | (_, Some(Reach::Ready | Reach::Held)) => Ok(()),
            (_, Some(Reach::Silent)) => Err(self.state.unavailable(Role::Switch, "does not answer")),
            (_, None) => Err(self.state.unavailable(Role::Switch, "refused its tables and must join again")),
        }
    }

    pub(crate) fn node_answers(&self, node: u16) -> Result<(), ApiError> {
        if !self.state.nodes.contains_key(&node) {
            return Err(not_found(format!("there is no node {node}"), LISTED));
        }
        let role = Role::Node(node);
        match self.state.reach(role) {
            Some(Reach::Ready | Reach::Held) => Ok(()),
            Some(Reach::Silent) => Err(self.state.unavailable(role, "does not answer")),
            None => Err(self.state.unavailable(role, "must join again")),
        }
    }
}
