//! Textbook versions of the algorithms: one thread, plain lists, no code in common with the crate.

use farmem_graph::Csr;
use farmem_graph::algorithms::{DAMPING, NONE, UNREACHED};
use std::collections::{BTreeSet, VecDeque};

/// Lists of neighbours and weights.
pub(crate) struct Plain {
    out: Vec<Vec<(u32, u32)>>,
}

impl Plain {
    pub(crate) fn of(csr: &Csr) -> Self {
        let rows = &csr.out;
        let list = |pair: &[u64]| {
            let range = usize::try_from(pair[0]).unwrap()..usize::try_from(pair[1]).unwrap();
            range.map(|at| (rows.targets[at], rows.weights.as_ref().map_or(1, |all| all[at]))).collect()
        };
        Self { out: rows.offsets.windows(2).map(list).collect() }
    }

    fn edges(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..).zip(&self.out).flat_map(|(from, list)| list.iter().map(move |&(to, weight)| (from, to, weight)))
    }

    pub(crate) fn levels(&self, source: u32) -> Vec<u32> {
        let mut levels = vec![NONE; self.out.len()];
        levels[source as usize] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            for &(to, _) in &self.out[vertex as usize] {
                if levels[to as usize] == NONE {
                    levels[to as usize] = levels[vertex as usize] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    pub(crate) fn least_parents(&self, source: u32, levels: &[u32]) -> Vec<u32> {
        let mut parents = vec![NONE; self.out.len()];
        for (from, to, _) in self.edges() {
            let (before, here) = (levels[from as usize], levels[to as usize]);
            if before != NONE && here == before + 1 {
                parents[to as usize] = parents[to as usize].min(from);
            }
        }
        parents[source as usize] = source;
        parents
    }

    /// Relaxes every edge until nothing changes.
    pub(crate) fn distances(&self, source: u32) -> Vec<u64> {
        let mut distances = vec![UNREACHED; self.out.len()];
        distances[source as usize] = 0;
        loop {
            let mut changed = false;
            for (from, to, weight) in self.edges() {
                let way = distances[from as usize].saturating_add(weight.into());
                if way < distances[to as usize] {
                    distances[to as usize] = way;
                    changed = true;
                }
            }
            if !changed {
                return distances;
            }
        }
    }

    pub(crate) fn radii(&self, sources: &[u32]) -> Vec<u32> {
        let levels: Vec<Vec<u32>> = sources.iter().map(|&source| self.levels(source)).collect();
        let of =
            |vertex: usize| levels.iter().map(|levels| levels[vertex]).filter(|&level| level != NONE).max();
        (0..self.out.len()).map(|vertex| of(vertex).unwrap_or(NONE)).collect()
    }

    /// Computes betweenness by path counts: paths through a vertex are the paths to it times the paths
    /// onward.
    pub(crate) fn betweenness(&self, sources: &[u32]) -> Vec<f64> {
        let vertices = self.out.len();
        let all: Vec<(Vec<u32>, Vec<f64>)> = (0..vertices)
            .map(|source| {
                let levels = self.levels(u32::try_from(source).unwrap());
                let paths = self.paths(source, &levels);
                (levels, paths)
            })
            .collect();
        let mut sums = vec![0.0; vertices];
        for &source in sources {
            let (levels, paths) = &all[source as usize];
            for (through, sum) in sums.iter_mut().enumerate() {
                if through == source as usize || levels[through] == NONE {
                    continue;
                }
                let (on_levels, on_paths) = &all[through];
                for end in (0..vertices).filter(|&end| end != through && end != source as usize) {
                    if on_levels[end] != NONE && levels[through] + on_levels[end] == levels[end] {
                        *sum += paths[through] * on_paths[end] / paths[end];
                    }
                }
            }
        }
        sums
    }

    fn paths(&self, source: usize, levels: &[u32]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..levels.len()).filter(|&vertex| levels[vertex] != NONE).collect();
        order.sort_by_key(|&vertex| levels[vertex]);
        let mut paths = vec![0.0; levels.len()];
        paths[source] = 1.0;
        for from in order {
            for &(to, _) in &self.out[from] {
                if levels[to as usize] == levels[from] + 1 {
                    paths[to as usize] += paths[from];
                }
            }
        }
        paths
    }

    pub(crate) fn ranks(&self, rounds: usize) -> Vec<f64> {
        #[expect(clippy::cast_precision_loss, reason = "small graphs")]
        let (n, degree) = (self.out.len() as f64, |vertex: usize| self.out[vertex].len() as f64);
        let mut ranks = vec![1.0 / n; self.out.len()];
        for _ in 0..rounds {
            let idle: f64 = (0..ranks.len()).filter(|&v| self.out[v].is_empty()).map(|v| ranks[v]).sum();
            let mut next = vec![(1.0 - DAMPING) / n + DAMPING * idle / n; ranks.len()];
            for (from, to, _) in self.edges() {
                next[to as usize] += DAMPING * ranks[from as usize] / degree(from as usize);
            }
            ranks = next;
        }
        ranks
    }

    /// Returns the smallest vertex of each vertex's component.
    pub(crate) fn components(&self) -> Vec<u32> {
        let mut of: Vec<u32> = (0..).take(self.out.len()).collect();
        for (from, to, _) in self.edges() {
            let (one, other) = (of[from as usize], of[to as usize]);
            let (keep, go) = (one.min(other), one.max(other));
            of.iter_mut().filter(|label| **label == go).for_each(|label| *label = keep);
        }
        of
    }

    pub(crate) fn triangles(&self) -> u64 {
        let edges: BTreeSet<(u32, u32)> = self.edges().map(|(from, to, _)| (from, to)).collect();
        let vertices = u32::try_from(self.out.len()).unwrap();
        let mut count = 0;
        for &(a, b) in edges.iter().filter(|(a, b)| a < b) {
            count += (b + 1..vertices).filter(|&c| edges.contains(&(a, c)) && edges.contains(&(b, c))).count()
                as u64;
        }
        count
    }
}
