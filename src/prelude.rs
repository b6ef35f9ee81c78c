//! The types that most scripts use: `use hooklens::prelude::*;`. It can be imported together with Burn's own prelude.
//!
//! ```
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! let (logits, cache) = model.run_with_cache("red fox blue red fox", Record::new(hook::pattern(1)))?;
//! let pattern: Tensor<4> = cache.get(hook::pattern(1))?;
//! assert_eq!((logits.dims()[1], pattern.dims()), (6, [1, 4, 6, 6]));
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use burn::tensor::{Device, Int, Tensor};

pub use crate::activations::{Analyze, Direction, Neurons, Per, Stage};
pub use crate::circuits::Circuits;
pub use crate::encoder::HookedEncoder;
pub use crate::encoder_decoder::HookedEncoderDecoder;
pub use crate::experiments::{Experiments, SteeringVector, TopExamples};
pub use crate::generation::{Generate, GenerateOptions, Sampling};
pub use crate::hook::{self, Axis, at};
pub use crate::lens::LogitLens;
pub use crate::patching::{Ablation, Freeze, Metric, PatchModel, Patching, Receiver, Sites};
#[cfg(feature = "plot")]
pub use crate::plot::{ColoredText, Heatmap, Picture, Show};
pub use crate::{
    Activation, ActivationCache, DType, DecoderModel, ForwardOptions, FromPretrained, HookedModel, HookedTransformer,
    KeyValueCache, LabeledArray, LoadOptions, Logits, ModelWeights, Positions, Processing, Record, SavePretrained,
    Selection, TensorExt, Tokens, TransformerConfig,
};
