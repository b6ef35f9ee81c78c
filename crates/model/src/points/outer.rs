//! Hook points outside the blocks, one per row: name, axes, and attributes.

use hooklens_hooks::{PointInfo, Segment};

use super::axes::{CHOICES, EMBEDDED, POOLED, SCALE, STREAM, TOKENS};

macro_rules! outer {
    ($($point:ident $name:literal $axes:ident $segment:ident $($special:ident)*;)*) => {
        /// A hook point outside the blocks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Outer {
            $($point,)*
        }

        pub(super) const COUNT: usize = [$(Outer::$point,)*].len();

        impl Outer {
            /// The point's catalog entry.
            pub(super) fn info(self) -> PointInfo {
                match self {
                    $(Outer::$point => {
                        let mut info = PointInfo::new($name, None, $axes)$(.$special())*;
                        info.segment = Segment::$segment;
                        info
                    })*
                }
            }
        }
    };
}

impl Outer {
    /// The point's catalog entry in a model whose token embeddings are narrower than the residual stream.
    pub(super) fn narrow(self) -> PointInfo {
        let mut info = self.info();
        info.axes = if info.axes == STREAM { EMBEDDED } else { info.axes };
        info
    }
}

outer! {
    Tokens "hook_tokens" TOKENS Embedding integers on_request;
    EmbedLnScale "embed.ln.hook_scale" SCALE Embedding;
    EmbedLnNormalized "embed.ln.hook_normalized" STREAM Embedding;
    Embed "hook_embed" STREAM Embedding;
    PosEmbed "hook_pos_embed" STREAM Positions;
    FinalScale "ln_final.hook_scale" SCALE Head;
    FinalNormalized "ln_final.hook_normalized" STREAM Head;
    // Encoders.
    TokenEmbed "embed.hook_embed" STREAM Embedding;
    PositionEmbed "embed.hook_pos_embed" STREAM Embedding;
    TokenTypeEmbed "embed.hook_token_type_embed" STREAM Embedding;
    FullEmbed "hook_full_embed" STREAM Embedding;
    MlmLnScale "mlm_head.ln.hook_scale" SCALE Head;
    MlmLnNormalized "mlm_head.ln.hook_normalized" STREAM Head;
    PoolerOut "pooler.hook_pooler_out" POOLED Head;
    NspOut "nsp_head.hook_nsp_out" CHOICES Head;
    // Encoder-decoder models.
    EncoderEmbed "hook_embed" STREAM Encoder;
    EncoderPosEmbed "hook_pos_embed" STREAM Encoder;
    EncoderEmbedLnScale "encoder_embed_ln.hook_scale" SCALE Encoder;
    EncoderEmbedLnNormalized "encoder_embed_ln.hook_normalized" STREAM Encoder;
    EncoderFinalScale "encoder_final_ln.hook_scale" SCALE Encoder;
    EncoderFinalNormalized "encoder_final_ln.hook_normalized" STREAM Encoder;
    DecoderPosEmbed "hook_decoder_pos_embed" STREAM Positions;
    DecoderEmbedLnScale "decoder_embed_ln.hook_scale" SCALE Embedding;
    DecoderEmbedLnNormalized "decoder_embed_ln.hook_normalized" STREAM Embedding;
    DecoderFinalScale "decoder_final_ln.hook_scale" SCALE Head;
    DecoderFinalNormalized "decoder_final_ln.hook_normalized" STREAM Head;
}
