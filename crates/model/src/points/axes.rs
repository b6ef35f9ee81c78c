//! Axes of the hook points' tensors.

use hooklens_hooks::Axis::{
    self, AttnExpert, Batch, BatchPos, BatchPosHead, Channel, Choice, DEmbed, DHead, DKey, DMlp, DModel, DPerLayer,
    DRope, DShared, DValue, Expert, Head, HeadDHead, Key, KeyHead, KvHead, KvRank, One, Pos, QRank, Query, Routed,
    ValueHead,
};

type Axes = &'static [Axis];

pub(super) const TOKENS: Axes = &[Batch, Pos];
pub(super) const STREAM: Axes = &[Batch, Pos, DModel];
/// Token embeddings that are narrower than the residual stream.
pub(super) const EMBEDDED: Axes = &[Batch, Pos, DEmbed];
pub(super) const SCALE: Axes = &[Batch, Pos, One];
pub(super) const NEURONS: Axes = &[Batch, Pos, DMlp];
pub(super) const PER_HEAD: Axes = &[Batch, Pos, Head, DHead];
/// Values and head outputs whose width differs from the width of keys.
pub(super) const PER_HEAD_VALUE: Axes = &[Batch, Pos, Head, DValue];
pub(super) const Q_LATENT: Axes = &[Batch, Pos, QRank];
pub(super) const KV_LATENT: Axes = &[Batch, Pos, KvRank];
pub(super) const K_ROPE: Axes = &[Batch, Pos, DRope];
pub(super) const PER_KV_HEAD: Axes = &[Batch, Pos, KvHead, DHead];
/// Cross-attention keys and values, over encoder positions.
pub(super) const PER_KEY: Axes = &[Batch, Key, KvHead, DHead];
pub(super) const HEAD_STREAM: Axes = &[Batch, Pos, Head, DModel];
pub(super) const KV_HEAD_STREAM: Axes = &[Batch, Pos, KvHead, DModel];
pub(super) const SCORES: Axes = &[Batch, Head, Query, Key];
pub(super) const HEAD_ROWS: Axes = &[BatchPosHead, DHead];
pub(super) const HEAD_ROWS_SCALE: Axes = &[BatchPosHead, One];
/// Queries and keys of a gated delta net.
pub(super) const PER_KEY_HEAD: Axes = &[Batch, Pos, KeyHead, DKey];
pub(super) const PER_VALUE_HEAD: Axes = &[Batch, Pos, ValueHead, DValue];
/// Input of the convolution in a state space or short convolution.
pub(super) const CHANNELS: Axes = &[Batch, Pos, Channel];
pub(super) const VALUE_HEADS: Axes = &[Batch, Pos, ValueHead];
/// Queries or keys that are normalized over all heads together.
pub(super) const WHOLE_ROWS: Axes = &[BatchPos, HeadDHead];
pub(super) const WHOLE_ROWS_SCALE: Axes = &[BatchPos, One];
pub(super) const EXPERT_WEIGHTS: Axes = &[BatchPos, Expert];
/// Router weights of attention experts.
pub(super) const HEAD_SHARES: Axes = &[Batch, Pos, AttnExpert];
pub(super) const EXPERT_CHOICES: Axes = &[BatchPos, Choice];
pub(super) const ROUTED: Axes = &[Routed, DMlp];
pub(super) const SHARED_NEURONS: Axes = &[Batch, Pos, DShared];
/// Per-layer inputs.
pub(super) const PER_LAYER: Axes = &[Batch, Pos, DPerLayer];
pub(super) const POOLED: Axes = &[Batch, DModel];
pub(super) const CHOICES: Axes = &[Batch, Choice];
