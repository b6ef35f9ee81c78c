//! The axes of the points' tensors.

use hooklens_hooks::Axis::{
    self, AttnExpert, Batch, BatchPos, BatchPosHead, Channel, Choice, DEmbed, DHead, DKey, DMlp, DModel, DPerLayer,
    DRope, DShared, DValue, Expert, Head, HeadDHead, Key, KeyHead, KvHead, KvRank, One, Pos, QRank, Query, Routed,
    ValueHead,
};

type Axes = &'static [Axis];

pub(super) const TOKENS: Axes = &[Batch, Pos];
pub(super) const STREAM: Axes = &[Batch, Pos, DModel];
/// Vectors of tokens that a linear map takes to the stream.
pub(super) const EMBEDDED: Axes = &[Batch, Pos, DEmbed];
pub(super) const SCALE: Axes = &[Batch, Pos, One];
pub(super) const NEURONS: Axes = &[Batch, Pos, DMlp];
pub(super) const PER_HEAD: Axes = &[Batch, Pos, Head, DHead];
/// Values that are not as wide as keys, and what heads make of them.
pub(super) const PER_HEAD_VALUE: Axes = &[Batch, Pos, Head, DValue];
pub(super) const Q_LATENT: Axes = &[Batch, Pos, QRank];
pub(super) const KV_LATENT: Axes = &[Batch, Pos, KvRank];
pub(super) const K_ROPE: Axes = &[Batch, Pos, DRope];
pub(super) const PER_KV_HEAD: Axes = &[Batch, Pos, KvHead, DHead];
/// Keys and values of the encoder's positions.
pub(super) const PER_KEY: Axes = &[Batch, Key, KvHead, DHead];
pub(super) const HEAD_STREAM: Axes = &[Batch, Pos, Head, DModel];
pub(super) const KV_HEAD_STREAM: Axes = &[Batch, Pos, KvHead, DModel];
pub(super) const SCORES: Axes = &[Batch, Head, Query, Key];
pub(super) const HEAD_ROWS: Axes = &[BatchPosHead, DHead];
pub(super) const HEAD_ROWS_SCALE: Axes = &[BatchPosHead, One];
/// Of gated delta nets: queries and keys, values, and numbers of each head.
pub(super) const PER_KEY_HEAD: Axes = &[Batch, Pos, KeyHead, DKey];
pub(super) const PER_VALUE_HEAD: Axes = &[Batch, Pos, ValueHead, DValue];
/// What the convolution of a state space reads.
pub(super) const CHANNELS: Axes = &[Batch, Pos, Channel];
pub(super) const VALUE_HEADS: Axes = &[Batch, Pos, ValueHead];
/// Queries or keys that are normalized over all heads at once.
pub(super) const WHOLE_ROWS: Axes = &[BatchPos, HeadDHead];
pub(super) const WHOLE_ROWS_SCALE: Axes = &[BatchPos, One];
pub(super) const EXPERT_WEIGHTS: Axes = &[BatchPos, Expert];
/// Of experts of attention.
pub(super) const HEAD_SHARES: Axes = &[Batch, Pos, AttnExpert];
pub(super) const EXPERT_CHOICES: Axes = &[BatchPos, Choice];
pub(super) const ROUTED: Axes = &[Routed, DMlp];
pub(super) const SHARED_NEURONS: Axes = &[Batch, Pos, DShared];
/// A layer's own inputs.
pub(super) const PER_LAYER: Axes = &[Batch, Pos, DPerLayer];
pub(super) const POOLED: Axes = &[Batch, DModel];
pub(super) const CHOICES: Axes = &[Batch, Choice];
