//! [`Settings`]: the settings of a configuration that depend on the model family.

use super::{AttnExperts, Latent, PerLayerInputs, Positional, QkNorm, QueryGrowth, ResidualScheme, TransformerConfig};

/// Declares [`Settings`]: a getter for each setting, and a setter for each that has no public setter in
/// `TransformerConfig`.
macro_rules! settings {
    (
        $($(#[$read_doc:meta])* $read:ident: $read_type:ty;)*
        ---
        $($(#[$doc:meta])* $field:ident $setter:ident: $type:ty, $given:ty;)*
    ) => {
        /// Settings of a [`TransformerConfig`] that depend on the model family. This trait is for the crates of the
        /// workspace; users change settings with the builder methods of [`TransformerConfig`].
        pub trait Settings: Sized {
            /// Positional embedding.
            fn positional(&self) -> &Positional;
            /// Whether there is a table of learned position embeddings.
            fn has_position_table(&self) -> bool;
            /// Positional embedding, mutably.
            fn positional_mut(&mut self) -> &mut Positional;
            /// Sets the size of the vocabulary, but not of the logits.
            #[must_use]
            fn with_d_vocab(self, d_vocab: usize) -> Self;
            /// Sets the maximum sequence length.
            #[must_use]
            fn with_n_ctx(self, n_ctx: usize) -> Self;
            $(
                $(#[$read_doc])*
                fn $read(&self) -> $read_type;
            )*
            $(
                $(#[$doc])*
                fn $field(&self) -> $type;
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                fn $setter(self, $field: $given) -> Self;
            )*
        }

        impl Settings for TransformerConfig {
            fn positional(&self) -> &Positional {
                &self.positional
            }
            fn has_position_table(&self) -> bool {
                self.positional.has_table()
            }
            fn positional_mut(&mut self) -> &mut Positional {
                &mut self.positional
            }
            fn with_d_vocab(mut self, d_vocab: usize) -> Self {
                self.d_vocab = d_vocab;
                self
            }
            fn with_n_ctx(mut self, n_ctx: usize) -> Self {
                self.n_ctx = n_ctx;
                self
            }
            $(
                fn $read(&self) -> $read_type {
                    self.$read
                }
            )*
            $(
                fn $field(&self) -> $type {
                    self.$field
                }
                fn $setter(mut self, $field: $given) -> Self {
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}

settings! {
    /// Epsilon added to the variance (or mean square) inside a norm.
    eps: f64;
    /// Whether the outputs of attention and the MLP are normalized (Gemma 2).
    post_norms: bool;
    /// How blocks add to the residual stream.
    residual: ResidualScheme;
    /// Divisor of attention scores; usually the square root of `d_head`.
    attn_scale: f64;
    /// Soft cap on attention scores, `cap * tanh(score / cap)`.
    attn_scores_soft_cap: Option<f64>;
    /// Soft cap on logits, `cap * tanh(logit / cap)`.
    output_logits_soft_cap: Option<f64>;
    /// Whether queries also attend to later keys.
    bidirectional: bool;
    ---
    /// Whether the final norm is an RMS norm while the others are layer norms.
    final_rms with_final_rms: bool, bool;
    /// Whether the embedding is normalized (Bloom).
    post_embedding_norm with_post_embedding_norm: bool, bool;
    /// Whether scores are also divided by the layer index plus one.
    scale_attn_by_inverse_layer_idx with_scale_attn_by_inverse_layer_idx: bool, bool;
    /// Epsilon of the final norm, if it differs from `eps` (JetMoE).
    final_eps with_final_eps: Option<f64>, impl Into<Option<f64>>;
    /// Factor applied to token embeddings (Gemma, Granite).
    embed_scale with_embed_scale: Option<f64>, impl Into<Option<f64>>;
    /// Whether the inputs of attention and the MLP are normalized. If not, only their outputs are (OLMo 2).
    pre_norms with_pre_norms: bool, bool;
    /// Whether there is no norm before the unembedding.
    no_final_norm with_no_final_norm: bool, bool;
    /// Query and key norms, if any (Qwen 3).
    qk_norm with_qk_norm: Option<QkNorm>, impl Into<Option<QkNorm>>;
    /// Exponent of the last ALiBi slope, `2^-alibi_bias_max`.
    alibi_bias_max with_alibi_bias_max: f64, f64;
    /// Limit that queries, keys and values are clipped to (OLMo).
    qkv_clip with_qkv_clip: Option<f64>, impl Into<Option<f64>>;
    /// Position-dependent query scaling, if any (Ministral 3, Llama 4).
    query_growth with_query_growth: Option<QueryGrowth>, impl Into<Option<QueryGrowth>>;
    /// Whether each head has an attention sink (GPT-OSS).
    attn_sinks with_attn_sinks: bool, bool;
    /// Whether head outputs are multiplied by a sigmoid gate computed from the residual stream (Qwen 3 Next).
    attn_gates with_attn_gates: bool, bool;
    /// Mixture of attention heads, if any (JetMoE).
    attn_experts with_attn_experts: Option<AttnExperts>, impl Into<Option<AttnExperts>>;
    /// Multi-head latent attention, if any (DeepSeek V2).
    latent with_latent: Option<Latent>, impl Into<Option<Latent>>;
    /// Maximum number of keys per query in a model with sparse attention (DeepSeek V3.2).
    most_keys with_most_keys: Option<usize>, impl Into<Option<usize>>;
    /// Per-layer token embeddings, added after the MLP (Gemma 4).
    per_layer_inputs with_per_layer_inputs: Option<PerLayerInputs>, impl Into<Option<PerLayerInputs>>;
    /// Whether the residual stream after each block is multiplied by a learned scalar of the block (Gemma 4).
    layer_scalars with_layer_scalars: bool, bool;
}
