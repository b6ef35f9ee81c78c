//! HTML tables for notebooks.

use crate::page::escaped;

/// Maximum number of rows in a table.
const MOST: usize = 1_000;

/// A heading above a scrollable table. All columns except the first are right-aligned.
pub(super) fn table(heading: &str, columns: &[&str], rows: impl ExactSizeIterator<Item = Vec<String>>) -> String {
    let cell = |tag: &str, place: usize, text: &str| {
        let side = if place == 0 { "left" } else { "right" };
        format!("<{tag} style=\"text-align: {side}; padding: 1px 10px 1px 0\">{}</{tag}>", escaped(text))
    };
    let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.enumerate().map(|(place, text)| cell(tag, place, text)).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let left_out = rows.len().saturating_sub(MOST);
    let head = row("th", &mut columns.iter().copied());
    let body: String = rows.take(MOST).map(|cells| row("td", &mut cells.iter().map(String::as_str))).collect();
    let note = if left_out > 0 { format!("<div>and {left_out} more</div>\n") } else { String::new() };
    framed(heading, &format!("<table style=\"border-collapse: collapse; margin: 0\">\n{head}{body}</table>\n{note}"))
}

/// A heading above any content.
pub(super) fn framed(heading: &str, inner: &str) -> String {
    format!(
        "<div class=\"hooklens-value\" style=\"font: 13px/1.5 system-ui, sans-serif\">\n<div style=\"font-weight: \
         600\">{}</div>\n<div style=\"max-height: 360px; overflow: auto\">\n{inner}</div></div>\n",
        escaped(heading)
    )
}
