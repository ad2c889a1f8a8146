//! Which build of farmem each member is: what it said when it joined, kept in the log, so that builds that do not go together are told apart (PROTOCOL 8.71).
//!
//! A build is a text that means nothing here. A member that says none, as a card or who joins by hand, is not listed.

use crate::api::BuildUse;
use crate::record::{Line, What};
use crate::{Actions, Control};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;

/// Most characters of a build.
pub const BUILD_LEN_MAX: usize = 64;

/// Whether a text may be a build: letters, digits and `.+_-`, at least one and at most [`BUILD_LEN_MAX`] of them.
#[must_use]
pub fn is_build(text: &str) -> bool {
    let known = |letter: u8| letter.is_ascii_alphanumeric() || b".+_-".contains(&letter);
    (1..=BUILD_LEN_MAX).contains(&text.len()) && text.bytes().all(known)
}

/// Who joins by a change.
pub(crate) const fn joining(what: &What) -> Option<Port> {
    match what {
        What::JoinSwitch { .. } => Some(Port::SWITCH),
        What::JoinNode { node, .. } => Some(Port::node(*node)),
        What::JoinHost { host, .. } => Some(Port::host(*host)),
        What::JoinIndex { index, .. } => Some(Port::index(*index)),
        _ => None,
    }
}

impl Control {
    /// Keeps which build the member at a port is, if that is another one than before.
    pub(crate) fn joined_as(&mut self, port: Port, build: Option<String>, out: &mut Actions) {
        let build = build.filter(|build| is_build(build));
        if self.state.builds.get(&port) != build.as_ref() {
            // Where the log takes no lines now, nothing but this is not known.
            let _stalled = self.keep(Line::Build { port: port.0, build }, out);
        }
    }

    /// The builds there are, and who is of each.
    pub(crate) fn builds(&self) -> Vec<BuildUse> {
        let mut builds: BTreeMap<String, Vec<String>> = BTreeMap::new();
        if let Some(own) = &self.config.build {
            builds.entry(own.clone()).or_default().push("control plane".into());
        }
        for member in self.state.members() {
            let Some(build) = self.state.builds.get(&member.port) else { continue };
            let port = member.port;
            let kind = match (port.as_node(), port.as_index(), port.as_host()) {
                (Some(_), ..) => "memory node",
                (_, Some(_), _) => "index switch",
                (.., Some(_)) => "host",
                _ => "switch",
            };
            let who = member.name.map_or_else(|| String::from(kind), |name| format!("{kind} {name}"));
            builds.entry(build.clone()).or_default().push(who);
        }
        builds.into_iter().map(|(build, members)| BuildUse { build, members }).collect()
    }
}
