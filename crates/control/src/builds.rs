//! The build of farmem of each member, as reported at its join and kept in the log, to detect incompatible
//! builds (PROTOCOL 8.71).
//!
//! The control plane does not interpret the text of a build. Members that report none, such as cards and
//! manual joins, are not listed.

use crate::api::BuildUse;
use crate::record::{ChangeKind, Line};
use crate::{Actions, Control};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;

/// Maximum length of a build in characters.
pub const BUILD_LEN_MAX: usize = 64;

/// Returns true if a text is a valid build: 1 to [`BUILD_LEN_MAX`] letters, digits and `.+_-`.
#[must_use]
pub fn is_build(text: &str) -> bool {
    let known = |letter: u8| letter.is_ascii_alphanumeric() || b".+_-".contains(&letter);
    (1..=BUILD_LEN_MAX).contains(&text.len()) && text.bytes().all(known)
}

/// Returns the port of the member that a change joins.
pub(crate) const fn joining(what: &ChangeKind) -> Option<Port> {
    match what {
        ChangeKind::JoinSwitch { .. } => Some(Port::SWITCH),
        ChangeKind::JoinNode { node, .. } => Some(Port::node(*node)),
        ChangeKind::JoinHost { host, .. } => Some(Port::host(*host)),
        ChangeKind::JoinIndex { index, .. } => Some(Port::index(*index)),
        _ => None,
    }
}

impl Control {
    /// Records the build of the member at a port, if it changed.
    pub(crate) fn joined_as(&mut self, port: Port, build: Option<String>, out: &mut Actions) {
        let build = build.filter(|build| is_build(build));
        if self.state.builds.get(&port) != build.as_ref() {
            // If the log accepts no lines now, only this build stays unknown.
            let _stalled = self.keep(Line::Build { port: port.0, build }, out);
        }
    }

    /// Returns the builds and the members of each.
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
            let label = member.name.map_or_else(|| String::from(kind), |name| format!("{kind} {name}"));
            builds.entry(build.clone()).or_default().push(label);
        }
        builds.into_iter().map(|(build, members)| BuildUse { build, members }).collect()
    }
}
