//! Next-token predictions after every layer: the logit lens (nostalgebraist 2020) and the tuned lens (Belrose et al.
//! 2023).
//!
//! ```
//! use hooklens::activations::Stage;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompt = "When Mary and John went to the store, John gave a drink to";
//! let cache = model.record(prompt, "*hook_resid_{pre,mid,post}")?;
//! let lens = model.analyze(&cache)?.positions(-1)?.logit_lens(Per::Layer)?;
//! for (stage, top) in lens.labels.iter().zip(lens.top(1)?) {
//!     let (token, probability) = top[0][0][0];
//!     println!("{stage:>10}  {} {probability:.2}", model.to_string(&[token])?);
//! }
//! let mary = model.to_single_token("Mary")?;
//! assert_eq!(lens.rank(mary)?[[4, 0, 0]], 0);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::lens::{LensReading, LogitLens, TunedLens};
