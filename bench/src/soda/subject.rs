//! A graph under measurement: generated from a seed into a file, with its reference results from local
//! memory.

use super::work::{App, Work};
use farmem::Error;
use farmem_graph::algorithms::{SAMPLE_MAX, sample};
use farmem_graph::checkpoint::replace;
use farmem_graph::far::Image;
use farmem_graph::generate::{Kind, generate};
use farmem_graph::load::binary::{self, Extent};
use farmem_graph::{Csr, Shape, Values};
use std::path::PathBuf;
use tempfile::TempDir;

const SEED: u64 = 1;
/// A directory on a disk, if there is one: a file in memory would be no comparison.
pub(super) const FOLDER: &str = "/var/tmp";

/// A graph under measurement.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) csr: Csr,
    /// Bytes of its arrays in far memory.
    pub(super) image: u64,
    /// The vertex data within these arrays: the first byte and the length.
    pub(super) vertices: (u64, u64),
    sources: Vec<u32>,
    rounds: u64,
    _folder: TempDir,
}

impl Subject {
    /// Generates a graph of 2^`scale` vertices with `ratio` edges each; `rounds` are for [`App::Pagerank`].
    pub(super) fn make(ratio: u64, scale: u32, rounds: u64) -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("farmem-soda-").tempdir_in(FOLDER).map_err(named)?;
        let path = folder.path().join("graph.fmg");
        let edges = generate(Kind::Kronecker, scale, ratio, SEED, false);
        let csr = edges.build(Shape::default()).map_err(named)?;
        replace(&path, |mut out| binary::write(&csr, &mut out)).map_err(named)?;
        let sources = sample(&csr.graph().map_err(named)?, SAMPLE_MAX, SEED);
        let image = Image::of(&Extent::of(&csr));
        let (image, vertices) = (image.len(), image.of_vertices());
        Ok(Self { name: format!("r{ratio}"), path, csr, image, vertices, sources, rounds, _folder: folder })
    }

    /// Returns an application on the graph, and the right results: those of one thread in local memory.
    pub(super) fn work(&self, app: App) -> Result<(Work, Values), Error> {
        let work = Work { app, rounds: self.rounds, sources: self.sources.clone() };
        let threads = super::one_thread().map_err(named)?;
        let graph = self.csr.graph().map_err(named)?;
        let right = threads.install(|| work.run(&graph)).map_err(named)?;
        Ok((work, right))
    }
}

/// Wraps an error outside far memory.
pub(super) fn named(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    run_child(&error.to_string())
}

/// Works as [`named`], for a command's failure.
pub(super) fn failed(failure: farmem_workload::Failure) -> Error {
    run_child(&failure.message)
}

fn run_child(words: &str) -> Error {
    Error::System { what: "a graph to be measured".into(), source: std::io::Error::other(words.to_owned()) }
}
