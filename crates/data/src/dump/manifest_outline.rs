//! Checks the shape of a manifest before it is parsed.

use hooklens_io::json_shape::{Each, EachField, UpTo};
use serde::Deserialize;

use super::manifest::BatchFile;

/// Maximum memory of a value, in bytes, except for the list of prompt files.
const SMALL: usize = 16 << 20;
/// Maximum memory of the list of prompt files, in bytes: enough for a hundred thousand files.
const CORPUS: usize = 120 << 20;
/// Maximum memory of the description of a tensor, in bytes.
const TENSOR: usize = 4096;
/// Maximum number of tensors per file.
const TENSORS: usize = 1 << 17;
/// Maximum number of tokens whose texts are listed.
const TOKENS: usize = 1 << 20;

/// The fields of a [`Manifest`](super::manifest::Manifest) that may be large. Deserializing this type checks their
/// sizes and keeps nothing in memory, so that a large file that is not a manifest is rejected first.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only the types of the fields are checked")]
pub(super) struct ManifestOutline {
    format: UpTo<SMALL>,
    input: UpTo<SMALL>,
    #[serde(default)]
    corpus: UpTo<CORPUS>,
    #[serde(default)]
    prompts: UpTo<SMALL>,
    settings: UpTo<SMALL>,
    #[serde(default)]
    model: UpTo<SMALL>,
    #[serde(default)]
    tensors: EachField<UpTo<SMALL>, UpTo<TENSOR>, TENSORS>,
    shards: Each<BatchFile>,
    #[serde(default)]
    token_texts: EachField<u32, UpTo<SMALL>, TOKENS>,
}
