//! What a script needs: `use hooklens::prelude::*;`.

pub use burn::tensor::{Device, Int, Tensor};

pub use crate::generation::{GenerateOptions, Sampling};
pub use crate::hook::{self, at};
pub use crate::plot::Show;
pub use crate::{
    Activation, ActivationCache, ActivationQueue, CacheKind, DType, ForwardOptions, HookedTransformer, KeyValueCache,
    LoadOptions, Logits, PaddingSide, Positions, Processing, Record, Selection, TokenizeOptions, Tokens,
    TransformerConfig,
};
