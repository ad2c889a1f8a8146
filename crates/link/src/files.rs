//! A memory node's files. A thread of its own executes the role's requests ([`FileRequest`]), so the serving
//! thread never waits for a disk (PROTOCOL 20.1 to 20.5, 20.11).

mod tree;

use crate::{Driver, Link, OpenError, Stop, Wait, Waker};
use farmem_machine::{Duration, Machine};
use farmem_memnode::{FileOp, FileReply, FileRequest, MemNode, Out, Store};
use farmem_transport::PeerChange;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tree::Tree;

/// Longest time without a check of the stop flag.
const TURN_MAX: Duration = Duration::from_millis(20);

/// The files of a memory node, with the thread that reads and writes them.
#[derive(Debug)]
pub struct NodeFiles {
    /// Sender of requests; `None` during a drop.
    asks: Option<Sender<FileRequest>>,
    done: Receiver<FileReply>,
    thread: Option<JoinHandle<()>>,
}

impl NodeFiles {
    /// Opens a directory of files. Calls `waker` after each completed request.
    ///
    /// # Errors
    /// [`OpenError`] if the directory does not exist, or the system cannot start a thread.
    pub fn open(directory: &Path, waker: Waker) -> Result<Self, OpenError> {
        let doing = format!("open the directory of files {}", directory.display());
        let mut tree = Tree::open(directory).map_err(OpenError::system(doing))?;
        let ((asks, asked), (said, done)) = (channel::<FileRequest>(), channel());
        let work = move || {
            for FileRequest { id, op } in asked {
                let Some(outcome) = carry_out(&mut tree, id, op) else { continue };
                if said.send(FileReply { id, outcome }).is_err() {
                    return;
                }
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name("files".into()).spawn(work);
        let thread = thread.map_err(OpenError::system("start a thread for files"))?;
        Ok(Self { asks: Some(asks), done, thread: Some(thread) })
    }

    fn ask(&self, ask: FileRequest) {
        if let Some(asks) = &self.asks {
            asks.send(ask).expect("the thread takes what is asked until it is told that nothing more is");
        }
    }
}

impl Drop for NodeFiles {
    /// Ends the thread after it has executed all requests.
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // The thread has no result.
            drop(thread.join());
        }
    }
}

fn carry_out(tree: &mut Tree, id: u64, op: FileOp) -> Option<farmem_memnode::FileOutcome> {
    Some(match op {
        FileOp::Look(name) => tree.look(&name),
        FileOp::Load(name) => tree.load(id, &name),
        FileOp::Save(name) => tree.save(id, &name),
        FileOp::Read { offset, len } => tree.read(id, offset, len),
        FileOp::Write { offset, bytes } => tree.write(id, offset, &bytes),
        FileOp::Finish => tree.finish(id),
        FileOp::Drop => {
            tree.forget(id);
            return None;
        }
    })
}

/// Drives a memory node with files until `stop` is set, or the role stops by itself. Between two batches of
/// frames, the loop handles at most one completed file request. So a load delays frames at most by the copy
/// of one part.
///
/// # Errors
/// An error if the link no longer works.
pub fn run_node<S: Store, C: farmem_memnode::Compile, L: Link>(
    driver: &mut Driver<MemNode<S, C>, L>,
    files: &NodeFiles,
    stop: &Stop,
) -> io::Result<()> {
    let mut take = |out: Out, link: &mut L| match out {
        // A peer that this link cannot reach stays without an address: frames to it count as lost, and its
        // requests time out.
        Out::Peer(PeerChange { port, gid }) => drop(link.set_peer(port, gid)),
        Out::File(ask) => files.ask(ask),
    };
    while !stop.is_set() && driver.machine().halted().is_none() {
        let mut wait = TURN_MAX;
        if let Ok(done) = files.done.try_recv() {
            driver.submit(done, &mut take);
            wait = Duration::ZERO;
        }
        driver.turn(Wait::AtMost(wait), &mut take)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
