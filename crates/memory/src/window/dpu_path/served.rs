//! Connection setup with a DPU, and the messages over its socket (PROTOCOL 17.1 to 17.4).

use super::super::buffer::Laid;
use super::{DpuSettings, PAGES, READING_MAX, region_of};
use farmem_client::api::{ApiError, ErrorCode};
use farmem_client::host_parts::wrong_answer;
use farmem_client::{DpuSection, Error};
use farmem_dpu::Stats;
use farmem_dpu_server::messages::{
    ANSWER_TIME_MIN, Carried, ClientMessage, DpuMessage, Foresight, VERSION, answer, ask, hear,
};
use farmem_link::dpu::beat::{BeatMonitor, silence_max};
use farmem_link::dpu::{DpuSocket, Other, PairSize, ProcessEnd, make_pair};
use farmem_link::{Clock, OutsideWaker};
use farmem_machine::Duration;
use farmem_uffd::Window;
use farmem_wire::message::PAGE_LEN;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

/// Maximum time for a killed DPU to end.
pub(super) const LAST: Duration = Duration::from_secs(5);

/// A DPU that serves the window.
#[derive(Debug)]
pub(super) struct Dpu {
    pub(super) talk: DpuSocket,
    pub(super) rings: ProcessEnd,
    pub(super) host: u16,
    pub(super) generation: u16,
    /// The DPU's process, if the window's pages are registered there: then the DPU reads and writes them
    /// itself.
    pub(super) process: Option<Other>,
    pub(super) pulse: BeatMonitor,
    /// Number of hints without an answer.
    unanswered: usize,
    /// The DPU's farewell, if one arrived; true if no request is pending.
    farewell: Option<bool>,
}

/// Maximum number of hints without an answer.
const UNANSWERED_MAX: usize = 32;

impl Dpu {
    /// Sends the prefetch policy for a part of a region, without waiting for the answer. Adds the number of
    /// refused hints to `refused`. The heartbeat detects a DPU that does not read the message.
    pub(super) fn advise(
        &mut self,
        region: u16,
        (offset, len): (u64, u64),
        policy: Foresight,
        refused: &mut u64,
    ) {
        self.take_answered(refused);
        let advice = ClientMessage::Policy { region, policy, part: Some((offset, len)) };
        let said = serde_json::to_vec(&advice).expect("it has a form in JSON");
        if self.unanswered < UNANSWERED_MAX && self.talk.say_now(&said).is_ok() {
            self.unanswered += 1;
        } else {
            *refused += 1;
        }
    }

    /// Receives the available answers to hints.
    fn take_answered(&mut self, refused: &mut u64) {
        while self.unanswered > 0 && self.talk.is_speaking() && self.hear_answer(refused) {}
    }

    /// Receives one answer to a hint; returns false if no more answers will come.
    fn hear_answer(&mut self, refused: &mut u64) -> bool {
        match hear::<DpuMessage>(&self.talk) {
            Ok(Some((DpuMessage::Farewell { settled }, _))) => {
                self.farewell = Some(settled);
                false
            }
            Ok(Some((said, _))) => {
                self.unanswered -= 1;
                *refused += u64::from(said != DpuMessage::Done {});
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Returns the farewell of a DPU that has closed the socket, if it sent one (PROTOCOL 17.17). The value
    /// is true if no request of this window is pending or may be executed later.
    pub(super) fn farewell(&mut self, refused: &mut u64) -> Option<bool> {
        self.take_answered(refused);
        if self.farewell.is_none()
            && self.talk.is_speaking()
            && let Ok(Some((DpuMessage::Farewell { settled }, _))) = hear(&self.talk)
        {
            self.farewell = Some(settled);
        }
        self.farewell
    }

    /// Returns the DPU's counters for all its processes; `None` if the DPU is gone. The DPU answers all hints
    /// first.
    pub(super) fn stats(&mut self, refused: &mut u64) -> Option<Stats> {
        match self.ask_after(&ClientMessage::Stats {}, refused)? {
            DpuMessage::Stats(said) => Some(said.into()),
            _ => None,
        }
    }

    /// Returns the DPU's counters for requests of this process; `None` as for [`Dpu::stats`].
    pub(super) fn carried(&mut self, refused: &mut u64) -> Option<Carried> {
        match self.ask_after(&ClientMessage::Carried {}, refused)? {
            DpuMessage::Carried(carried) => Some(carried),
            _ => None,
        }
    }

    /// Sends a request after all hints have been answered.
    fn ask_after(&mut self, what: &ClientMessage, refused: &mut u64) -> Option<DpuMessage> {
        while self.unanswered > 0 {
            if !self.hear_answer(refused) {
                return None;
            }
        }
        ask(&self.talk, what, None).ok()
    }
}

/// Returns the size of the memory that a window shares with its DPU. Each page in flight from the DPU has a
/// slot in registered memory. The ring of requests has space for some pages in the other direction.
const fn size_for(page: u32) -> PairSize {
    let page = page as usize;
    let requests = (4 * page).next_power_of_two();
    let requests = if requests < REQUESTS_MIN { REQUESTS_MIN } else { requests };
    PairSize { requests, answers: 1 << 16, registered: READING_MAX * page }
}

/// Minimum size of the ring of requests, in bytes.
const REQUESTS_MIN: usize = 1 << 18;

impl Dpu {
    /// Connects to the DPU, and opens the allocations; returns also the length of a page in bytes.
    ///
    /// # Errors
    /// [`NoDpu`].
    pub(super) fn open(
        section: &DpuSection,
        (domain, (host, generation)): (u32, (u16, u16)),
        laid: &Laid,
        wishes: DpuSettings,
        window: &Window,
        clock: &Clock,
    ) -> Result<(Self, usize), NoDpu> {
        let talk = DpuSocket::connect(&section.socket).map_err(Error::from)?;
        let size = size_for(section.page);
        let file = make_pair(size).map_err(Error::from)?;
        let (version, rack) = (VERSION.into(), section.mark()?);
        let hello = ClientMessage::Hello { version, rack, domain, host, generation, size };
        talk.set_patience(silence_max(section.lease)).map_err(system)?;
        let mut said = match ask(&talk, &hello, Some(file.as_fd())) {
            Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                return Err(NoDpu::Silent(talk.other().ok()));
            }
            said => said?,
        };
        talk.set_patience(section.patience.max(ANSWER_TIME_MIN)).map_err(system)?;
        if said == (DpuMessage::Soon {}) {
            said = answer(&talk)?;
        }
        let DpuMessage::Welcome { host, generation, page_len, lease_ms, wake } = said else {
            return Err(wrong_answer("hello").into());
        };
        if page_len != section.page {
            let message = format!(
                "the DPU has pages of {page_len} bytes, and this rack's description of {}",
                section.page
            );
            let remedy = "restart the DPU with the rack's present description".into();
            return Err(Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy }).into());
        }
        let wake = OutsideWaker::open(&wake).map_err(Error::from)?;
        let rings = ProcessEnd::of(&file, size, wake).map_err(Error::from)?;
        let process = match begin(&talk, laid, wishes, window, page_len as usize) {
            Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                return Err(NoDpu::Silent(talk.other().ok()));
            }
            begun => begun?,
        };
        let pulse = BeatMonitor::new(Duration::from_millis(lease_ms), rings.beat(), clock.now());
        let dpu = Self { talk, rings, host, generation, process, pulse, unanswered: 0, farewell: None };
        Ok((dpu, page_len as usize))
    }
}

/// The reason why a window has no DPU.
#[derive(Debug)]
pub(super) enum NoDpu {
    Error(Error),
    /// The DPU listens, but has sent nothing for seven eighths of a lease; or it admitted this process, and
    /// then sent nothing. The value is the DPU's process, if it can be killed.
    Silent(Option<Other>),
}

impl From<Error> for NoDpu {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn system(source: io::Error) -> Error {
    Error::System { what: "the DPU's socket".into(), source }
}

/// Opens the allocations at a DPU that has admitted this process.
fn begin(
    talk: &DpuSocket,
    laid: &Laid,
    wishes: DpuSettings,
    window: &Window,
    page_len: usize,
) -> Result<Option<Other>, Error> {
    for (object, extent) in laid.extents().iter().enumerate() {
        let (region, write) = (region_of(object), !extent.read_only);
        ask(talk, &ClientMessage::Open { region, base: extent.base.0, write }, None)?;
        if wishes.foresight != Foresight::default() {
            ask(talk, &ClientMessage::Policy { region, policy: wishes.foresight, part: None }, None)?;
        }
    }
    let process = register(talk, window, page_len)?;
    for (object, offset, len) in wishes.fixed.into_iter().flat_map(|part| laid.of_objects(part)) {
        ask(talk, &ClientMessage::Fix { region: region_of(object), offset, len }, None)?;
    }
    Ok(process)
}

/// Registers the pages of the window with the DPU, so that they are not copied here. A fenced DPU must not
/// write to them any more, and only its end guarantees that. So a DPU that this process cannot kill does not
/// get them.
fn register(talk: &DpuSocket, window: &Window, page_len: usize) -> Result<Option<Other>, Error> {
    let Ok(process) = talk.other() else { return Ok(None) };
    // An evicted page may keep its memory until another page has arrived.
    let most = window.frames_max() * PAGE_LEN as u64 + (READING_MAX * page_len) as u64;
    let file =
        window.file().map_err(|source| Error::System { what: "no more descriptors".into(), source })?;
    ask(talk, &ClientMessage::Register { rkey: PAGES.0, most }, Some(file.as_fd()))?;
    Ok(Some(process))
}

/// Kills a silent DPU: it must not execute writes of an earlier process behind this window's back.
pub(super) fn put_away(process: Option<Other>) -> Result<(), Error> {
    let silent = |source| Error::System { what: "the DPU does not answer, and does not end".into(), source };
    let process = process.ok_or_else(|| silent(io::ErrorKind::PermissionDenied.into()))?;
    process.end(LAST).map_err(silent)?;
    // A closed stderr is no fault.
    drop(writeln!(
        io::stderr(),
        "farmem: the DPU did not answer; it was killed, and this window continues without it"
    ));
    Ok(())
}
