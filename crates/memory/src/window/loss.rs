//! The end of a program whose window has lost bytes that it needs.

use farmem_client::Error;
use farmem_client::api::NodeInfo;
use std::io::{self, Write as _};

/// The effect on a thread that needs unavailable bytes of a window: they are lost, or their node does not
/// answer (PROTOCOL 9.19).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AtLoss {
    /// The thread gets a SIGBUS.
    #[default]
    Signal,
    /// The process prints the reason and the memory node to standard error, and ends with exit code 2. For a
    /// command without other tasks.
    Exit,
}

/// Ends the process because one of its threads needs unavailable bytes.
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
    // A closed stderr is no fault.
    drop(io::stderr().write_all(text.as_bytes()));
    std::process::exit(2)
}
