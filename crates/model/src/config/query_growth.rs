//! Position-dependent query scaling.

use serde::{Deserialize, Serialize};

/// Position-dependent query scaling, which keeps attention sharp in long texts: a query at position `p` is multiplied
/// by `1 + rate ln(1 + ⌊(p + ahead) / context⌋)`. This factor is 1 within the trained context.
///
/// ```
/// use hooklens_model::config::QueryGrowth;
/// let growth = QueryGrowth { rate: 0.5, context: 16, ahead: 0, still_layers: false }; // Ministral 3
/// assert_eq!(growth.factor(15), 1.0);
/// assert_eq!(growth.factor(16), 1.0 + 0.5 * 2f64.ln());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryGrowth {
    /// Growth rate of the scale.
    pub rate: f64,
    /// Number of positions before the scale starts to grow.
    pub context: usize,
    /// Offset added to the position: 1 if positions are counted from one (Llama 4).
    #[serde(default)]
    pub ahead: u32,
    /// Whether only layers without rotary embeddings scale their queries (Llama 4).
    #[serde(default)]
    pub still_layers: bool,
}

impl QueryGrowth {
    /// The scale of a query at this position.
    pub fn factor(self, position: u32) -> f64 {
        let times = (f64::from(position) + f64::from(self.ahead)) / self.context.max(1) as f64;
        1.0 + self.rate * times.floor().ln_1p()
    }
}
