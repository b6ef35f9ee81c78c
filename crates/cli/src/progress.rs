//! Progress bars.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal::is_quiet;

/// A bar of `len` steps. `template` is in indicatif's syntax.
pub(super) fn progress(len: u64, template: &str) -> ProgressBar {
    styled(ProgressBar::new(len), template)
}

/// A bar over `len` pieces of a corpus, whose number of prompts is not known.
pub(super) fn of_pieces(len: usize) -> ProgressBar {
    progress(len as u64, "{bar:30} {percent} % {eta}")
}

/// Sets a bar's style, and hides it if `--quiet` is given.
pub(super) fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    if is_quiet() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}
