//! Builds of members, as they joined (PROTOCOL 8.71).

use crate::api::BuildUse;
use crate::builds::is_build;
use crate::messages::Actions;
use crate::rack::Rack;
use crate::record::{ChangeKind, Line};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;

impl ChangeKind {
    /// Returns the port of the member that the change joins.
    pub(crate) const fn joining(&self) -> Option<Port> {
        match self {
            Self::JoinSwitch { .. } => Some(Port::SWITCH),
            Self::JoinNode { node, .. } => Some(Port::node(*node)),
            Self::JoinHost { host, .. } => Some(Port::host(*host)),
            Self::JoinIndex { index, .. } => Some(Port::index(*index)),
            _ => None,
        }
    }
}

impl Rack {
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
