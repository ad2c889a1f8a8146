//! `rack.toml` as written, before the checks.

use crate::config::terms::{
    CardsConfig, DpuCaching, DpuForward, Execution, Placement, Prefetch, Transport, Waiting,
};
use farmem_control::api::Tier;
use serde::Deserialize;
use std::path::PathBuf;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRack {
    pub(super) name: Spanned<String>,
    pub(super) transport: Transport,
    #[serde(default)]
    pub(super) waiting: Waiting,
    #[serde(default)]
    pub(super) placement: Placement,
    pub(super) cpu: Option<usize>,
    pub(super) pmtu: Option<Spanned<usize>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) patience: Option<Spanned<String>>,
    pub(super) cards: Option<Spanned<CardsConfig>>,
    pub(super) control: RawControl,
    pub(super) switch: RawSwitch,
    pub(super) node: Spanned<Vec<RawNode>>,
    #[serde(default, rename = "index-switch")]
    pub(super) index: Vec<RawIndex>,
    pub(super) dpu: Option<RawDpu>,
    pub(super) hosts: RawHosts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawControl {
    pub(super) address: Spanned<String>,
    pub(super) listen: Option<Spanned<String>>,
    pub(super) http: Option<Spanned<String>>,
    pub(super) state: Spanned<PathBuf>,
    pub(super) join: Option<Spanned<PathBuf>>,
    pub(super) ca: Option<Spanned<PathBuf>>,
    pub(super) certificate: Option<Spanned<PathBuf>>,
    pub(super) key: Option<Spanned<PathBuf>>,
    pub(super) lease_ms: Option<Spanned<u64>>,
    pub(super) host_lease_ms: Option<Spanned<u64>>,
    pub(super) domain_memory: Option<Spanned<Value>>,
    pub(super) epoch_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSwitch {
    pub(super) address: Spanned<String>,
    pub(super) slots: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) name: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) memory: Spanned<Value>,
    #[serde(default)]
    pub(super) compile: Execution,
    #[serde(default)]
    pub(super) prefetch: Prefetch,
    pub(super) files: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIndex {
    pub(super) name: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) tier: Tier,
    pub(super) below: Spanned<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHosts {
    pub(super) first: Spanned<String>,
    pub(super) count: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDpu {
    pub(super) socket: Option<Spanned<PathBuf>>,
    pub(super) cache: Option<Spanned<Value>>,
    #[serde(rename = "static")]
    pub(super) fixed: Option<Spanned<Value>>,
    pub(super) page: Option<Spanned<Value>>,
    pub(super) entry: Option<Spanned<Value>>,
    #[serde(default)]
    pub(super) caching: DpuCaching,
    pub(super) batch: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) forward: DpuForward,
    pub(super) threads: Option<Spanned<u64>>,
    pub(super) connections: Option<Spanned<u64>>,
    pub(super) link: Option<Spanned<String>>,
    pub(super) cpu: Option<usize>,
    pub(super) slowdown: Option<Spanned<f64>>,
    pub(super) mirror: Option<Spanned<Vec<Spanned<String>>>>,
}
