//! A progress bar for models that take a long time to load.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::progress::progress;

/// Time before the bar appears.
const PATIENCE: Duration = Duration::from_millis(700);

/// A progress bar that appears once loading takes longer than [`PATIENCE`].
pub(super) struct LoadingBar {
    began: Instant,
    bar: OnceLock<ProgressBar>,
}

impl Default for LoadingBar {
    fn default() -> Self {
        Self { began: Instant::now(), bar: OnceLock::new() }
    }
}

impl LoadingBar {
    /// Reports `done` of `total` bytes as read.
    pub(super) fn tell(&self, done: usize, total: usize) {
        if self.bar.get().is_none() && self.began.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| progress(total as u64, "loading [{bar:30}] {bytes}/{total_bytes} {eta}"));
        bar.set_position(done as u64);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

impl Drop for LoadingBar {
    fn drop(&mut self) {
        // Clears the bar here, too, because skipped tensors keep `done` below `total`.
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}
