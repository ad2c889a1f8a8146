//! Links, drivers and machine code, each beside what the system does.

mod jit;
mod path_mtu;
mod processes;
