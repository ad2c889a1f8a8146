//! Routing of a FatTree's switches (Fat-B+Tree IV-A): the server of an address, and the next hop to a server.
//! As a section of the soft state, and as tables.
//!
//! A section is words of eight bytes, big-endian:
//!
//! ```text
//!   version  up  servers  trees
//!   servers x (base | size_log2, server << 32 | port)     ascending by base: the addresses of a server, and the next hop to it
//!   trees   x (domain, root, programs, programs x name)   ascending: traversals of them go up, to the port `up`
//! ```
//!
//! The rack's switch has `up` and `trees`; an index switch has `servers`.

use crate::tables::Words;
use crate::{PROGRAMS_MAX, SectionError, TREES_MAX};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::{Domain, NodeId, ProgramHash, VirtAddr};

/// The kind of the routing section. There is at most one, of domain 0, under id 0: the control plane owns it.
pub const ROUTES_KIND: u16 = 0x0d14;
/// Most servers of a section: a server takes two words.
pub const SERVERS_MAX: usize = 4096;

const VERSION: u64 = 1;

/// A server: its addresses, and the next hop to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerRoute {
    /// The first address, a multiple of the size.
    pub base: VirtAddr,
    /// Log2 of the number of addresses.
    pub size_log2: u8,
    /// The memory node.
    pub server: NodeId,
    /// The port of the next switch, or of the node itself.
    pub port: u32,
}

/// A tree whose traversals go up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoutedTree {
    /// Domain of the traversals.
    pub domain: Domain,
    /// The node at which they begin.
    pub root: VirtAddr,
    /// Their programs.
    pub programs: Vec<ProgramHash>,
}

/// The contents of a routing section.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RouteSection {
    /// The port of the core switch; if none, nothing goes up.
    pub up: Option<u32>,
    /// The servers, ascending by their addresses.
    pub servers: Vec<ServerRoute>,
    /// The trees whose traversals go up, ascending by domain and root.
    pub trees: Vec<RoutedTree>,
}

impl RouteSection {
    /// Returns the section as bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (servers, trees) = (self.servers.len() as u64, self.trees.len() as u64);
        let mut words = Vec::from([VERSION, self.up.map_or(0, u64::from), servers, trees]);
        words.extend(self.servers.iter().flat_map(|way| {
            [way.base.0 | u64::from(way.size_log2), u64::from(way.server.0) << 32 | u64::from(way.port)]
        }));
        for tree in &self.trees {
            words.extend([u64::from(tree.domain.0), tree.root.0, tree.programs.len() as u64]);
            words.extend(tree.programs.iter().flat_map(crate::tables::name_words));
        }
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Parses a section.
    ///
    /// # Errors
    /// [`SectionError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SectionError> {
        let mut words = Words::of(bytes)?;
        if words.next()? != VERSION {
            return Err(SectionError::Form);
        }
        let up = match words.next()? {
            0 => None,
            up => Some(u32::try_from(up).map_err(|_| SectionError::Form)?),
        };
        let servers = words.count("servers", SERVERS_MAX)?;
        let trees = words.count("trees that go up", TREES_MAX)?;
        let servers: Vec<ServerRoute> = (0..servers).map(|_| way(&mut words)).collect::<Result<_, _>>()?;
        let trees: Vec<RoutedTree> = (0..trees).map(|_| led_tree(&mut words)).collect::<Result<_, _>>()?;
        words.end()?;
        let apart = |pair: &[ServerRoute]| pair[0].base.0 + (1 << pair[0].size_log2) <= pair[1].base.0;
        let ascend = |pair: &[RoutedTree]| (pair[0].domain, pair[0].root) < (pair[1].domain, pair[1].root);
        if !servers.windows(2).all(apart) || !trees.windows(2).all(ascend) {
            return Err(SectionError::Form);
        }
        Ok(Self { up, servers, trees })
    }
}

fn way(words: &mut Words<'_>) -> Result<ServerRoute, SectionError> {
    let (range, next) = (words.next()?, words.next()?);
    let [.., size_log2] = range.to_be_bytes();
    let base = range & !0xff;
    // Addresses of far memory end at 2^47, so the sum of base and size is valid too (PROTOCOL 8.4).
    let fits = (8..=47).contains(&size_log2) && base < 1 << 47 && base.is_multiple_of(1 << size_log2);
    let (server, port) = (u16::try_from(next >> 32), u32::try_from(next & 0xffff_ffff));
    match (server, port) {
        (Ok(server @ 1..), Ok(port)) if fits => {
            Ok(ServerRoute { base: VirtAddr(base), size_log2, server: NodeId(server), port })
        }
        _ => Err(SectionError::Form),
    }
}

fn led_tree(words: &mut Words<'_>) -> Result<RoutedTree, SectionError> {
    let domain = Domain(u32::try_from(words.next()?).map_err(|_| SectionError::Form)?);
    let root = VirtAddr(words.next()?);
    let programs = words.count("programs", PROGRAMS_MAX)?;
    let programs: Vec<ProgramHash> = (0..programs).map(|_| words.name()).collect::<Result<_, _>>()?;
    match programs.iter().find(|program| program.stores()) {
        Some(&stores) => Err(SectionError::Stores(stores)),
        None => Ok(RoutedTree { domain, root, programs }),
    }
}

/// The routing tables of a switch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Routes {
    up: Option<u32>,
    servers: Vec<ServerRoute>,
    hops: BTreeMap<NodeId, u32>,
    trees: BTreeMap<(Domain, VirtAddr), Vec<ProgramHash>>,
}

impl Routes {
    /// Creates the tables of a section.
    #[must_use]
    pub fn new(section: RouteSection) -> Self {
        let hops = section.servers.iter().map(|way| (way.server, way.port)).collect();
        let trees = section.trees.into_iter().map(|tree| ((tree.domain, tree.root), tree.programs)).collect();
        Self { up: section.up, servers: section.servers, hops, trees }
    }

    /// Returns the bytes of memory of the tables, and of the entries of the maps.
    #[must_use]
    pub fn memory(&self) -> usize {
        let programs: usize = self.trees.values().map(Vec::capacity).sum();
        self.servers.capacity() * size_of::<ServerRoute>()
            + self.hops.len() * size_of::<(NodeId, u32)>()
            + self.trees.len() * size_of::<((Domain, VirtAddr), Vec<ProgramHash>)>()
            + programs * size_of::<ProgramHash>()
    }

    /// Returns the port to which a domain's traversal at `at` goes up; none if it does not.
    #[must_use]
    pub fn up(&self, domain: Domain, at: VirtAddr, program: ProgramHash) -> Option<u32> {
        let up = self.up?;
        self.trees.get(&(domain, at))?.contains(&program).then_some(up)
    }

    /// Returns the port to which a request for a key of a domain's tree goes up, by the tree's root; none if
    /// it does not (PROTOCOL 16.11).
    #[must_use]
    pub fn up_of(&self, domain: Domain, root: VirtAddr) -> Option<u32> {
        self.up.filter(|_| self.trees.contains_key(&(domain, root)))
    }

    /// Returns the server of an address.
    #[must_use]
    pub fn server_of(&self, at: VirtAddr) -> Option<NodeId> {
        let behind = self.servers.partition_point(|way| way.base <= at);
        let way = self.servers.get(behind.checked_sub(1)?)?;
        (at.0 - way.base.0 < 1 << way.size_log2).then_some(way.server)
    }

    /// Returns the port of the next hop to a server.
    #[must_use]
    pub fn next_hop(&self, server: NodeId) -> Option<u32> {
        self.hops.get(&server).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn section() -> RouteSection {
        let way = |n: u16| ServerRoute {
            base: VirtAddr(u64::from(n) << 40),
            size_log2: 39,
            server: NodeId(n),
            port: 0x800 + u32::from(n % 2),
        };
        let tree = |domain| RoutedTree {
            domain: Domain(domain),
            root: VirtAddr(0x1100),
            programs: Vec::from([ProgramHash([0x30; 16]), ProgramHash([0x20; 16])]),
        };
        RouteSection {
            up: Some(0x801),
            servers: (1..5).map(way).collect(),
            trees: (7..9).map(tree).collect(),
        }
    }

    #[test]
    fn a_section_comes_back_as_it_was() {
        let section = section();
        let bytes = section.emit();
        assert_eq!(RouteSection::parse(&bytes), Ok(section));
        let none = RouteSection::default();
        assert_eq!(RouteSection::parse(&none.emit()), Ok(none));
        for cut in 0..bytes.len() {
            assert!(RouteSection::parse(&bytes[..cut]).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn an_address_leads_to_its_server_and_that_to_a_port() {
        let ways = Routes::new(section());
        assert_eq!(ways.server_of(VirtAddr((1 << 40) - 1)), None);
        assert_eq!(ways.server_of(VirtAddr(1 << 40)), Some(NodeId(1)));
        assert_eq!(ways.server_of(VirtAddr((3 << 40) + (1 << 39) - 1)), Some(NodeId(3)));
        assert_eq!(ways.server_of(VirtAddr((3 << 40) + (1 << 39))), None, "behind its last byte");
        assert_eq!(ways.server_of(VirtAddr(u64::MAX)), None);
        assert_eq!([1, 2, 5].map(|n| ways.next_hop(NodeId(n))), [Some(0x801), Some(0x800), None]);
        let up = |domain, at, program| ways.up(Domain(domain), VirtAddr(at), ProgramHash([program; 16]));
        assert_eq!(up(7, 0x1100, 0x30), Some(0x801));
        assert_eq!([up(6, 0x1100, 0x30), up(7, 0x1200, 0x30), up(7, 0x1100, 0x40)], [None; 3]);
        let up_of = |domain, root| ways.up_of(Domain(domain), VirtAddr(root));
        assert_eq!([up_of(7, 0x1100), up_of(6, 0x1100), up_of(7, 0x1200)], [Some(0x801), None, None]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        type Break = fn(&mut RouteSection);
        let breaks: [Break; 6] = [
            |section| section.servers[1].base = VirtAddr(1 << 40),
            |section| section.servers.swap(0, 1),
            |section| section.servers[0].server = NodeId(0),
            |section| section.servers[0].size_log2 = 48,
            |section| section.trees.swap(0, 1),
            |section| section.trees[0].programs[0] = ProgramHash([7; 16]),
        ];
        for (n, broken) in breaks.iter().enumerate() {
            let mut section = section();
            broken(&mut section);
            assert!(RouteSection::parse(&section.emit()).is_err(), "{n}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_section_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = section().emit();
            *at.get_mut(&mut bytes) = byte;
            if let Ok(read) = RouteSection::parse(&bytes) {
                prop_assert_eq!(read.emit(), bytes);
                let _ways = Routes::new(read);
            }
        }
    }
}
