//! Tests of the server over TCP, as a process that is killed, against redis-server, and with real clients.

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
