//! Classification of changes: which roles a change waits for, and whether it can be rolled back.

use crate::record::{ChangeKind, Role};

impl ChangeKind {
    /// Returns true if the change does not fail because `role` is silent: the role gets the update first when
    /// it answers again.
    ///
    /// For `Free`: the addresses are not reused before that, so only their former users can still access
    /// them.
    pub(crate) fn tolerates(&self, role: Role) -> bool {
        match self {
            Self::Free { .. } => matches!(role, Role::Node(_)),
            Self::Remap(remap) => remap.only_releases() && matches!(role, Role::Node(_)),
            Self::Migrate(migration) => migration.is_decided(),
            Self::AcceptLost { .. } => false,
            _ => self.is_membership(),
        }
    }

    /// Returns true for a change that is a fact whether or not every role can be told now.
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

    /// Returns true for a change of a vma's protection. When a role joins meanwhile, it gets the change again
    /// behind its tables: a rollback elsewhere could need entries that another change has taken since
    /// (PROTOCOL 8.5).
    pub(crate) const fn is_protection(&self) -> bool {
        matches!(
            self,
            Self::Allocate { .. }
                | Self::Free { .. }
                | Self::Grant { .. }
                | Self::Remap(_)
                | Self::TurnFile { .. }
        )
    }

    /// Returns true if a restart of the control plane rolls the change back, because no caller could have
    /// learnt of it. Removals continue.
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
