//! The font of pictures, which is compiled in so that a picture is the same everywhere.

use std::sync::Once;

use plotters::style::{FontStyle, register_font};

/// Family that texts are drawn in; a browser that shows an SVG takes its own of the name.
pub(super) const FAMILY: &str = "sans-serif";

/// Makes the letters known to the drawing library.
pub(super) fn ready() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // A font the library can't read would show as an error of the first text drawn.
        let _ = register_font(FAMILY, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
}

/// About how wide a text is, in pixels.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}
