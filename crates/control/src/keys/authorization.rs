//! Checks of the keys that a request shows, and the keys of answers (PROTOCOL 8.66 to 8.70).

use crate::api::{ApiError, ErrorCode, Request};
use crate::errors::error;
use crate::keys::key::Key;
use crate::keys::{KEYS_SHOWN_MAX, Kind, Owner, RequiredKey, wanted};
use crate::messages::Submitted;
use crate::rack::Rack;
use alloc::format;
use alloc::string::String;

impl Rack {
    /// Refuses a request without the needed keys.
    pub(crate) fn keys_fit(&self, ask: &Submitted) -> Result<(), ApiError> {
        let Some(secret) = self.config.secret.as_ref().filter(|_| !ask.shown.operator) else { return Ok(()) };
        for whose in wanted(&ask.request) {
            let shown = match self.owner(whose) {
                // Another check of the request reports what does not exist.
                Found::NoOwner => continue,
                Found::Operator => false,
                Found::Owner(owner) => {
                    let keys = ask.shown.keys.iter().take(KEYS_SHOWN_MAX);
                    // All keys are compared, so that timing does not reveal which one matched.
                    keys.fold(false, |found, &key| secret.is_of(owner, key) | found)
                }
            };
            if !shown {
                return Err(not_shown(&ask.request, whose));
            }
        }
        Ok(())
    }

    /// Returns the key for the answer to a join or creation.
    pub(crate) fn key(&self, kind: Kind, number: u32) -> Option<Key> {
        let secret = self.config.secret.as_ref()?;
        match self.owner(RequiredKey::Numbered(kind, number)) {
            Found::Owner(owner) => Some(secret.key(owner)),
            Found::NoOwner | Found::Operator => None,
        }
    }

    /// Returns the key of a domain, which may be about to be created.
    pub(crate) fn domain_key(&self, domain: u32) -> Option<Key> {
        Some(self.config.secret.as_ref()?.key(Owner { kind: Kind::Domain, number: domain, since: 0 }))
    }

    fn owner(&self, whose: RequiredKey<'_>) -> Found {
        let state = &self.state;
        let domain = |domain: u32| {
            let there = state.domains.contains_key(&domain);
            there.then_some(Owner { kind: Kind::Domain, number: domain, since: 0 })
        };
        let found = match whose {
            RequiredKey::Operator => return Found::Operator,
            RequiredKey::Numbered(Kind::Domain, number) => domain(number),
            RequiredKey::Numbered(kind, number) => {
                self.since(kind, number).map(|since| Owner { kind, number, since })
            }
            RequiredKey::Named(Kind::Domain, name) => {
                state.domains.iter().find(|(_, known)| *known == name).and_then(|(&number, _)| domain(number))
            }
            RequiredKey::Named(kind, name) => {
                let mut members = state.members().filter(|member| member.name == Some(name));
                let member =
                    members.find_map(|member| Kind::of(member.port.0).filter(|found| found.0 == kind));
                let found = member.and_then(|(_, number)| Some((number, self.since(kind, number)?)));
                found.map(|(number, since)| Owner { kind, number, since })
            }
            RequiredKey::Process(process) => state.processes.get(&process).and_then(|&of| domain(of)),
            RequiredKey::Object(object) => state.objects.get(&object).and_then(|row| domain(row.domain)),
            RequiredKey::Address(addr) => state.vma_at(addr).and_then(|(_, vma)| domain(vma.domain)),
        };
        found.map_or(Found::NoOwner, Found::Owner)
    }

    /// Returns the change that created a member, if it exists.
    fn since(&self, kind: Kind, number: u32) -> Option<u64> {
        let state = &self.state;
        let short = u16::try_from(number).ok()?;
        match kind {
            Kind::Switch => (state.switch_joined || state.switch.is_some()).then_some(0),
            Kind::Node => state.nodes.get(&short).map(|row| row.since),
            Kind::Index => state.index.get(&short).map(|row| row.since),
            Kind::Host => state.hosts.get(&short).filter(|row| row.present).map(|row| row.since),
            Kind::Domain => None,
        }
    }
}

/// The result of looking an owner up.
enum Found {
    Owner(Owner),
    NoOwner,
    Operator,
}

fn not_shown(request: &Request, whose: RequiredKey<'_>) -> ApiError {
    let what = match whose {
        RequiredKey::Numbered(Kind::Switch, _) => String::from("the switch"),
        RequiredKey::Numbered(kind, number) => format!("{} {number}", kind.text()),
        RequiredKey::Named(kind, name) => format!("{} {name}", kind.text()),
        RequiredKey::Process(process) => format!("the domain of process {process}"),
        RequiredKey::Object(object) => format!("the domain of object {object}"),
        RequiredKey::Address(addr) => format!("the domain of the allocation at {addr:#x}"),
        RequiredKey::Operator => {
            let message = format!("{} without a domain is for the operator", request.name());
            let remedy = "name a domain whose key you hold, or ask with the token in the file `operator` of the control plane's state directory";
            return error(ErrorCode::NotOwner, message, remedy);
        }
    };
    let message = format!("{} requires the key of {what}, which was not shown", request.name());
    let remedy = "ask with the key file of the user to whom the key was issued; use another name for a new member; or ask with the token in the file \
                  `operator` of the control plane's state directory";
    error(ErrorCode::NotOwner, message, remedy)
}
