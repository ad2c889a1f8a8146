//! The control plane's API over HTTP: server, client, keys and certificates, and the control plane's log on
//! disk.
//!
//! Key types: [`ApiServer`] and [`ApiClient`]; [`ControlStore`], the log; [`run_control`], the loop that
//! drives the control plane's role. This crate has no policy: it carries requests to the role
//! `farmem_control::Control`, and its answers back.

mod control_loop;
mod control_store;
mod http;

pub use control_loop::run_control;
pub use control_store::ControlStore;
pub use http::{
    ApiCall, ApiCallError, ApiClient, ApiDoor, ApiDoors, ApiServer, ApiTokens, Authority, CaCert, Identity,
    Limits as ApiLimits, read_ca,
};
