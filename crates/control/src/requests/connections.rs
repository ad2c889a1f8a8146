//! Requests for domains, sessions and connections (PROTOCOL 8.8, 8.9).

use crate::api::{ApiError, Connect, CreateDomain, Disconnect, DomainInfo, OpenSession};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, bound, not_found};
use crate::rack::Rack;
use crate::record::{ChangeKind, ConnectionRow, Line, SessionRow, ThroughRow};
use crate::requests::card_numbers::check_psn;
use crate::requests::members::name_allowed;
use alloc::format;
use alloc::string::String;
use farmem_index::NODE_ALIGN;
use farmem_wire::Psn;

impl Rack {
    pub(crate) fn create_domain(&mut self, name: &str) -> Decided<CreateDomain> {
        name_allowed("domain", name)?;
        if let Some((&domain, _)) = self.state.domains.iter().find(|(_, known)| *known == name) {
            self.idle.named(domain, self.now);
            return Ok(Decision::Reply(DomainInfo { domain, key: self.domain_key(domain) }));
        }
        let most = self.config.bounds.domains_max;
        if self.state.domains.len() >= most {
            return Err(bound("domains", most));
        }
        let domain = self.state.free_domain();
        let info = DomainInfo { domain, key: self.domain_key(domain) };
        Ok(Decision::Keep(Line::Domain { domain, name: String::from(name) }, info))
    }

    pub(crate) fn open_session(&mut self, host: u16, domain: u32) -> Decided<OpenSession> {
        self.host_present(host)?;
        self.domain_known(domain)?;
        self.switch_joined()?;
        let open = self.state.sessions.values().find(|row| (row.host, row.domain) == (host, domain));
        if let Some(row) = open {
            return Ok(Decision::Reply(self.session(row)));
        }
        let most = self.config.bounds.sessions_max;
        if self.state.sessions.len() + self.in_flight(|what| matches!(what, ChangeKind::OpenSession(_)))
            >= most
        {
            return Err(bound("sessions", most));
        }
        Ok(Decision::Begin(ChangeKind::OpenSession(SessionRow { key: self.draw_key(), host, domain })))
    }

    pub(crate) fn connect(&mut self, call: &Connect) -> Decided<Connect> {
        let &Connect { host, node, domain, qpn, first_psn, through, root } = call;
        self.host_present(host)?;
        self.domain_known(domain)?;
        self.node_answers(node)?;
        let most = self.config.bounds.connections_max;
        if self.state.connections.len() + self.in_flight(|what| matches!(what, ChangeKind::Connect(_)))
            >= most
        {
            return Err(bound("connections", most));
        }
        qpn.map_or(Ok(()), |qpn| self.check_card_qpn(host, qpn))?;
        first_psn.map_or(Ok(()), check_psn)?;
        let through = self.through_switch(through, root)?;
        let card = self.card_takes(node, domain)?;
        if through.is_some() && card.is_some() {
            let remedy =
                "leave `through` out: a card's queue pair is set up for the host, and knows no switch";
            return Err(bad(format!("node {node} is memory that a card registered"), remedy));
        }
        let qpn = qpn.unwrap_or_else(|| self.draw_qpn(&[]));
        let (peer_qpn, rkey) = match card {
            Some(given) => given,
            None => (self.draw_qpn(&[qpn]), self.draw_secret()),
        };
        let through = through.map(|root| {
            let to_node = self.draw_qpn(&[qpn, peer_qpn]);
            ThroughRow { to_node, to_host: self.draw_qpn(&[qpn, peer_qpn, to_node]), root }
        });
        let row = ConnectionRow {
            host,
            node,
            domain,
            qpn,
            peer_qpn,
            first_psn: first_psn.unwrap_or_else(|| Psn::new(self.rng.next_u32()).get()),
            rkey,
            pmtu: self.config.pmtu as u16,
            through,
        };
        Ok(Decision::Begin(ChangeKind::Connect(row)))
    }

    /// Returns the root of the tree of a connection through the switch, 0 for none (PROTOCOL 15.12).
    fn through_switch(&self, through: bool, root: Option<u64>) -> Result<Option<u64>, ApiError> {
        match root {
            Some(_) if !through => {
                let remedy = "give `through` true, or no root: without a switch on the way no READ has a key";
                return Err(bad("a root for a connection that does not go through the switch", remedy));
            }
            Some(root) if root == 0 || !root.is_multiple_of(NODE_ALIGN) => {
                let remedy = "give the address of the tree's root, or no root";
                return Err(bad(
                    format!("{root:#x} is no root: not a multiple of {NODE_ALIGN}, or 0"),
                    remedy,
                ));
            }
            _ if !through => return Ok(None),
            _ => {}
        }
        self.switch_joined()?;
        Ok(Some(root.unwrap_or(0)))
    }

    pub(crate) fn disconnect(&self, host: u16, qpn: u32) -> Decided<Disconnect> {
        self.host_present(host)?;
        let row = self.state.connections.get(&(host, qpn));
        let unknown = || {
            let message = format!("host {host} has no connection with queue pair {qpn}");
            not_found(message, "connections end when the host or the node starts again: connect anew")
        };
        Ok(Decision::Begin(ChangeKind::Disconnect(row.ok_or_else(unknown)?.clone())))
    }
}
