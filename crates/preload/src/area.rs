//! The range of far memory's addresses in this process. A process reserves it once and hands it to the pager; a
//! fork's child does so again.

use crate::maps::{system_madvise, system_mprotect};
use crate::{descriptor_thread, descriptors, exec, fork, gate, heap, lock, mailbox, shared};
use farmem_preload_abi::call::{
    CONTROL_PAGES, Call, ELSEWHERE, HELLO_WORDS, Hello, LocalReason, PATH_MAX, SPANS_MAX, VARIABLE,
    WELCOME_WORDS, WORD_LOCAL, device_request,
};
use farmem_preload_abi::place::{LEN_MAX, LOW};
use farmem_preload_abi::userfaultfd::{Faulting, Features, OpenError, Reach, Userfaultfd};
use farmem_wire::message::PAGE_LEN;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, send,
    sendmsg, socket_with,
};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Minimum length of the range. If LEN_MAX is not available, the range is shorter; below this minimum it is
/// useless.
const LEN_MIN: usize = 64 << 20;
/// Maximum length of the socket's name in bytes.
const NAME_MAX: usize = 64;

/// Progress of the attempt to get far memory.
static STATE: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const TRYING: u8 = 1;
const READY: u8 = 2;
const LOCAL: u8 = 3;

static BASE: AtomicUsize = AtomicUsize::new(0);
/// Address of far memory if something else is at [`LOW`]; the gate is before it.
static SECOND_BASE: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Length of the memfd. A child that reserves less than its parent has fewer addresses than that.
static FILE_LEN: AtomicUsize = AtomicUsize::new(0);
/// Process id of the process that owns the far memory.
static OWNER: AtomicI32 = AtomicI32::new(0);
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);
static FULL: AtomicBool = AtomicBool::new(false);
/// True when the run shares named memory with other hosts.
static SHARES: AtomicBool = AtomicBool::new(false);
static TOKEN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Addresses of the pager: its socket's abstract name, and its socket file.
static NAME: Text<NAME_MAX> = Text::new();
static PATH: Text<PATH_MAX> = Text::new();

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Returns true when this process has far memory. The first call sets it up if the process was invited.
pub(crate) fn is_ready() -> bool {
    match STATE.load(Ordering::Acquire) {
        READY => true,
        UNTRIED => begin(),
        _ => false,
    }
}

/// Returns true when the inviting run shares named memory, even if this process could not get far memory.
pub(crate) fn shares() -> bool {
    is_ready();
    SHARES.load(Ordering::Relaxed)
}

/// Returns the minimum length of a mapping in far memory.
pub(crate) fn threshold() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// Returns true when far memory contains the address.
pub(crate) fn has(addr: usize) -> bool {
    let (base, len) = (BASE.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
    addr.wrapping_sub(base) < len
}

/// Returns the part of a range that is in far memory, as address and length; whole pages if the range is of
/// whole pages.
pub(crate) fn part(addr: usize, len: usize) -> Option<(usize, usize)> {
    let (base, all) = (BASE.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
    let start = addr.max(base + CONTROL_PAGES * PAGE_LEN);
    let end = addr.saturating_add(len).min(base + all);
    (all > 0 && start < end).then(|| (start, end - start))
}

/// Returns a word of the control pages before far memory.
pub(crate) fn word(page: usize, word: usize) -> &'static AtomicU64 {
    assert!(page < CONTROL_PAGES && word < PAGE_LEN / 8, "a word of a mailbox or doorbell");
    let place = BASE.load(Ordering::Relaxed) + page * PAGE_LEN + word * 8;
    let place = ptr::with_exposed_provenance_mut(place);
    // SAFETY: the word is in pages that `reserve` mapped for good; program and pager use them as atomics.
    unsafe { AtomicU64::from_ptr(place) }
}

/// Adds to the counter of private anonymous bytes that stay local.
pub(crate) fn stays_local(len: usize, why: LocalReason) {
    // A child that was created without the fork handlers has no such page.
    if LEN.load(Ordering::Relaxed) > 0
        && OWNER.load(Ordering::Relaxed) == rustix::process::getpid().as_raw_pid()
    {
        word(0, WORD_LOCAL + why as usize).fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Writes a message for the user to standard error.
pub(crate) fn say(parts: &[&str]) {
    let stderr = rustix::stdio::stderr();
    for part in parts {
        // Standard error may be closed.
        let _ = rustix::io::write(stderr, part.as_bytes());
    }
}

fn begin() -> bool {
    // SAFETY: libc's variable, a word that is read whole.
    let environment = unsafe { environ };
    if environment.is_null() {
        return false; // libc has not begun yet
    }
    if STATE.compare_exchange(UNTRIED, TRYING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false; // another thread is at it, or this one: what it allocates meanwhile is local
    }
    let ready = match find(environment).map(accept) {
        Some(true) => {
            gate::open(SECOND_BASE.load(Ordering::Relaxed));
            attach(None, 0).map_or_else(turned_away, |()| true)
        }
        Some(false) => {
            say(&["farmem: ", VARIABLE, " is not what this version of farmem writes: memory stays local\n"]);
            false
        }
        None => false,
    };
    if ready {
        lock::begin();
        heap::begin();
        exec::begin();
        fork::register();
        descriptors::look_at_inherited();
    }
    STATE.store(if ready { READY } else { LOCAL }, Ordering::Release);
    ready
}

/// Reports the error and returns false. Nothing is in far memory yet, so the program can continue with local
/// memory.
fn turned_away(errno: Errno) -> bool {
    say(&["farmem: memory of this process stays local: ", name_of(errno), "\n"]);
    false
}

/// Attaches a fork's child to the pager: at the same addresses, with the parent's contents.
pub(crate) fn attach_child(snapshot: u64) {
    // Until far memory is attached, libc's allocator serves all allocations.
    STATE.store(TRYING, Ordering::Release);
    mailbox::begin_anew();
    let mut again = || attach(Some(BASE.load(Ordering::Relaxed)), snapshot);
    let attached = match again() {
        Err(Errno::MFILE) => descriptor_thread::with_own_descriptors(&mut again),
        other => other,
    };
    if let Err(errno) = attached {
        say(&["farmem: the child of a fork cannot have its far memory: ", name_of(errno), "\n"]);
        // Continuing would lose a part of the program's memory.
        end();
    }
    STATE.store(READY, Ordering::Release);
}

/// Ends the process by SIGKILL, so that its parent does not take the end for the program's own. If a seccomp
/// filter refuses `kill`, the process exits.
fn end() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SAFETY: the function calls no code of the program, and does not return.
    unsafe { libc::_exit(128 + libc::SIGKILL) }
}

/// Returns the invitation from the environment.
fn find(environment: *const *const c_char) -> Option<&'static [u8]> {
    let mut at = environment;
    loop {
        // SAFETY: the list of pointers ends with null, where this loop ends too.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the entries of the environment are C strings.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) = text.strip_prefix(VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: the entry is not the last one, so another one follows.
        at = unsafe { at.add(1) };
    }
}

/// A text that is written before other threads read it.
pub(crate) struct Text<const MAX: usize> {
    bytes: [AtomicU8; MAX],
    len: AtomicUsize,
}

impl<const MAX: usize> Text<MAX> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [const { AtomicU8::new(0) }; MAX], len: AtomicUsize::new(0) }
    }

    /// Sets the text, which must fit.
    pub(crate) fn set(&self, text: &str) {
        self.bytes.iter().zip(text.bytes()).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        self.len.store(text.len().min(MAX), Ordering::Relaxed);
    }

    pub(crate) fn get<'a>(&self, room: &'a mut [u8; MAX]) -> &'a [u8] {
        room.iter_mut().zip(&self.bytes).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        &room[..self.len.load(Ordering::Relaxed)]
    }
}

/// Parses an invitation, `NAME:TOKEN:THRESHOLD:REACH:SHARED:BASE:PATH`, whose path may be empty. Returns false
/// for an invalid one.
fn accept(value: &[u8]) -> bool {
    let mut parts = value.split(|&byte| byte == b':').map(|part| core::str::from_utf8(part).unwrap_or(""));
    let mut next = || parts.next();
    let (Some(name), Some(token), Some(threshold), Some(reach), Some(shared), Some(base), Some(path), None) =
        (next(), next(), next(), next(), next(), next(), next(), next())
    else {
        return false;
    };
    let (Ok(token), Ok(threshold)) = (u128::from_str_radix(token, 16), threshold.parse()) else {
        return false;
    };
    let base = usize::from_str_radix(base, 16).ok().filter(|base| base.is_multiple_of(PAGE_LEN) && *base > 0);
    let fit = !name.is_empty() && name.len() <= NAME_MAX && path.len() <= PATH_MAX;
    let Some(base) = base.filter(|_| fit) else { return false };
    SECOND_BASE.store(base, Ordering::Relaxed);
    NAME.set(name);
    PATH.set(path);
    let [.., low] = [token >> 64, token & u128::from(u64::MAX)];
    TOKEN[0].store(u64::try_from(token >> 64).unwrap_or(0), Ordering::Relaxed);
    TOKEN[1].store(u64::try_from(low).unwrap_or(0), Ordering::Relaxed);
    THRESHOLD.store(threshold, Ordering::Relaxed);
    FULL.store(reach == "full", Ordering::Relaxed);
    SHARES.store(shared == "shared", Ordering::Relaxed);
    true
}

/// Reserves the addresses and hands them to the pager. Up to three descriptors are open meanwhile, with shared
/// memory four; none stays open.
fn attach(at: Option<usize>, snapshot: u64) -> Result<(), Errno> {
    let (socket, uffd) = meet()?;
    let file = memfd_create("farmem", MemfdFlags::CLOEXEC)?;
    let area = match at {
        Some(base) => again(&file, base)?,
        None => anew(&file)?,
    };
    BASE.store(area.base, Ordering::Relaxed);
    FILE_LEN.store(area.len, Ordering::Relaxed);
    if at.is_none() {
        LEN.store(area.len, Ordering::Relaxed);
    }
    let served = serve((&socket, &uffd, &file), &area, snapshot);
    if served.is_err() {
        if at.is_none() {
            LEN.store(0, Ordering::Relaxed);
        }
        // SAFETY: the range was just reserved, and no other thread knows it yet.
        let _ = unsafe { gate::call(libc::SYS_munmap, [area.base, area.reserved, 0, 0, 0, 0]) };
    }
    if served.is_ok() {
        OWNER.store(rustix::process::getpid().as_raw_pid(), Ordering::Relaxed);
    }
    served
}

/// A range of addresses, whose first bytes are reserved.
struct Area {
    base: usize,
    len: usize,
    reserved: usize,
}

/// Reserves the range for a new program: at [`LOW`], else at the run's second base, else anywhere.
fn anew(file: &OwnedFd) -> Result<Area, Errno> {
    for at in [LOW, SECOND_BASE.load(Ordering::Relaxed)] {
        if let Ok(area) = reserve_some(file, Some(at)) {
            return Ok(area);
        }
    }
    say(&["farmem: the addresses for far memory are taken: system calls past libc are not watched\n"]);
    reserve_some(file, None)
}

/// Reserves as many addresses as this process may have.
fn reserve_some(file: &OwnedFd, at: Option<usize>) -> Result<Area, Errno> {
    let mut len = LEN_MAX;
    loop {
        match reserve(file, at, 0, len) {
            Ok(base) => return Ok(Area { base, len, reserved: len }),
            Err(Errno::NOMEM) if len > LEN_MIN => len /= 2,
            Err(e) => return Err(e),
        }
    }
}

/// Reserves the control pages of a fork's child at the parent's address. The pager then names the spans to
/// reserve. Where the parent has mapped something itself, the child has inherited that.
fn again(file: &OwnedFd, base: usize) -> Result<Area, Errno> {
    let (len, reserved) = (FILE_LEN.load(Ordering::Relaxed), CONTROL_PAGES * PAGE_LEN);
    reserve(file, Some(base), 0, reserved)?;
    Ok(Area { base, len, reserved })
}

/// Maps bytes of the file from `offset` on, and returns their address. Until they are registered, only the
/// control pages are in use. The file is still empty: the pager sets its length, because a limit of file sizes
/// may forbid that here.
fn reserve(file: &OwnedFd, at: Option<usize>, offset: usize, len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let (hint, flags) = match at {
        Some(base) => (address(base), flags | MapFlags::FIXED_NOREPLACE),
        None => (ptr::null_mut(), flags),
    };
    // SAFETY: a new mapping; with an address, one that replaces nothing.
    let start = unsafe { mmap(hint, len, ProtFlags::empty(), flags, file, offset as u64) }?;
    // SAFETY: a mapping of this library, which is not in use yet.
    unsafe { keep_from_others(start, len) }?;
    let start = start.expose_provenance();
    if offset == 0 {
        // SAFETY: the first pages of the new mapping.
        unsafe { system_mprotect(start, CONTROL_PAGES * PAGE_LEN, libc::PROT_READ | libc::PROT_WRITE) }?;
    }
    Ok(start)
}

/// Excludes a mapping from the kernel's fork, core dumps and huge pages.
///
/// # Safety
/// The range is a whole mapping of this library.
pub(crate) unsafe fn keep_from_others(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { system_madvise(start, len, libc::MADV_DONTFORK) }?; // or a child would read zeros
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        // A kernel without huge pages refuses the second advice, which is harmless.
        // SAFETY: guaranteed by the caller.
        let _ = unsafe { system_madvise(start, len, advice) };
    }
    Ok(())
}

/// Registers a part of the range with the userfaultfd.
fn register(uffd: &Userfaultfd, start: usize, len: usize) -> Result<(), Errno> {
    let faulting = Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED);
    // SAFETY: the range is a part of the mapping for far memory; threads that access it wait for the pager.
    unsafe { uffd.register(start, len, faulting) }
}

/// Connects to the pager and opens a userfaultfd.
fn meet() -> Result<(OwnedFd, Userfaultfd), Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The socket file comes first. The abstract name is for a process that has changed its user or its root
    // directory.
    if connect_by_path(&socket).is_err() {
        connect(&socket, &SocketAddrUnix::new_abstract_name(NAME.get(&mut [0; NAME_MAX]))?)?;
    }
    let reach = if FULL.load(Ordering::Relaxed) { Reach::Full } else { Reach::UserMode };
    let uffd = open(reach, &socket, token())?;
    Ok((socket, uffd))
}

fn connect_by_path(socket: &OwnedFd) -> Result<(), Errno> {
    let (mut room, mut path) = ([0; PATH_MAX], [0; PATH_MAX + 1]);
    let found = PATH.get(&mut room);
    path[..found.len()].copy_from_slice(found);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NOENT)?;
    connect(socket, &SocketAddrUnix::new(path)?)
}

fn token() -> u128 {
    u128::from(TOKEN[0].load(Ordering::Relaxed)) << 64 | u128::from(TOKEN[1].load(Ordering::Relaxed))
}

fn serve(
    (socket, uffd, file): (&OwnedFd, &Userfaultfd, &OwnedFd),
    area: &Area,
    snapshot: u64,
) -> Result<(), Errno> {
    let &Area { base, len, reserved } = area;
    register(uffd, base + PAGE_LEN, reserved - PAGE_LEN)?;
    // This descriptor reserves a number for the file in the reply, because a child can send its `Hello` only
    // once.
    let room = SHARES.load(Ordering::Relaxed).then(|| fcntl_dupfd_cloexec(socket, 0)).transpose()?;
    let full = FULL.load(Ordering::Relaxed);
    let hello = Hello { token: token(), base: base as u64, len: len as u64, snapshot, full };
    greet(socket, hello, uffd, file)?;
    drop(room);
    let ([status, count, shared_base, shared_len], shared_file) = hear_welcome(socket)?;
    if status != 0 {
        return Err(Errno::from_raw_os_error(i32::try_from(status).unwrap_or(libc::EINVAL)));
    }
    take_spans(socket, count, (uffd, file), base + reserved..base + len)?;
    let Some(file) = shared_file.filter(|_| shared_len > 0) else { return Ok(()) };
    let begun = shared::begin(&file, shared_base, shared_len, uffd);
    if snapshot != 0 {
        return begun.and_then(|()| shared::restore());
    }
    if let Err(errno) = begun {
        say(&["farmem: this process cannot share memory: ", name_of(errno), "\n"]);
    }
    Ok(())
}

/// Opens a userfaultfd with the rights of this process. A process that has dropped its rights uses the pager's
/// device.
fn open(reach: Reach, socket: &OwnedFd, token: u128) -> Result<Userfaultfd, Errno> {
    match Userfaultfd::open(reach, Features::WINDOW) {
        Ok(uffd) => return Ok(uffd),
        Err(error) if errno_of(&error) == Errno::MFILE => return Err(Errno::MFILE),
        Err(_) => {}
    }
    rustix::io::retry_on_intr(|| send(socket, &bytes_of(device_request(token)), SendFlags::NOSIGNAL))?;
    let ([status, ..], device) = hear_welcome(socket)?;
    let device = device.filter(|_| status == 0).ok_or(Errno::PERM)?;
    Userfaultfd::open_from(&device.into(), reach, Features::WINDOW).map_err(|error| errno_of(&error))
}

/// Returns MFILE when no descriptor is left, else PERM.
fn errno_of(error: &OpenError) -> Errno {
    match error {
        OpenError::System { source, .. } if source.raw_os_error() == Some(libc::EMFILE) => Errno::MFILE,
        _ => Errno::PERM,
    }
}

fn bytes_of(words: [u64; HELLO_WORDS]) -> [u8; HELLO_WORDS * 8] {
    let mut bytes = [0; HELLO_WORDS * 8];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

fn greet(socket: &OwnedFd, hello: Hello, uffd: &Userfaultfd, file: &OwnedFd) -> Result<(), Errno> {
    let bytes = bytes_of(hello.words());
    let descriptors = [uffd.as_fd(), file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for two");
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map(drop)
}

/// Receives the reply and the file that comes with it.
fn hear_welcome(socket: &OwnedFd) -> Result<([u64; WELCOME_WORDS], Option<OwnedFd>), Errno> {
    let mut words = [[0_u8; 8]; WELCOME_WORDS];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(words.as_flattened_mut())];
        recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if message.bytes != WELCOME_WORDS * 8 {
        return Err(Errno::CONNREFUSED); // the pager has gone
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE); // the file that came could not be had
    }
    let file = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok((words.map(u64::from_le_bytes), file))
}

/// Receives the spans of this child's parent, in messages of up to [`SPANS_MAX`], and restores them. The spans
/// where the parent has mapped something itself come first; the addresses in `left` are reserved around them.
fn take_spans(
    socket: &OwnedFd,
    mut count: u64,
    (uffd, file): (&Userfaultfd, &OwnedFd),
    mut left: Range<usize>,
) -> Result<(), Errno> {
    let base = BASE.load(Ordering::Relaxed);
    let claim = |part: Range<usize>| {
        if part.is_empty() {
            return Ok(());
        }
        reserve(file, Some(part.start), part.start - base, part.len())?;
        register(uffd, part.start, part.len())
    };
    let mut words = [[0_u8; 8]; SPANS_MAX * 3];
    while count > 0 {
        let (bytes, _) =
            rustix::io::retry_on_intr(|| recv(socket, words.as_flattened_mut(), RecvFlags::empty()))?;
        let spans = bytes / 24;
        if spans == 0 {
            return Err(Errno::CONNREFUSED);
        }
        for span in words[..spans * 3].as_chunks::<3>().0 {
            let [start, len, rights] = span.map(u64::from_le_bytes);
            let [start, len] = [start, len].map(|word| usize::try_from(word).unwrap_or(0));
            if rights == ELSEWHERE {
                claim(left.start..start)?;
                left.start = start + len;
                continue;
            }
            if start + len > left.start && claim(left.clone()) == Ok(()) {
                left.start = left.end;
            }
            if start + len > left.start {
                // The limit may allow only the addresses in use.
                claim(left.start..start + len)?;
                left.start = start + len;
            }
            // SAFETY: the span is a range of this mapping, as the parent told the pager.
            unsafe { system_mprotect(start, len, c_int::try_from(rights).unwrap_or(0)) }?;
        }
        count = count.saturating_sub(spans as u64);
    }
    // The rest is not in use yet, so a part of it is enough.
    let mut len = left.len();
    while len > 0 {
        match claim(left.start..left.start + len) {
            Ok(()) => {
                left.start += len;
                break;
            }
            Err(Errno::NOMEM) => len = len / 2 / PAGE_LEN * PAGE_LEN,
            Err(errno) => return Err(errno),
        }
    }
    if !left.is_empty() {
        LEN.store(left.start - base, Ordering::Relaxed);
        let asked = Call::Replace { start: left.start as u64, len: left.len() as u64 };
        mailbox::call(asked).map_err(|_| Errno::CONNREFUSED)?;
    }
    Ok(())
}

/// Converts an address to a pointer.
pub(crate) fn address(addr: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr)
}

const fn name_of(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM => "it may not open a userfaultfd (see `farmem doctor`)",
        Errno::NOMEM => "there are not enough addresses or memory",
        Errno::CONNREFUSED => "`farmem run` is gone, or in another network namespace and file system",
        Errno::MFILE | Errno::NFILE => "too many open files",
        Errno::EXIST => "its addresses are taken",
        _ => "the system refuses",
    }
}
