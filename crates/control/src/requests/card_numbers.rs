//! Numbers that a member supplies because its RoCE card assigned them: queue pairs, Q_Keys, first PSNs
//! (PROTOCOL 14.1 to 14.4).

use crate::api::{ApiError, ErrorCode};
use crate::errors::{bad, error};
use crate::rack::Rack;
use crate::record::{ChangeKind, ConnectionRow, Key};
use alloc::format;
use core::ops::RangeInclusive;
use farmem_wire::{Psn, Qkey, Qpn};

/// Queue pair numbers that a card can assign: 0 and 1 are reserved by InfiniBand (IBA 3.9), and the last one
/// stands for multicast.
const CARD_QPNS: RangeInclusive<u32> = 2..=Qpn::MAX - 1;

impl Rack {
    /// Refuses a queue pair number of `host` that no card assigns, or that the host uses already.
    pub(crate) fn check_card_qpn(&self, host: u16, qpn: u32) -> Result<(), ApiError> {
        card_qpn(qpn)?;
        let of_host = |row: &ConnectionRow| row.key() == (host, qpn);
        let home = self.state.hosts.get(&host).is_some_and(|row| row.home.qpn == qpn);
        let coming =
            self.state.changes.values().any(
                |change| matches!(&change.what, ChangeKind::Connect(row) | ChangeKind::Disconnect(row) if of_host(row)),
            );
        if home {
            let message = format!("queue pair {qpn} is the UD queue pair of host {host}");
            return Err(error(ErrorCode::Conflict, message, "make an RC queue pair, and give its number"));
        }
        if coming || self.state.connections.contains_key(&(host, qpn)) {
            let message = format!("host {host} has a connection with queue pair {qpn}");
            let remedy = "take that one down with `disconnect`, or give the number of another queue pair";
            return Err(error(ErrorCode::Conflict, message, remedy));
        }
        Ok(())
    }
}

/// Refuses a number that is no PSN.
pub(crate) fn check_psn(psn: u32) -> Result<(), ApiError> {
    if psn <= Psn::MAX {
        return Ok(());
    }
    Err(bad(format!("first_psn is {psn}"), format!("PSNs have 24 bits: give 0 to {}", Psn::MAX)))
}

/// Returns the UD endpoint that a member supplies, if it supplies one.
pub(crate) fn card_endpoint(qpn: Option<u32>, qkey: Option<u32>) -> Result<Option<Key>, ApiError> {
    match (qpn, qkey) {
        (None, None) => Ok(None),
        (Some(qpn), Some(qkey)) => {
            card_qpn(qpn)?;
            if qkey == 0 || qkey >= Qkey::PRIVILEGED {
                let remedy =
                    "give 1 to 2147483647: no program may set another one without privileges, nor send to it";
                return Err(bad(format!("qkey is {qkey}"), remedy));
            }
            Ok(Some(Key { qpn, qkey }))
        }
        (given, _) => {
            let (is, lacks) = if given.is_some() { ("qpn", "qkey") } else { ("qkey", "qpn") };
            let message = format!("{is} is given and {lacks} is not");
            Err(bad(message, "give both, of the member's own UD queue pair, or neither"))
        }
    }
}

pub(crate) fn card_qpn(qpn: u32) -> Result<(), ApiError> {
    if CARD_QPNS.contains(&qpn) {
        return Ok(());
    }
    let (least, most) = (CARD_QPNS.start(), CARD_QPNS.end());
    Err(bad(
        format!("qpn is {qpn}"),
        format!("give {least} to {most}, the number that the card gave to the queue pair"),
    ))
}
