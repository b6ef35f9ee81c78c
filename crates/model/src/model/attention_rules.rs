//! Rules that tell the attention kernels which keys a query sees and how scores are scaled.

use std::borrow::Cow;

use super::alibi::slopes;
use super::pass::Pass;
use crate::config::{Layers, Positional};
use crate::cpu::Rules;

/// Rules by which kernels scale and mask a layer's scores. The first `dropped` key columns are not stored.
pub(super) fn rules<'p>(layer: usize, dropped: usize, pass: &Pass<'p>) -> Rules<'p> {
    let config = pass.config;
    let sequence = pass.sequence;
    let window = config.window(layer).filter(|window| window.width() < sequence.keys());
    let slopes = (config.positional == Positional::Alibi)
        .then(|| slopes(config.n_heads, config.alibi_bias_max).into_iter().map(|slope| slope as f32).collect());
    let needed = window.is_some() || slopes.is_some();
    let a_row_each = |rows: Vec<u32>| -> Vec<i32> {
        let copies = if needed { sequence.batch / sequence.position_rows() } else { 0 };
        (0..copies).flat_map(|_| rows.iter().map(|p| *p as i32)).collect()
    };
    let query_positions = a_row_each(sequence.query_positions());
    let oldest = window.map(|window| query_positions.iter().map(|p| window.oldest(*p as usize) as i32).collect());
    let keys = sequence.keys();
    let mut key_positions = a_row_each(sequence.key_positions());
    let mut valid = sequence.key_mask().map(Cow::Borrowed);
    if dropped > 0 {
        key_positions = key_positions.chunks(keys).flat_map(|row| row[dropped..].to_vec()).collect();
        valid = valid.map(|valid| valid.chunks(keys).flat_map(|row| row[dropped..].to_vec()).collect());
    }
    Rules {
        scale: (1.0 / config.score_divisor(layer)) as f32,
        soft_cap: config.attn_scores_soft_cap.map(|cap| cap as f32),
        slopes,
        causal: !config.bidirectional,
        oldest,
        valid,
        past: sequence.past - dropped,
        query_positions,
        key_positions,
    }
}
