//! Graphs in far memory with Ligra's interface (SODA V): breadth-first search, PageRank, radii, betweenness,
//! connected components, shortest paths and triangles, on arrays in local memory or in a window.
//!
//! Key items: [`Graph`], the arrays in either storage ([`Store`]); [`edge_map`] and [`vertex_map`] with
//! [`VertexSubset`], the primitives of every algorithm; [`algorithms`].

#![forbid(unsafe_code)]

pub mod algorithms;
mod array;
mod build;
pub mod checkpoint;
mod command;
mod csr;
mod edge_map;
pub mod far;
pub mod generate;
pub mod load;
mod report;
mod run;
mod subset;

pub use array::{Array, Far, Local, Store};
pub use build::{Csr, Edges, Rows, Shape};
pub use command::{
    Command, ComponentsArgs, ConvertArgs, Dpu, GenerateArgs, PageRankArgs, Part, RunArgs, SampleArgs,
    SourceArgs, WriteArgs, part,
};
pub use csr::{Adjacency, Graph, Malformed, VERTICES_MAX};
pub use edge_map::{
    Direction, EdgeFn, Order, PULL_ABOVE, direction, edge_map, edge_map_by, edge_map_in, for_each_vertex,
    vertex_map,
};
pub use report::{Answer, CommandReport, DpuTraffic, FileReport, RunReport, Traffic, Values};
pub use run::run;
pub use subset::VertexSubset;
