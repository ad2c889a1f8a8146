//! Look-ups by keyed READs. The switch finds the node, and one-sided READs continue from there, without a
//! program at the memory node (PROTOCOL 15.10; Fat-B+Tree III-D).

use super::{BLinkTree, Stop};
use farmem_client::{Client, Error, Through};
use farmem_index::TreeSection;
use farmem_index::blink::{Fault, Head, NODE_LEN, Node, Nodes};
use farmem_wire::{NodeId, VirtAddr};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The position of a look-up before its first READ. No node has this address ([`VirtAddr::NULL`]).
const BY_KEY: VirtAddr = VirtAddr::NULL;

impl BLinkTree {
    /// Returns the value of `key` by a keyed READ, and by READs from the returned node on. `over` is a
    /// connection through the switch that was opened with this tree's root ([`BLinkTree::tree`]). The further
    /// READs use the same connection, or go straight to another memory node.
    ///
    /// The returned node may be as old as the published index, or older, and is checked like any node of a
    /// B-link tree. If the node does not lead to the key, or the switch or the memory node refuses, the
    /// look-up reads from the root instead.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn get_through(&self, client: &mut Client, over: Through, key: u64) -> Result<Option<u64>, Error> {
        let mut nodes = KeyedNodes { client, over, key, root: self.tree.root };
        self.tree.get(&mut nodes, BY_KEY, key).map_err(Error::from)
    }
}

/// Keyed READs of a tree whose keys lie on several memory nodes: one connection through the switch to each
/// memory node (PROTOCOL 15.5).
///
/// The published index says which memory node has a key. An old index costs a look-up more READs but never
/// changes the result.
#[derive(Debug)]
pub struct KeyedServers {
    /// The first key of each range of the fat root with its memory node, in ascending order.
    ranges: Vec<(u64, NodeId)>,
    over: BTreeMap<NodeId, Through>,
    /// The memory node of the root.
    root: NodeId,
}

impl KeyedServers {
    /// Opens connections to all memory nodes that `top` leads to. `top` is the index part with the fat root:
    /// [`BLinkTree::section`], or the last part of [`BLinkTree::fabric_sections`].
    ///
    /// # Errors
    /// [`Error::Broken`] when no memory node has an address in `top`; otherwise as [`Client::open_through`].
    pub fn open(client: &mut Client, tree: &BLinkTree, top: &TreeSection) -> Result<Self, Error> {
        let node_of = |client: &Client, at: VirtAddr| {
            let its = client.nodes().iter().find(|node| at.0.wrapping_sub(node.base) < node.capacity);
            its.map(|node| NodeId(node.node))
                .ok_or(Error::Broken { addr: at, what: "an address in the published part of a tree" })
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

    /// Returns the value of `key`, as [`BLinkTree::get_through`], over the connection to the memory node that
    /// probably holds the key.
    ///
    /// # Errors
    /// As [`BLinkTree::get_through`].
    pub fn get(&self, tree: &BLinkTree, client: &mut Client, key: u64) -> Result<Option<u64>, Error> {
        let behind = self.ranges.partition_point(|(first, _)| *first <= key);
        let node = behind.checked_sub(1).map_or(self.root, |at| self.ranges[at].1);
        tree.get_through(client, self.over[&node], key)
    }

    /// Closes the connections.
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
    /// Returns the node that the switch finds for the key; `None` when the switch finds no node.
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
                // The node may have moved. The client's own connections follow it.
                Err(_) => {}
            }
        }
        self.client.read(at, &mut bytes).map(|()| bytes)
    }
}

/// Returns true for errors that every path to the node would meet: a closed connection, a connection opened
/// without a tree, a rack that does not answer.
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
