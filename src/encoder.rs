//! Bidirectional encoders such as BERT. Hook points and runs work as they do for decoders.
//!
//! ```no_run
//! use hooklens::encoder::HookedEncoder;
//! use hooklens::prelude::*;
//!
//! let model = HookedEncoder::from_pretrained("bert-base-cased")?;
//! let output = model.run("The capital of France is [MASK].", Record::new("*hook_pattern"))?;
//! let pattern = output.cache.get(hook::pattern(3))?; // [batch, head, query, key]
//! println!("{}", model.fill_masks("The capital of France is [MASK].")?[0][0]);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_model::encoder::{
    EncoderInput, EncoderOutput, EncoderTokens, HookedEncoder, Pooling, SentenceEmbedding,
};
