//! Names of roles for messages, and the errors of changes that were rolled back.

use crate::api::{ApiError, ErrorCode};
use crate::errors::error;
use crate::record::{Role, RollbackReason, status};
use crate::state::State;
use alloc::format;
use alloc::string::String;
use farmem_machine::Port;
use farmem_wire::Status;

impl State {
    /// Returns the name of a role for messages.
    pub(crate) fn title(&self, role: Role) -> String {
        match role {
            Role::Switch => String::from("the switch"),
            Role::Index(index) => match self.index.get(&index) {
                Some(row) => format!("index switch {index} ({})", row.name),
                None => format!("index switch {index}"),
            },
            Role::Node(node) => match self.nodes.get(&node) {
                Some(row) => format!("node {node} ({})", row.name),
                None => format!("node {node}"),
            },
        }
    }

    /// Returns the error for a request whose change was rolled back.
    pub(crate) fn explain(&self, why: RollbackReason) -> ApiError {
        match why {
            RollbackReason::Refused { role, status: bits } => self.refused_by(role, status(bits)),
            RollbackReason::Silent { role } => {
                self.unavailable(role, "does not answer; the change was rolled back")
            }
            RollbackReason::Gone { role } => {
                self.unavailable(role, "refused a required update and must rejoin")
            }
            RollbackReason::Joined { role } => self.unavailable(role, "kept restarting during the change"),
            RollbackReason::Left { port } => {
                let member = match (Port(port).as_host(), Port(port).as_node()) {
                    (Some(host), _) => format!("host {host}"),
                    (_, Some(node)) => format!("node {node}"),
                    _ => match Port(port).as_index() {
                        Some(index) => format!("index switch {index}"),
                        None => format!("port {port}"),
                    },
                };
                let remedy = "ask again with its present number, which `farmem status --rack rack.toml` and GET /v1/overview list";
                error(ErrorCode::NotFound, format!("{member} left or restarted during the change"), remedy)
            }
            RollbackReason::Held => error(
                ErrorCode::Unavailable,
                "hosts did not give up the pages in time; nothing was moved",
                "a host that is gone holds them until its lease has ended: ask again after that (GET /v1/overview lists the hosts)",
            ),
            RollbackReason::Restarted => {
                error(ErrorCode::Unavailable, "the control plane restarted during the change", "ask again")
            }
        }
    }

    fn refused_by(&self, role: Role, status: Status) -> ApiError {
        let title = self.title(role);
        if status == Status::TableFull {
            let remedy = format!("free vmas, sessions or connections, or start {title} with larger tables");
            return error(
                ErrorCode::TableFull,
                format!("a table of {title} is full; nothing was changed"),
                remedy,
            );
        }
        let message = format!("{title} refused the change with status {status:?}; nothing was changed");
        let remedy = format!("run {title} and the control plane in the same version");
        error(ErrorCode::Unavailable, message, remedy)
    }

    /// Returns the error for a required role that is unreachable.
    pub(crate) fn unavailable(&self, role: Role, because: &str) -> ApiError {
        let title = self.title(role);
        let remedy = match role {
            Role::Switch => {
                "check that the switch runs and is reachable; after a restart it joins and gets its tables"
            }
            Role::Index(_) => {
                "check that the index switch runs and is reachable; after a restart it joins and gets its tables"
            }
            Role::Node(_) => {
                "check that the node runs and is reachable; after a restart it joins with empty memory"
            }
        };
        error(ErrorCode::Unavailable, format!("{title} {because}"), remedy)
    }
}
