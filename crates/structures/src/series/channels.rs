//! Time series recorded in parallel: the channels of an instrument.

use super::{LEAF_POINTS_MAX, Point, Series};
use crate::arena::{Arena, Layout};
use crate::btree::NODE_LEN;
use farmem_client::{Error, FarMemory};

/// Several series whose leaves lie in the order in which they were filled, regardless of series: the layout
/// that results when points of all channels are stored as they arrive. Between two adjacent leaves of one
/// series lies a leaf of every other series.
#[derive(Debug)]
pub struct Channels {
    series: Vec<Series>,
    leaves: Arena,
}

impl Channels {
    /// Creates a series for each of `channels` and fills it with its points in ascending order of time.
    ///
    /// # Errors
    /// [`Error::Key`] for the first point that does not ascend or whose value is too large; [`Error`] when
    /// far memory has no room or does not answer. Memory allocated before the error stays with the client.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        layout: Layout,
        channels: &[&[Point]],
    ) -> Result<Self, Error> {
        let mut leaves = Arena::new(memory, layout, NODE_LEN);
        // The times at which channels fill a leaf. Points that fit into one leaf stay in the root.
        let mut filled: Vec<(u64, usize)> = Vec::new();
        for (channel, points) in channels.iter().enumerate().filter(|(_, p)| p.len() > LEAF_POINTS_MAX) {
            let ends = points.chunks(LEAF_POINTS_MAX).filter_map(|leaf| leaf.last());
            filled.extend(ends.map(|point| (point.time, channel)));
        }
        filled.sort_unstable();
        let mut nodes = vec![Vec::new(); channels.len()];
        for (number, &(_, channel)) in filled.iter().enumerate() {
            let home = number * leaves.homes() / filled.len();
            nodes[channel].push(leaves.take(memory, home)?);
        }
        let mut series = Vec::with_capacity(channels.len());
        for (points, nodes) in channels.iter().zip(nodes) {
            let mut one = Series::create(memory, layout)?;
            one.tree.reserve(nodes);
            one.load(memory, points)?;
            series.push(one);
        }
        Ok(Self { series, leaves })
    }

    /// Returns the series, in the order of the channels.
    #[must_use]
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Frees all series.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.series.into_iter().try_for_each(|series| series.destroy(memory))?;
        self.leaves.destroy(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_client::Rack;

    fn points(count: u64, scale: i64) -> Vec<Point> {
        (0..count).map(|n| Point { time: n * 10, value: n.cast_signed() * scale }).collect()
    }

    /// Each series has its own points, the leaves of the long ones alternate, and destroying frees
    /// everything.
    #[test]
    fn channels_are_filled_side_by_side() {
        let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("channels").unwrap();
        let recorded = [points(1400, 1), points(1400, -3), points(5, 7), Vec::new()];
        let slices: Vec<&[Point]> = recorded.iter().map(Vec::as_slice).collect();
        let channels = Channels::load(&mut client, Layout::Partitioned, &slices).unwrap();
        // Regions are allocated in ascending order, the region of the leaves first.
        let vmas = client.overview().unwrap().vmas;
        let first_leaf = vmas.iter().filter(|vma| vma.size > 4096).map(|vma| vma.base).min().unwrap();
        for (series, points) in channels.series().iter().zip(&recorded) {
            let window = series.window(&mut client, 0..100_000).unwrap();
            let sum = points.iter().map(|point| i128::from(point.value)).sum::<i128>();
            let expected = (!points.is_empty()).then_some((sum, points.len() as u64));
            assert_eq!(window.map(|window| (window.sum, window.count)), expected);
        }
        // A hundred leaves each, alternating.
        let mut second_values = |base: u64| {
            [0, 1].map(|leaf| {
                let mut value = [0; 8];
                let at = base + (leaf * NODE_LEN) as u64 + 128 + 8;
                client.read(farmem_wire::VirtAddr(at), &mut value).unwrap();
                i64::from_le_bytes(value)
            })
        };
        assert_eq!(second_values(first_leaf), [1, -3], "the first leaf of either");
        channels.destroy(&mut client).unwrap();
        let vmas = client.overview().unwrap().vmas;
        assert_eq!(vmas.len(), 0, "{vmas:?}");
    }
}
