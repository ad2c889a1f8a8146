//! Requests of the host role to the control plane, on a thread of their own, because the client's thread must
//! not wait for them.
//!
//! ```text
//!   client's thread: ask ──> questions ──> control thread: one at a time, as long as it takes
//!                   told <── answers <────────┘
//! ```
//!
//! Key type: [`ControlRpc`]. The control thread does not wake the client, which looks for answers whenever it
//! polls its network. A drop does not wait for the thread.

use crate::error::Error;
use farmem_api::ApiClient;
use farmem_control::api::{Request, Response};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{io, thread};

/// The number of a request, and its result.
pub(crate) type ControlReply = (u64, Result<Response, Error>);

/// The client's ends of the channels: requests out, answers in.
type RpcChannels = (Sender<(u64, Request)>, Receiver<ControlReply>);

/// A sender of requests on a thread of its own, which starts with the first request.
pub(crate) struct ControlRpc {
    /// The connection to the control plane, until the thread starts.
    api: Option<ApiClient>,
    running: Option<RpcChannels>,
    /// Number of requests without an answer.
    asked: usize,
}

impl ControlRpc {
    pub(crate) const fn new(api: ApiClient) -> Self {
        Self { api: Some(api), running: None, asked: 0 }
    }

    /// Sends a request to the control plane without waiting for the answer.
    ///
    /// # Errors
    /// [`Error::System`] if the system cannot start a thread.
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

    /// Returns true while a request has no answer.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// Returns the next answer, if there is one.
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
    Error::System { what: "cannot start the thread for requests to the control plane".into(), source }
}

fn begin(mut api: ApiClient) -> io::Result<RpcChannels> {
    let (questions, asked) = channel::<(u64, Request)>();
    let (answers, told) = channel();
    thread::Builder::new().name("farmem control_rpc".into()).spawn(move || {
        // The loop ends when the client is dropped.
        for (number, request) in asked {
            if answers.send((number, api.call(request).map_err(Error::from))).is_err() {
                break;
            }
            // Requests are rare, so the thread releases its connection between two requests.
            api.close_idle();
        }
    })?;
    Ok((questions, told))
}
