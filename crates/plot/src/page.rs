//! HTML escaping and self-contained HTML pages.

use std::path::Path;

use super::draw::write_file;
use crate::error::PlotError;
use hooklens_io::shown_text::shown;

/// Maximum size of a page in bytes. Browsers open pages of this size without delay, and notebooks can store them.
const MOST_BYTES: usize = 16_000_000;

/// Fails if a page of this size is too large. The page shows `parts` items of some kind, each with `tokens` tokens.
pub(super) fn fits(bytes: usize, (parts, kind): (usize, &str), tokens: usize) -> Result<(), PlotError> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let what = format!("{parts} {kind}{}", if parts == 1 { "" } else { "s" });
    Err(PlotError::TooLarge { what, tokens, bytes, most: MOST_BYTES })
}

/// Escapes a text for use between tags or in an attribute. Hidden characters are shown by name.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in shown(text).chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// A complete page around a fragment. It loads no other resources, and its content security policy forbids loading any.
pub(super) fn whole(title: &str, fragment: &str) -> String {
    let title = escaped(if title.is_empty() { "hooklens" } else { title });
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n</head>\n\
         <body style=\"margin: 0; background: #fff\">\n<main>\n\
         <h1 style=\"position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)\">{title}</h1>\n\
         {fragment}</main>\n</body>\n</html>\n"
    )
}

/// A complete page that shows an SVG. A picture wider than the window can be scrolled.
pub(super) fn of_picture(title: &str, svg: &str) -> String {
    let name = escaped(if title.is_empty() { "Picture" } else { title });
    let scrolled =
        format!("<div role=\"region\" aria-label=\"{name}\" tabindex=\"0\" style=\"overflow-x: auto\">\n{svg}</div>\n");
    whole(title, &scrolled)
}

/// Saves a page to a file with an `.html` extension.
pub(super) fn save(path: &Path, page: impl FnOnce() -> Result<String, PlotError>) -> Result<(), PlotError> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("html" | "htm") => write_file(path, page()?.as_bytes()),
        _ => Err(PlotError::Kind { path: path.to_path_buf(), endings: ".html" }),
    }
}
