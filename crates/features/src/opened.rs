//! [`Opened`]: the contents of a path, either one dictionary or transcoders of all layers.

use std::path::Path;

use super::dictionary::Dictionary;
use super::open::EMBEDDED;
use super::transcoders::Transcoders;
use hooklens_model::error::Result;

/// Contents of a path opened with [`open()`].
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "few values exist at a time")]
pub enum Opened {
    /// One dictionary.
    Dictionary(Dictionary),
    /// Transcoders of all layers.
    Transcoders(Transcoders),
}

impl Opened {
    /// Excludes these tokens, like [`Dictionary::exclude_tokens`].
    pub(crate) fn exclude_tokens(self, tokens: &[u32]) -> Self {
        let tokens = tokens.iter().copied();
        match self {
            Opened::Dictionary(one) => Opened::Dictionary(one.exclude_tokens(tokens)),
            Opened::Transcoders(all) => Opened::Transcoders(all.exclude_tokens(tokens)),
        }
    }
}

/// Opens a dictionary like [`Dictionary::open`], or a folder of transcoders of all layers like [`Transcoders::open`].
///
/// ```
/// use hooklens::features::{Opened, open};
/// match open("embedded:ioi-transcoders")? {
///     Opened::Dictionary(one) => println!("{} latents", one.latents()),
///     Opened::Transcoders(all) => println!("{} layers", all.layers().len()),
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Same as [`Dictionary::open`] and [`Transcoders::open`].
pub fn open(path: impl AsRef<Path>) -> Result<Opened> {
    let path = path.as_ref();
    if (path.is_dir() || path.to_str().is_some_and(|path| path.starts_with(EMBEDDED)))
        && let Some(all) = Transcoders::open_if_one(path)?
    {
        return Ok(Opened::Transcoders(all));
    }
    Dictionary::open(path).map(Opened::Dictionary)
}
