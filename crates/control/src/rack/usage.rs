//! Usage: hosts, domains and allocations, with the time that is left to each (PROTOCOL 8.63).

use crate::api::{ApiError, DomainUse, ErrorCode, HostUse, ProcessUse, RackUsage, VmaUse};
use crate::errors::error;
use crate::rack::Rack;
use crate::record::{Cache, HostRow};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Duration;

impl Rack {
    /// Returns the usage of the rack.
    pub(crate) fn usage(&self) -> RackUsage {
        let there = self.state.hosts.iter().filter(|(_, row)| row.present);
        let of_objects: BTreeSet<u64> = self.state.objects.values().filter_map(|row| row.base).collect();
        let vmas = self.state.vmas.iter().filter(|(base, vma)| {
            vma.pending.is_none() && !of_objects.contains(*base) && self.state.space_of(**base).is_none()
        });
        let vmas = vmas.map(|(&base, vma)| VmaUse {
            id: vma.id,
            base,
            size: vma.size,
            domain: vma.domain,
            durable: vma.durable,
            granted_to: vma.grants.iter().map(|(to, _)| *to).collect(),
        });
        let processes = self.state.processes.iter();
        RackUsage {
            hosts: self.host_uses(there).into_values().collect(),
            domains: self.domain_uses(&of_objects).into_values().collect(),
            vmas: vmas.collect(),
            processes: processes.map(|(&process, &domain)| ProcessUse { process, domain }).collect(),
            builds: self.builds(),
            losses: self.losses(),
            proofs: self.proofs.counts,
        }
    }

    /// Returns how many bytes a domain may still allocate (PROTOCOL 8.72).
    pub(crate) fn room_of(&self, domain: u32) -> u64 {
        let most = self.config.bounds.domain_memory_max;
        if most == u64::MAX {
            return most;
        }
        let its = self.state.vmas.values().filter(|vma| vma.domain == domain);
        most.saturating_sub(its.map(|vma| vma.size).sum())
    }

    /// Returns the error for a request beyond that limit.
    pub(crate) fn over_its_limit(&self, domain: u32, more: u64) -> ApiError {
        let (most, room) = (self.config.bounds.domain_memory_max, self.room_of(domain));
        let message = format!(
            "domain {domain} may have {most} bytes of far memory on this rack, of which {room} are left: {more} more are asked for"
        );
        let remedy = "free unused memory of the domain; the rack's operator sets the limit (`domain_memory` in rack.toml)";
        error(ErrorCode::OutOfMemory, message, remedy)
    }

    /// Makes one pass over each table: any client that may ask may do so again and again, in a rack in which
    /// all tables are full.
    fn host_uses<'a>(&self, there: impl Iterator<Item = (&'a u16, &'a HostRow)>) -> BTreeMap<u16, HostUse> {
        let none = |(&host, row): (&u16, &HostRow)| {
            let row = HostUse {
                host,
                name: row.name.clone(),
                generation: row.generation,
                caches: row.cache != Cache::Empty,
                lease_left_ms: self.presence.left(host, self.now).map(millis),
                domains: Vec::new(),
                connections: 0,
                objects: 0,
            };
            (host, row)
        };
        let mut uses: BTreeMap<u16, HostUse> = there.map(none).collect();
        for session in self.state.sessions.values() {
            uses.entry(session.host).and_modify(|row| row.domains.push(session.domain));
        }
        for connection in self.state.connections.values() {
            uses.entry(connection.host).and_modify(|row| row.connections += 1);
        }
        for host in self.state.objects.values().flat_map(|object| &object.hosts) {
            uses.entry(*host).and_modify(|row| row.objects += 1);
        }
        uses
    }

    fn domain_uses(&self, of_objects: &BTreeSet<u64>) -> BTreeMap<u32, DomainUse> {
        let none = |(&domain, name): (&u32, &String)| {
            let idle_left_ms = self.idle.left(domain, self.config.host_lease, self.now).map(millis);
            let (hosts, name) = (Vec::new(), name.clone());
            let (processes, vmas, bytes, durable_bytes, objects, granted, lost) = (0, 0, 0, 0, 0, 0, 0);
            let row = DomainUse {
                domain,
                name,
                hosts,
                idle_left_ms,
                processes,
                vmas,
                bytes,
                durable_bytes,
                objects,
                granted,
                lost,
            };
            (domain, row)
        };
        let mut uses: BTreeMap<u32, DomainUse> = self.state.domains.iter().map(none).collect();
        let mut users: BTreeSet<(u32, u16)> =
            self.state.sessions.values().map(|row| (row.domain, row.host)).collect();
        users.extend(self.state.connections.values().map(|row| (row.domain, row.host)));
        let open = self.state.objects.values();
        users.extend(open.flat_map(|row| row.hosts.iter().map(|&host| (row.domain, host))));
        for (domain, host) in users {
            uses.entry(domain).and_modify(|row| row.hosts.push(host));
        }
        for (base, vma) in &self.state.vmas {
            let stays = vma.durable || of_objects.contains(base);
            let lost = self.state.lost_in(*base, vma.size).iter().map(|lost| lost.len).sum::<u64>();
            uses.entry(vma.domain).and_modify(|row| {
                row.vmas += 1;
                row.bytes += vma.size;
                row.lost += lost;
                row.durable_bytes += if stays { vma.size } else { 0 };
            });
            for (to, _) in &vma.grants {
                uses.entry(*to).and_modify(|row| row.granted += 1);
            }
        }
        for object in self.state.objects.values() {
            uses.entry(object.domain).and_modify(|row| row.objects += 1);
        }
        for domain in self.state.processes.values() {
            uses.entry(*domain).and_modify(|row| row.processes += 1);
        }
        uses
    }
}

const fn millis(span: Duration) -> u64 {
    span.as_nanos() / 1_000_000
}
