//! Decoders of BART and similar models, without an encoder. Cross-attention has nothing to attend to and is skipped, as
//! in transformers.

use super::Family;
use super::fairseq;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Positional, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::encoder_decoder::Sinusoids;
use hooklens_model::error::ConfigError;

/// Creates a family with tensor prefix `model.` and the shared weight table.
const fn family(
    name: &'static str,
    architectures: &'static [&'static str],
    config: fn(&HfConfig<'_>) -> Result<TransformerConfig, ConfigError>,
) -> Family {
    Family { name, architectures, prefix: "model.", config, weights }
}

pub(super) static BART: Family = family("bart-decoder", &["BartForCausalLM"], bart);
pub(super) static BLENDERBOT: Family = family("blenderbot-decoder", &["BlenderbotForCausalLM"], blenderbot);
pub(super) static BLENDERBOT_SMALL: Family =
    family("blenderbot-small-decoder", &["BlenderbotSmallForCausalLM"], blenderbot_small);
pub(super) static MARIAN: Family = family("marian-decoder", &["MarianForCausalLM"], marian);
pub(super) static MBART: Family = family("mbart-decoder", &["MBartForCausalLM"], mbart);
pub(super) static PEGASUS: Family = family("pegasus-decoder", &["PegasusForCausalLM"], pegasus);
pub(super) static PLBART: Family = family("plbart-decoder", &["PLBartForCausalLM"], plbart);
pub(super) static TROCR: Family = family("trocr", &["TrOCRForCausalLM"], trocr);

fn bart(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    Ok(normed_after(normed_embedding(base(json, false)?)).with_default_prepend_bos(true))
}

fn plbart(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    Ok(normed_after(normed_embedding(base(json, true)?)))
}

fn mbart(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    Ok(normed_embedding(base(json, false)?))
}

fn blenderbot(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    base(json, false)
}

fn blenderbot_small(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Token embeddings are normalized before positions are added, and never scaled.
    Ok(normed_after(base(json, false)?).with_post_embedding_norm(true).with_embed_scale(None))
}

/// All families of standalone decoders.
const ALL: [&Family; 8] = [&BART, &BLENDERBOT, &BLENDERBOT_SMALL, &MARIAN, &MBART, &PEGASUS, &PLBART, &TROCR];

/// Settings that have no effect on a standalone decoder; empty for other families.
pub(super) fn ignored(json: &HfConfig<'_>) -> Result<Vec<String>, ConfigError> {
    if !ALL.iter().any(|family| json.is_of(family)) {
        return Ok(Vec::new());
    }
    let mut ignored = Vec::new();
    if json.is_of(&BLENDERBOT_SMALL) && json.flag("scale_embedding", false)? {
        ignored.push("scale_embedding, which the decoder of Blenderbot Small does not apply".into());
    }
    for field in ["forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"] {
        if let Some(value) = json.get(field) {
            ignored.push(format!("{field} = {value}, which generation applies only to encoder-decoders"));
        }
    }
    Ok(ignored)
}

fn pegasus(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = base(json, false)?;
    match base.n_ctx() > Sinusoids::LARGEST / base.d_model().max(1) {
        true => Err(ConfigError::BadSize { field: "max_position_embeddings", given: base.n_ctx() }),
        false => Ok(base),
    }
}

fn marian(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = normed_after(pegasus(json)?);
    let d_vocab = json.maybe_size("decoder_vocab_size")?.filter(|size| *size > 0).unwrap_or(base.d_vocab());
    // A tied head has the embedding's vocabulary size; a separate head may not.
    let d_vocab_out = if tied(json)? { d_vocab } else { base.d_vocab() };
    Ok(base.with_d_vocab(d_vocab).with_d_vocab_out(d_vocab_out))
}

fn trocr(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    // Sinusoidal positions depend on which tokens are padding tokens, even if these tokens are not masked.
    if !json.flag("use_learned_position_embeddings", true)? {
        return Err(json.unsupported("use_learned_position_embeddings"));
    }
    let base = normed_after(base(json, false)?).with_default_prepend_bos(true);
    Ok(if json.flag("layernorm_embedding", true)? { normed_embedding(base) } else { base })
}

/// Settings of a pre-norm model with a final norm and no embedding norm.
fn base(json: &HfConfig<'_>, scales: bool) -> Result<TransformerConfig, ConfigError> {
    let base =
        json.sizes(["decoder_layers", "d_model", "decoder_attention_heads"], json.size("max_position_embeddings")?)?;
    let embed_scale = json.flag("scale_embedding", scales)?.then(|| (base.d_model() as f64).sqrt());
    Ok(base
        .with_d_mlp(json.size("decoder_ffn_dim")?)
        .with_activation(json.text("activation_function", "gelu")?.parse::<ActivationFn>()?)
        .with_embed_scale(embed_scale)
        .with_default_prepend_bos(false))
}

/// Places norms after attention and the MLP instead of before, without a final norm.
fn normed_after(base: TransformerConfig) -> TransformerConfig {
    base.with_residual(ResidualScheme::NormalizedSums).with_no_final_norm(true)
}

/// Adds a norm after the sum of token and position embeddings.
fn normed_embedding(base: TransformerConfig) -> TransformerConfig {
    base.with_positional(Positional::LearnedNormalized).with_post_embedding_norm(true)
}

fn tied(json: &HfConfig<'_>) -> Result<bool, ConfigError> {
    json.flag("tie_word_embeddings", true)
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["coder.version"]);
    table.cross_attention = Some(".encoder_attn");
    let decoder = |part: &str| format!("model.decoder.{part}");
    table.add("embed.W_E", decoder("embed_tokens.weight"), Layout::AsIs);
    // Other position tables start with two unused rows.
    let computed = json.is_of(&MARIAN) || json.is_of(&PEGASUS);
    let skips = !computed && !json.is_of(&BLENDERBOT) && !json.is_of(&BLENDERBOT_SMALL);
    let layout = if skips { Layout::AfterRows { skip: 2 } } else { Layout::AsIs };
    table.add("pos_embed.W_pos", decoder("embed_positions.weight"), layout);
    if computed {
        table.optional(&["pos_embed.W_pos"]);
        table.sinusoids = Some(Sinusoids::Exact);
    }
    if config.post_embedding_norm() {
        table.norm("embed.ln", &decoder("layernorm_embedding"));
    }
    fairseq::layers(&mut table, config, "model.decoder", true);
    if !config.no_final_norm() {
        table.norm("ln_final", &decoder("layer_norm"));
    }
    let head = if json.is_of(&TROCR) { "output_projection.weight" } else { "lm_head.weight" };
    table.unembedding(head, tied(json)?);
    Ok(table)
}
