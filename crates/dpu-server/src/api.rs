//! Byte-addressable far memory for all threads of a program, through the DPU beside its host: Allocate, Deallocate,
//! Read, Write, Poll (PD3 6.1; PROTOCOL 18.23).
//!
//! Key types: [`MemoryApi`], a program's connection to the DPU; [`ApiThread`], one per thread; [`Pending`], a pending
//! request. Threads write into one ring without a lock, and each has answer slots of its own, so no thread waits for
//! another.
//!
//! ```text
//!   threads == one ring of requests ==> thread of the domain at the DPU == RC ==> memory nodes
//!      '------ answer slots <==========='
//! ```
//!
//! If the DPU dies or hangs, the program notices within a lease. Pending requests end with [`Error::Interrupted`],
//! and new ones are refused. A program that continues with a client of its own fences the DPU first
//! ([`MemoryApi::fence`]).
//!
//! The API has no cache, does not order requests and uses one DPU. A read that must see a write is sent after the end
//! of the write.

pub use super::messages::Carried;
use super::messages::{ClientMessage, DpuMessage, ask, come_in, finish};
use super::threads::{AT_LEN, HEAD_LEN, head_of};
use farmem_client::host_parts::wrong_answer;
use farmem_client::{Client, Error, Vma};
use farmem_link::dpu::beat::BeatMonitor;
use farmem_link::dpu::{DpuSocket, PairSize, ProcessEnd, SubmissionSender, make_pair, make_submissions};
use farmem_link::{Clock, OpenError, OutsideWaker};
use farmem_machine::Duration;
use farmem_wire::VirtAddr;
use farmem_wire::pd3::{Head, Id, RegionRange, Request};
use farmem_wire::soda::Ended;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Maximum number of pending requests of a thread.
pub const SLOTS: u16 = 64;
/// Maximum length of a request in bytes; a longer call becomes several requests.
pub const PART: usize = 4096;
/// Maximum length of one call in bytes.
pub const LEN_MAX: usize = SLOTS as usize * PART / 2;
/// Maximum number of threads: each has its own request ids (PD3 6.1 has 14 bits of them).
pub const THREADS_MAX: u16 = farmem_wire::pd3::IDS / SLOTS;
/// Maximum length of a region in bytes.
pub const REGION_MAX: u64 = 1 << 32;

/// Length of an answer slot in bytes.
const SLOT_LEN: usize = HEAD_LEN + PART;
/// Number of polls before a thread sleeps.
const SPINS: u32 = 200;
/// Duration of that sleep.
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// Options of a program's connection to its DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApiOptions {
    /// Maximum number of [`ApiThread`]s at a time, up to [`THREADS_MAX`]. Each takes 257 KiB for its answers.
    pub threads: u16,
    /// Length of the request ring in bytes: a power of two, 8 KiB to 256 MiB.
    pub ring: usize,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self { threads: 16, ring: 1 << 20 }
    }
}

/// An allocation that is open at the DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    number: u16,
    /// The allocation, for a client.
    pub vma: Vma,
}

/// A program's connection to the DPU of its machine. Threads share it.
#[derive(Debug)]
pub struct MemoryApi {
    rings: ProcessEnd,
    sender: SubmissionSender,
    talk: Mutex<DpuSocket>,
    next_region: AtomicU16,
    /// Thread numbers that are not in use.
    numbers: Mutex<Vec<u16>>,
    page_len: u64,
    life: (u16, u16),
    clock: Clock,
    pulse: Mutex<BeatMonitor>,
    is_dead: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryApi {
    /// Connects to the DPU of this machine, in the domain of `client`.
    ///
    /// # Errors
    /// [`Error::Missing`] in a rack without a DPU, [`Error::Open`] if no DPU serves or an option is out of range,
    /// [`Error::Refused`] with the DPU's refusal.
    pub fn connect(client: &Client, options: ApiOptions) -> Result<Self, Error> {
        let ApiOptions { threads, ring } = options;
        if !(1..=THREADS_MAX).contains(&threads) || ring < 2 * PART {
            let (setting, value) = ("memory API", format!("{options:?}"));
            let remedy = format!(
                "choose 1 to {THREADS_MAX} threads, and a ring size that is a power of two, 8 KiB or more"
            );
            return Err(OpenError::Setting { setting, value, remedy }.into());
        }
        let section = client.dpu().ok_or_else(|| Error::Missing {
            what: "[dpu] in this rack's description; the memory API needs a DPU".into(),
        })?;
        let places = usize::from(threads) * usize::from(SLOTS) * SLOT_LEN;
        let size =
            PairSize { requests: 1 << 12, answers: 1 << 12, registered: places.next_multiple_of(PART) };
        let (pair, submissions) = (make_pair(size)?, make_submissions(ring)?);
        let (talk, said) = come_in(section, client, size, pair.as_fd())?;
        let DpuMessage::Welcome { host, generation, page_len, lease_ms, wake } = said else {
            return Err(wrong_answer("hello"));
        };
        let rings = ProcessEnd::of(&pair, size, OutsideWaker::open(&wake)?)?;
        let sender = SubmissionSender::of(&submissions, ring, OutsideWaker::open(&wake)?)?;
        ask(&talk, &ClientMessage::Threads { bytes: ring }, Some(submissions.as_fd()))?;
        let clock = Clock::start();
        Ok(Self {
            pulse: Mutex::new(BeatMonitor::new(Duration::from_millis(lease_ms), rings.beat(), clock.now())),
            rings,
            sender,
            talk: Mutex::new(talk),
            next_region: AtomicU16::new(1),
            numbers: Mutex::new((0..threads).rev().collect()),
            page_len: page_len.into(),
            life: (host, generation),
            clock,
            is_dead: AtomicBool::new(false),
        })
    }

    /// Allocates far memory that this program reads and writes through the DPU.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than [`REGION_MAX`] bytes, [`Error::Refused`] if the rack or the DPU has no room,
    /// for example after 2^16 regions.
    pub fn allocate(&self, client: &mut Client, size: u64) -> Result<Region, Error> {
        if size > REGION_MAX {
            let len = usize::try_from(size).unwrap_or(usize::MAX);
            return Err(Error::TooLong { len, max: usize::try_from(REGION_MAX).unwrap_or(usize::MAX) });
        }
        let vma = client.allocate(size)?;
        let opened = self.open(&vma);
        if opened.is_err() {
            // No region has the allocation.
            client.free(vma.base)?;
        }
        opened
    }

    /// Opens an existing allocation for reading and writing. No other process has it open at this DPU then.
    ///
    /// # Errors
    /// As [`MemoryApi::allocate`].
    pub fn open(&self, vma: &Vma) -> Result<Region, Error> {
        let next =
            self.next_region.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        let number = next.map_err(|_| Error::Full { what: "the regions of a program at its DPU".into() })?;
        let open = ClientMessage::Open { region: number, base: vma.base.0, write: true };
        match ask(&lock(&self.talk), &open, None)? {
            DpuMessage::Done {} => Ok(Region { number, vma: *vma }),
            _ => Err(wrong_answer("open")),
        }
    }

    /// Frees far memory after its pending requests have ended. Later requests on it fail. The region's number is not
    /// reused.
    ///
    /// # Errors
    /// [`Error`] if the DPU or the rack does not answer.
    pub fn deallocate(&self, client: &mut Client, region: Region) -> Result<(), Error> {
        // A DPU that is gone has nothing open.
        if self.is_served() {
            self.close(region)?;
        }
        client.free(region.vma.base)
    }

    /// Closes a region after its pending requests have ended. The allocation stays, and other processes may open it
    /// at this DPU.
    ///
    /// # Errors
    /// As [`MemoryApi::open`].
    pub fn close(&self, region: Region) -> Result<(), Error> {
        match ask(&lock(&self.talk), &ClientMessage::Close { region: region.number }, None)? {
            DpuMessage::Done {} => Ok(()),
            _ => Err(wrong_answer("close")),
        }
    }

    /// Returns a thread's part of the connection; `None` if as many threads have one as the options allow.
    #[must_use]
    pub fn thread(&self) -> Option<ApiThread<'_>> {
        let number = lock(&self.numbers).pop()?;
        Some(ApiThread { api: self, number, free: (0..SLOTS).rev().collect(), record: Vec::new() })
    }

    /// Returns the DPU's counts for the requests of all threads so far.
    ///
    /// # Errors
    /// [`Error::System`] if the DPU does not answer.
    pub fn carried(&self) -> Result<Carried, Error> {
        match ask(&lock(&self.talk), &ClientMessage::Carried {}, None)? {
            DpuMessage::Carried(carried) => Ok(carried),
            _ => Err(wrong_answer("carried")),
        }
    }

    /// Returns true while the DPU serves, as far as this process knows.
    #[must_use]
    pub fn is_served(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Fences the DPU's host: no memory node accepts its requests any more. Call this before the program continues
    /// with a client of its own after the DPU died (PROTOCOL 17.11).
    ///
    /// A DPU that still lives keeps this program's regions closed to others until this value is dropped.
    ///
    /// # Errors
    /// [`Error`] if the control plane does not answer.
    pub fn fence(&self, client: &mut Client) -> Result<(), Error> {
        self.is_dead.store(true, Ordering::Relaxed);
        let (host, generation) = self.life;
        client.fence(host, generation)
    }

    /// Checks that the DPU still counts its beat.
    fn look(&self) -> Result<(), Error> {
        if self.is_served() {
            let is_over = lock(&self.pulse).is_over(self.rings.beat(), true, self.clock.now());
            if is_over || !lock(&self.talk).is_open() {
                self.is_dead.store(true, Ordering::Relaxed);
            }
        }
        if self.is_served() { Ok(()) } else { Err(Error::Interrupted) }
    }

    fn place(&self, thread: u16, slot: u16) -> usize {
        (usize::from(thread) * usize::from(SLOTS) + usize::from(slot)) * SLOT_LEN
    }
}

/// A pending read or write; a long one consists of several requests.
#[derive(Debug)]
#[must_use = "the places of its answers are in use until it has ended"]
pub struct Pending {
    /// The answer slots, and the bytes of each request.
    parts: Vec<(u16, usize)>,
    write: bool,
    /// Address of the first byte.
    addr: VirtAddr,
}

/// A thread's part of a [`MemoryApi`].
#[derive(Debug)]
pub struct ApiThread<'a> {
    api: &'a MemoryApi,
    number: u16,
    /// Slots without a pending request.
    free: Vec<u16>,
    record: Vec<u8>,
}

impl ApiThread<'_> {
    /// Starts a read of `len` bytes of a region.
    ///
    /// # Errors
    /// - [`Error::TooLong`] for more than [`LEN_MAX`] bytes, [`Error::Empty`] for none.
    /// - [`Error::OutOfBounds`] if the bytes leave the region.
    /// - [`Error::QueueFull`] if this thread has no answer slot until other requests have ended.
    /// - [`Error::Interrupted`] if the DPU is gone.
    pub fn read(&mut self, region: Region, offset: u64, len: usize) -> Result<Pending, Error> {
        let mut pending = self.begin(region, offset, len, false)?;
        let mut at = offset;
        for n in 0..pending.parts.len() {
            let (slot, len) = pending.parts[n];
            let place = place_of(region, at, len);
            if let Err(error) = self.send(slot, |id| Request::Read { id, place }) {
                return self.cut_off(&mut pending, n, error);
            }
            at += len as u64;
        }
        Ok(pending)
    }

    /// Starts a write of bytes of a region.
    ///
    /// # Errors
    /// As [`ApiThread::read`].
    pub fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<Pending, Error> {
        let mut pending = self.begin(region, offset, data.len(), true)?;
        let mut at = 0;
        for n in 0..pending.parts.len() {
            let (slot, len) = pending.parts[n];
            let place = place_of(region, offset + at as u64, len);
            if let Err(error) = self.send(slot, |id| Request::Write { id, place, data: &data[at..at + len] })
            {
                return self.cut_off(&mut pending, n, error);
            }
            at += len;
        }
        Ok(pending)
    }

    /// Returns true if the request has ended. The bytes of a read are then in `into`, which has the length of the
    /// read. For a write, `into` is empty.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if the memory was freed, [`Error::MemoryLost`] if its node restarted,
    /// [`Error::Interrupted`] if a write may or may not have been executed.
    ///
    /// # Panics
    /// Panics if `into` is shorter than the read.
    pub fn poll(&mut self, pending: &mut Pending, into: &mut [u8]) -> Result<bool, Error> {
        let places = pending.parts.iter().map(|&(slot, _)| self.api.place(self.number, slot));
        if !places.into_iter().all(|place| head_of(self.api.rings.word(place)).is_some()) {
            return Ok(false);
        }
        let (mut at, mut failed) = (0, None);
        for (slot, len) in std::mem::take(&mut pending.parts) {
            let place = self.api.place(self.number, slot);
            let size = u32::try_from(len).expect("a part");
            match head_of(self.api.rings.word(place)).expect("it was looked at") {
                Ok(Head::Read { size: came, .. }) if !pending.write && came == size => {
                    self.api.rings.take(place + HEAD_LEN, &mut into[at..at + len]);
                }
                Ok(Head::Written { size: came, .. }) if pending.write && came == size => {}
                Ok(Head::Failed { why, .. }) => failed = Some((why, at, len)),
                _ => failed = Some((Ended::Failed, at, len)),
            }
            at += len;
            self.free.push(slot);
        }
        match failed {
            None => Ok(true),
            Some((why, at, len)) => Err(error_of(why, VirtAddr(pending.addr.0 + at as u64), len as u64)),
        }
    }

    /// Waits until the request has ended, with the results of [`ApiThread::poll`].
    ///
    /// # Errors
    /// As [`ApiThread::poll`]; [`Error::Interrupted`] if the DPU is gone: a write may or may not have been executed.
    pub fn wait(&mut self, mut pending: Pending, into: &mut [u8]) -> Result<(), Error> {
        let mut looks = 0;
        while !self.poll(&mut pending, into)? {
            looks += 1;
            if looks <= SPINS {
                std::hint::spin_loop();
            } else {
                thread::sleep(NAP);
                self.api.look()?;
            }
        }
        Ok(())
    }

    /// Reserves a slot for each part. No part crosses a page of the DPU or is longer than [`PART`].
    fn begin(&mut self, region: Region, offset: u64, len: usize, write: bool) -> Result<Pending, Error> {
        if len == 0 {
            return Err(Error::Empty { what: "a request to the DPU" });
        }
        if len > LEN_MAX {
            return Err(Error::TooLong { len, max: LEN_MAX });
        }
        let end = offset.checked_add(len as u64).filter(|&end| end <= region.vma.size.min(REGION_MAX));
        let Some(end) = end else {
            let addr = VirtAddr(region.vma.base.0.wrapping_add(offset));
            return Err(Error::OutOfBounds { addr, len: len as u64 });
        };
        if !self.api.is_served() {
            return Err(Error::Interrupted);
        }
        let (mut parts, mut at) = (Vec::new(), offset);
        while at < end {
            let of_page = self.api.page_len - at % self.api.page_len;
            let len = of_page.min(end - at).min(PART as u64);
            let Some(slot) = self.free.pop() else {
                self.free.extend(parts.iter().map(|&(slot, _)| slot));
                return Err(Error::QueueFull);
            };
            parts.push((slot, usize::try_from(len).expect("a part")));
            at += len;
        }
        let addr = VirtAddr(region.vma.base.0 + offset);
        Ok(Pending { parts, write, addr })
    }

    /// Writes a request into the ring, and waits for room.
    fn send<'d>(&mut self, slot: u16, request: impl FnOnce(Id) -> Request<'d>) -> Result<(), Error> {
        let place = self.api.place(self.number, slot);
        self.api.rings.set_word(place, 0);
        self.record.clear();
        self.record.extend_from_slice(&(place as u64).to_be_bytes());
        debug_assert_eq!(self.record.len(), AT_LEN);
        request(Id::new(self.number * SLOTS + slot)).emit(&mut self.record);
        loop {
            match self.api.sender.push(&self.record) {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    thread::sleep(NAP);
                    self.api.look()?;
                }
                Err(_) => {
                    self.api.is_dead.store(true, Ordering::Relaxed);
                    return Err(Error::Interrupted);
                }
            }
        }
    }

    /// Frees the slots of parts that were not sent because the DPU left. The other parts are never answered.
    fn cut_off(&mut self, pending: &mut Pending, sent: usize, error: Error) -> Result<Pending, Error> {
        self.free.extend(pending.parts.drain(sent..).map(|(slot, _)| slot));
        Err(error)
    }
}

impl Drop for MemoryApi {
    /// Tells the DPU that this program has no write in flight: a program that continues with a client of its own
    /// keeps this value until its writes have ended.
    fn drop(&mut self) {
        finish(&lock(&self.talk));
    }
}

impl Drop for ApiThread<'_> {
    /// Frees the thread's number, unless answers may still come to its slots.
    fn drop(&mut self) {
        if self.free.len() == usize::from(SLOTS) {
            lock(&self.api.numbers).push(self.number);
        }
    }
}

fn place_of(region: Region, offset: u64, len: usize) -> RegionRange {
    let offset = u32::try_from(offset).expect("inside the region");
    RegionRange { region: region.number, offset, size: u32::try_from(len).expect("a part") }
}

/// Returns the program's error for a failed request.
const fn error_of(why: Ended, addr: VirtAddr, len: u64) -> Error {
    match why {
        Ended::Refused => Error::NotMapped { addr },
        Ended::Lost => Error::MemoryLost { base: addr, len },
        Ended::Failed | Ended::Done => Error::Interrupted,
    }
}
