//! Report of a dump.

use std::path::PathBuf;

/// Summary of a dump.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 51, 59, 21], vec![0, 51, 59, 22]];
/// let done = Dump::new("resid_post1").run(&model, &rows, folder.path().join("out"))?;
/// assert_eq!((done.rows, done.left), (2, 0));
/// println!("wrote {:?}", done.files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpReport {
    /// Number of prompts in the output.
    pub rows: usize,
    /// Number of prompts not computed because the run was [stopped](super::Dump::stop_when). If the dump reads its
    /// prompts from a corpus, the number of pieces instead.
    pub left: usize,
    /// Files of the output, including those finished by an earlier run.
    pub files: Vec<PathBuf>,
    /// Points with non-finite values that [`Dump::allow_non_finite`](super::Dump::allow_non_finite) permitted.
    pub non_finite: Vec<String>,
    /// Number of tokens in the computed prompts, without padding.
    pub tokens: usize,
    /// Number of prompt tokens that did not have to be computed because prompts share a prefix.
    pub shared: usize,
    /// Size of the output's tensors in bytes.
    pub bytes: u64,
    /// Number of batches already finished by an earlier run.
    pub resumed: usize,
}
