//! Mechanistic interpretability of transformer language models, modeled on TransformerLens and built on [Burn](burn).
//!
//! A [`HookedTransformer`] has a named hook point at every internal activation. Activations are read and changed by
//! closures, recorded into an [`ActivationCache`], and patched from one run into another.
//!
//! ```
//! use hooklens::prelude::*;
//!
//! // A folder with config.json and weights, a hub id such as "gpt2", or an embedded model.
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompt = "When Mary and John went to the store, John gave a drink to";
//!
//! // Record: the type of a hook point determines the rank of the tensor.
//! let (logits, cache) = model.run_with_cache(prompt, "*hook_pattern")?;
//! let pattern = cache.get(hook::pattern(1))?; // [batch, head, query, key]
//!
//! // Edit: hooks are closures, which apply to one run only.
//! let ablated = model.run_with_hooks(prompt, [hook::z(1).edit(|z, _| z.zeros_like())])?;
//!
//! // Patch: the fraction of the logit difference that each activation restores, [layer, pos].
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let metric = Metric::logit_diff(&model, "Mary", "John")?;
//! let effects = Patching::new(&model, prompt, corrupted, metric)?.resid_pre()?.normalized()?;
//! # assert_eq!((pattern.dims(), ablated.dims()), ([1, 4, 15, 15], logits.dims()));
//! # assert_eq!(effects.values().shape(), [4, 15]);
//! # Ok::<(), hooklens::Error>(())
//! ```
//!
//! | task | start with |
//! |---|---|
//! | load a model | [`HookedTransformer::from_pretrained`], [`LoadOptions`], [`inspect`] |
//! | name, read and edit hook points | [`mod@hook`], [`hook::at`], [`HookedModel::run_with_hooks`], [`Hooked`] |
//! | record activations | [`HookedModel::record`], [`Record`], [`ActivationCache`] |
//! | patch and ablate | [`patching`]; [`attribution`] estimates effects from gradients |
//! | decompose the residual stream, read it as logits | [`activations`], [`lens`] |
//! | analyze weights | [`circuits`], [`processing`](Processing) |
//! | load sparse autoencoders and transcoders, splice them into a model | [`features`] |
//! | trace a prediction back to features | [`attribution::graph`] |
//! | score heads, steer, find top examples | [`experiments`] |
//! | generate text, with hooks | [`generation`] |
//! | generate pairs of prompts for patching | [`prompt_sets`] |
//! | reuse keys and values | [`KeyValueCache`], [`CacheKind`] |
//! | run encoders and encoder-decoders | [`encoder`], [`encoder_decoder`] |
//! | plot | [`plot`], [`LabeledArray`] |
//! | dump activations of many prompts to files | [`dump`] |
//!
//! Most scripts need [`prelude`] and nothing else. The guide, with a page for each topic, is in the
//! [repository](https://github.com/hooklens/hooklens/blob/main/docs/README.md).
//!
//! # Features
//!
//! Enabled by default: `hub` (loading by hub id), `chat` (chat templates), `decompositions` (singular values,
//! eigenvalues) and `plot` (plots, display in notebooks). `arrow` and `object-stores` add sources of prompts;
//! `libtorch`, `cuda`, `wgpu`, `vulkan`, `metal` and `remote` add devices. The `hooklens` program is in the crate
//! `hooklens-cli`.

// Links refer to items of all default features.
#![cfg_attr(
    not(all(feature = "chat", feature = "decompositions", feature = "plot")),
    allow(rustdoc::broken_intra_doc_links)
)]
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod activations;
pub mod attribution;
pub mod circuits;
pub mod config;
pub mod corpus;
pub mod dump;
pub mod encoder;
pub mod encoder_decoder;
pub mod experiments;
pub mod features;
pub mod generation;
pub mod kv_cache;
pub mod lens;
pub mod patching;
#[cfg(feature = "plot")]
pub mod plot;
pub mod prelude;
pub mod prompt_sets;
pub mod statistics;

/// Re-export of the Burn version that hooklens uses. Its tensors have the types that hooklens takes and returns.
///
/// ```
/// use hooklens::burn::tensor::{Device, Tensor};
/// use hooklens::{FromPretrained, HookedModel, HookedTransformer};
/// let prompt = HookedTransformer::from_pretrained("embedded:ioi")?.forward("When Mary")?;
/// let ones = Tensor::<3>::ones(prompt.dims(), &prompt.device());
/// assert_eq!((prompt + ones).dims(), [1, 3, 61]);
/// # let _ = Device::flex();
/// # Ok::<(), hooklens::Error>(())
/// ```
pub use burn;

/// Re-export of the ndarray version that hooklens uses; see [`burn`].
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

#[doc(inline)]
pub use hooklens_analysis::{
    activations::AnalysisError,
    labeled::{LabeledArray, LabeledAxis},
    tensor_ext::TensorExt,
};
#[doc(inline)]
pub use hooklens_data::error::DumpError;
#[doc(inline)]
pub use hooklens_hooks::{
    Activation, ActivationCache, ActivationQueue, Catalog, DType, Halt, HookError, Positions, QueueError, Record,
    Rejected, Selection, Stored, WhenFull, write_safetensors,
};
#[doc(inline)]
pub use hooklens_loading::{
    embedded::embedded_models,
    loading::{FromPretrained, LoadOptions, ModelConfig, ModelInfo, SavePretrained, StoredWeights, inspect},
    weight_files::{TensorInfo, WeightFiles},
};
#[cfg(feature = "chat")]
#[doc(inline)]
pub use hooklens_model::tokens::Message;
#[doc(inline)]
pub use hooklens_model::{
    config::{ActivationFn, NormKind, Positional, ResidualScheme, RopeScaling, Rotary, TransformerConfig, Window},
    device::{DeviceInfo, default_device, devices, parse_device, retain_freed_memory},
    driver::{ForwardOptions, Hooked, HookedModel, Input, Logits},
    error::{CacheError, ConfigError, Error, InputError, LoadError, ProcessingError, Result, WeightError, error_chain},
    hook,
    kv_cache::{Bits, CacheData, CacheKind, CacheShape, Entry, KeyValueCache, Offload},
    model::{
        DecoderModel, HookedTransformer, LoadReport, ModelWeights, Occurrence, Output, Weights, lm_accuracy,
        lm_cross_entropy_loss, lm_loss_per_token,
    },
    processing::Processing,
    tokens::{PaddingSide, TokenizeOptions, Tokenized, Tokenizer, Tokens},
};

/// Runs the examples in README.md and in the guide as tests.
#[cfg(doctest)]
mod guide;
