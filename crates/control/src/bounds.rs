//! How much of everything a control plane keeps.

/// The limits of the control plane.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each bounds what its name says")]
pub struct Bounds {
    pub nodes_max: u16,
    pub hosts_max: u16,
    pub domains_max: usize,
    /// Maximum number of allocated bytes of one domain (PROTOCOL 8.72).
    pub domain_memory_max: u64,
    pub vmas_max: usize,
    /// Moved parts of vmas.
    pub pieces_max: usize,
    /// Spans of all grants of all vmas.
    pub grants_max: usize,
    pub sessions_max: usize,
    pub connections_max: usize,
    pub processes_max: usize,
    pub objects_max: usize,
    /// Ranges of lost addresses beyond which no middle part of one is accepted.
    pub lost_max: usize,
    /// Unanswered requests.
    pub pending_max: usize,
}

/// Maximum number of memory nodes.
pub const NODES_MAX: u16 = 1024;

/// Maximum number of hosts: memory nodes remember the answers to writes of this many (PROTOCOL 5.8).
pub const HOSTS_MAX: u16 = 4096;

/// Maximum number of protection domains.
pub const DOMAINS_MAX: usize = 65_536;

/// Maximum number of vmas.
pub const VMAS_MAX: usize = 65_536;

/// Maximum number of moved parts of vmas: the room of a switch beside its nodes.
pub const PIECES_MAX: usize = 4096;

/// Maximum number of spans of all grants.
pub const GRANTS_MAX: usize = 65_536;

/// Maximum number of sessions.
pub const SESSIONS_MAX: usize = 65_536;

/// Maximum number of RC connections.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Maximum number of processes with an address space.
pub const PROCESSES_MAX: usize = 65_536;

/// Maximum number of named objects.
pub const OBJECTS_MAX: usize = 65_536;

/// Maximum number of ranges of lost addresses that result from partial acceptance.
pub const LOST_MAX: usize = 262_144;

/// Maximum number of unanswered requests.
pub const PENDING_MAX: usize = 1024;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            nodes_max: NODES_MAX,
            hosts_max: HOSTS_MAX,
            domains_max: DOMAINS_MAX,
            domain_memory_max: u64::MAX,
            vmas_max: VMAS_MAX,
            pieces_max: PIECES_MAX,
            grants_max: GRANTS_MAX,
            sessions_max: SESSIONS_MAX,
            connections_max: CONNECTIONS_MAX,
            processes_max: PROCESSES_MAX,
            objects_max: OBJECTS_MAX,
            lost_max: LOST_MAX,
            pending_max: PENDING_MAX,
        }
    }
}

/// Maximum length of a name in characters.
pub const NAME_LEN_MAX: usize = 64;

/// Maximum number of index switches in a rack: a FatTree of k = 4 uses 13 (Fat-B+Tree IV-A: a core switch, 4
/// pods of an aggregation switch and 2 edges).
pub const INDEX_MAX: u16 = 256;

/// Maximum number of names below an index switch.
pub const BELOW_MAX: usize = 1024;

/// The first number that is no node's (see [`farmem_machine::Port::node`]).
pub(crate) const NODE_END: u16 = 0xf000;

/// Number of updates that a silent role may miss; one more, and it must rejoin (PROTOCOL 8.22).
pub const MISSED_MAX: u32 = 4096;
