//! The preload library: `farmem run` has the dynamic linker load it into an unmodified program, whose large anonymous mappings
//! and heap it then puts into far memory.
//!
//! It stands before libc's `mmap`, `munmap`, `mremap`, `mprotect`, `madvise` (`maps`), `mincore` (`resident`), `malloc` with its family (`malloc`), `sbrk` (`brk`), `execve` with its
//! family (`exec`), `shm_open` and
//! what is done with what that opens (`shared`), `open` with what is like it (`direct`), `recvmsg` (`descriptors`),
//! `process_vm_writev` (`pins`), and `_Fork` (`fork`). What it reserves in the program is one range of addresses (`area`), backed by a memfd and served by the pager, another process, through
//! a userfaultfd. So there is no thread of ours in the program, and no descriptor: both are sent to the pager and closed. What is
//! asked of the pager goes through a mailbox (`mailbox`), where the fault itself is the message.
//!
//! Nothing in here may call what it stands before: it calls the system directly, and allocates nothing. Without an invitation in the
//! environment, all calls are the system's and libc's.

mod apart;
mod area;
mod brk;
mod descriptors;
mod direct;
mod exec;
mod fork;
mod gate;
mod heap;
mod kept;
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
mod told;

/// Called by the dynamic linker before `main`, for programs that have not allocated anything until then.
extern "C" fn constructor() {
    let _without_it_all_is_local = area::is_ready();
}

// SAFETY: the section is a list of functions without arguments that are called once at start.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = constructor;
