//! What the server knows of one client between its requests.

use crate::failure::Failure;
use crate::store::Name;
use farmem_resp::Protocol;

/// Requests of a transaction, and their bytes, at most.
const QUEUED_MAX: usize = 100_000;
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// A transaction that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) requests: Vec<Vec<Vec<u8>>>,
    pub(crate) bytes: usize,
    /// A request was refused: `EXEC` carries nothing out.
    pub(crate) is_spoilt: bool,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) db: u8,
    pub(crate) protocol: Protocol,
    pub(crate) authenticated: bool,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) queue: Option<Queue>,
    pub(crate) watches: Vec<(u8, Name)>,
    /// It has said `QUIT`, or was told to go.
    pub(crate) ends: bool,
}

impl Session {
    pub(crate) fn new(id: u64, address: String, authenticated: bool) -> Self {
        Self {
            id,
            db: 0,
            protocol: Protocol::Resp2,
            authenticated,
            name: String::new(),
            address,
            queue: None,
            watches: Vec::new(),
            ends: false,
        }
    }

    /// True while requests are put into a transaction.
    pub(crate) const fn queues(&self) -> bool {
        self.queue.is_some()
    }

    pub(crate) fn spoil(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.is_spoilt = true;
        }
    }

    pub(crate) fn queue(&mut self, args: &[&[u8]]) -> Result<(), Failure> {
        let queue = self.queue.as_mut().expect("a transaction is put together");
        queue.bytes += args.iter().map(|arg| arg.len() + size_of::<Vec<u8>>()).sum::<usize>();
        if queue.requests.len() >= QUEUED_MAX || queue.bytes > QUEUED_BYTES_MAX {
            queue.is_spoilt = true;
            return Err(Failure::text(
                "ERR the transaction is too long: at most 100000 commands of 64 MiB in all",
            ));
        }
        queue.requests.push(args.iter().map(|arg| arg.to_vec()).collect());
        Ok(())
    }
}
