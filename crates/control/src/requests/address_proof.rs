//! Proof of addresses: a member that joins must show that it receives datagrams at the address it names
//! (PROTOCOL 8.74 to 8.76).
//!
//! Without a proof, a holder of the rack's token could join with the address of a bystander, who would then
//! receive the answers to spoofed requests. A join without a valid cookie is refused, and a cookie goes to the
//! address in one small datagram. The member shows the cookie with its next request. The control plane keeps
//! nothing meanwhile: a cookie is a MAC of the claim and of the time. It is the only place where the address
//! of a member comes from, so switches, memory nodes and hosts are never told an unproven one.

use crate::api::{ApiError, ErrorCode, JoinHost, JoinNode, Request};
use crate::errors::{bad, error};
use crate::keys::{AddressClaim, AddressProof, Kind};
use crate::messages::{Actions, Out};
use crate::note::Note;
use crate::rack::{Pending, Rack};
use crate::record::{ChangeKind, Key};
use alloc::format;
use alloc::vec::Vec;
use farmem_transport::ud::Endpoint;
use farmem_wire::message::{CookieMessage, GSI_QKEY, GSI_QPN};
use farmem_wire::{Bth, Deth, Extension, Gid, Opcode, Packet};

impl Rack {
    /// Refuses a join from an unproven address, and sends a cookie there. An address is proven for a stay: a
    /// member that is present may rejoin at its address without another cookie.
    pub(crate) fn prove_address(
        &mut self,
        pending: &Pending,
        what: &ChangeKind,
        out: &mut Actions,
    ) -> Result<(), ApiError> {
        let Some(secret) = &self.config.address_secret else { return Ok(()) };
        let Some((claim, home)) = joiner(what) else { return Ok(()) };
        // A join that begins anew was proven when it began. No other member has the address of this one.
        if pending.restarts > 0 || self.state.members().any(|member| member.gid == claim.gid.0) {
            return Ok(());
        }
        let request = &pending.ask.request;
        match pending.ask.shown.address {
            AddressProof::Unsupported => return Err(unsupported(request, claim.gid)),
            AddressProof::Cookie(cookie) if secret.cookie_fits(&claim, cookie, self.now) => {
                self.proofs.counts.proven += 1;
                return Ok(());
            }
            AddressProof::Pending | AddressProof::Cookie(_) => {}
        }
        let Some(own) = self.state.home else { return Err(self.stall_error("nothing was changed")) };
        let cookie = secret.cookie(&claim, self.now);
        let to = if is_of_card(request) { home.endpoint() } else { GSI };
        let bth = Bth::new(Opcode::UdSendOnly, to.qpn, self.psn);
        let ext = Extension::Deth(Deth { qkey: to.qkey, src_qp: own.endpoint().qpn });
        let mut frame = Vec::new();
        let emit = |bytes: &mut Vec<u8>| CookieMessage { tag: claim.tag(), cookie }.emit(bytes);
        Packet::emit_with(&bth, &ext, CookieMessage::LEN, &mut frame, emit);
        self.psn = self.psn.plus(1);
        out.local(Out::Challenge { gid: claim.gid, frame });
        let is_wrong = matches!(pending.ask.shown.address, AddressProof::Cookie(_));
        if let Some(joins) = self.proofs.unproven(is_wrong, self.now) {
            out.note(Note::Unproven(joins));
        }
        Err(unproven(request, claim.gid))
    }
}

/// The endpoint of a member that has none of its own yet.
const GSI: Endpoint = Endpoint { qpn: GSI_QPN, qkey: GSI_QKEY };

/// Returns the claim of a joining member, and its endpoint; `None` for any other change.
fn joiner(what: &ChangeKind) -> Option<(AddressClaim<'_>, Key)> {
    let (kind, name, gid, home) = match what {
        ChangeKind::JoinSwitch { gid, home } => (Kind::Switch, "", gid, home),
        ChangeKind::JoinNode { name, gid, home, .. } => (Kind::Node, name.as_str(), gid, home),
        ChangeKind::JoinIndex { row, .. } => (Kind::Index, row.name.as_str(), &row.gid, &row.home),
        ChangeKind::JoinHost { name, gid, home, .. } => (Kind::Host, name.as_str(), gid, home),
        _ => return None,
    };
    Some((AddressClaim { kind, name, gid: Gid(*gid) }, *home))
}

/// Returns true if a card assigned the endpoint of a joining member, so that the card receives datagrams
/// there already.
const fn is_of_card(request: &Request) -> bool {
    matches!(
        request,
        Request::JoinHost(JoinHost { qpn: Some(_), .. }) | Request::JoinNode(JoinNode { qpn: Some(_), .. })
    )
}

fn unsupported(request: &Request, gid: Gid) -> ApiError {
    let request = request.name();
    bad(
        format!("{request} names the address {gid:?} and does not prove it: this build of farmem cannot"),
        "install the control plane's build of farmem on this machine; a program of your own sends the header \
         \"Farmem-Address: pending\", and repeats the request with the cookie that comes to UDP port 4791 of \
         the address (PROTOCOL 8.74)",
    )
}

fn unproven(request: &Request, gid: Gid) -> ApiError {
    let message = format!("{} names the address {gid:?}, which is not proven yet", request.name());
    let remedy = "repeat the request with the cookie that was sent to UDP port 4791 of the address; if none \
                  arrives, correct the address, or let datagrams from the control plane pass";
    error(ErrorCode::Unproven, message, remedy)
}
