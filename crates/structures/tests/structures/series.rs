//! The time series against a plain vector, on racks of 1, 2 and 4 memory nodes.

use farmem_client::{Error, Policy, Rack};
use farmem_structures::Layout;
use farmem_structures::series::{Columns, LEAF_POINTS_MAX, Point, Series, VALUE_MAX, Window, load_csv};
use proptest::collection::vec;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = i64> {
    prop_oneof![6 => -1000..1000_i64, 2 => -VALUE_MAX..=VALUE_MAX, 1 => Just(VALUE_MAX), 1 => Just(-VALUE_MAX)]
}

/// Generates points with ascending times, partly dense, partly with gaps.
fn points(most: usize) -> impl Strategy<Value = Vec<Point>> {
    vec((prop_oneof![4 => 1..3_u64, 1 => 1..100_u64], value()), 0..most).prop_map(|steps| {
        let mut time = 0;
        let step = |(step, value)| {
            time += step;
            Point { time, value }
        };
        steps.into_iter().map(step).collect()
    })
}

fn expected(points: &[Point], from: u64, to: u64) -> Option<Window> {
    let inside: Vec<i64> = points.iter().filter(|p| (from..to).contains(&p.time)).map(|p| p.value).collect();
    let sum = inside.iter().map(|&v| i128::from(v)).sum();
    Some(Window { sum, min: *inside.iter().min()?, max: *inside.iter().max()?, count: inside.len() as u64 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Part is loaded, part appended, some of it late; windows of all kinds agree with a filter over the
    /// points.
    #[test]
    fn windows_are_those_of_a_vector(
        nodes in prop_oneof![Just(1_u16), Just(2), Just(4)],
        layout in prop_oneof![Just(Layout::Partitioned), Just(Layout::Scattered { granularity: 4096 })],
        at_host: bool,
        mut model in points(800),
        loaded in 0..800_usize,
        late in vec((0..2000_u64, value()), 0..20),
        spans in vec((0..2000_u64, 0..1500_u64), 1..20),
        width in 1..500_u64,
    ) {
        let mut client = Rack::embedded_with(nodes, 16 << 20).unwrap().client("series").unwrap();
        let mut series = Series::create(&mut client, layout).unwrap();
        series.set_policy(if at_host { Policy::Host } else { Policy::Offload });
        let loaded = loaded.min(model.len());
        series.load(&mut client, &model[..loaded]).unwrap();
        for point in &model[loaded..] {
            prop_assert_eq!(series.append(&mut client, *point).unwrap(), None);
        }
        for (time, value) in late {
            let old = series.append(&mut client, Point { time, value }).unwrap();
            match model.binary_search_by_key(&time, |point| point.time) {
                Ok(place) => {
                    prop_assert_eq!(old, Some(model[place].value));
                    model[place].value = value;
                }
                Err(place) => {
                    prop_assert_eq!(old, None);
                    model.insert(place, Point { time, value });
                }
            }
        }
        for (from, len) in spans {
            let to = from + len;
            prop_assert_eq!(series.window(&mut client, from..to).unwrap(), expected(&model, from, to));
        }
        prop_assert_eq!(series.window(&mut client, ..).unwrap(), expected(&model, 0, u64::MAX));
        let windows = series.windows(&mut client, 5, 1900, width).unwrap();
        prop_assert_eq!(windows.len() as u64, 1895_u64.div_ceil(width));
        for (window, from) in windows.iter().zip((5..).step_by(usize::try_from(width).unwrap())) {
            prop_assert_eq!(*window, expected(&model, from, (from + width).min(1900)));
        }
        prop_assert_eq!(series.points(&mut client, .., usize::MAX).unwrap(), model);
    }
}

/// Sums beyond a word, of either sign, are exact, and so is their mean.
#[test]
fn sums_do_not_overflow() {
    for sign in [1, -1] {
        let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("sums").unwrap();
        let mut series = Series::create(&mut client, Layout::Partitioned).unwrap();
        let points: Vec<Point> = (0..1000).map(|time| Point { time, value: sign * VALUE_MAX }).collect();
        series.load(&mut client, &points).unwrap();
        let window = series.window(&mut client, ..).unwrap().unwrap();
        assert_eq!(window.sum, i128::from(sign * VALUE_MAX) * 1000);
        assert_eq!((window.min, window.max), (sign * VALUE_MAX, sign * VALUE_MAX));
        assert_eq!(window.mean(), (sign * VALUE_MAX) as f64);
    }
    let halves = Window { sum: -7, min: -4, max: 0, count: 2 };
    assert_eq!(halves.mean(), -3.5);
}

/// A window is one request and one iteration per leaf, besides the descent.
#[test]
fn a_window_is_one_request() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("cost").unwrap();
    let mut series = Series::create(&mut client, Layout::Partitioned).unwrap();
    let points: Vec<Point> = (0..LEAF_POINTS_MAX as u64 * 160).map(|time| Point { time, value: 1 }).collect();
    series.load(&mut client, &points).unwrap();
    series.window(&mut client, ..1).unwrap();
    let before = client.tally();
    assert_eq!(series.window(&mut client, 14..14 * 101).unwrap().unwrap().count, 1400);
    let after = client.tally();
    assert_eq!(after.requests - before.requests, 1);
    // Root and inner node, a hundred leaves, and the next one, whose first point lies after the window.
    assert_eq!(after.iterations - before.iterations, 2 + 100 + 1);
}

/// From text to windows.
#[test]
fn a_csv_file_is_aggregated() {
    let mut text = String::from("utc,phase,volt\n");
    for n in 0..100 {
        text += &format!("{}.{:02},a,{}.5\n", 1000 + n / 10, n % 10 * 10, 230 + n % 3);
    }
    let columns = Columns { time: "utc".into(), time_decimals: 3, value: "volt".into(), value_decimals: 1 };
    let points = load_csv(text.as_bytes(), &columns).unwrap();
    let mut client = Rack::embedded_with(2, 16 << 20).unwrap().client("csv").unwrap();
    let mut series = Series::create(&mut client, Layout::Partitioned).unwrap();
    series.load(&mut client, &points).unwrap();
    let seconds = series.windows(&mut client, 1_000_000, 1_010_000, 1000).unwrap();
    assert_eq!(seconds.len(), 10);
    let first = seconds[0].unwrap();
    assert_eq!((first.count, first.min, first.max), (10, 2305, 2325));
    assert_eq!(first.mean(), 2314.0);
}

/// An invalid point is refused with its time; a B+tree is not a series.
#[test]
fn wrong_points_are_named() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("wrong").unwrap();
    let mut series = Series::create(&mut client, Layout::Partitioned).unwrap();
    let large = Point { time: 7, value: VALUE_MAX + 1 };
    assert!(matches!(series.append(&mut client, large), Err(Error::Key { key: 7, .. })));
    assert!(matches!(
        series.append(&mut client, Point { time: 8, value: i64::MIN }),
        Err(Error::Key { key: 8, .. })
    ));
    assert!(matches!(series.load(&mut client, &[large]), Err(Error::Key { key: 7, .. })));
    let twice = [Point { time: 1, value: 1 }, Point { time: 1, value: 2 }];
    assert!(matches!(series.load(&mut client, &twice), Err(Error::Key { key: 1, .. })));
    assert_eq!(series.window(&mut client, ..).unwrap(), None);
    let tree = farmem_structures::BTree::create(&mut client, Layout::Partitioned).unwrap();
    let error = Series::open(&mut client, tree.address(), Layout::Partitioned).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error}");
}
