//! The interposed `mincore`. The kernel takes all addresses that are reserved for far memory for mapped ones.

use crate::area;
use crate::gate;
use crate::mailbox::call;
use crate::maps::{done, failed};
use farmem_preload_abi::call::Call;
use farmem_wire::message::PAGE_LEN;
use libc::size_t;
use rustix::io::Errno;
use std::ffi::{c_int, c_uchar, c_void};

/// `mincore(2)`: a far page is resident when its bytes are on this host.
///
/// # Safety
/// The contract of the system call applies.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mincore(addr: *mut c_void, len: size_t, found: *mut c_uchar) -> c_int {
    if addr.addr().is_multiple_of(PAGE_LEN)
        && let Some((start, part)) = area::part(addr.addr(), len)
    {
        // The kernel takes all reserved addresses for mapped ones, so the pager answers which are in use.
        let asked = Call::Mapped { start: start as u64, len: part as u64 };
        let part = part.next_multiple_of(PAGE_LEN) as u64;
        if call(asked).is_ok_and(|mapped| mapped < part) {
            return failed(Errno::NOMEM, -1);
        }
    }
    let arguments = [addr.addr(), len, found.addr(), 0, 0, 0];
    // SAFETY: guaranteed by the caller.
    done(unsafe { gate::call(libc::SYS_mincore, arguments) }.map(drop))
}
