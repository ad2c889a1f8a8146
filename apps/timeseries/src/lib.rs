//! Windows over sensor data in far memory (PULSE 6, "BTrDB"): sum, mean, minimum and maximum of 1 s to 8 s,
//! anywhere in a recording.
//!
//! A recording has channels measured in parallel by an instrument. The units for which BTrDB was made have
//! twelve: voltage and current, magnitude and angle, of three phases. Each channel is a B+tree by time with
//! 14 points per leaf, and leaves lie in the order in which they were filled ([`farmem::series::Channels`]).
//! A window is one traversal, in one request: down to its channel's first leaf and along the leaves to its
//! last. A single-channel recording is cut into as many pieces as channels are wanted.
//!
//! Data come from CSV or Parquet files; `scripts/sensor-data` fetches a seismometer's recording, 2.6 hours at
//! 100 points per second. Windows only read and are exact beside any other work.

mod data;

pub use data::{Source, generate, load_parquet, read};

use farmem::series::{Channels, Columns, Point, Series, Window};
use farmem::{Client, Error, FarMemory, Layout, Next, OpQueue, Rng, Task};
use farmem_workload::{Failure, Load, Plan, Report, load_or_free, measure, on_rack};
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

/// The command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Options of every application.
    #[command(flatten)]
    pub plan: Plan,
    /// The recording, CSV or Parquet [default: the recording that scripts/sensor-data fetched, or a generated
    /// one when it is absent].
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Load only the first N points.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Number of parallel channels into which the recording is divided.
    #[arg(long, value_name = "N", default_value_t = CHANNELS as u64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub channels: u64,
    /// Name of the time column, in seconds.
    #[arg(long, value_name = "NAME", default_value = "time")]
    pub time: String,
    /// Name of the value column.
    #[arg(long, value_name = "NAME", default_value = "value")]
    pub value: String,
    /// Number of decimals of a value to keep.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(..=18))]
    pub value_decimals: u32,
}

/// Channels of a phasor measurement unit.
pub const CHANNELS: usize = 12;

/// Ticks per second: times are in microseconds.
const SECOND: u64 = 1_000_000;
/// Decimals of a time in seconds that give ticks.
const TIME_DECIMALS: u32 = 6;

/// The widths of the requested windows in seconds, and their names in reports.
const WIDTHS: [(u64, &str); 4] = [(1, "1 s window"), (2, "2 s window"), (4, "4 s window"), (8, "8 s window")];

/// A recording in far memory.
#[derive(Debug)]
pub struct Recording {
    channels: Rc<Channels>,
    /// The points by channel, against which windows are checked; `None` when they are not checked.
    points: Option<Rc<[Vec<Point>]>>,
    span: (u64, u64),
    wrong: Rc<Cell<u64>>,
}

impl Recording {
    /// Loads at least one point, ascending in time, as `channels` channels, or as many as there are points if
    /// those are fewer.
    ///
    /// # Errors
    /// [`Error::Key`] for the first point that does not ascend; [`Error`] when far memory has no room or does not answer.
    ///
    /// # Panics
    /// Panics when there are no points, or no channels.
    pub fn load(
        memory: &mut (impl FarMemory + ?Sized),
        points: &[Point],
        channels: usize,
        layout: Layout,
        check: bool,
    ) -> Result<Self, Error> {
        let parts = points.chunks(points.len().div_ceil(channels).max(1));
        let start = points.first().expect("a recording has a point").time;
        let shifted = |part: &[Point]| -> Vec<Point> {
            let shift = part[0].time - start;
            part.iter().map(|point| Point { time: point.time - shift, ..*point }).collect()
        };
        let parts: Vec<Vec<Point>> = parts.map(shifted).collect();
        let slices: Vec<&[Point]> = parts.iter().map(Vec::as_slice).collect();
        let channels = Rc::new(Channels::load(memory, layout, &slices)?);
        // The span that all channels cover.
        let end =
            parts[..parts.len() - 1].iter().filter_map(|part| part.last()).map(|point| point.time).min();
        let end = end.or_else(|| points.last().map(|point| point.time)).unwrap_or(start);
        let points = check.then(|| parts.into());
        Ok(Self { channels, points, span: (start, end), wrong: Rc::new(Cell::new(0)) })
    }

    /// Returns the window of `width` ticks from `from` on, of one channel.
    ///
    /// # Panics
    /// Panics when there is no such channel.
    #[must_use]
    pub fn window(&self, channel: usize, from: u64, width: u64, kind: &'static str) -> Query {
        assert!(channel < self.channels.series().len(), "channels are counted from 0");
        let (channels, wrong) = (Rc::clone(&self.channels), Rc::clone(&self.wrong));
        let (points, to) = (self.points.clone(), from + width);
        Query { channels, channel, points, wrong, from, to, kind, asked: false, answer: None }
    }

    /// Returns a random window of `width` ticks of a random channel.
    pub fn random_window(&self, rng: &mut Rng, width: u64, kind: &'static str) -> Query {
        let channel = usize::try_from(rng.next_u64() % self.channels.series().len() as u64).expect("few");
        let room = (self.span.1 - self.span.0).saturating_sub(width).saturating_add(1);
        self.window(channel, self.span.0 + rng.next_u64() % room, width, kind)
    }

    /// Returns `count` random windows of 1, 2, 4 and 8 seconds; equal seeds give equal sequences.
    pub fn windows(&self, count: u64, seed: u64) -> impl Iterator<Item = Query> + use<'_> {
        let mut rng = Rng::from_number(seed);
        (0..count).map(move |_| {
            let (seconds, kind) = WIDTHS[usize::from(rng.next_u32().to_le_bytes()[0] % 4)];
            self.random_window(&mut rng, seconds * SECOND, kind)
        })
    }

    /// Returns the number of wrong answers so far, if they are checked.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.wrong.get()
    }

    /// Frees the recording's far memory.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    ///
    /// # Panics
    /// Panics when windows are still running.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        Rc::into_inner(self.channels).expect("its windows have ended").destroy(memory)
    }
}

/// A requested window.
#[derive(Debug)]
pub struct Query {
    channels: Rc<Channels>,
    channel: usize,
    points: Option<Rc<[Vec<Point>]>>,
    wrong: Rc<Cell<u64>>,
    from: u64,
    to: u64,
    kind: &'static str,
    asked: bool,
    answer: Option<Window>,
}

impl Query {
    /// Returns the kind of the window.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the result; `None` when the window has no points, or has not completed.
    #[must_use]
    pub const fn answer(&self) -> Option<Window> {
        self.answer
    }
}

/// Computes the window over local points.
fn window_of(points: &[Point], from: u64, to: u64) -> Option<Window> {
    let first = points.partition_point(|point| point.time < from);
    let inside = points[first..].iter().take_while(|point| point.time < to).map(|point| point.value);
    inside.fold(None, |window, value| {
        let Window { sum, min, max, count } =
            window.unwrap_or(Window { sum: 0, min: value, max: value, count: 0 });
        Some(Window {
            sum: sum + i128::from(value),
            min: min.min(value),
            max: max.max(value),
            count: count + 1,
        })
    })
}

impl Task for Query {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if !self.asked {
            self.asked = true;
            let scratch = queue.buffer();
            queue.need(self.channels.series()[self.channel].window_op(self.from..self.to, scratch));
            return Ok(Next::Need);
        }
        let completed = queue.one();
        self.answer = Series::windowed(&completed);
        completed.result?;
        queue.recycle(completed.buf);
        if let Some(points) = &self.points
            && window_of(&points[self.channel], self.from, self.to) != self.answer
        {
            self.wrong.set(self.wrong.get() + 1);
        }
        Ok(Next::Done)
    }
}

/// Loads a recording, runs windows and destroys the recording, on the rack of `client`.
///
/// # Errors
/// [`Error`] when far memory has no room or does not answer.
pub fn serve(
    client: &mut Client,
    transport: &'static str,
    source: &Source,
    channels: usize,
    load: &Load,
) -> Result<Report, Error> {
    let recording = load_or_free(client, |memory| {
        Recording::load(memory, &source.points, channels, Layout::Partitioned, load.check)
    })?;
    let before = client.packets();
    let measured = measure(
        client,
        recording.windows(load.operations, load.seed),
        load,
        "timeseries: windows",
        Query::kind,
    );
    let after = client.packets();
    let wrong_answers = recording.wrong_answers();
    let channels = recording.channels.series().len(); // of few points fewer than were wanted
    // Also after a failure: other programs may keep using the rack.
    let destroyed = recording.destroy(client);
    let mut measured = measured?;
    destroyed?;
    measured.0.sort_unstable_by_key(|row| row.operation);
    let workload = format!(
        "sum, mean, min and max of windows over {} points of {}, as {channels} channels",
        source.points.len(),
        source.name
    );
    let packets = after.0 + after.1 - before.0 - before.1;
    let report = Report::new("timeseries", client, transport, load, measured);
    Ok(Report { workload, packets, wrong_answers, ..report })
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the data cannot be read, or when no rack is available, has room or answers.
pub fn run(args: &Args) -> Result<Report, Failure> {
    let load = args.plan.load();
    let columns = Columns {
        time: args.time.clone(),
        time_decimals: TIME_DECIMALS,
        value: args.value.clone(),
        value_decimals: args.value_decimals,
    };
    let source = Source::find(args.data.as_deref(), &columns, args.records)?;
    let channels = usize::try_from(args.channels).expect("at most 1024");
    on_rack(&args.plan, "timeseries", 64 * source.points.len() as u64, |client, transport| {
        Ok(serve(client, transport, &source, channels, &load)?)
    })
}
