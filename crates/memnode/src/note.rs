//! What a memory node tells its observer.

use farmem_transport::rc;
use farmem_wire::{Status, message::Kind};

/// What happened at a node: trace line, metric and coverage mark in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// Something on a reliable connection.
    Connection(rc::Note),
    /// A frame was dropped without an answer.
    Dropped(DropReason),
    /// A batch of updates was applied, wholly.
    Updated,
    /// A batch of updates was applied up to one that was refused.
    UpdateRefused(Status),
    /// A batch came again and was answered again.
    UpdateRepeated,
    /// A batch came again with other bytes: the node has stopped (PROTOCOL 5.11).
    UpdateChanged,
    /// A datagram's request was answered.
    Answered(Kind, Status),
    /// A write came again and was answered again, not executed.
    DuplicateWrite,
    /// A traversal that stores came again and was answered or sent on again, not run.
    DuplicateTraversal,
    /// A traversal's next pointer is elsewhere: it went back to the switch.
    Continued,
    /// A page was sent to a host, or its loss told.
    PageServed,
    /// A page was not sent: what is written back before has not come.
    PageTooEarly,
    /// A page was written back; its bytes counted, or came too late.
    PageWritten(Counted),
    /// Pages were swept.
    Swept,
    /// A page is known to be cached at no host.
    PageCleaned,
    /// All of a move was pushed, and taken by the other node.
    Pushed,
    /// A page or an answer was pushed again.
    PushedAgain,
    /// A page that moves here has come, all of it.
    PageArrived,
    /// A file was loaded.
    FileLoaded,
    /// A file was saved.
    FileSaved,
    /// A task about a file failed.
    FileFailed,
    /// A program was learned from a request.
    ProgramLearned,
    /// The program that was learned could not be compiled: it is interpreted.
    ProgramInterpreted,
    /// A program was forgotten to make room.
    ProgramForgotten,
}

impl From<rc::Note> for Note {
    fn from(note: rc::Note) -> Self {
        Self::Connection(note)
    }
}

/// Whether a write-back's bytes became the page's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counted {
    /// They did.
    Yes,
    /// They came too late, or were written already.
    No,
    /// Other parts have still to come.
    NotYet,
}

/// Why a frame was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The frame or the message in it cannot be parsed.
    Malformed,
    /// A datagram with an opcode that no message comes in.
    Opcode,
    /// Nothing here has that queue pair number.
    NoQueuePair,
    /// The datagram showed a wrong queue key.
    WrongKey,
    /// This kind of message does not come from that port.
    WrongPort,
    /// A response; a node asks nothing.
    Response,
    /// The host to answer, or the switch to continue at, is in no table.
    UnknownPeer,
    /// A request that writes, so old that its answer is forgotten.
    Forgotten,
    /// A traversal that stores came again while it is under way here.
    UnderWay,
    /// A page, or the bytes of a region request, in none of the node's ranges.
    NotHere,
    /// A page under the number of a switch that this node was not told of, or of an earlier one.
    Epoch,
    /// A request that writes to what is about to be at another node: its copy will find it there.
    Moving,
    /// About no move that is under way, or from a node that has no part in it.
    NoMove,
    /// One task about files more than a node does at once: it is asked for again.
    Busy,
    /// A batch of updates older than the last one or ahead of the next one.
    OutOfTurn,
}

/// Counts since the node started. They wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Frames that arrived.
    pub frames: u64,
    /// Of these, dropped without an answer by the node itself (a connection's drops are its own notes).
    pub dropped: u64,
    /// Packets handed to a reliable connection.
    pub verbs: u64,
    /// Updates applied.
    pub updates: u64,
    /// Region reads answered, whatever the status.
    pub region_reads: u64,
    /// Region writes executed or refused; repeated ones not counted.
    pub region_writes: u64,
    /// Visits of traversals.
    pub visits: u64,
    /// Iterations in all visits.
    pub iterations: u64,
    /// Visits that ended with the traversal going back to the switch.
    pub continued: u64,
}
