//! The start of other programs. Their environment keeps this library first in LD_PRELOAD, so they have far
//! memory too.
//!
//! A program or shell that sets LD_PRELOAD for another program (`env LD_PRELOAD=libjemalloc.so.2`) would
//! otherwise remove the library. An environment without the invitation ([`VARIABLE`]) stays unchanged: programs
//! are started without far memory this way.
//!
//! A child of `vfork` calls these functions in its parent's memory, so they allocate nothing.

use crate::area::{self, Text};
use crate::next::Next;
use farmem_preload_abi::call::VARIABLE;
use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::{CStr, c_char, c_int};
use std::mem::transmute;
use std::ptr;

/// Capacity of the copy: entries of an environment, and bytes of LD_PRELOAD.
const ENTRIES_MAX: usize = 2048;
const VALUE_MAX: usize = 4096;
/// Maximum length of this library's path in bytes.
const LIBRARY_MAX: usize = 1024;
const PRELOAD: &[u8] = b"LD_PRELOAD=";

type Texts = *const *const c_char;

/// Path of this library, from the dynamic linker.
static LIBRARY: Text<LIBRARY_MAX> = Text::new();
static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static SPAWN: Next = Next::new(c"posix_spawn");
static SPAWNP: Next = Next::new(c"posix_spawnp");

unsafe extern "C" {
    static environ: Texts;
}

/// Looks up this library's path and the next functions. A signal handler or a child of `vfork` may not look
/// them up.
pub(crate) fn begin() {
    // SAFETY: the struct has only pointers and numbers, which may be zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this library, and a buffer for the result.
    let found = unsafe { libc::dladdr((&raw const LIBRARY).cast(), &raw mut info) };
    if found != 0 && !info.dli_fname.is_null() {
        // SAFETY: a C string of the dynamic linker.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        if let Some(path) = path.to_str().ok().filter(|path| path.len() <= LIBRARY_MAX) {
            LIBRARY.set(path);
        }
    }
    [&EXECVE, &EXECVPE, &FEXECVE, &SPAWN, &SPAWNP].into_iter().for_each(Next::prepare);
}

/// `execve(2)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(path: *const c_char, arguments: Texts, environment: Texts) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, Texts, Texts) -> c_int;
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(EXECVE.known()) };
    let call = |environment| {
        // SAFETY: guaranteed by the caller.
        unsafe { function(path, arguments, environment) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { with_library(environment, call) }
}

/// `execv(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, arguments: Texts) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { execve(path, arguments, environ) }
}

/// `execvpe(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(file: *const c_char, arguments: Texts, environment: Texts) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, Texts, Texts) -> c_int;
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(EXECVPE.known()) };
    let call = |environment| {
        // SAFETY: guaranteed by the caller.
        unsafe { function(file, arguments, environment) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { with_library(environment, call) }
}

/// `execvp(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, arguments: Texts) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { execvpe(file, arguments, environ) }
}

/// `fexecve(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fexecve(fd: c_int, arguments: Texts, environment: Texts) -> c_int {
    type Function = unsafe extern "C" fn(c_int, Texts, Texts) -> c_int;
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(FEXECVE.known()) };
    let call = |environment| {
        // SAFETY: guaranteed by the caller.
        unsafe { function(fd, arguments, environment) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { with_library(environment, call) }
}

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Texts,
    Texts,
) -> c_int;

/// `posix_spawn(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Texts,
    environment: Texts,
) -> c_int {
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Spawn = unsafe { transmute(SPAWN.known()) };
    let call = |environment| {
        // SAFETY: guaranteed by the caller.
        unsafe { function(pid, path, actions, attributes, arguments, environment) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { with_library(environment, call) }
}

/// `posix_spawnp(3)`
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Texts,
    environment: Texts,
) -> c_int {
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Spawn = unsafe { transmute(SPAWNP.known()) };
    let call = |environment| {
        // SAFETY: guaranteed by the caller.
        unsafe { function(pid, file, actions, attributes, arguments, environment) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { with_library(environment, call) }
}

/// Calls `start` with an environment in which LD_PRELOAD names this library if the invitation is present.
///
/// # Safety
/// The environment is null, or a null-terminated list of C strings.
unsafe fn with_library(environment: Texts, start: impl FnOnce(Texts) -> c_int) -> c_int {
    let mut room = [0; LIBRARY_MAX];
    let library = LIBRARY.get(&mut room);
    if environment.is_null() || library.is_empty() {
        return start(environment);
    }
    // SAFETY: guaranteed by the caller.
    let Some(Found { count, preload, invited }) = (unsafe { look(environment) }) else {
        area::say(&[
            "farmem: an environment of more than 2000 variables: what is started with it may have no far memory\n",
        ]);
        return start(environment);
    };
    // SAFETY: `look` found the entry.
    let value = preload.map(|at| unsafe { text(environment, at) }).unwrap_or_default();
    let value = value.strip_prefix(PRELOAD).unwrap_or_default();
    if !invited || value.split(|byte| b": ".contains(byte)).any(|path| path == library) {
        return start(environment);
    }
    let mut entry = [0_u8; VALUE_MAX];
    let separator: &[u8] = if value.is_empty() { b"" } else { b":" };
    let parts = [PRELOAD, library, separator, value];
    if parts.iter().map(|part| part.len()).sum::<usize>() >= VALUE_MAX {
        area::say(&["farmem: LD_PRELOAD is too long: what is started with it has no far memory\n"]);
        return start(environment);
    }
    let mut at = 0;
    for part in parts {
        entry[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let mut entries = [ptr::null::<c_char>(); ENTRIES_MAX + 2];
    for (n, to) in entries[..count].iter_mut().enumerate() {
        // SAFETY: `look` counted the entry.
        let from = unsafe { environment.add(n) };
        // SAFETY: see above.
        *to = unsafe { from.read() };
    }
    entries[preload.unwrap_or(count)] = entry.as_ptr().cast();
    start(entries.as_ptr())
}

/// The result of a search through an environment.
struct Found {
    count: usize,
    /// Index of the LD_PRELOAD entry.
    preload: Option<usize>,
    /// True when the invitation is present.
    invited: bool,
}

/// Searches an environment; returns `None` when it has too many entries for the copy.
///
/// # Safety
/// The environment is a null-terminated list of C strings.
unsafe fn look(environment: Texts) -> Option<Found> {
    let mut found = Found { count: 0, preload: None, invited: false };
    loop {
        // SAFETY: the list ends with null, where this loop ends too.
        let entry = unsafe { environment.add(found.count) };
        // SAFETY: see above.
        if unsafe { entry.read() }.is_null() {
            return Some(found);
        }
        if found.count == ENTRIES_MAX {
            return None;
        }
        // SAFETY: an entry of the list.
        let text = unsafe { text(environment, found.count) };
        if text.starts_with(PRELOAD) && found.preload.is_none() {
            found.preload = Some(found.count);
        }
        found.invited |= text.strip_prefix(VARIABLE.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        found.count += 1;
    }
}

/// Returns an entry of an environment.
///
/// # Safety
/// The list has this entry.
unsafe fn text<'a>(environment: Texts, at: usize) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    let entry = unsafe { environment.add(at) };
    // SAFETY: see above.
    let entry = unsafe { entry.read() };
    // SAFETY: the entries are C strings.
    unsafe { CStr::from_ptr(entry) }.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LD_PRELOAD names the library first and once if the invitation is present; other entries stay.
    #[test]
    fn an_environment_keeps_the_library() {
        let list = |entries: &[&CStr]| {
            LIBRARY.set("/lib/ours.so");
            let mut texts: Vec<*const c_char> = entries.iter().map(|entry| entry.as_ptr()).collect();
            texts.push(ptr::null());
            let mut seen = Vec::new();
            let start = |environment: Texts| {
                // SAFETY: the list of this test, or a copy of it.
                let Found { count, .. } = unsafe { look(environment) }.expect("a short list");
                // SAFETY: `look` counted the entries.
                seen.extend(
                    (0..count).map(|n| String::from_utf8_lossy(unsafe { text(environment, n) }).into_owned()),
                );
                0
            };
            // SAFETY: the list ends with null.
            unsafe { with_library(texts.as_ptr(), start) };
            seen
        };
        let invited = c"FARMEM_RUN=x";
        assert_eq!(list(&[invited, c"LD_PRELOAD=theirs.so", c"A=1"])[1], "LD_PRELOAD=/lib/ours.so:theirs.so");
        assert_eq!(list(&[c"LD_PRELOAD=", invited]), ["LD_PRELOAD=/lib/ours.so", "FARMEM_RUN=x"]);
        assert_eq!(list(&[invited, c"A=1"]), ["FARMEM_RUN=x", "A=1", "LD_PRELOAD=/lib/ours.so"]);
        let named = [invited, c"LD_PRELOAD=asan.so:/lib/ours.so"];
        assert_eq!(list(&named), named.map(|entry| entry.to_str().unwrap()));
        assert_eq!(list(&[c"LD_PRELOAD=theirs.so"]), ["LD_PRELOAD=theirs.so"]);
    }
}
