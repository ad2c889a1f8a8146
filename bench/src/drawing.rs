//! Figures for people, as SVG without fonts of their own: what the plots of all benchmarks share.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error as StdError;
use std::io;
use std::path::Path;

/// Width and height of a figure.
const SIZE: (u32, u32) = (900, 480);
/// The font of all text: whatever the viewer has.
pub(crate) const FONT: (&str, i32) = ("sans-serif", 16);

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn StdError>>;

/// Draws a figure into a file of a directory that is there.
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

/// A colour for each of a few.
pub(crate) fn colour(n: usize) -> RGBColor {
    const COLOURS: [RGBColor; 6] = [BLUE, RED, GREEN, MAGENTA, BLACK, RGBColor(200, 120, 0)];
    COLOURS[n % COLOURS.len()]
}
