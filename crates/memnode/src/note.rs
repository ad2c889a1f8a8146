//! Observations of a memory node.

use farmem_transport::rc;
use farmem_wire::{Status, message::Kind};

/// An event at a node: trace line, metric and coverage mark in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// An event on a reliable connection.
    Connection(rc::Note),
    /// A frame was dropped without an answer.
    Dropped(DropReason),
    /// A batch of updates was applied completely.
    Updated,
    /// A batch of updates was applied up to a refused one.
    UpdateRefused(Status),
    /// A batch was repeated and answered again.
    UpdateRepeated,
    /// A batch was repeated with other bytes: the node has stopped (PROTOCOL 5.11).
    UpdateChanged,
    /// The request in a datagram was answered.
    Answered(Kind, Status),
    /// A write was repeated and answered again, not executed.
    DuplicateWrite,
    /// A storing traversal was repeated and answered or forwarded again, not run.
    DuplicateTraversal,
    /// A traversal went back to the switch, because its next pointer is elsewhere.
    Continued,
    /// A page, or the notice of its loss, was sent to a host.
    PageServed,
    /// A page was not sent, because an earlier write-back has not arrived.
    PageTooEarly,
    /// A page was written back; its bytes counted, or came too late.
    PageWritten(WriteBackEffect),
    /// Pages were swept.
    Swept,
    /// A page is no longer cached at any host.
    PageCleaned,
    /// All of a move was pushed and acknowledged.
    Pushed,
    /// A page or a record was retransmitted to the other node.
    PushedAgain,
    /// A page that moves here has arrived completely.
    PageArrived,
    /// A file was loaded.
    FileLoaded,
    /// A file was saved.
    FileSaved,
    /// A file task failed.
    FileFailed,
    /// A program was learned from a request.
    ProgramLearned,
    /// The learned program could not be compiled and is interpreted.
    ProgramInterpreted,
    /// A program was evicted to make room.
    ProgramForgotten,
}

impl From<rc::Note> for Note {
    fn from(note: rc::Note) -> Self {
        Self::Connection(note)
    }
}

/// The effect of a write-back's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteBackEffect {
    /// The bytes became the page's.
    Yes,
    /// The bytes came too late, or were written already.
    No,
    /// Other parts are still missing.
    NotYet,
}

/// The reason why a frame was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The frame or the message in it cannot be parsed.
    Malformed,
    /// A datagram with an opcode that carries no message.
    Opcode,
    /// The queue pair number is unknown.
    NoQueuePair,
    /// The datagram has a wrong queue key.
    WrongKey,
    /// A kind of message that this port may not send.
    WrongPort,
    /// A response; a node sends no requests.
    Response,
    /// The host to answer, or the switch to continue at, is unknown.
    UnknownPeer,
    /// A writing request so old that its answer is forgotten.
    Forgotten,
    /// A copy of a storing traversal that is in progress here.
    UnderWay,
    /// A page, or the bytes of a region request, outside the node's ranges.
    NotHere,
    /// A page under the number of a switch that this node does not know, or of an earlier switch.
    Epoch,
    /// A writing request to addresses that move to another node: its copy will reach that node.
    Moving,
    /// A message about no move in progress, or from a node that takes no part in the move.
    NoMove,
    /// One file task more than a node executes at once: the control plane retries.
    Busy,
    /// A batch of updates older than the last one or ahead of the next one.
    OutOfTurn,
}

/// Counts since the node started. The counts wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Number of frames that arrived.
    pub frames: u64,
    /// Number of these frames that the node dropped without an answer (connections note their own drops).
    pub dropped: u64,
    /// Number of packets handed to reliable connections.
    pub verbs: u64,
    /// Number of updates applied.
    pub updates: u64,
    /// Number of region reads answered, whatever the status.
    pub region_reads: u64,
    /// Number of region writes executed or refused, without repeated ones.
    pub region_writes: u64,
    /// Number of visits of traversals.
    pub visits: u64,
    /// Number of iterations in all visits.
    pub iterations: u64,
    /// Number of visits that ended with the traversal going back to the switch.
    pub continued: u64,
}
