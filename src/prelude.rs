//! What a script needs: `use hooklens::prelude::*;`.
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

pub use crate::generation::{GenerateOptions, Sampling};
pub use crate::hook::{self, at};
pub use crate::plot::Show;
pub use crate::{
    Activation, ActivationCache, ActivationQueue, CacheKind, DType, ForwardOptions, HookedTransformer, KeyValueCache,
    LoadOptions, Logits, PaddingSide, Positions, Processing, Record, Selection, TokenizeOptions, Tokens,
    TransformerConfig,
};
