//! Queries that grow with their position.

use serde::{Deserialize, Serialize};

/// How queries grow with their position, so that attention of long texts stays sharp: a query at position `p` is
/// multiplied by `1 + rate ln(1 + ⌊(p + ahead) / context⌋)`, which is one within the trained context.
///
/// ```
/// use hooklens::QueryGrowth;
/// let growth = QueryGrowth { rate: 0.5, context: 16, ahead: 0, still_layers: false }; // Ministral 3
/// assert_eq!(growth.factor(15), 1.0);
/// assert_eq!(growth.factor(16), 1.0 + 0.5 * 2f64.ln());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryGrowth {
    /// How much a query grows.
    pub rate: f64,
    /// Number of positions after which it begins to.
    pub context: usize,
    /// What is added to a position first: 1 where they are counted from one (Llama 4).
    #[serde(default)]
    pub ahead: u32,
    /// Whether only queries of layers that rotate nothing grow (Llama 4).
    #[serde(default)]
    pub still_layers: bool,
}

impl QueryGrowth {
    /// What a query at this position is multiplied by.
    pub fn factor(self, position: u32) -> f64 {
        let times = (f64::from(position) + f64::from(self.ahead)) / self.context.max(1) as f64;
        1.0 + self.rate * times.floor().ln_1p()
    }
}
