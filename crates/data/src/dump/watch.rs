//! Events of a running dump.

use hooklens_hooks::ActivationCache;

use hooklens_model::tokens::Tokens;

/// An event passed to a dump's watcher.
///
/// ```
/// use hooklens::dump::{Dump, Seen};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let mut prompts = 0;
/// let mut watcher = |seen: Seen<'_>| match seen {
///     Seen::Batch(tokens, _recorded) => prompts += tokens.shape()[0],
///     _ => {}
/// };
/// let rows = vec![vec![0, 51], vec![0, 9], vec![0, 50]];
/// Dump::new("resid_post1").batch_size(2).run_watched(&model, &rows, folder.path().join("out"), &mut watcher)?;
/// assert_eq!(prompts, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Seen<'b> {
    /// An earlier run finished this many prompts.
    Resumed(usize),
    /// A batch was computed: its tokens, and the recorded activations.
    Batch(&'b Tokens, &'b ActivationCache),
}

/// Callback for the progress of a dump.
///
/// ```
/// use hooklens::dump::Dump;
/// use hooklens_data::dump::{Seen, Watcher};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let mut batches = 0;
/// let watcher: &mut Watcher<'_> = &mut |_: Seen<'_>| batches += 1;
/// let rows = [vec![0, 51], vec![0, 9]];
/// Dump::new("z0").batch_size(1).run_watched(&model, &rows, folder.path().join("out"), watcher)?;
/// assert_eq!(batches, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Watcher<'w> = dyn FnMut(Seen<'_>) + 'w;
