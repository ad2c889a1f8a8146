//! Figures as SVG without embedded fonts: the common parts of all benchmarks' plots.
//!
//! Key functions: [`in_file`], and the two forms of most figures: [`lines`] over a varied parameter, and
//! grouped [`bars`].

use crate::to_f64;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::path::Path;

/// Width and height of a figure.
const SIZE: (u32, u32) = (900, 480);
/// The font of all text: the viewer's default.
const FONT: (&str, i32) = ("sans-serif", 16);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn StdError>>;

/// Draws a figure into a file of an existing directory.
pub(crate) fn in_file(
    directory: &Path,
    name: &str,
    draw: &mut dyn FnMut(&Area<'_>) -> Drawn,
) -> io::Result<()> {
    let file = directory.join(name);
    let area = SVGBackend::new(&file, SIZE).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
    let drawn = drawn.and_then(|()| area.present().map_err(Into::into));
    drawn.map_err(|error: Box<dyn StdError>| io::Error::other(error.to_string()))
}

/// Returns the colour of series number `n`.
fn colour(n: usize) -> RGBColor {
    const COLOURS: [RGBColor; 6] = [BLUE, RED, GREEN, MAGENTA, BLACK, RGBColor(200, 120, 0)];
    COLOURS[n % COLOURS.len()]
}

/// The labels of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels<'a> {
    pub(crate) caption: &'a str,
    /// The varied parameter.
    pub(crate) across: &'a str,
    /// The measured value, with its unit.
    pub(crate) up: &'a str,
}

/// A line of a figure: its name, and the measured values by the varied parameter.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: BTreeMap<u64, f64>,
}

/// The bars of a figure by group, each with its name.
pub(crate) type Groups = BTreeMap<String, Vec<(String, f64)>>;

/// Draws lines over the varied parameter, from 0 on.
pub(crate) fn lines(area: &Area<'_>, labels: Labels<'_>, all: &[Line]) -> Drawn {
    let xs = || all.iter().flat_map(|line| line.points.keys().map(|x| to_f64(*x)));
    let (first, last) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
    let most = all.iter().flat_map(|line| line.points.values()).fold(0.0_f64, |most, y| most.max(*y));
    let around = ((last - first) / 20.0).max(0.5);
    let mut chart = ChartBuilder::on(area)
        .caption(labels.caption, FONT)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(first - around..last + around, 0.0..most * 1.1)?;
    chart.configure_mesh().x_desc(labels.across).y_desc(labels.up).draw()?;
    for (n, Line { name, points }) in all.iter().enumerate().filter(|(_, line)| !line.points.is_empty()) {
        let line: Vec<(f64, f64)> = points.iter().map(|(x, y)| (to_f64(*x), *y)).collect();
        chart.draw_series(line.iter().map(|at| Circle::new(*at, 3, colour(n).filled())))?;
        chart
            .draw_series(LineSeries::new(line, &colour(n)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour(n)));
    }
    chart.configure_series_labels().border_style(BLACK).position(SeriesLabelPosition::MiddleRight).draw()?;
    Ok(())
}

/// Draws groups of bars, each with its name inside, on a logarithmic scale.
pub(crate) fn bars(area: &Area<'_>, caption: &str, up: &str, groups: &Groups) -> Drawn {
    let values = || groups.values().flatten().map(|(_, value)| *value);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let all: Vec<(&str, &str, f64)> = groups
        .iter()
        .flat_map(|(group, of)| of.iter().map(|(name, value)| (group.as_str(), name.as_str(), *value)))
        .collect();
    let mut chart = ChartBuilder::on(area)
        .caption(caption, FONT)
        .margin(12)
        .x_label_area_size(20)
        .y_label_area_size(80)
        .build_cartesian_2d(0..all.len(), (low / 2.0..high * 2.0).log_scale())?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_desc(up).draw()?;
    let turned = ("sans-serif", 11).into_font().transform(FontTransform::Rotate270).color(&BLACK);
    let numbers: BTreeMap<&str, usize> =
        groups.keys().enumerate().map(|(n, group)| (group.as_str(), n)).collect();
    for (at, (group, name, value)) in all.into_iter().enumerate() {
        let colour = colour(numbers[group]).mix(0.5).filled();
        chart.draw_series([Rectangle::new([(at, low / 2.0), (at + 1, value)], colour)])?;
        let text = if group.is_empty() { name.to_owned() } else { format!("{group} {name}") };
        chart.draw_series([Text::new(text, (at, low / 1.8), turned.clone())])?;
    }
    Ok(())
}
