//! BART and similar models: mBART, Marian, Pegasus, M2M-100 (NLLB), Blenderbot. They differ in the placement of norms,
//! the embedding norm, and the source of the position table.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind};
use hooklens_model::encoder_decoder::{
    EncoderDecoderConfig, PositionTable, StackAttention, StackPositions, TokenRules,
};
use hooklens_model::error::ConfigError;

/// Creates a family with tensor prefix `model.` and the shared weight table.
const fn family(
    name: &'static str,
    architectures: &'static [&'static str],
    config: fn(&HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError>,
) -> Family<EncoderDecoderConfig> {
    Family { name, architectures, prefix: "model.", config, weights }
}

pub(super) static BART: Family<EncoderDecoderConfig> =
    family("bart", &["BartForConditionalGeneration", "BartModel"], bart);
pub(super) static MBART: Family<EncoderDecoderConfig> = family("mbart", &["MBartForConditionalGeneration"], mbart);
pub(super) static MARIAN: Family<EncoderDecoderConfig> = family("marian", &["MarianMTModel"], marian);
pub(super) static PEGASUS: Family<EncoderDecoderConfig> =
    family("pegasus", &["PegasusForConditionalGeneration"], pegasus);
pub(super) static M2M_100: Family<EncoderDecoderConfig> =
    family("m2m_100", &["M2M100ForConditionalGeneration"], m2m_100);
pub(super) static BLENDERBOT: Family<EncoderDecoderConfig> =
    family("blenderbot", &["BlenderbotForConditionalGeneration"], blenderbot);
pub(super) static BLENDERBOT_SMALL: Family<EncoderDecoderConfig> =
    family("blenderbot-small", &["BlenderbotSmallForConditionalGeneration"], blenderbot_small);

static BART_DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"decoder_start_token_id": 2, "forced_eos_token_id": 2}));
static MBART_DEFAULTS: LazyLock<Value> = LazyLock::new(|| json!({"bos_token_id": 0, "forced_eos_token_id": 2}));
static MARIAN_DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"decoder_start_token_id": 58100, "forced_eos_token_id": 0}));
static PEGASUS_DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"decoder_start_token_id": 0, "forced_eos_token_id": 1}));
static M2M_100_DEFAULTS: LazyLock<Value> = LazyLock::new(
    || json!({"decoder_start_token_id": 2, "pad_token_id": 1, "scale_embedding": true, "activation_function": "relu"}),
);
static BLENDERBOT_DEFAULTS: LazyLock<Value> =
    LazyLock::new(|| json!({"decoder_start_token_id": 1, "forced_eos_token_id": 2}));

fn bart(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    let base = base(&json.defaulting(&BART_DEFAULTS), PositionTable::Learned)?;
    Ok(EncoderDecoderConfig { norm_after: true, embed_norm: true, ..base })
}

fn mbart(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    let base = base(&json.defaulting(&MBART_DEFAULTS), PositionTable::Learned)?;
    Ok(EncoderDecoderConfig { embed_norm: true, ..base })
}

fn marian(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    let base = base(&json.defaulting(&MARIAN_DEFAULTS), PositionTable::Sinusoids)?;
    let shared_embed = json.flag("share_encoder_decoder_embeddings", true)?;
    let of_decoder = json.maybe_size("decoder_vocab_size")?.filter(|_| !shared_embed);
    let d_decoder_vocab = of_decoder.unwrap_or(base.d_vocab);
    Ok(EncoderDecoderConfig { norm_after: true, shared_embed, d_decoder_vocab, ..base })
}

fn pegasus(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    base(&json.defaulting(&PEGASUS_DEFAULTS), PositionTable::Sinusoids)
}

fn m2m_100(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    let json = json.defaulting(&M2M_100_DEFAULTS);
    // Position numbers start after the padding token's id.
    let first = json.size("pad_token_id")?.saturating_add(1);
    base(&json, PositionTable::SinusoidsFrom(first))
}

fn blenderbot(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    base(&json.defaulting(&BLENDERBOT_DEFAULTS), PositionTable::Learned)
}

fn blenderbot_small(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    Ok(EncoderDecoderConfig { norm_after: true, embed_norm: true, decoder_tokens_normed: true, ..blenderbot(json)? })
}

/// Settings of a pre-norm model with a final norm and no embedding norm.
fn base(json: &HfConfig<'_>, source: PositionTable) -> Result<EncoderDecoderConfig, ConfigError> {
    if !json.flag("tie_word_embeddings", true)? {
        return Err(json.unsupported("tie_word_embeddings"));
    }
    if !json.flag("is_encoder_decoder", true)? {
        return Err(json.unsupported("is_encoder_decoder"));
    }
    if json.flag("tie_encoder_decoder", false)? {
        return Err(json.unsupported("tie_encoder_decoder"));
    }
    let (d_model, d_vocab) = (json.size("d_model")?, json.size("vocab_size")?);
    let (n_heads, n_decoder_heads) = (json.size("encoder_attention_heads")?, json.size("decoder_attention_heads")?);
    let d_head = json.share("encoder_attention_heads", d_model, n_heads)?;
    let d_decoder_head = json.share("decoder_attention_heads", d_model, n_decoder_heads)?;
    let embed_scale = json.flag("scale_embedding", false)?.then(|| (d_model as f64).sqrt());
    let begins = json.maybe_size("bos_token_id")?.unwrap_or(0);
    Ok(EncoderDecoderConfig {
        n_encoder_layers: json.layers("encoder_layers")?,
        n_decoder_layers: json.layers("decoder_layers")?,
        d_model,
        d_decoder_model: d_model,
        n_heads,
        d_head,
        d_mlp: json.size("encoder_ffn_dim")?,
        n_decoder_heads,
        d_decoder_head,
        d_decoder_mlp: json.size("decoder_ffn_dim")?,
        d_vocab,
        d_decoder_vocab: d_vocab,
        shared_embed: true,
        embed_scale,
        decoder_embed_scale: embed_scale,
        positions: StackPositions::Table { n_ctx: json.size("max_position_embeddings")?, source },
        embed_norm: false,
        decoder_tokens_normed: false,
        norm: NormKind::LayerNorm,
        norm_after: false,
        post_norms: false,
        eps: 1e-5,
        attention: StackAttention::plain(n_heads, (d_head as f64).sqrt()),
        decoder_attention: StackAttention::plain(n_decoder_heads, (d_decoder_head as f64).sqrt()),
        activation: json.text("activation_function", "gelu")?.parse::<ActivationFn>()?,
        gated_mlp: false,
        output_scale: None,
        output_logits_soft_cap: None,
        decoder_start_token: start_token(json, begins)?,
        token_rules: token_rules(json)?,
    })
}

/// Token that decoding starts with, or `usual` if the file omits it. If the field is null, transformers uses the
/// beginning-of-sequence token.
pub(super) fn start_token(json: &HfConfig<'_>, usual: usize) -> Result<u32, ConfigError> {
    const START: &str = "decoder_start_token_id";
    match (json.maybe_size(START)?, json.maybe_size("bos_token_id")?) {
        (Some(start), _) => Ok(token(start)),
        (None, Some(first)) if json.is_null(START) => Ok(token(first)),
        (None, _) if json.is_null(START) => Err(json.unsupported(START)),
        (None, _) => Ok(token(usual)),
    }
}

/// Converts a token id. An id that does not fit in a `u32` becomes `u32::MAX`, which is outside every vocabulary.
fn token(id: usize) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

/// Tokens that a configuration forces or forbids during generation.
pub(super) fn token_rules(json: &HfConfig<'_>) -> Result<TokenRules, ConfigError> {
    let one = |field| Ok::<_, ConfigError>(json.maybe_size(field)?.map(token));
    let never =
        json.list("bad_words_ids")?.into_iter().flatten().map(|word| match word.as_array().map(Vec::as_slice) {
            Some([id]) => id.as_u64().map(|id| token(usize::try_from(id).unwrap_or(usize::MAX))),
            _ => None,
        });
    let never = never.collect::<Option<Vec<u32>>>().ok_or_else(|| json.unsupported("bad_words_ids"))?;
    Ok(TokenRules { first: one("forced_bos_token_id")?, last: one("forced_eos_token_id")?, never })
}

/// Applies settings of `generation_config.json`, which override `config.json`.
pub(super) fn generation(config: &mut EncoderDecoderConfig, json: &HfConfig<'_>) -> Result<(), ConfigError> {
    if let Some(start) = json.maybe_size("decoder_start_token_id")? {
        config.decoder_start_token = token(start);
    }
    config.token_rules = token_rules(json)?;
    config.validate()
}

fn weights(config: &EncoderDecoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["embed_tokens.weight", "embed_positions.weights", "coder.version"]);
    // Files may contain a shared tensor under any of its names.
    if config.shared_embed {
        table.add("embed.W_E", "model.shared.weight", Layout::AsIs);
        table.aliases = &[
            ("shared.weight", "encoder.embed_tokens.weight"),
            ("shared.weight", "decoder.embed_tokens.weight"),
            ("model.shared.weight", "lm_head.weight"),
        ];
    } else {
        table.add("embed.W_E", "model.encoder.embed_tokens.weight", Layout::AsIs);
        table.add("decoder_embed.W_E", "model.decoder.embed_tokens.weight", Layout::AsIs);
        table.aliases = &[("model.decoder.embed_tokens.weight", "lm_head.weight")];
    }
    table.unembedding("lm_head.weight", true);
    if json.family() != M2M_100.name {
        // Stored with shape `[1, d_vocab]`.
        table.add("unembed.b_U", "final_logits_bias", Layout::HeadsOut { heads: 1 });
        table.optional(&["unembed.b_U"]);
    }
    let learned = matches!(config.positions, StackPositions::Table { source: PositionTable::Learned, .. });
    // BART's position tables start with two unused rows.
    let skips = [BART.name, MBART.name].contains(&json.family());
    for (stack, layers) in [("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)] {
        let from = |part: &str| format!("model.{stack}.{part}");
        let layout = if skips { Layout::AfterRows { skip: 2 } } else { Layout::AsIs };
        table.add(format!("{stack}.pos_embed.W_pos"), from("embed_positions.weight"), layout);
        if !learned {
            table.optional(&[&format!("{stack}.pos_embed.")]);
        }
        if config.embed_norm {
            table.norm(&format!("{stack}_embed_ln"), &from("layernorm_embedding"));
        }
        if !config.norm_after {
            table.norm(&format!("{stack}_final_ln"), &from("layer_norm"));
        }
        for layer in 0..layers {
            let from = |part: &str| format!("model.{stack}.layers.{layer}.{part}");
            let to = |part: &str| format!("{stack}.{layer}.{part}");
            let sublayers: &[(&str, &str, &str)] = match stack {
                "encoder" => &[("attn", "ln1", "self_attn")],
                _ => &[("attn", "ln1", "self_attn"), ("cross_attn", "ln2", "encoder_attn")],
            };
            for (attention, norm, name) in sublayers {
                for (letter, part) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
                    table.linear(&to(&format!("{attention}.W_{letter}")), &from(&format!("{name}.{part}")), true);
                }
                table.norm(&to(norm), &from(&format!("{name}_layer_norm")));
            }
            table.linear(&to("mlp.W_in"), &from("fc1"), true);
            table.linear(&to("mlp.W_out"), &from("fc2"), true);
            table.norm(&to(&format!("ln{}", sublayers.len() + 1)), &from("final_layer_norm"));
        }
    }
    Ok(table)
}
