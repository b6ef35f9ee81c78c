//! The font of pictures, compiled in so that pictures look the same everywhere.

use std::sync::Once;

use plotters::style::{FontStyle, register_font};

/// The font family of texts. Browsers display an SVG with their own font of this family.
pub(super) const FAMILY: &str = "sans-serif";

/// Registers the font with the drawing library.
pub(super) fn ready() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // If the library cannot read the font, drawing the first text fails.
        let _ = register_font(FAMILY, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
}

/// Approximate width of a text in pixels.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let wide = |letter: char| matches!(letter, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' | '\u{1f300}'..='\u{3fffd}');
    text.chars().map(|letter| if wide(letter) { 1.0 } else { 0.56 }).sum::<f64>() * size
}
