//! The cells of a heatmap in an SVG, each with a title that browsers show when hovering over it.

use std::fmt::Write;

use super::{Heatmap, Layout};
use crate::color::hex;
use crate::draw::FINE;
use crate::number_text::precise;
use crate::page::escaped;

impl Heatmap<'_> {
    /// Inserts the cells into an SVG that was drawn without them, above its background.
    pub(super) fn with_cells(&self, svg: &str, layout: &Layout) -> String {
        let scale = self.scale();
        let value = if self.value.is_empty() { "value".into() } else { self.value.replace('\n', "\\n") };
        let lens: Vec<usize> = self.array.axes().iter().map(|axis| axis.labels.len()).collect();
        let mut cells = String::from("<g shape-rendering=\"crispEdges\">\n");
        let dots = |unit: f64| (unit * f64::from(FINE)).round() as i64;
        for cell in layout.panels.iter().flat_map(|panel| self.cells(layout, panel)) {
            let [x, y, right, bottom] = cell.corners.map(dots);
            let interval = cell.interval.filter(|(low, high)| !low.is_nan() && !high.is_nan());
            let interval = interval.map(|(low, high)| format!("\ninterval: {} to {}", precise(low), precise(high)));
            let place = self.place(cell.index, &lens);
            let title = format!("{place}\n{value}: {}{}", precise(cell.value), interval.unwrap_or_default());
            // Writing to a string cannot fail.
            let _ = writeln!(
                cells,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>",
                right - x,
                bottom - y,
                hex(cell.color(scale)),
                escaped(&title)
            );
        }
        cells.push_str("</g>\n");
        // The first element is the background.
        match svg.split_once("/>\n") {
            Some((background, rest)) => format!("{background}/>\n{cells}{rest}"),
            None => svg.into(),
        }
    }

    /// The labels of a value, and its text.
    fn place(&self, index: usize, lens: &[usize]) -> String {
        let mut rest = index;
        let mut at: Vec<usize> = lens.iter().rev().map(|len| (rest % len, rest /= len).0).collect();
        at.reverse();
        let labels = self.array.axes().iter().zip(at).map(|(axis, at)| format!("{} {}", axis.name, axis.labels[at]));
        let labels: Vec<String> =
            labels.map(|label| label.trim().to_string()).filter(|label| !label.is_empty()).collect();
        let text =
            self.texts.as_ref().and_then(|texts| texts.get(index)).map_or(String::new(), |text| format!(": {text}"));
        format!("{}{text}", labels.join(", ")).replace('\n', "\\n")
    }
}
