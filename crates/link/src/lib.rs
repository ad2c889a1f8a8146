//! Links over UDP and shared memory, and the driver that runs a role over one: frames, clock, stored bytes
//! and wake-ups.
//!
//! A role is a pure [`Machine`](farmem_machine::Machine). A [`Driver`] connects it with the clock ([`Clock`])
//! and a [`Link`]. There are two links: RoCEv2 over UDP sockets ([`udp`]), and rings in shared memory between
//! processes of one machine ([`shm`]). A [`PacedLink`] around either imitates a slower network
//! ([`LinkProfile`]). Links add and check the ICRC, so roles never see it.
//!
//! The caller always chooses the link; no link silently replaces another.

mod address;
pub mod affinity;
pub mod allocator;
mod calibrate;
mod clock;
pub mod doctor;
pub mod dpu;
mod driver;
mod error;
pub mod events;
mod files;
pub mod huge;
mod jit;
pub mod limits;
mod link;
pub mod mirror;
mod outside_waker;
mod paced;
mod peers;
mod private;
mod profile;
mod seed;
mod shaper;
pub mod shm;
pub mod signals;
mod store;
mod timers;
pub mod udp;
mod word_copy;

pub use address::{gid_of, ip_of, parse_gid};
pub use affinity::pin_to_cpu;
pub use calibrate::{Calibrated, calibrate};
pub use clock::{Clock, cpu_time_of_thread};
pub use driver::{Driver, EachOut, Stop, run};
pub use error::OpenError;
pub use files::{NodeFiles, run_node};
pub use huge::PageSize;
pub use jit::{Compiler, Running};
pub use link::{EachRun, FRAME_MAX, Link, LinkCounters, Parcel, Sleeper, Wait, Waiting, WakeAt, Waker};
pub use outside_waker::OutsideWaker;
pub use paced::{PacedLink, PacedParcel, held_back};
pub use private::{is_own, private_directory, private_file, private_state, read_private};
pub use profile::{HELD_BYTES_MAX, LinkProfile, ProfileError, WIRE_OVERHEAD};
pub use seed::os_seed;
pub use shaper::{Shaped, Shaper};
pub use shm::{ShmConfig, ShmLink, ShmParcel};
pub use store::{MappedStore, StoreReader};
pub use udp::{UdpConfig, UdpLink, UdpParcel};
