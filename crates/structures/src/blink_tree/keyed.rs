//! Look-ups by keyed READs: the switch finds the node, and one-sided READs go on from there, without a program at the memory node (PROTOCOL 15.10; Fat-B+Tree III-D).

use super::{BLinkTree, Stop};
use farmem_client::{Client, Error, Through};
use farmem_index::TreeSection;
use farmem_index::blink::{Fault, Head, NODE_LEN, Node, Nodes};
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Where a look-up is before its first READ: no node is there ([`VirtAddr::NULL`]).
const BY_KEY: VirtAddr = VirtAddr::NULL;

impl BLinkTree {
    /// The value of `key`, by a keyed READ over a connection through the switch that was opened with this tree's root ([`BLinkTree::tree`]), and by READs from
    /// the node that it brings on: over the same connection, or straight to where a node is when that is another memory node.
    ///
    /// The node may be as old as what was published of the tree, or older: it is checked as any node of a B-link tree is. One that does not lead to the key, and
    /// what the switch or the node refuses, cost READs from the root on, and no more.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn get_through(&self, client: &mut Client, over: Through, key: u64) -> Result<Option<u64>, Error> {
        let mut nodes = KeyedNodes { client, over, key, root: self.tree.root };
        self.tree.get(&mut nodes, BY_KEY, key).map_err(Error::from)
    }
}

/// Keyed READs of a tree whose keys lie over several memory nodes: a connection through the switch to each of them, since one leads to one (PROTOCOL 15.5).
///
/// Which node has a key is what was published of the tree. It may be old: then a look-up takes more READs, and finds the same.
#[derive(Debug)]
pub struct KeyedServers {
    /// From which key on the fat root leads to which memory node, ascending.
    ranges: Vec<(u64, NodeId)>,
    over: BTreeMap<NodeId, Through>,
    /// The memory node of the root.
    root: NodeId,
}

impl KeyedServers {
    /// Sets up connections to all memory nodes that `top` leads to, which is the part of a tree's index that has the fat root: [`BLinkTree::section`], or the last one of
    /// [`BLinkTree::fabric_sections`].
    ///
    /// # Errors
    /// [`Error::Broken`] when an address in it is no memory node's; those of [`Client::open_through`].
    pub fn open(client: &mut Client, tree: &BLinkTree, top: &TreeSection) -> Result<Self, Error> {
        let node_of = |client: &Client, at: VirtAddr| {
            let its = client.nodes().iter().find(|node| at.0.wrapping_sub(node.base) < node.capacity);
            its.map(|node| NodeId(node.node))
                .ok_or(Error::Broken { addr: at, what: "an address in what is published of a tree" })
        };
        let root = node_of(client, tree.tree.root)?;
        let mut ranges: Vec<(u64, NodeId)> = Vec::new();
        for range in &top.ranges {
            let node = node_of(client, range.child.addr)?;
            if ranges.last().is_none_or(|(_, last)| *last != node) {
                ranges.push((range.first, node));
            }
        }
        let mut servers = Self { ranges, over: BTreeMap::new(), root };
        for node in servers.ranges.iter().map(|(_, node)| *node).chain([root]).collect::<Vec<_>>() {
            if let Entry::Vacant(free) = servers.over.entry(node) {
                free.insert(client.open_through(node, Some(tree.tree.root))?);
            }
        }
        Ok(servers)
    }

    /// The value of `key`, as [`BLinkTree::get_through`] has it, over the connection to the memory node that has it as far as is known.
    ///
    /// # Errors
    /// As [`BLinkTree::get_through`].
    pub fn get(&self, tree: &BLinkTree, client: &mut Client, key: u64) -> Result<Option<u64>, Error> {
        let behind = self.ranges.partition_point(|(first, _)| *first <= key);
        let node = behind.checked_sub(1).map_or(self.root, |at| self.ranges[at].1);
        tree.get_through(client, self.over[&node], key)
    }

    /// Takes the connections down.
    ///
    /// # Errors
    /// As [`Client::close_through`].
    pub fn close(self, client: &mut Client) -> Result<(), Error> {
        self.over.into_values().try_for_each(|over| client.close_through(over))
    }
}

/// The tree's nodes as a look-up of one key reads them.
struct KeyedNodes<'a> {
    client: &'a mut Client,
    over: Through,
    key: u64,
    root: VirtAddr,
}

impl KeyedNodes<'_> {
    /// The node that the switch finds for the key; none when it finds nothing that is one.
    fn found(&mut self) -> Result<Option<Node>, Error> {
        let mut bytes = [0; NODE_LEN];
        match self.client.keyed_read(self.over, self.key, &mut bytes) {
            Ok(()) => Ok(Node::parse(&bytes).ok()),
            Err(error) if is_lasting(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn bytes(&mut self, at: VirtAddr) -> Result<[u8; NODE_LEN], Error> {
        let mut bytes = [0; NODE_LEN];
        if self.client.is_through(self.over, at) {
            match self.client.read_through(self.over, at, &mut bytes) {
                Ok(()) => return Ok(bytes),
                Err(error) if is_lasting(&error) => return Err(error),
                // It may have moved: the client's own connections follow.
                Err(_) => {}
            }
        }
        self.client.read(at, &mut bytes).map(|()| bytes)
    }
}

/// True for what another way to the node would meet too: a connection that was closed, or was opened without a tree, and a rack that does not answer.
const fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Missing { .. }
            | Error::Unreachable { .. }
            | Error::Refused(_)
            | Error::System { .. }
            | Error::Api { .. }
    )
}

impl Nodes for KeyedNodes<'_> {
    type Error = Stop;

    fn read(&mut self, at: VirtAddr) -> Result<Node, Stop> {
        let at = if at == BY_KEY {
            match self.found().map_err(Stop::Memory)? {
                Some(node) => return Ok(node),
                None => self.root,
            }
        } else {
            at
        };
        let bytes = self.bytes(at).map_err(Stop::Memory)?;
        Node::parse(&bytes).map_err(|error| Fault::Broken { at, what: error.0 }.into())
    }

    fn replace(&mut self, _: VirtAddr, _: Head, _: &Node) -> Result<bool, Stop> {
        unreachable!("a look-up changes nothing")
    }

    fn create(&mut self, _: &Node, _: VirtAddr) -> Result<(VirtAddr, Head), Stop> {
        unreachable!("a look-up makes nothing")
    }

    fn retire(&mut self, _: VirtAddr) {
        unreachable!("a look-up retires nothing")
    }
}
