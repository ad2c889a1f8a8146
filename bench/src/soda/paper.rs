//! The paper's figures for comparison (SODA VI-C, figures 9 and 10): the numbers in its text for
//! com-friendster and Moliere, whose ratios of edges to vertices two of the graphs have.

use super::system::System;
use super::work::App;

/// Returns the paper's statement of an application's traffic, relative to that without a DPU.
pub(super) const fn bytes(ratio: u64, app: App, system: System) -> Option<&'static str> {
    match (ratio, system, app) {
        (55, System::Static, App::Pagerank | App::PagerankByEdge) => Some("0.58"),
        (55, System::Static, _) => Some("0.89 to 0.90"),
        (55, System::Dynamic, App::Pagerank | App::PagerankByEdge) => Some("1.05"),
        (55, System::Dynamic, App::Bc) => Some("1.69, its most"),
        (55, System::Dynamic, _) => Some("1.05 to 1.69"),
        (221, System::Static, App::Pagerank | App::PagerankByEdge) => Some("0.90"),
        (221, System::Static, _) => Some("0.97 to 0.98"),
        (221, System::Dynamic, App::Pagerank | App::PagerankByEdge) => Some("1.08"),
        (221, System::Dynamic, App::Components) => Some("1.10"),
        (221, System::Dynamic, App::Bfs) => Some("2.17, its most"),
        (221, System::Dynamic, _) => Some("1.08 to 2.17"),
        _ => None,
    }
}

/// Returns the paper's statement of the dynamic cache's hit rate.
pub(super) const fn hits(ratio: u64, app: App, system: System) -> Option<&'static str> {
    match (ratio, system, app) {
        (55, System::Dynamic, App::Pagerank | App::PagerankByEdge) => Some("0.93, its most"),
        (55, System::Dynamic, App::Bc) => Some("0.61, its least"),
        (55, System::Dynamic, _) => Some("0.61 to 0.93"),
        (221, System::Dynamic, App::Bc | App::Bfs) => Some("0.56 to 0.68"),
        (221, System::Dynamic, _) => Some("0.92 to 0.93"),
        _ => None,
    }
}

/// Returns the paper's statement of the prefetched share of the bytes.
pub(super) const fn background(ratio: u64, system: System) -> Option<&'static str> {
    match (ratio, system) {
        (55 | 221, System::Dynamic) => Some("0.76 to 0.93"),
        _ => None,
    }
}
