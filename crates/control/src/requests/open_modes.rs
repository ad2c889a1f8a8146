//! Open modes: coherent spaces share an object, hosts that cache without a directory read it together, or one
//! host writes it (PROTOCOL 8.53 to 8.58, SODA III).
//!
//! An object without memory is a lock for all memory of its domain (8.57). All hosts that have an object open
//! have it in the same mode, so the row has one mode. An object that a departed host had open to write is
//! kept from others until no memory node accepts WRITEs of that host any more.

use crate::api::{ApiError, ErrorCode, ObjectInfo, OpenMode};
use crate::decision::Decision;
use crate::errors::error;
use crate::rack::Rack;
use crate::record::{ChangeKind, HostRow, Line, ObjectRow};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use farmem_machine::Port;

/// Maximum number of hosts that a refusal names.
const NAMED_MAX: usize = 4;

impl Rack {
    /// Opens the object for the host in this mode, if that is allowed.
    pub(super) fn held(
        &self,
        object: u64,
        row: &ObjectRow,
        host: u16,
        mode: OpenMode,
    ) -> Result<Decision<ObjectInfo>, ApiError> {
        let answer = self.described(object, row);
        let mode = self.admitted(object, row, host, mode)?;
        if let Some(turn) = self.file_opens(object, host, mode)? {
            let base = row.base.unwrap_or_default();
            return Ok(Decision::Begin(ChangeKind::TurnFile { object, base, turn }));
        }
        let place = row.hosts.binary_search(&host);
        if place.is_ok() && mode == row.mode {
            return Ok(Decision::Reply(answer));
        }
        let mut row = ObjectRow { mode, ..row.clone() };
        if let Err(at) = place {
            row.hosts.insert(at, host);
        }
        Ok(Decision::Keep(Line::Object { object, row: Some(row) }, answer))
    }

    /// Returns the mode in which a host that asks for `mode` gets the object.
    fn admitted(
        &self,
        object: u64,
        row: &ObjectRow,
        host: u16,
        mode: OpenMode,
    ) -> Result<OpenMode, ApiError> {
        use OpenMode::{Read, Write};
        if let Some(&gone) = row.ended.first() {
            return Err(self.still_writing(object, row, gone));
        }
        let own = row.hosts.contains(&host);
        let wanted = match (own, row.mode, mode) {
            (true, Read, Write) | (true, Write, Read) => Write,
            (true, has, asked) if has != asked => {
                let message =
                    format!("host {host} has object {object} open {has} already, and asks for it {asked}");
                let remedy = "close it first with `drop_object`, or ask for the mode that the host has";
                return Err(error(ErrorCode::Conflict, message, remedy));
            }
            (_, _, asked) => asked,
        };
        let others: Vec<u16> = row.hosts.iter().copied().filter(|&other| other != host).collect();
        if others.is_empty() || (wanted == row.mode && wanted != Write) {
            return Ok(wanted);
        }
        Err(self.open_elsewhere(object, row, &others, wanted))
    }

    fn open_elsewhere(&self, object: u64, row: &ObjectRow, others: &[u16], wanted: OpenMode) -> ApiError {
        let mut at: Vec<String> =
            others.iter().take(NAMED_MAX).map(|&other| self.state.host_title(other)).collect();
        if others.len() > NAMED_MAX {
            at.push(format!("{} more hosts", others.len() - NAMED_MAX));
        }
        let message = format!("object {object} is open {} at {}, so not {wanted}", row.mode, at.join(", "));
        let first = others[0];
        let generation = self.state.hosts.get(&first).map_or(0, |row| row.generation);
        let remedy = format!(
            "close it there (`drop_object`), or fence a host that is gone (`leave` with port {} and generation {generation}), then ask again",
            Port::host(first).0,
        );
        error(ErrorCode::Conflict, message, remedy)
    }

    fn still_writing(&self, object: u64, row: &ObjectRow, gone: u16) -> ApiError {
        let role = self.state.roles_that_hear(row, gone).next();
        let actor = || {
            let acts = |row: &&HostRow| row.acts_for.iter().any(|of| of.host == gone);
            let named = self.state.hosts.values().find(acts).map(|row| format!("host {:?}", row.name));
            named.unwrap_or_else(|| "the rack".to_string())
        };
        let at = role.map_or_else(actor, |role| self.state.title(role));
        let message =
            format!("host {gone} had object {object} open to write, and {at} may still let it write");
        let remedy = "ask again when the host has left or joined; a role that does not answer must answer or rejoin first";
        error(ErrorCode::Unavailable, message, remedy)
    }
}
