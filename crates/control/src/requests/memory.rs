//! Requests for memory: allocate, free, grant, accept a loss (MIND 4.1).

use crate::addresses::{PAGE, VA_END, vma_size};
use crate::api::{AcceptLost, Allocate, ApiError, ErrorCode, Free, Grant, PermName};
use crate::decision::{Decided, Decision};
use crate::errors::{LISTED, bad, bound, error, not_found};
use crate::rack::Rack;
use crate::record::{ChangeKind, Span};
use crate::state::grants;
use crate::state::placement::Placement;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl Rack {
    pub(crate) fn allocate(&self, call: &Allocate) -> Decided<Allocate> {
        self.allocation(call, None, None).map(Decision::Begin)
    }

    /// Allocates the memory of an object, which gets the length of the allocation and the bytes of `file`.
    pub(crate) fn allocate_for<A>(
        &self,
        object: u64,
        call: &Allocate,
        file: Option<String>,
    ) -> Result<Decision<A>, ApiError> {
        self.allocation(call, Some((object, call.size)), file).map(Decision::Begin)
    }

    fn allocation(
        &self,
        &Allocate { domain, size: length, node, durable }: &Allocate,
        object: Option<(u64, u64)>,
        file: Option<String>,
    ) -> Result<ChangeKind, ApiError> {
        self.domain_known(domain)?;
        if length == 0 {
            return Err(bad("size is 0", "ask for at least 1 byte"));
        }
        self.switch_answers()?;
        let most = self.config.bounds.vmas_max;
        if self.state.vmas.len() >= most {
            return Err(bound("vmas", most));
        }
        let mut nodes: Vec<u16> = match node {
            Some(node) => {
                self.node_answers(node)?;
                self.card_is_of(node, domain)?;
                Vec::from([node])
            }
            None => self.state.ready_nodes().collect(),
        };
        if nodes.is_empty() {
            let message = "no memory node has joined and answers";
            return Err(error(ErrorCode::Unavailable, message, "start a memory node, then ask again"));
        }
        // MIND 4.1: the least allocated node comes first. The sort is stable, so that among equals the lowest
        // number comes first.
        nodes.sort_by_cached_key(|&node| self.state.allocated(node, true));
        let vma = vma_size(length).filter(|&size| size < VA_END);
        let placed = vma.and_then(|size| Some((size, self.state.place_vma(&nodes, size)?)));
        match placed {
            Some((size, _)) if self.room_of(domain) < size => Err(self.over_its_limit(domain, size)),
            Some((size, Placement { base, node: home, pieces })) => {
                self.room_for_pieces(pieces.len())?;
                if file.is_some() && !pieces.is_empty() {
                    let node = node.unwrap_or(home);
                    let message = format!(
                        "node {node} has no {length} bytes free in one piece with their own addresses, as an object by file needs"
                    );
                    let remedy = "migrate back what left that node, or free it";
                    return Err(error(ErrorCode::OutOfMemory, message, remedy));
                }
                Ok(ChangeKind::Allocate { base, size, node: home, domain, durable, object, file, pieces })
            }
            None => Err(self.out_of_memory(length, vma, &nodes)),
        }
    }

    fn out_of_memory(&self, size: u64, vma: Option<u64>, nodes: &[u16]) -> ApiError {
        let free = |node: &u16| {
            let capacity = self.state.nodes.get(node).map_or(0, |row| row.capacity);
            capacity - self.state.allocated(*node, true)
        };
        let most = nodes.iter().map(free).max().unwrap_or(0);
        let message = match vma {
            Some(rounded) => format!(
                "an allocation of {size} bytes needs {rounded} free bytes in one piece; of {} nodes asked, none has that (most free: {most})",
                nodes.len()
            ),
            None => format!("an allocation of {size} bytes is longer than the addresses of a rack"),
        };
        error(ErrorCode::OutOfMemory, message, "ask for less, free vmas, or add a memory node")
    }

    /// Frees the named allocation, and no other that has its addresses by now (PROTOCOL 8.47).
    pub(crate) fn free(&self, domain: u32, base: u64, id: u64) -> Decided<Free> {
        self.domain_known(domain)?;
        let present = self.state.vma_at(base).filter(|(_, vma)| vma.pending.is_none());
        if let Some((first, vma)) = present.filter(|(_, vma)| vma.id != id) {
            let message = format!(
                "allocation {id} is not at {base:#x}: allocation {} is, with {} bytes from {first:#x}",
                vma.id, vma.size
            );
            return Err(not_found(message, format!("it was freed if it ever was there; {LISTED}")));
        }
        let (first, vma) = self.owned(domain, base)?;
        if first != base {
            let message = format!(
                "{base:#x} is inside the vma of {} bytes at {first:#x}, not its first byte",
                vma.size
            );
            return Err(bad(message, format!("free {first:#x}")));
        }
        if self.state.space_of(base).is_some() {
            let message = format!("the vma at {base:#x} is part of the address space of domain {domain}");
            return Err(error(ErrorCode::Conflict, message, "use `munmap`, or end its processes"));
        }
        if self.state.object_at(base).is_some() {
            let message = format!("the vma at {base:#x} is the memory of a named object");
            return Err(error(
                ErrorCode::Conflict,
                message,
                "use `unlink_object`: it goes with its last user",
            ));
        }
        self.switch_answers()?;
        Ok(Decision::Begin(ChangeKind::Free { base }))
    }

    pub(crate) fn grant(&self, &Grant { domain, base, len, to, perm }: &Grant) -> Decided<Grant> {
        self.domain_known(domain)?;
        self.domain_known(to)?;
        let (first, vma) = self.owned(domain, base)?;
        let end = first + vma.size;
        if len == 0 || base.checked_add(len).is_none_or(|last| last > end) {
            let message =
                format!("{len} bytes from {base:#x} are not a part of the vma {first:#x}..{end:#x}");
            return Err(bad(message, format!("give 1 to {} bytes", end - base)));
        }
        if to == domain {
            return Err(bad(
                format!("domain {to} owns the vma"),
                "an owner may read and write; grant it to another domain",
            ));
        }
        let old = self.state.grants_of(first, to);
        let new = grants::overlay(old, Span { base, len, perm });
        if new == old {
            return Ok(Decision::Reply(()));
        }
        let all =
            self.state.vmas.values().flat_map(|vma| &vma.grants).map(|(_, spans)| spans.len()).sum::<usize>();
        // A grant inside a span of another class makes two more spans.
        let coming = 2 * self.in_flight(|what| matches!(what, ChangeKind::Grant { .. }));
        let most = self.config.bounds.grants_max;
        if perm != PermName::None && all + coming + new.len() > most + old.len() {
            return Err(bound("grants", most));
        }
        self.no_card(vma.node, "granted to other domains")?;
        if perm == PermName::ReadWrite {
            self.no_file(first, "granted to be written")?;
        }
        self.node_answers(vma.node)?;
        self.switch_answers()?;
        Ok(Decision::Begin(ChangeKind::Grant { vma: first, base, len, to, perm }))
    }
}

impl Rack {
    pub(crate) fn accept_lost(&self, domain: u32, base: u64, len: u64) -> Decided<AcceptLost> {
        self.domain_known(domain)?;
        let (vma, row) = self.owned(domain, base)?;
        self.no_file(vma, "taken as it is")?;
        let end = vma + row.size;
        if !base.is_multiple_of(PAGE) || len == 0 || base.checked_add(len).is_none_or(|last| last > end) {
            let message = format!("{len} bytes from {base:#x} are no pages of the vma {vma:#x}..{end:#x}");
            return Err(bad(message, format!("give a page's address, and 1 to {} bytes", end - base)));
        }
        // Each node with a part of it must be reachable: one that learns of it later could have lost its
        // memory anew by then.
        self.state.nodes_of_vma(vma).into_iter().try_for_each(|node| self.node_answers(node))?;
        let most = self.config.bounds.lost_max;
        if self.state.lost.len() >= most && self.state.is_amid_lost(base, len) {
            return Err(bound("ranges of lost addresses", most));
        }
        Ok(Decision::Begin(ChangeKind::AcceptLost { vma, base, len }))
    }
}
