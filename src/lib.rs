#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod activations;
pub mod attribution;
pub mod benchmark;
pub mod circuits;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
mod cpu;
mod device;
mod driver;
pub mod dump;
mod embedded;
pub mod encoder;
pub mod encoder_decoder;
mod error;
pub mod experiments;
mod families;
pub mod generation;
pub mod hook;
mod kv_cache;
mod labelled;
pub mod lens;
mod loading;
mod model;
mod numerals;
pub mod parity;
pub mod patching;
pub mod plot;
mod points;
pub mod prelude;
mod processing;
mod tensor_ext;
mod tokens;

/// Burn, in the one version hooklens is built with: a crate that uses it from here needs to name no version of its own,
/// and its tensors are those hooklens gives and takes.
///
/// ```
/// use hooklens::burn::tensor::{Device, Tensor};
/// let prompt = hooklens::HookedTransformer::from_pretrained("embedded:ioi")?.forward("When Mary")?;
/// let ones = Tensor::<3>::ones(prompt.dims(), &prompt.device());
/// assert_eq!((prompt + ones).dims(), [1, 3, 61]);
/// # let _ = Device::flex();
/// # Ok::<(), hooklens::Error>(())
/// ```
pub use burn;

/// ndarray, in the one version hooklens is built with: see [`burn`].
///
/// ```
/// use hooklens::ndarray::Axis;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let logits = model.forward("When Mary")?.to_ndarray()?; // [batch, pos, d_vocab]
/// assert_eq!(logits.index_axis(Axis(1), 2).shape(), [1, 61]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub use ndarray;

pub use activations::AnalysisError;
pub use config::{
    ActivationFn, ClippedGate, Experts, NormKind, Positional, RopeScaling, Rotary, TransformerConfig, Window,
};
pub use device::{DEVICE_VARIABLE, default_device, keep_freed_memory, parse_device};
pub use driver::{ForwardOptions, Hooked, HookedModel, Input, Logits, RunOutput};
pub use embedded::embedded_models;
pub use error::{CacheError, ConfigError, DumpError, Error, InputError, LoadError, ProcessingError, Result};
pub use hooklens_hooks::{
    Activation, ActivationCache, ActivationQueue, Catalog, DType, Halt, HookError, Lookup, Ordinal, Positions,
    QueueError, Record, Rejected, Selection, Stored, WhenFull, write_safetensors,
};
pub use kv_cache::{
    Bits, CacheData, CacheKind, CacheShape, Entry, KeyValueCache, LayerData, MaskInfo, Offload, Scoped,
};
pub use labelled::{LabelledArray, LabelledAxis};
pub use loading::{LoadOptions, ModelConfig, ModelInfo, StoredWeights, TensorInfo, WeightFiles, inspect};
pub use model::{
    Attention, Block, DecoderModel, Embed, Expert, HookedTransformer, Linear, LoadReport, Mlp, Moe, Norm, Occurrence,
    Output, Weights, lm_accuracy, lm_cross_entropy_loss, lm_loss_per_token,
};
pub use processing::Processing;
pub use tensor_ext::TensorExt;
pub use tokens::{Message, PaddingSide, Texts, TokenizeOptions, Tokenized, Tokenizer, Tokens};

/// The examples of the guides are tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/transformer_lens.md")]
mod transformer_lens {}

/// The examples of the pages on caches are tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/caches/labml.md")]
#[doc = include_str!("../docs/caches/transformer_lens.md")]
#[doc = include_str!("../docs/caches/torchtune.md")]
#[doc = include_str!("../docs/caches/hugging_face.md")]
#[doc = include_str!("../docs/caches/easydel.md")]
mod caches {}

#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
mod training {}

/// The recipes are tests too.
#[cfg(doctest)]
#[doc = include_str!("../docs/recipes.md")]
mod recipes {}
