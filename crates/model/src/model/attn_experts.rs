//! Routing for mixtures of attention heads.

use burn::tensor::{Int, Tensor, activation};

use super::linear::Linear;
use super::moe::router_scores;
use super::norm::narrowed;
use crate::config::AttnExperts;

impl AttnExperts {
    /// Router weight of each expert, `[batch, pos, expert]`: a softmax over the scores of the chosen experts, and zero
    /// for the others. Does not synchronize with the device.
    pub(super) fn shares(self, router: &Linear, x: Tensor<3>) -> Tensor<3> {
        let dtype = x.dtype();
        let scores = router_scores(router, x);
        let left_out = ranks(scores.clone()).greater_equal_elem(self.per_token as i64);
        narrowed(activation::softmax(scores.mask_fill(left_out, f32::NEG_INFINITY), 2), dtype)
    }

    /// Router weight of each head, `[batch, pos, head, 1]`.
    pub(super) fn by_head(self, shares: Tensor<3>, heads: usize) -> Tensor<4> {
        let [batch, pos, experts] = shares.dims();
        let each = shares.unsqueeze_dim::<4>(2).expand([batch, pos, heads / experts, experts]);
        each.reshape([batch, pos, heads, 1])
    }
}

/// Rank of each entry along the last axis in descending order; ties are broken by index.
fn ranks(scores: Tensor<3>) -> Tensor<3, Int> {
    let [batch, pos, count] = scores.dims();
    let shape = [batch, pos, count, count];
    let own = scores.clone().unsqueeze_dim::<4>(3).expand(shape);
    let other = scores.unsqueeze_dim::<4>(2).expand(shape);
    let numbers = Tensor::<1, Int>::arange(0..count as i64, &own.device());
    let own_number = numbers.clone().reshape([1, 1, count, 1]).expand(shape);
    let earlier = numbers.reshape([1, 1, 1, count]).expand(shape).lower(own_number);
    let before = other.clone().greater(own.clone()).bool_or(other.equal(own).bool_and(earlier));
    before.int().sum_dim(3).squeeze_dim(3)
}
