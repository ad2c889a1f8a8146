//! A time series in far memory: a B+tree of (timestamp, value) with 14 points per leaf, aggregated by
//! traversals along the leaves (BTrDB in PULSE 6).
//!
//! Timestamps are unsigned, values signed. Both are integers in units that the caller chooses, such as
//! microseconds and microvolts, because programs compute with integers ([`load_csv`] scales decimals
//! exactly). A sum of any size is exact. Concurrent readers have the guarantees of [`crate::btree`].

use crate::arena::Layout;
use crate::assembled;
use crate::btree::{BTree, half_open};
use crate::words;
use farmem_client::{Answer, Completed, Error, FarMemory, LockWord, Op, Policy};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::ops::RangeBounds;

mod channels;
mod csv;

pub use channels::Channels;
pub use csv::{Columns, CsvError, CsvFault, load_csv};

/// Bound on the points of a leaf: sixteen values of less than 2^59 could overflow a word, fourteen cannot.
pub const LEAF_POINTS_MAX: usize = 14;
/// The largest magnitude of a value.
pub const VALUE_MAX: i64 = (1 << 59) - 1;
/// The program of a window, in text form.
pub const WINDOW_PROGRAM: &str = include_str!("../../../testdata/programs/series_window.pulse");

/// A measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    /// The time; at most 2^64 - 2.
    pub time: u64,
    /// The value; at most [`VALUE_MAX`] in magnitude.
    pub value: i64,
}

/// The aggregates of a window that has points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The exact sum of the values.
    pub sum: i128,
    /// The smallest value.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    /// The number of points; at least one.
    pub count: u64,
}

impl Window {
    /// Returns the mean of the values as the nearest double.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a mean is a fraction; the parts are exact in sum and count"
    )]
    pub fn mean(&self) -> f64 {
        // The whole part is separate, so that a large sum does not cost the small digits.
        let count = i128::from(self.count);
        (self.sum / count) as f64 + (self.sum % count) as f64 / self.count as f64
    }
}

/// A program's handle of a series; other programs open the series at [`Series::address`].
#[derive(Debug)]
pub struct Series {
    tree: BTree,
    window: Program,
}

impl Series {
    /// Creates an empty series. With [`Layout::Partitioned`] each memory node holds one span of time.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        BTree::create_with(memory, layout, LEAF_POINTS_MAX).map(Self::of)
    }

    /// Opens the series at `address`. `layout` places the new nodes that this handle creates.
    ///
    /// # Errors
    /// [`Error::Broken`] when there is no series at `address`; [`Error`] when far memory does not answer.
    pub fn open(
        memory: &mut (impl FarMemory + ?Sized),
        address: VirtAddr,
        layout: Layout,
    ) -> Result<Self, Error> {
        let tree = BTree::open(memory, address, layout)?;
        if tree.leaf_max() != LEAF_POINTS_MAX {
            return Err(Error::Broken { addr: address, what: "a time series' header" });
        }
        Ok(Self::of(tree))
    }

    fn of(tree: BTree) -> Self {
        Self { tree, window: assembled(WINDOW_PROGRAM) }
    }

    /// Frees the memory that this handle allocated for the series.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.tree.destroy(memory)
    }

    /// Returns the address at which other programs open the series.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.tree.address()
    }

    /// Returns the lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        self.tree.lock()
    }

    /// Sets where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.tree.set_policy(policy);
    }

    /// Fills an empty series from points in ascending order of time, with full leaves.
    ///
    /// # Errors
    /// [`Error::Key`] for the first point that does not ascend or whose value is too large; [`Error`] when
    /// far memory has no room or does not answer. The series then stays empty.
    pub fn load(&mut self, memory: &mut (impl FarMemory + ?Sized), points: &[Point]) -> Result<(), Error> {
        points.iter().try_for_each(|point| check(*point))?;
        let pairs = points.iter().map(|point| (point.time, point.value.cast_unsigned()));
        self.tree.load(memory, pairs, LEAF_POINTS_MAX)
    }

    /// Adds a point, or replaces the value at its time. Returns the previous value. Points appended in order
    /// fill their leaves.
    ///
    /// # Errors
    /// [`Error::Key`] for a time or value that is too large; [`Error`] when far memory has no room or does
    /// not answer.
    pub fn append(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        point: Point,
    ) -> Result<Option<i64>, Error> {
        check(point)?;
        let old = self.tree.insert(memory, point.time, point.value.cast_unsigned())?;
        Ok(old.map(u64::cast_signed))
    }

    /// Returns sum, minimum, maximum and count of the points in a span of time, by one traversal; `None` when
    /// the span has no points.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn window(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        span: impl RangeBounds<u64>,
    ) -> Result<Option<Window>, Error> {
        let (from, to) = half_open(&span);
        if from >= to {
            return Ok(None);
        }
        Ok(window_in(&self.tree.aggregate_by(memory, &self.window, &start_pad(from, to))?))
    }

    /// Returns the traversal of [`Series::window`]. `scratch` is any buffer; its contents are replaced.
    #[must_use]
    pub fn window_op(&self, span: impl RangeBounds<u64>, scratch: Vec<u8>) -> Op {
        let (from, to) = half_open(&span);
        self.tree.aggregate_op(&self.window, &start_pad(from, to), scratch)
    }

    /// Returns the result of a finished [`Series::window_op`]; `None` when the span has no points or the
    /// operation failed.
    #[must_use]
    pub fn windowed(completed: &Completed) -> Option<Window> {
        match completed.result {
            Ok(Answer::Traversed(end)) if end.returned => window_in(&words(&completed.buf)),
            _ => None,
        }
    }

    /// Returns the windows of `width` that cover `from` to `to`. The last one is narrower when `width` does
    /// not divide the span.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    ///
    /// # Panics
    /// Panics when `width` is zero.
    pub fn windows(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        from: u64,
        to: u64,
        width: u64,
    ) -> Result<Vec<Option<Window>>, Error> {
        assert!(width > 0, "a window has a width");
        let mut windows = Vec::new();
        let mut at = from;
        while at < to {
            let end = at.saturating_add(width).min(to);
            windows.push(self.window(memory, at..end)?);
            at = end;
        }
        Ok(windows)
    }

    /// Returns the first `most` points of a span of time, in order.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn points(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        span: impl RangeBounds<u64>,
        most: usize,
    ) -> Result<Vec<Point>, Error> {
        let pairs = self.tree.scan(memory, span, most)?;
        Ok(pairs.into_iter().map(|(time, bits)| Point { time, value: bits.cast_signed() }).collect())
    }
}

/// Returns the initial scratch pad of a window.
const fn start_pad(from: u64, to: u64) -> [u64; 7] {
    [from, to, 0, 0, i64::MAX.cast_unsigned(), i64::MIN.cast_unsigned(), 0]
}

/// Returns the result in a window's final scratch pad.
fn window_in(w: &[u64]) -> Option<Window> {
    let sum = i128::from(w[3].cast_signed()) << 64 | i128::from(w[2]);
    let (min, max) = (w[4].cast_signed(), w[5].cast_signed());
    (w[6] > 0).then_some(Window { sum, min, max, count: w[6] })
}

fn check(point: Point) -> Result<(), Error> {
    if point.value.unsigned_abs() > VALUE_MAX.unsigned_abs() {
        let reason = "the value of this instant is more than 2^59 - 1 in magnitude";
        return Err(Error::Key { key: point.time, reason });
    }
    Ok(())
}
