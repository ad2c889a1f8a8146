//! Questions to roles about directories and files, each with a number of its own.

use crate::messages::Actions;
use crate::rack::Rack;
use crate::record::Role;
use crate::updates::Reach;
use alloc::vec::Vec;
use farmem_transport::ud;
use farmem_transport::ud::Peer;
use farmem_wire::{HostId, RequestId};

impl Rack {
    /// Returns true if the answer is to a question of the role's present incarnation.
    pub(crate) fn is_from_this_life(&self, role: Role, token: RequestId) -> bool {
        token.host() == HostId(0) && token.0 != 0 && token.generation() == self.state.generation(role)
    }

    /// Returns the number of the next question to a role in its present incarnation.
    pub(crate) fn next_question(&mut self, role: Role) -> RequestId {
        self.questions = self.questions.wrapping_add(1).max(1);
        RequestId::new(HostId(0), self.state.generation(role), self.questions)
    }

    /// Sends a message of `len` bytes, if its role is reachable.
    pub(crate) fn send_question(
        &mut self,
        role: Role,
        len: usize,
        out: &mut Actions,
        emit: impl FnOnce(&mut Vec<u8>),
    ) {
        let reached = matches!(self.state.reach(role), Some(Reach::Ready | Reach::Silent));
        if let (true, Some(key), Some(own)) = (reached, self.state.home_of(role), self.state.home) {
            let peer = Peer { port: role.port(), endpoint: key.endpoint() };
            ud::send_bytes(out, peer, own.endpoint().qpn, self.psn, len, emit);
            self.psn = self.psn.plus(1);
        }
    }
}
