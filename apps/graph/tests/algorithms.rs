//! The algorithms compared with plain sequential ones, on random and generated graphs, with one thread and
//! with several.

mod reference;

use farmem_graph::algorithms::{
    Components, NONE, PageRank, Radii, UnsuitableGraph, betweenness, bfs, radii, sample, sssp, triangles,
};
use farmem_graph::generate::{Kind, RATIOS, generate};
use farmem_graph::{
    Csr, Direction, EdgeFn, Edges, Graph, Local, Order, Shape, VertexSubset, edge_map_by, for_each_vertex,
    vertex_map,
};
use proptest::prelude::*;
use reference::Plain;

/// Generates vertices (some isolated), edges (with loops and parallel ones), and whether the graph is
/// symmetric.
fn graphs() -> impl Strategy<Value = (Edges, bool)> {
    let edges = (1_u32..40).prop_flat_map(|vertices| {
        let edge = ((0..vertices, 0..vertices), 0_u32..20);
        (Just(vertices), prop::collection::vec(edge, 0..160))
    });
    (edges, any::<bool>(), any::<bool>()).prop_map(|((vertices, edges), symmetric, weighted)| {
        let (list, weights): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
        (Edges { vertices, list, weights: weighted.then_some(weights) }, symmetric)
    })
}

fn built(edges: &Edges, symmetric: bool) -> Csr {
    edges.clone().build(Shape { symmetric, simple: false }).unwrap()
}

/// Returns the result of `work`, asserting that one thread and three agree.
fn alike<T: PartialEq + std::fmt::Debug + Send>(work: impl Fn() -> T + Sync) -> T {
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&work)
    };
    let one = on(1);
    assert_eq!(one, on(3), "threads change nothing");
    one
}

fn on(_: u64, _: u64) -> bool {
    true
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (vertex, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= 1e-9 * expected.abs().max(1e-3), "vertex {vertex}: {found}, expected {expected}");
    }
}

fn check(csr: &Csr, source: u32) {
    let graph = csr.graph().unwrap();
    let plain = Plain::of(csr);
    let found = alike(|| bfs(&graph, source, &mut on).unwrap());
    let levels = plain.levels(source);
    assert_eq!(found.levels, levels);
    assert_eq!(found.parents, plain.least_parents(source, &levels));
    assert_eq!(found.reached, levels.iter().filter(|&&level| level != NONE).count() as u64);

    let paths = alike(|| sssp(&graph, source, &mut on).unwrap());
    assert_eq!(paths.distances, plain.distances(source));

    let sources = sample(&graph, 64, 5);
    let with_edges = (0..graph.vertices()).filter(|&vertex| graph.out().degree(vertex) > 0).count();
    assert_eq!(sources.len(), with_edges.min(64));
    let Radii { radii, reached } = alike(|| radii(&graph, &sources, &mut on).unwrap());
    assert_eq!(radii, plain.radii(&sources));
    assert_eq!(reached, radii.iter().filter(|&&radius| radius != NONE).count() as u64);

    let few = &sources[..sources.len().min(8)];
    close(&alike(|| betweenness(&graph, few, &mut on).unwrap()), &plain.betweenness(few));

    let ranks = alike(|| ranks(&graph, 20));
    close(&ranks, &plain.ranks(20));
    assert!((ranks.iter().sum::<f64>() - 1.0).abs() < 1e-9, "nothing vanishes");

    let components = alike(|| components(&graph));
    assert_eq!(components.0, plain.components());
    let mut labels = components.0.clone();
    labels.sort_unstable();
    let largest = labels.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap() as u64;
    labels.dedup();
    assert_eq!(components.1, (labels.len() as u64, largest));

    let found = alike(|| triangles(&graph, &mut on));
    assert_eq!(found, if csr.symmetric { Ok(plain.triangles()) } else { Err(UnsuitableGraph::Directed) });
}

fn ranks(graph: &Graph<Local<'_>>, rounds: usize) -> Vec<f64> {
    let mut ranks = PageRank::new(graph.vertices());
    (0..rounds).for_each(|_| ranks.round(graph).unwrap());
    let mut by_edge = PageRank::new(graph.vertices());
    (0..rounds).for_each(|_| by_edge.round_by_edge(graph).unwrap());
    assert_eq!(by_edge, ranks, "to the bit");
    ranks.ranks().to_vec()
}

fn components(graph: &Graph<Local<'_>>) -> (Vec<u32>, (u64, u64)) {
    let mut components = Components::new(graph.vertices());
    while !components.changed().is_empty() {
        components.round(graph).unwrap();
    }
    (components.labels().to_vec(), components.sizes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: proptest::test_runner::RngSeed::Fixed(14), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_a_plain_algorithm((edges, symmetric) in graphs(), source in any::<prop::sample::Index>()) {
        check(&built(&edges, symmetric), u32::try_from(source.index(edges.vertices as usize)).unwrap());
    }

    /// Both directions and both orders find the same targets: the union of everything that reaches each,
    /// counted.
    #[test]
    fn push_and_pull_do_the_same((edges, symmetric) in graphs(), bits in any::<u64>()) {
        let csr = built(&edges, symmetric);
        let graph = csr.graph().unwrap();
        let some: Vec<u32> = (0..edges.vertices).filter(|vertex| bits >> vertex & 1 == 1).collect();
        let set = VertexSubset::of(edges.vertices, some);
        let run = |direction, order| {
            let sums = Sums((0..edges.vertices).map(|_| 0.into()).collect());
            let next = edge_map_by(&graph, &set, (direction, order), &sums).list().into_owned();
            (next, sums.0.into_iter().map(std::sync::atomic::AtomicU64::into_inner).collect::<Vec<_>>())
        };
        let pushed = run(Direction::Push, Order::Ascending);
        prop_assert_eq!(&pushed, &run(Direction::Pull, Order::Ascending));
        prop_assert_eq!(&pushed, &run(Direction::Pull, Order::Descending));
    }

    #[test]
    fn a_set_is_the_same_in_both_forms(list in prop::collection::vec(0_u32..300, 0..80), other in prop::collection::vec(0_u32..300, 0..80)) {
        use std::collections::BTreeSet;
        let model: BTreeSet<u32> = list.iter().copied().collect();
        let sparse = VertexSubset::of(300, list);
        let dense = VertexSubset::of_bits(300, sparse.bits().into_owned());
        for set in [&sparse, &dense] {
            prop_assert_eq!(set.len(), model.len());
            prop_assert!(set.list().iter().eq(model.iter()));
            prop_assert!((0..400).all(|vertex| set.contains(vertex) == model.contains(&vertex)));
            let touched = std::sync::Mutex::new(Vec::new());
            for_each_vertex(set, |vertex| touched.lock().unwrap().push(vertex));
            let mut touched = touched.into_inner().unwrap();
            touched.sort_unstable();
            prop_assert!(touched.iter().eq(model.iter()), "each once");
            let thirds = vertex_map(set, |vertex| vertex % 3 == 0);
            prop_assert_eq!(thirds.is_dense(), set.is_dense());
            prop_assert!(thirds.list().iter().eq(model.iter().filter(|&vertex| vertex % 3 == 0)));
        }
        let both: Vec<u32> = model.union(&other.iter().copied().collect()).copied().collect();
        let other = VertexSubset::of(300, other);
        prop_assert!(sparse.union(&other).list().iter().eq(&both));
        prop_assert!(dense.union(&other).list().iter().eq(&both));
        prop_assert_eq!(other.union(&VertexSubset::of(300, both.clone())).list().into_owned(), both);
    }
}

/// For each target, the sum of sources and weights.
struct Sums(Vec<std::sync::atomic::AtomicU64>);

impl EdgeFn for Sums {
    fn push(&self, source: u32, target: u32, weight: u32) -> bool {
        let before = self.0[target as usize].fetch_add(
            u64::from(source) * 1000 + u64::from(weight) + 1,
            std::sync::atomic::Ordering::Relaxed,
        );
        before == 0
    }
}

#[test]
fn generated_graphs_of_each_ratio_are_answered_as_by_plain_algorithms() {
    for (seed, ratio) in (1..).zip(RATIOS) {
        for kind in [Kind::Kronecker, Kind::Uniform] {
            for symmetric in [false, true] {
                let edges = generate(kind, 7, ratio, seed, symmetric);
                assert_eq!((edges.vertices, edges.list.len() as u64), (128, 128 * ratio));
                check(&built(&edges, symmetric), 3);
            }
        }
    }
}

/// A long path takes one pushed round per edge; a star is pulled.
#[test]
fn paths_and_stars() {
    let path = Edges { vertices: 500, list: (1..500).map(|to| (to - 1, to)).collect(), weights: None };
    let star = Edges { vertices: 500, list: (1..500).map(|to| (0, to)).collect(), weights: None };
    for edges in [path, star] {
        check(&built(&edges, false), 0);
        check(&built(&edges, true), 499);
    }
}

#[test]
fn one_vertex_and_none() {
    let one = |list| Edges { vertices: 1, list, weights: None };
    for symmetric in [false, true] {
        check(&built(&one(vec![]), symmetric), 0);
        check(&built(&one(vec![(0, 0)]), symmetric), 0);
        let none = built(&Edges::default(), symmetric);
        let graph = none.graph().unwrap();
        assert_eq!(bfs(&graph, 0, &mut on), Err(UnsuitableGraph::Vertex { vertex: 0, vertices: 0 }));
        assert_eq!(sssp(&graph, 0, &mut on), Err(UnsuitableGraph::Vertex { vertex: 0, vertices: 0 }));
        assert_eq!(radii(&graph, &[], &mut on).unwrap().reached, 0);
        assert_eq!(betweenness(&graph, &[], &mut on), Ok(vec![]));
        assert_eq!(ranks(&graph, 3), Vec::<f64>::new());
        assert_eq!(components(&graph), (vec![], (0, 0)));
    }
}

/// An algorithm reports what its graph lacks, and ends when asked to.
#[test]
fn what_does_not_suit_is_refused() {
    let edges = Edges { vertices: 3, list: vec![(0, 1), (1, 2)], weights: None };
    let csr = Csr { incoming: None, ..built(&edges, false) };
    let graph = csr.graph().unwrap();
    assert_eq!(PageRank::new(3).round(&graph), Err(UnsuitableGraph::NoIncoming));
    assert_eq!(Components::new(3).round(&graph), Err(UnsuitableGraph::NoIncoming));
    // Without incoming edges everything is pushed.
    assert_eq!(bfs(&graph, 0, &mut on).unwrap().levels, [0, 1, 2]);
    let mut stop = |done, _| done < 2;
    assert_eq!(bfs(&graph, 0, &mut stop), Err(UnsuitableGraph::Stopped));
    assert_eq!(sssp(&graph, 0, &mut stop), Err(UnsuitableGraph::Stopped));
    assert_eq!(radii(&graph, &[0], &mut stop), Err(UnsuitableGraph::Stopped));
    assert_eq!(betweenness(&graph, &[0], &mut |_, _| false), Err(UnsuitableGraph::Stopped));
    let unsorted = farmem_graph::Rows { offsets: vec![0, 2, 3, 4], targets: vec![2, 1, 0, 0], weights: None };
    let unsorted = Csr { out: unsorted, incoming: None, symmetric: true };
    assert_eq!(triangles(&unsorted.graph().unwrap(), &mut on), Err(UnsuitableGraph::Unsorted));
}

/// A chain of vertices with four edges from each to the next: 4^n shortest paths lead to the n-th. As many as
/// a double can hold are counted, and the result is right to the last digits; more are refused.
#[test]
fn more_paths_than_can_be_counted_are_refused() {
    let chain = |vertices: u32| {
        let list = (1..vertices).flat_map(|to| [(to - 1, to); 4]).collect();
        built(&Edges { vertices, list, weights: None }, false)
    };
    let most = chain(512); // 4^511 = 2^1022
    let found = betweenness(&most.graph().unwrap(), &[0], &mut on).unwrap();
    let expected: Vec<f64> =
        (0..512).map(|vertex| if vertex == 0 { 0.0 } else { f64::from(511 - vertex) }).collect();
    close(&found, &expected);
    let refused = betweenness(&chain(600).graph().unwrap(), &[0], &mut on);
    assert_eq!(refused, Err(UnsuitableGraph::Paths { from: 0, to: 512 }));
}

/// A checkpoint has the state after a round: the resumed run is bit-identical.
#[test]
fn a_resumed_algorithm_goes_the_same_way() {
    let csr = built(&generate(Kind::Kronecker, 8, 3, 9, false), false);
    let graph = csr.graph().unwrap();
    let mut first = PageRank::new(graph.vertices());
    (0..5).for_each(|_| first.round(&graph).unwrap());
    let mut second = PageRank::resumed(first.ranks().to_vec(), first.moved(), first.rounds());
    assert_eq!(first, second);
    assert_eq!(first.round(&graph), second.round(&graph));
    assert_eq!(first, second);

    let mut components = Components::new(graph.vertices());
    components.round(&graph).unwrap();
    let changed = VertexSubset::of(graph.vertices(), components.changed().list().into_owned());
    let mut resumed = Components::resumed(components.labels().to_vec(), changed, components.rounds());
    while !components.changed().is_empty() {
        components.round(&graph).unwrap();
        resumed.round(&graph).unwrap();
        assert_eq!(components.labels(), resumed.labels());
    }
    assert_eq!(components.rounds(), resumed.rounds());
}
