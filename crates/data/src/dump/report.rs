//! Report of a dump.

use std::path::{Path, PathBuf};

/// Summary of a dump.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 51, 59, 21], vec![0, 51, 59, 22]];
/// let done = Dump::new("resid_post1").run(&model, &rows, folder.path().join("out"))?;
/// assert_eq!((done.rows(), done.left()), (2, 0));
/// println!("wrote {:?}", done.files().collect::<Vec<_>>());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpReport {
    pub(super) rows: usize,
    pub(super) left: usize,
    pub(super) files: Vec<PathBuf>,
    pub(super) non_finite: Vec<String>,
    pub(super) counts: DumpCounts,
}

/// Numbers for the summaries that commands print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpCounts {
    /// Number of tokens in the computed prompts, without padding.
    pub tokens: usize,
    /// Number of prompt tokens that did not have to be computed because prompts share a prefix.
    pub shared: usize,
    /// Size of the output's tensors in bytes.
    pub bytes: u64,
    /// Number of batches already finished by an earlier run.
    pub resumed: usize,
}

impl DumpReport {
    /// Number of prompts in the output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of prompts not computed because the run was [stopped](super::Dump::stop_when).
    pub fn left(&self) -> usize {
        self.left
    }

    /// Files of the output, including those finished by an earlier run.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Points with non-finite values that [`Dump::allow_non_finite`](super::Dump::allow_non_finite) permitted.
    pub fn non_finite(&self) -> &[String] {
        &self.non_finite
    }
}

/// What a dump computed and wrote, in numbers.
pub fn counts(report: &DumpReport) -> DumpCounts {
    report.counts
}
