//! Look-ups by keyed READs: the switch finds the node, and one-sided READs go on from there, without a program at the memory node (PROTOCOL 15.10; Fat-B+Tree III-D).

use super::{BLinkTree, Stop};
use farmem_client::{Client, Error, Through};
use farmem_index::blink::{Fault, Head, NODE_LEN, Node, Nodes};
use farmem_wire::VirtAddr;

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
