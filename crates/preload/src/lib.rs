//! The preload library, which puts a program's large anonymous mappings and heap into far memory. `farmem run`
//! makes the dynamic linker load it into the unmodified program.
//!
//! The library interposes these functions of libc:
//! - `mmap`, `munmap`, `mremap`, `mprotect` and `madvise` (`maps`), `mincore` (`resident`), `sbrk` and `brk`
//!   (`brk`).
//! - `malloc` and its family (`malloc`).
//! - `execve` and its family (`exec`), `_Fork` (`fork`).
//! - `shm_open` and the functions on its descriptors (`shared`), `open` and its family (`direct`), `recvmsg`
//!   (`descriptors`), `process_vm_writev` (`pins`).
//!
//! The library reserves one range of addresses in the program (`area`), backed by a memfd. The pager, another
//! process, serves the range through a userfaultfd. So the library needs no thread and no open descriptor in
//! the program: it sends the memfd and the userfaultfd to the pager and closes them. Calls to the pager go
//! through a mailbox (`mailbox`), where a page fault carries the message.
//!
//! The library's code must not call functions that it interposes: it calls the kernel directly, and allocates
//! nothing. Without an invitation, the environment variable `FARMEM_RUN`, all calls go to the kernel and libc.

mod area;
mod block_cache;
mod brk;
mod descriptor_thread;
mod descriptors;
mod direct;
mod exec;
mod fork;
mod gate;
mod heap;
mod local_reason;
mod lock;
mod mailbox;
mod malloc;
mod maps;
mod next;
mod other;
mod pins;
mod resident;
mod shared;
mod signals;
#[cfg(test)]
mod tests;
mod warnings;

/// Runs before `main`, by the dynamic linker. Programs that have not allocated yet get their far memory here.
extern "C" fn constructor() {
    let _without_it_all_is_local = area::is_ready();
}

// SAFETY: the section is a list of functions without arguments that the dynamic linker calls once at start.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = constructor;
