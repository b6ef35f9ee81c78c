//! Tokenization: converts text to token ids and back.

mod batch;
mod beginning;
#[cfg(feature = "chat")]
mod chat;
mod declared;
mod fingerprint;
mod growth;
mod marian;
mod outline;
mod python_json;
#[cfg(feature = "chat")]
mod python_values;
mod residues;
mod sentence_piece;
mod templates;
mod text_hash;
mod texts;
mod token_text;
mod tokenized;
mod tokenizer;
mod vocabulary;

pub use batch::{PaddingSide, Tokens, check_ids};
#[cfg(feature = "chat")]
pub use chat::Message;
pub use fingerprint::tokenizer_fingerprint;
pub use text_hash::text_hash;
pub use texts::Texts;
pub use tokenized::Tokenized;
pub use tokenizer::{
    TokenizeOptions, Tokenizer, decode_generated, fitted_to_vocabulary, mask_token, single_token, structural_tokens,
    tokenizer_files, tokenizer_of_parts,
};

pub(crate) use batch::flat_mask;
pub use marian::FILES as MARIAN_FILES;
pub use token_text::token_text;
pub use tokenizer::read_json;
