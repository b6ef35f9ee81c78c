//! T5Gemma: an encoder and a decoder made of Gemma 2's blocks, each with its own sizes.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::bart::{start_token, token_rules};
use super::hf_config::HfConfig;
use super::{Family, gemma, llama_like};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{Positional, Rotary, Settings, TransformerConfig, Window};
use hooklens_model::encoder_decoder::{EncoderDecoderConfig, StackAttention, StackPositions};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderDecoderConfig> =
    Family { name: "t5gemma", architectures: &["T5GemmaForConditionalGeneration"], prefix: "", config, weights };

/// Hugging Face's defaults for fields missing from a stack's settings.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "bos_token_id": 2,
    })
});

/// Settings of one stack.
fn of_stack<'j>(json: &HfConfig<'j>, stack: &'static str) -> Result<HfConfig<'j>, ConfigError> {
    let own = json.object(stack)?.ok_or_else(|| json.unsupported(stack))?;
    Ok(own.defaulting(&DEFAULTS))
}

/// Reads a stack's blocks as blocks of Gemma 2.
fn blocks(own: &HfConfig<'_>) -> Result<(TransformerConfig, Rotary), ConfigError> {
    let blocks = gemma::around(own, |layer| layer % 2 == 0)?;
    match blocks.positional() {
        Positional::Rotary(rotary) => Ok((blocks.clone(), rotary.clone())),
        _ => Err(own.unsupported("rope_scaling")),
    }
}

fn config(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    if !json.flag("is_encoder_decoder", true)? {
        return Err(json.unsupported("is_encoder_decoder"));
    }
    let [own, written] = [of_stack(json, "encoder")?, of_stack(json, "decoder")?];
    let ((read, encoder), (writes, decoder)) = (blocks(&own)?, blocks(&written)?);
    // A top-level vocabulary size applies to both stacks, regardless of their own settings.
    let d_vocab = json.maybe_size("vocab_size")?.unwrap_or(read.d_vocab());
    let both = |field, same: bool| match same {
        true => Ok(()),
        false => Err(ConfigError::Contradiction { field, reason: "encoder and decoder differ".into() }),
    };
    both("hidden_activation", read.activation() == writes.activation())?;
    both("rms_norm_eps", read.eps() == writes.eps())?;
    let begins = written.maybe_size("bos_token_id")?.unwrap_or(2);
    // A bidirectional window extends to both sides, up to but not including its full width.
    let around = |window: &Option<Window>| window.map(|window| Window::Around(window.width().saturating_sub(1)));
    let attention = |c: &TransformerConfig, windows| StackAttention {
        n_kv_heads: c.n_kv_heads(),
        scale: c.attn_scale(),
        soft_cap: c.attn_scores_soft_cap(),
        windows,
    };
    Ok(EncoderDecoderConfig {
        n_encoder_layers: read.n_layers(),
        n_decoder_layers: writes.n_layers(),
        d_model: read.d_model(),
        d_decoder_model: writes.d_model(),
        n_heads: read.n_heads(),
        d_head: read.d_head(),
        d_mlp: read.d_mlp(),
        n_decoder_heads: writes.n_heads(),
        d_decoder_head: writes.d_head(),
        d_decoder_mlp: writes.d_mlp(),
        d_vocab,
        d_decoder_vocab: d_vocab,
        shared_embed: false,
        embed_scale: read.embed_scale(),
        decoder_embed_scale: writes.embed_scale(),
        positions: StackPositions::Rotary { encoder, decoder },
        embed_norm: false,
        decoder_tokens_normed: false,
        norm: read.norm(),
        norm_after: false,
        post_norms: true,
        eps: read.eps(),
        attention: attention(&read, llama_like::windows_of(&read).iter().map(around).collect()),
        decoder_attention: attention(&writes, llama_like::windows_of(&writes)),
        activation: read.activation(),
        gated_mlp: true,
        output_scale: None,
        output_logits_soft_cap: writes.output_logits_soft_cap(),
        decoder_start_token: start_token(json, begins)?,
        token_rules: token_rules(json)?,
    })
}

fn weights(config: &EncoderDecoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.encoder.embed_tokens.weight", Layout::AsIs);
    table.add("decoder_embed.W_E", "model.decoder.embed_tokens.weight", Layout::AsIs);
    let tied = json.flag("tie_word_embeddings", true)?;
    if !tied && of_stack(json, "decoder")?.flag("tie_word_embeddings", true)? {
        // Transformers would use the encoder's embedding.
        let reason = "it is false, but true in the decoder's configuration".to_string();
        return Err(ConfigError::Contradiction { field: "tie_word_embeddings", reason });
    }
    table.unembedding("lm_head.out_proj.weight", tied);
    if tied {
        // Files may contain the tied tensor under either name.
        table.aliases = &[("model.decoder.embed_tokens.weight", "lm_head.out_proj.weight")];
    }
    for (stack, layers) in [("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)] {
        let biased = of_stack(json, stack)?.flag("attention_bias", false)?;
        table.add(format!("{stack}_final_ln.w"), format!("model.{stack}.norm.weight"), Layout::OneLess);
        let sublayers: &[(&str, &str)] = match stack {
            "encoder" => &[("attn", "self_attn"), ("mlp", "feedforward")],
            _ => &[("attn", "self_attn"), ("cross_attn", "cross_attn"), ("mlp", "feedforward")],
        };
        for layer in 0..layers {
            let from = |part: &str| format!("model.{stack}.layers.{layer}.{part}");
            let to = |part: &str| format!("{stack}.{layer}.{part}");
            for (number, (own, name)) in sublayers.iter().enumerate() {
                let ln = format!("ln{}", number + 1);
                let norm = |place: &str| from(&format!("{place}_{name}_layernorm.weight"));
                table.add(to(&format!("{ln}.w")), norm("pre"), Layout::OneLess);
                table.add(to(&format!("{ln}_post.w")), norm("post"), Layout::OneLess);
                if *own == "mlp" {
                    for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
                        table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), false);
                    }
                    continue;
                }
                for letter in ["Q", "K", "V", "O"] {
                    let part = from(&format!("{name}.{}_proj", letter.to_lowercase()));
                    table.linear(&to(&format!("{own}.W_{letter}")), &part, biased);
                }
            }
        }
    }
    Ok(table)
}
