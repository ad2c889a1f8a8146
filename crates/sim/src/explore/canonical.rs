//! World fingerprints: two worlds are equal if the same events can follow.
//!
//! Only the order of sequence numbers matters, never their distance. Each is replaced by its rank, which
//! makes the state space finite although requests continue for ever. Names of hosts and pages do not matter:
//! the fingerprint is the minimum over all renamings. It also omits fields that cannot make a difference any
//! more; each such case states the reason.

use super::message::Message;
use super::model::{Host, World, index, nth};
use super::{Budget, Config};
use farmem_control::reset::{Reset, Stage};
use farmem_host::agent::Request;
use farmem_switch::directory::Entry;
use farmem_wire::HostId;
use farmem_wire::message::{Access, FetchId, HostSet, Page, RecallAck, Region, Seq};

/// A renaming of hosts and pages.
#[derive(Clone, Copy, Debug)]
struct Names {
    hosts: [u8; 3],
    pages: [u8; 2],
}

const HOST_ORDERS: [[u8; 3]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Computes fingerprints and reuses its buffers.
#[derive(Debug, Default)]
pub(super) struct Canonical {
    seqs: Vec<Seq>,
    ids: [Vec<FetchId>; 3],
    words: Vec<u64>,
    messages: Vec<u64>,
}

/// Packs small numbers into words.
struct Packer<'a> {
    words: &'a mut Vec<u64>,
    word: u64,
    bits: u32,
}

impl<'a> Packer<'a> {
    const fn new(words: &'a mut Vec<u64>) -> Self {
        Self { words, word: 0, bits: 0 }
    }

    fn put(&mut self, value: usize, bits: u32) {
        assert!(value < 1 << bits, "{value} fits into {bits} bits");
        if self.bits + bits > u64::BITS {
            self.end();
        }
        self.word |= (value as u64) << self.bits;
        self.bits += bits;
    }

    fn end(&mut self) {
        self.words.push(self.word);
        (self.word, self.bits) = (0, 0);
    }
}

const SEQ_BITS: u32 = 6;
const ID_BITS: u32 = 4;

impl Canonical {
    /// Returns the world's fingerprint, equal for worlds from which the same events can follow.
    pub(super) fn fingerprint(&mut self, world: &World, config: &Config) -> u64 {
        self.rank(world);
        let hosts = if config.hosts == 2 { 2 } else { HOST_ORDERS.len() };
        let pages: &[[u8; 2]] = if config.pages == 2 { &[[0, 1], [1, 0]] } else { &[[0, 1]] };
        let names = HOST_ORDERS[..hosts]
            .iter()
            .flat_map(|&hosts| pages.iter().map(move |&pages| Names { hosts, pages }));
        let least = names.map(|names| self.hash(world, config, names)).min();
        least.expect("there is a way to name them")
    }

    /// Collects all sequence numbers and ids, in order.
    fn rank(&mut self, world: &World) {
        let Self { seqs, ids, .. } = self;
        seqs.clear();
        ids.iter_mut().for_each(Vec::clear);
        seqs.push(Seq(0));
        for (_, entry) in &world.entries {
            seqs.push(entry.seq());
            if let Some((host, id, _)) = entry.transaction() {
                ids[usize::from(host.0)].push(id);
            }
        }
        for (ids, host) in ids.iter_mut().zip(&world.hosts) {
            let agent = &host.agent;
            seqs.extend(agent.cached().map(|(_, cached)| cached.grant));
            seqs.extend(agent.writing().map(|(_, writing)| writing.grant));
            seqs.extend(agent.pending_acks().iter().map(|pending_acks| pending_acks.seq));
            for (_, request) in agent.requests() {
                ids.push(request.id);
                seqs.push(request.min_seq);
                seqs.extend(request.granted);
                seqs.extend(request.partial.map(|partial| partial.seq));
            }
        }
        for (_, record) in world.page_states.iter() {
            seqs.push(record.min_seq());
            seqs.extend(record.lent().map(|(lent, _)| lent));
        }
        for reset in &world.resets {
            if let Stage::Sweeping(seq, _) = reset.stage() {
                seqs.push(seq);
            }
        }
        for message in &world.net {
            seqs.extend(message.seqs());
            if let Some((host, id)) = request_of(message) {
                ids[usize::from(host.0)].push(id);
            }
        }
        seqs.sort_unstable();
        seqs.dedup();
        for ids in ids {
            ids.sort_unstable();
            ids.dedup();
        }
    }

    fn hash(&mut self, world: &World, config: &Config, names: Names) -> u64 {
        let Self { seqs, ids, words, messages } = self;
        words.clear();
        messages.clear();
        let ranks = Ranks { seqs, ids, names, world };
        let mut pack = Packer::new(words);
        ranks.switch(&mut pack);
        ranks.node(&mut pack, config);
        for place in 0..usize::from(config.hosts) {
            ranks.host(&mut pack, config, ranks.host_at(place));
        }
        ranks.left(&mut pack, config);
        pack.end();
        for message in &world.net {
            let mut pack = Packer::new(messages);
            ranks.message(&mut pack, message);
            pack.end();
        }
        messages.sort_unstable();
        words.iter().chain(&*messages).fold(0x243f_6a88_85a3_08d3, |hash, &word| mix(hash ^ word))
    }
}

/// Folds both halves of a 128-bit product: every input bit affects every output bit.
const fn mix(word: u64) -> u64 {
    let product = (word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xa076_1d64_78bd_642f;
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

/// Returns the request that a message is about.
const fn request_of(message: &Message) -> Option<(HostId, FetchId)> {
    Some(match message {
        Message::Get(host, get) => (*host, get.id),
        Message::Read(read) => (read.host, read.id),
        Message::Data(host, data, _) => (*host, data.id),
        Message::Grant(host, grant) => (*host, grant.id),
        _ => return None,
    })
}

/// A world under a renaming.
struct Ranks<'a> {
    seqs: &'a [Seq],
    ids: &'a [Vec<FetchId>; 3],
    names: Names,
    world: &'a World,
}

impl Ranks<'_> {
    fn seq(&self, seq: Seq) -> usize {
        self.seqs.binary_search(&seq).expect("all numbers are listed")
    }

    /// Returns the rank plus one, or 0 for `None`.
    fn some_seq(&self, seq: Option<Seq>) -> usize {
        seq.map_or(0, |seq| 1 + self.seq(seq))
    }

    fn id(&self, host: HostId, id: FetchId) -> usize {
        self.ids[usize::from(host.0)].binary_search(&id).expect("all ids are listed")
    }

    fn named(&self, host: HostId) -> usize {
        usize::from(self.names.hosts[usize::from(host.0)])
    }

    /// Returns the host with the new name `place`.
    fn host_at(&self, place: usize) -> HostId {
        let at = self.names.hosts.iter().position(|&name| usize::from(name) == place);
        HostId(u16::try_from(at.expect("names are all different")).expect("few hosts"))
    }

    fn page(&self, page: Page) -> usize {
        usize::from(self.names.pages[index(page)])
    }

    fn page_at(&self, place: usize) -> Page {
        nth(self
            .names
            .pages
            .iter()
            .position(|&name| usize::from(name) == place)
            .expect("names are all different"))
    }

    /// Returns a code for a page, or for both.
    fn region(&self, region: Region) -> usize {
        if region.order() == 0 { self.page(region.base()) } else { 2 }
    }

    fn set(&self, set: HostSet) -> usize {
        set.iter().map(|host| 1 << self.named(host)).sum()
    }

    fn switch(&self, pack: &mut Packer<'_>) {
        let entries = &self.world.entries;
        pack.put(entries.len(), 2);
        let first = usize::from(entries.len() == 2 && self.names.pages[0] == 1);
        for place in 0..entries.len() {
            let (region, entry) = &entries[first ^ place];
            self.entry(pack, *region, entry);
            self.reset(pack, self.world.resets.iter().find(|reset| reset.region() == *region));
        }
        pack.put(self.set(self.world.fenced), 3);
    }

    fn entry(&self, pack: &mut Packer<'_>, region: Region, entry: &Entry) {
        pack.put(entry.phase() as usize, 4);
        pack.put(self.seq(entry.seq()), SEQ_BITS);
        pack.put(self.set(entry.set()), 3);
        pack.put(entry.owner().map_or(0, |owner| 1 + self.named(owner)), 2);
        if let Some((host, id, page)) = entry.transaction() {
            pack.put(self.named(host), 2);
            pack.put(self.id(host, id), ID_BITS);
            pack.put(self.page(region.page(page)), 1);
        }
    }

    fn reset(&self, pack: &mut Packer<'_>, reset: Option<&Reset>) {
        pack.put(
            match reset.map(Reset::stage) {
                None | Some(Stage::Ended(_)) => 0,
                Some(Stage::Recalling) => 1,
                Some(Stage::Sweeping(seq, _)) => 2 + self.seq(seq),
            },
            SEQ_BITS + 1,
        );
    }

    fn node(&self, pack: &mut Packer<'_>, config: &Config) {
        for place in 0..usize::from(config.pages) {
            let page = self.page_at(place);
            let record = self.world.page_states.record(page);
            pack.put(usize::from(self.world.node_has_latest(page)), 1);
            pack.put(usize::from(self.world.is_visiting(page)), 1);
            // The min_seq of a page that was never read is below all grants, even if some number equals it.
            pack.put(self.seqs.binary_search(&record.min_seq()).unwrap_or(0), SEQ_BITS);
            let (lent, holder) =
                record.lent().map_or((None, 0), |(lent, holder)| (Some(lent), self.named(holder)));
            pack.put(self.some_seq(lent), SEQ_BITS + 1);
            pack.put(holder, 2);
        }
    }

    fn host(&self, pack: &mut Packer<'_>, config: &Config, id: HostId) {
        let Host { agent, buffer, alive, .. } = self.world.host(id);
        pack.put(usize::from(*alive), 1);
        self.budget(pack, self.world.left.requests[usize::from(id.0)]);
        for place in 0..usize::from(config.pages) {
            let page = self.page_at(place);
            let cached = agent.cached().find(|(at, _)| *at == page).map(|(_, cached)| cached);
            let writing = agent.writing().find(|(at, _)| *at == page).map(|(_, writing)| writing);
            pack.put(cached.map_or(0, |cached| cached.access as usize), 2);
            if let Some(cached) = cached {
                let matters =
                    cached.access == Access::Modified || self.is_recalled_before(id, page, cached.grant);
                pack.put(if matters { 1 + self.seq(cached.grant) } else { 0 }, SEQ_BITS + 1);
            }
            pack.put(self.some_seq(writing.map(|writing| writing.grant)), SEQ_BITS + 1);
            if let Some(writing) = writing {
                pack.put(writing.next_access.map_or(0, |access| access as usize), 2);
            }
            if cached.is_some() || writing.is_some() {
                pack.put(usize::from(self.world.has_latest(id, page)), 1);
            }
            let request = agent.requests().find(|(at, _)| *at == page).map(|(_, request)| request);
            pack.put(usize::from(request.is_some()), 1);
            if let Some(request) = request {
                self.request(pack, id, page, request);
                if request.partial.is_some() {
                    pack.put(usize::from(buffer >> index(page) & 1), 1);
                }
            }
        }
        self.pending_acks(pack, agent.pending_acks());
    }

    fn request(&self, pack: &mut Packer<'_>, host: HostId, page: Page, request: &Request) {
        pack.put(request.access as usize, 2);
        pack.put(self.id(host, request.id), ID_BITS);
        let matters = self.is_void_in_flight(host, page, request);
        pack.put(if matters { 1 + self.seq(request.min_seq) } else { 0 }, SEQ_BITS + 1);
        pack.put(self.some_seq(request.granted), SEQ_BITS + 1);
        pack.put(self.some_seq(request.partial.map(|partial| partial.seq)), SEQ_BITS + 1);
        if let Some(partial) = request.partial {
            pack.put(usize::from(partial.granted), 1);
            pack.put(usize::from(partial.done_due), 1);
        }
    }

    /// Returns true if a recall in flight covers the grant of a Shared page. The grant is only ever compared
    /// with recalls, and later recalls exceed every grant.
    fn is_recalled_before(&self, host: HostId, page: Page, grant: Seq) -> bool {
        self.world.net.iter().any(|message| match message {
            Message::Recall(to, recall) => *to == host && recall.region.contains(page) && recall.seq <= grant,
            _ => false,
        })
    }

    /// Returns true if the min_seq voids a message in flight. It matters to no other message: later ones have
    /// numbers that are not below it.
    fn is_void_in_flight(&self, host: HostId, page: Page, request: &Request) -> bool {
        let void = |to, at, id, seq| (to, at, id) == (host, page, request.id) && seq < request.min_seq;
        self.world.net.iter().any(|message| match *message {
            Message::Read(read) => void(read.host, read.page, read.id, read.seq),
            Message::Data(to, data, _) => void(to, data.page, data.id, data.seq),
            Message::Grant(to, grant) => void(to, grant.page, grant.id, grant.seq),
            _ => false,
        })
    }

    fn pending_acks(&self, pack: &mut Packer<'_>, pending_acks: &[RecallAck]) {
        for region in 0..3 {
            let found = pending_acks.iter().find(|ack| self.region(ack.region) == region);
            pack.put(self.some_seq(found.map(|ack| ack.seq)), SEQ_BITS + 1);
        }
    }

    fn budget(&self, pack: &mut Packer<'_>, budget: Budget) {
        pack.put(budget.left(), 3);
    }

    fn left(&self, pack: &mut Packer<'_>, config: &Config) {
        let left = &self.world.left;
        let mut put = |budget: Budget, of: Budget| {
            if of.is_any() {
                self.budget(pack, budget);
            }
        };
        put(left.losses, config.left.losses);
        put(left.copies, config.left.copies);
        put(left.early, config.left.early);
        put(left.crashes, config.left.crashes);
        put(left.restarts, config.left.restarts);
        put(left.resets, config.left.resets);
        put(left.visits, config.left.visits);
        put(left.splits, config.left.splits);
        put(left.merges, config.left.merges);
    }

    fn message(&self, pack: &mut Packer<'_>, message: &Message) {
        match *message {
            Message::Get(host, get) => {
                self.head(pack, 1, Some(host), get.page);
                pack.put(get.access as usize, 2);
                pack.put(self.id(host, get.id), ID_BITS);
            }
            Message::Read(read) => {
                self.head(pack, 2, Some(read.host), read.page);
                pack.put(read.access as usize, 2);
                pack.put(self.id(read.host, read.id), ID_BITS);
                pack.put(self.seq(read.seq), SEQ_BITS);
                pack.put(usize::from(read.clean), 1);
                pack.put(usize::from(read.behind), 1);
                pack.put(usize::from(read.granted), 1);
                pack.put(usize::from(read.done_due), 1);
            }
            Message::Data(host, data, latest) => {
                self.head(pack, 3, Some(host), data.page);
                pack.put(data.access as usize, 2);
                pack.put(self.id(host, data.id), ID_BITS);
                pack.put(self.seq(data.seq), SEQ_BITS);
                pack.put(usize::from(data.granted), 1);
                pack.put(usize::from(data.done_due), 1);
                pack.put(usize::from(latest), 1);
            }
            Message::Grant(host, grant) => {
                self.head(pack, 4, Some(host), grant.page);
                pack.put(self.id(host, grant.id), ID_BITS);
                pack.put(self.seq(grant.seq), SEQ_BITS);
            }
            Message::Done(host, done) => {
                self.head(pack, 5, Some(host), done.page);
                pack.put(self.seq(done.seq), SEQ_BITS);
            }
            Message::Recall(host, recall) => {
                self.range(pack, 6, host, recall.region, recall.seq);
                pack.put(usize::from(recall.keep), 1);
            }
            Message::Ack(host, ack) => self.range(pack, 7, host, ack.region, ack.seq),
            Message::WriteBack(host, write_back, latest) => {
                self.head(pack, 8, Some(host), write_back.page);
                pack.put(self.seq(write_back.grant), SEQ_BITS);
                self.acked(pack, write_back.ack);
                pack.put(usize::from(latest), 1);
            }
            Message::WriteBackAck(host, ack) => {
                self.head(pack, 9, Some(host), ack.page);
                pack.put(self.seq(ack.grant), SEQ_BITS);
                self.acked(pack, ack.ack);
            }
            Message::Visit(page, clean) => {
                self.head(pack, 10, None, page);
                pack.put(self.some_seq(clean), SEQ_BITS + 1);
            }
            Message::Refused(page) => self.head(pack, 11, None, page),
        }
    }

    fn head(&self, pack: &mut Packer<'_>, kind: usize, host: Option<HostId>, page: Page) {
        pack.put(kind, 4);
        pack.put(host.map_or(3, |host| self.named(host)), 2);
        pack.put(self.page(page), 1);
    }

    fn range(&self, pack: &mut Packer<'_>, kind: usize, host: HostId, region: Region, seq: Seq) {
        pack.put(kind, 4);
        pack.put(self.named(host), 2);
        pack.put(self.region(region), 2);
        pack.put(self.seq(seq), SEQ_BITS);
    }

    fn acked(&self, pack: &mut Packer<'_>, ack: Option<RecallAck>) {
        pack.put(ack.map_or(3, |ack| self.region(ack.region)), 2);
        pack.put(self.some_seq(ack.map(|ack| ack.seq)), SEQ_BITS + 1);
    }
}
