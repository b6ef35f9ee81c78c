//! Text generation, token by token, with hooks.
//!
//! ```
//! use hooklens::generation::{GenerateOptions, Stop};
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! let options = GenerateOptions::new().max_new_tokens(6).stop_strings(["star"]);
//! let made = model.generate_with("king drum sun star king drum", options)?;
//! assert_eq!(made.rows[0].text.as_deref(), Some("sun star"));
//! assert_eq!(made.rows[0].stop, Stop::Text("star".into()));
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_model::generation::{Generate, GenerateOptions, GeneratedRow, Generation, Sampling, Step, Stop};
