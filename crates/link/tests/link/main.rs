//! Links, drivers and machine code, compared with the system's behavior.

mod jit;
mod path_mtu;
mod processes;
