//! Encoder-decoder models such as Marian, BART, T5 and T5Gemma: an encoder stack, and a decoder stack that attends to
//! it.
//!
//! ```no_run
//! use hooklens::encoder_decoder::HookedEncoderDecoder;
//! use hooklens::generation::GenerateOptions;
//! use hooklens::prelude::*;
//!
//! let model = HookedEncoderDecoder::from_pretrained("t5-small")?;
//! let made = model.generate_with("translate English to German: Hello, do you like apples?", GenerateOptions::new())?;
//! println!("{:?}", made.rows[0].text);
//! let start = vec![vec![model.decoder_start_token()]];
//! let output = model.run(("summarize: ...", start), Record::new("decoder.*.cross_attn.hook_pattern"))?;
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_model::encoder_decoder::{
    DecoderCache, Encoded, EncoderDecoderInput, EncoderDecoderOutput, HookedEncoderDecoder,
};
