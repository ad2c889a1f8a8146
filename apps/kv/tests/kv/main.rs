//! The server as clients have it: over TCP, as a process that is killed, beside redis-server, with real
//! clients.

mod acl;
mod clients;
mod common;
mod differential;
mod durability;
mod far;
mod hostile;
mod introspection;
mod items;
mod memcached;
mod service;
mod tls;
mod waiting;
