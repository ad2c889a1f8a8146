//! Parts for crates that implement a host of their own instead of [`Client`](crate::Client).

pub use crate::allocations::Allocations;
pub use crate::answers::{gid, wrong_answer};
pub use crate::host_settings::{SILENCE_MAX, endpoint, host_settings};
pub use crate::link::{
    WithLink, api_client, join_host, number_of_domain, operator_client, place, require_running, with_link,
};
