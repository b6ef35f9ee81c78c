//! Rotary embeddings that depend on the length of the text.

/// Context length beyond which the rotary frequencies change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// The context length.
    pub context: usize,
    /// Whether all longer texts use the same frequencies (LongRoPE), instead of frequencies that depend on the length
    /// (dynamic NTK).
    pub(crate) once: bool,
}
