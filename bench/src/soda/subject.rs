//! A graph that is measured: made from a seed into a file, and what is found in it in local memory.

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
/// A directory on a disk, where there is one: what is in memory is no file to compare with.
pub(super) const FOLDER: &str = "/var/tmp";

/// The graph.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) csr: Csr,
    /// Bytes of its arrays in far memory.
    pub(super) image: u64,
    /// Of these, what belongs to vertices: the first byte, and how many.
    pub(super) vertices: (u64, u64),
    sources: Vec<u32>,
    rounds: u64,
    _folder: TempDir,
}

impl Subject {
    /// One of 2^`scale` vertices with `ratio` edges for each; `rounds` are of [`App::Pagerank`].
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

    /// An application on it, and what is right: what one thread finds in local memory.
    pub(super) fn work(&self, app: App) -> Result<(Work, Values), Error> {
        let work = Work { app, rounds: self.rounds, sources: self.sources.clone() };
        let threads = super::one_thread().map_err(named)?;
        let graph = self.csr.graph().map_err(named)?;
        let right = threads.install(|| work.run(&graph)).map_err(named)?;
        Ok((work, right))
    }
}

/// What went wrong outside of far memory, as an error of it.
pub(super) fn named(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    said(&error.to_string())
}

/// As [`named`], of what a command says.
pub(super) fn failed(failure: farmem_workload::Failure) -> Error {
    said(&failure.message)
}

fn said(words: &str) -> Error {
    Error::System { what: "a graph to be measured".into(), source: std::io::Error::other(words.to_owned()) }
}
