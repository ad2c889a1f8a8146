//! The links: each carries one message at a time, with the latency of a hop.

use super::profile::{PAGE_FRAME_LEN, Profile, SMALL_LEN};

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkEnd {
    Switch,
    Host(u16),
    Node(u16),
}

/// The size class of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Load {
    Small,
    Page,
}

#[derive(Clone, Copy, Default, Debug)]
struct Link {
    up_free: u64,
    down_free: u64,
}

#[derive(Debug)]
pub(super) struct Links {
    profile: Profile,
    hop: u64,
    hosts: Vec<Link>,
    nodes: Vec<Link>,
    pub(super) bytes: u64,
}

impl Links {
    pub(super) fn new(profile: Profile, hosts: u16) -> Self {
        let link = |count: u16| vec![Link::default(); count.into()];
        Self { profile, hop: profile.hop(), hosts: link(hosts), nodes: link(profile.nodes), bytes: 0 }
    }

    /// Returns the arrival time of a message sent now. All messages pass the switch; a message to oneself
    /// takes no time.
    pub(super) fn travel(&mut self, now: u64, from: LinkEnd, to: LinkEnd, load: Load) -> u64 {
        if from == to {
            return now;
        }
        let bytes = if load == Load::Page { PAGE_FRAME_LEN } else { SMALL_LEN };
        let wire = self.profile.wire(bytes);
        let mut at = now;
        if let Some(link) = self.link(from) {
            link.up_free = link.up_free.max(at) + wire;
            at = link.up_free + self.hop;
            self.bytes += bytes;
        }
        if let Some(link) = self.link(to) {
            link.down_free = link.down_free.max(at) + wire;
            at = link.down_free + self.hop;
            self.bytes += bytes;
        }
        at
    }

    fn link(&mut self, place: LinkEnd) -> Option<&mut Link> {
        match place {
            LinkEnd::Switch => None,
            LinkEnd::Host(host) => Some(&mut self.hosts[usize::from(host)]),
            LinkEnd::Node(node) => Some(&mut self.nodes[usize::from(node)]),
        }
    }
}
