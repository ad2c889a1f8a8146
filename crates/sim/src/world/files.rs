//! The files of memory nodes: each node has a disk that survives its crashes (PROTOCOL 20.1 to 20.5).

use super::World;
use crate::HostMachine;
use crate::sim_node::RoleId;
use farmem_machine::{Duration, Event, Instant};
use farmem_memnode::{FileOp, FileOutcome, FileReply, FileRequest, Out};
use farmem_wire::message::{FileCause, FileFault};
use std::collections::{BTreeMap, VecDeque};

/// The time of any operation, and the additional time per byte.
const SEEK: Duration = Duration::from_micros(20);
const NANOS_PER_BYTE: u64 = 2;

/// The disks of all nodes.
#[derive(Debug, Default)]
pub(super) struct Disks {
    disks: BTreeMap<u16, Disk>,
    /// Pending operations, in the order in which they end at their node.
    pending: VecDeque<Pending>,
}

/// A pending operation of a node.
#[derive(Debug)]
struct Pending {
    due: Instant,
    node: u16,
    /// The start of the node that requested it.
    starts: u32,
    ask: FileRequest,
}

#[derive(Debug, Default)]
struct Disk {
    files: BTreeMap<String, File>,
    /// The node's open files, by its number.
    open: BTreeMap<u64, Open>,
    /// The start of the node that opened them.
    starts: u32,
    /// Number of stamps so far.
    stamps: u64,
    is_full: bool,
}

#[derive(Clone, Debug)]
struct File {
    bytes: Vec<u8>,
    stamp: u64,
}

#[derive(Debug)]
enum Open {
    Read { name: String, length: u64, stamp: u64 },
    New { name: String, bytes: Vec<u8> },
}

impl Disk {
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        self.stamps += 1;
        self.files.insert(name.to_owned(), File { bytes, stamp: self.stamps });
        self.stamps
    }

    fn carry_out(&mut self, id: u64, op: FileOp) -> Option<FileOutcome> {
        let failed = |cause, at| FileOutcome::Failed(FileFault { cause, errno: 0, at });
        let opened = |file: &File| FileOutcome::Opened { length: file.bytes.len() as u64, stamp: file.stamp };
        let outcome = match op {
            FileOp::Look(name) => self.files.get(&name).map_or_else(|| failed(FileCause::Missing, 0), opened),
            FileOp::Load(name) => match self.files.get(&name) {
                Some(file) => {
                    let (length, stamp) = (file.bytes.len() as u64, file.stamp);
                    self.open.insert(id, Open::Read { name, length, stamp });
                    FileOutcome::Opened { length, stamp }
                }
                None => failed(FileCause::Missing, 0),
            },
            FileOp::Save(name) => {
                self.open.insert(id, Open::New { name, bytes: Vec::new() });
                FileOutcome::Opened { length: 0, stamp: 0 }
            }
            FileOp::Read { offset, len } => {
                let Some(Open::Read { name, .. }) = self.open.get(&id) else { unreachable!("it is open") };
                let bytes = self.files.get(name).map(|file| &file.bytes[..]).unwrap_or_default();
                let (from, to) = (place(offset), place(offset) + len as usize);
                match bytes.get(from..to) {
                    Some(bytes) => FileOutcome::Read { offset, bytes: bytes.to_vec() },
                    None => failed(FileCause::Short, bytes.len() as u64),
                }
            }
            FileOp::Write { offset, .. } if self.is_full => failed(FileCause::Full, offset),
            FileOp::Write { offset, bytes } => {
                let Some(Open::New { bytes: new, .. }) = self.open.get_mut(&id) else {
                    unreachable!("it was begun")
                };
                let end = place(offset) + bytes.len();
                new.resize(new.len().max(end), 0);
                new[place(offset)..end].copy_from_slice(&bytes);
                FileOutcome::Written { offset }
            }
            FileOp::Finish => match self.open.remove(&id) {
                Some(Open::Read { name, length, stamp }) => {
                    let now = self.files.get(&name).map(|file| (file.bytes.len() as u64, file.stamp));
                    if now == Some((length, stamp)) {
                        FileOutcome::Finished { stamp }
                    } else {
                        failed(FileCause::Changed, length)
                    }
                }
                Some(Open::New { name, bytes }) => FileOutcome::Finished { stamp: self.put(&name, bytes) },
                None => unreachable!("it is open"),
            },
            FileOp::Drop => {
                self.open.remove(&id);
                return None;
            }
        };
        if matches!(outcome, FileOutcome::Failed(_)) {
            self.open.remove(&id);
        }
        Some(outcome)
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("files of a simulated rack are short")
}

impl Disks {
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.due).min()
    }
}

impl<H: HostMachine> World<H> {
    /// Puts a file on a node's disk. A file of the same name is replaced; earlier reads belong to the old
    /// file.
    pub fn put_file(&mut self, node: u16, name: &str, bytes: Vec<u8>) {
        self.disks.disks.entry(node).or_default().put(name, bytes);
    }

    /// Returns the bytes of a file on a node's disk.
    #[must_use]
    pub fn file(&self, node: u16, name: &str) -> Option<&[u8]> {
        self.disks.disks.get(&node)?.files.get(name).map(|file| &file.bytes[..])
    }

    /// Makes a node's disk full, or not full again.
    pub fn fill_disk(&mut self, node: u16, is_full: bool) {
        self.disks.disks.entry(node).or_default().is_full = is_full;
    }

    /// Handles a node's outputs to its driver.
    pub(super) fn node_outs(&mut self, node: u16, outs: Vec<Out>) {
        let now = self.env.now;
        for out in outs {
            let Out::File(ask) = out else { continue };
            let bytes = match &ask.op {
                FileOp::Read { len, .. } => u64::from(*len),
                FileOp::Write { bytes, .. } => bytes.len() as u64,
                _ => 0,
            };
            let pending = self.disks.pending.iter().filter(|pending| pending.node == node);
            let after = pending.map(|pending| pending.due).max().map_or(now, |last| last.max(now));
            let due = after + SEEK + Duration::from_nanos(bytes * NANOS_PER_BYTE);
            let starts = self.starts_of(RoleId::Node(node));
            self.disks.pending.push_back(Pending { due, node, starts, ask });
        }
    }

    /// Runs a pending disk operation that is due. Returns false if none is.
    pub(super) fn turn_disk(&mut self) -> bool {
        let now = self.env.now;
        let Some(index) = self.disks.pending.iter().position(|pending| pending.due <= now) else {
            return false;
        };
        let Some(Pending { node, starts, ask: FileRequest { id, op }, .. }) =
            self.disks.pending.remove(index)
        else {
            return false;
        };
        if self.starts_of(RoleId::Node(node)) != starts || !self.is_up(RoleId::Node(node)) {
            return true; // the caller is gone, with its open objects
        }
        let disk = self.disks.disks.entry(node).or_default();
        if disk.starts != starts {
            disk.open.clear();
            disk.starts = starts;
        }
        self.env.journal.line(|| format!("disk of node {node}: file {id}: {}", shown(&op)));
        if let Some(outcome) = disk.carry_out(id, op) {
            let event = Event::Local(FileReply { id, outcome });
            self.node_event(node, event);
        }
        true
    }

    /// Passes an event to a node, and the node's requests to its disk.
    pub(super) fn node_event(&mut self, node: u16, event: Event<'_, FileReply>) {
        let Some(sim_node) = self.nodes.get_mut(&node) else { return };
        let mut outs = Vec::new();
        sim_node.event(event, &mut self.env, |out| outs.push(out));
        self.node_outs(node, outs);
    }
}

fn shown(op: &FileOp) -> String {
    match op {
        FileOp::Write { offset, bytes } => format!("write {} bytes at {offset}", bytes.len()),
        other => format!("{other:?}"),
    }
}
