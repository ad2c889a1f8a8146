//! What kind of change one is: whom it waits for, and whether it is taken back.

use crate::record::{Role, What};

impl What {
    /// True when the change does not fail because `role` is silent: the role will be told when it answers, before anything else.
    ///
    /// For `Free`: the addresses are not handed out again before that, so only those who could use them still can.
    pub(crate) fn tolerates(&self, role: Role) -> bool {
        match self {
            Self::Free { .. } => matches!(role, Role::Node(_)),
            Self::Remap(remap) => remap.only_releases() && matches!(role, Role::Node(_)),
            Self::Migrate(migration) => migration.is_decided(),
            Self::AcceptLost { .. } => false,
            _ => self.is_membership(),
        }
    }

    /// True for what is so whether or not every role can be told now.
    pub(crate) const fn is_membership(&self) -> bool {
        match self {
            Self::JoinSwitch { .. }
            | Self::JoinNode { .. }
            | Self::JoinHost { .. }
            | Self::JoinIndex { .. }
            | Self::LeaveIndex { .. }
            | Self::LeaveNode { .. }
            | Self::LeaveHost { .. }
            | Self::Disconnect(_)
            | Self::Fence { .. } => true,
            Self::OpenDirectory { .. }
            | Self::Live { .. }
            | Self::AcceptLost { .. }
            | Self::Migrate(_)
            | Self::OpenSession(_)
            | Self::Connect(_)
            | Self::Allocate { .. }
            | Self::Free { .. }
            | Self::Grant { .. }
            | Self::TurnFile { .. }
            | Self::Remap(_) => false,
        }
    }

    /// True for what is about the protection of a vma. When a role joins meanwhile it is told again, behind that role's tables: taking it
    /// back elsewhere could need entries that another change got since (PROTOCOL 8.5).
    pub(super) const fn is_protection(&self) -> bool {
        matches!(
            self,
            Self::Allocate { .. }
                | Self::Free { .. }
                | Self::Grant { .. }
                | Self::Remap(_)
                | Self::TurnFile { .. }
        )
    }

    /// True when a restart of the control plane takes the change back: no caller could have been told of it. What was to go, goes.
    pub(crate) fn is_revocable(&self) -> bool {
        match self {
            Self::Remap(remap) => remap.starts.is_some() || remap.reserved().next().is_some(),
            Self::Migrate(migration) => !migration.is_decided(),
            Self::LeaveNode { .. }
            | Self::LeaveHost { .. }
            | Self::LeaveIndex { .. }
            | Self::Disconnect(_)
            | Self::Free { .. }
            | Self::Grant { .. }
            | Self::Fence { .. }
            | Self::AcceptLost { .. } => false,
            Self::JoinSwitch { .. }
            | Self::JoinNode { .. }
            | Self::JoinHost { .. }
            | Self::JoinIndex { .. }
            | Self::OpenSession(_)
            | Self::Connect(_)
            | Self::OpenDirectory { .. }
            | Self::Live { .. }
            | Self::TurnFile { .. }
            | Self::Allocate { .. } => true,
        }
    }
}
