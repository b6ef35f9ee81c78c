//! The report of a dump.

use std::path::PathBuf;

/// What a dump did.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 51, 59, 21], vec![0, 51, 59, 22]];
/// let done = Dump::new("resid_post1").run(&model, &rows, folder.path().join("out"))?;
/// assert_eq!((done.rows, done.tokens, done.resumed), (2, 8, 0));
/// println!("{} bytes in {:?}", done.bytes, done.files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpReport {
    /// Prompts in the output.
    pub rows: usize,
    /// Prompts that are not, because the run was [stopped](super::Dump::stop_when).
    pub left: usize,
    /// Tokens of the prompts that were run, padding left out.
    pub tokens: usize,
    /// Those of them that did not have to be run, because other prompts begin with the same.
    pub shared: usize,
    /// Bytes of the output's tensors.
    pub bytes: u64,
    /// Batches found finished by an earlier run.
    pub resumed: usize,
    /// Points with values that are no finite numbers, which [`Dump::allow_non_finite`](super::Dump::allow_non_finite)
    /// let pass.
    pub non_finite: Vec<String>,
    /// Files written, finished ones of an earlier run included.
    pub files: Vec<PathBuf>,
}
