//! Control-plane requests of a client whose thread must not wait for them: those of the host role.
//!
//! ```text
//!   client's thread: ask ──> questions ──> control thread: one at a time, as long as it takes
//!                   told <── answers <────────┘
//! ```
//!
//! Key type: [`ControlRpc`]. What it does not do: wake the client, which looks when it looks at its network; wait for anything at its end.

use crate::error::Error;
use farmem_api::ApiClient;
use farmem_control::api::{Request, Response};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{io, thread};

/// The number of a question, and what came of it.
pub(crate) type ControlReply = (u64, Result<Response, Error>);

/// The client's ends: where questions go, and where answers come.
type Ends = (Sender<(u64, Request)>, Receiver<ControlReply>);

/// Asks on a thread of its own, which begins with the first question.
pub(crate) struct ControlRpc {
    /// The connection to the control plane, until the thread begins.
    api: Option<ApiClient>,
    running: Option<Ends>,
    /// Questions without an answer.
    asked: usize,
}

impl ControlRpc {
    pub(crate) const fn new(api: ApiClient) -> Self {
        Self { api: Some(api), running: None, asked: 0 }
    }

    /// Has the control plane asked, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no thread for it.
    pub(crate) fn ask(&mut self, number: u64, request: Request) -> Result<(), Error> {
        if let Some(api) = self.api.take() {
            self.running = Some(begin(api).map_err(no_thread)?);
        }
        let gone = || no_thread(io::ErrorKind::NotFound.into());
        let (questions, _) = self.running.as_ref().ok_or_else(gone)?;
        questions.send((number, request)).map_err(|_| gone())?;
        self.asked += 1;
        Ok(())
    }

    /// True while a question has no answer.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// The next answer that there is.
    pub(crate) fn told(&mut self) -> Option<ControlReply> {
        if self.asked == 0 {
            return None;
        }
        let (_, answers) = self.running.as_ref()?;
        let told = answers.try_recv().ok()?;
        self.asked -= 1;
        Some(told)
    }
}

fn no_thread(source: io::Error) -> Error {
    Error::System { what: "no thread to ask the control plane by".into(), source }
}

fn begin(mut api: ApiClient) -> io::Result<Ends> {
    let (questions, asked) = channel::<(u64, Request)>();
    let (answers, told) = channel();
    thread::Builder::new().name("farmem control_rpc".into()).spawn(move || {
        // Until the client is gone.
        for (number, request) in asked {
            if answers.send((number, api.call(request).map_err(Error::from))).is_err() {
                break;
            }
            // Requests come now and then: the thread keeps none of the control plane's connections in between.
            api.hang_up();
        }
    })?;
    Ok((questions, told))
}
