//! The end of a program whose window has lost bytes that it needs.

use farmem_client::Error;
use farmem_client::api::NodeInfo;
use std::io::{self, Write as _};

/// The effect on a thread that needs bytes of a window which cannot be had: they are lost, or their node gives no answer (PROTOCOL 9.19).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AtLoss {
    /// The thread gets a SIGBUS.
    #[default]
    Signal,
    /// The process ends with exit code 2, after the reason and the memory node were written to standard error: for a command that has nothing else to do.
    Exit,
}

/// Ends the process: a thread of it wants bytes that cannot be had.
#[expect(
    clippy::exit,
    reason = "threads of the program wait for bytes that never come; its command asked for this"
)]
pub(super) fn exit(why: Option<Error>, nodes: &[NodeInfo]) -> ! {
    let why = why.unwrap_or_else(|| Error::Unreachable { what: "the rack".into() });
    let node = match why {
        Error::MemoryLost { base, .. } => {
            let holds = |node: &&NodeInfo| base.0.wrapping_sub(node.base) < node.capacity;
            nodes.iter().find(holds).map(|node| format!(" (memory node {})", node.name))
        }
        _ => None,
    };
    let text = format!("farmem: {why}{}\n        {}\n", node.unwrap_or_default(), why.remedy());
    // Standard error may be closed.
    drop(io::stderr().write_all(text.as_bytes()));
    std::process::exit(2)
}
