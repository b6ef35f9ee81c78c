//! T5 1.0 and 1.1, mT5, Flan-T5 and UMT5, as encoder-decoders and as encoders alone.

use super::Family;
use super::bart::{start_token, token_rules};
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, NormKind, Positional};
use hooklens_model::encoder::{EncoderConfig, RelativePositions};
use hooklens_model::encoder_decoder::{EncoderDecoderConfig, StackAttention, StackPositions};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family<EncoderDecoderConfig> = Family {
    name: "t5",
    architectures: &["T5ForConditionalGeneration", "MT5ForConditionalGeneration", "T5WithLMHeadModel"],
    prefix: "",
    config,
    weights,
};

/// T5 with separate position biases in each layer.
pub(super) static UMT5: Family<EncoderDecoderConfig> =
    Family { name: "umt5", architectures: &["UMT5ForConditionalGeneration"], prefix: "", config, weights };

pub(super) static ENCODER: Family<EncoderConfig> = Family {
    name: "t5-encoder",
    architectures: &["T5EncoderModel", "MT5EncoderModel"],
    prefix: "",
    config: encoder_config,
    weights: encoder_weights,
};

pub(super) static UMT5_ENCODER: Family<EncoderConfig> = Family {
    name: "umt5-encoder",
    architectures: &["UMT5EncoderModel"],
    prefix: "",
    config: encoder_config,
    weights: encoder_weights,
};

/// Whether transformers 5 wrote the file. In such files, `tie_word_embeddings` is always true, so only the weights show
/// whether the unembedding is tied. A separate setting, which mT5 lacks, determines whether the unembedding's input is
/// scaled.
fn is_newer(json: &HfConfig<'_>) -> Result<bool, ConfigError> {
    let version = json
        .maybe_text("transformers_version")?
        .unwrap_or("0")
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    Ok(json.has("scale_decoder_outputs") || version.is_some_and(|major| major >= 5))
}

/// Whether the architecture is UMT5.
fn is_umt5(architecture: &str) -> bool {
    architecture.starts_with("UMT5") || architecture == UMT5.name
}

/// Default MLP type, and whether the unembedding is tied by default.
fn defaults(json: &HfConfig<'_>) -> (&'static str, bool) {
    match json.architecture() {
        kind if kind.starts_with("MT5") => ("gated-gelu", false),
        kind if is_umt5(kind) => ("gated-gelu", true),
        _ => ("relu", true),
    }
}

/// Whether the MLP is gated, and its activation function.
fn mlp(json: &HfConfig<'_>) -> Result<(bool, ActivationFn), ConfigError> {
    Ok(match json.text("feed_forward_proj", defaults(json).0)? {
        // The first 1.1 files specify `gelu`, but the models use the tanh approximation.
        "gated-gelu" => (true, ActivationFn::GeluNew),
        name => match name.strip_prefix("gated-") {
            Some(name) => (true, name.parse::<ActivationFn>()?),
            None => (false, name.parse::<ActivationFn>()?),
        },
    })
}

/// Number of distance buckets, and the distance from which all positions share a bucket.
fn buckets(json: &HfConfig<'_>) -> Result<(usize, usize), ConfigError> {
    let count = json.size_or("relative_attention_num_buckets", 32)?;
    Ok((count, json.size_or("relative_attention_max_distance", 128)?))
}

fn config(json: &HfConfig<'_>) -> Result<EncoderDecoderConfig, ConfigError> {
    if !json.flag("is_encoder_decoder", true)? {
        return Err(json.unsupported("is_encoder_decoder"));
    }
    let ((gated, function), tied) = (mlp(json)?, defaults(json).1);
    let (buckets, max_distance) = buckets(json)?;
    let n_encoder_layers = json.layers("num_layers")?;
    let d_model = json.size("d_model")?;
    let pads = json.maybe_size("pad_token_id")?.unwrap_or(0);
    // In older files, the unembedding's input is scaled if the unembedding is tied.
    let scaled = match is_newer(json)? {
        true => json.flag("scale_decoder_outputs", false)?,
        false => json.flag("tie_word_embeddings", tied)?,
    };
    let (n_heads, d_head, d_mlp) = (json.size("num_heads")?, json.size("d_kv")?, json.size("d_ff")?);
    let d_vocab = json.size("vocab_size")?;
    Ok(EncoderDecoderConfig {
        n_encoder_layers,
        n_decoder_layers: match json.get("num_decoder_layers") {
            Some(_) => json.layers("num_decoder_layers")?,
            None => n_encoder_layers,
        },
        d_model,
        d_decoder_model: d_model,
        n_heads,
        d_head,
        d_mlp,
        n_decoder_heads: n_heads,
        d_decoder_head: d_head,
        d_decoder_mlp: d_mlp,
        d_vocab,
        d_decoder_vocab: d_vocab,
        shared_embed: true,
        embed_scale: None,
        decoder_embed_scale: None,
        positions: StackPositions::Distances { buckets, max_distance, each_layer: is_umt5(json.architecture()) },
        embed_norm: false,
        decoder_tokens_normed: false,
        norm: NormKind::Rms,
        norm_after: false,
        post_norms: false,
        eps: json.number("layer_norm_epsilon", 1e-6)?,
        attention: StackAttention::plain(n_heads, 1.0),
        decoder_attention: StackAttention::plain(n_heads, 1.0),
        activation: function,
        gated_mlp: gated,
        output_scale: scaled.then(|| (d_model as f64).powf(-0.5)),
        output_logits_soft_cap: None,
        decoder_start_token: start_token(json, pads)?,
        token_rules: token_rules(json)?,
    })
}

/// Configuration of a T5 encoder whose files contain no decoder.
fn encoder_config(json: &HfConfig<'_>) -> Result<EncoderConfig, ConfigError> {
    let ((gated_mlp, activation), (count, max_distance)) = (mlp(json)?, buckets(json)?);
    let (d_model, n_heads) = (json.size("d_model")?, json.size("num_heads")?);
    // Relative positions have no limit; this is the length used in training.
    let n_ctx = json.size_or("n_positions", 512)?;
    Ok(EncoderConfig {
        d_head: json.size("d_kv")?,
        attn_scale: 1.0,
        d_mlp: json.size("d_ff")?,
        norm: NormKind::Rms,
        eps: json.number("layer_norm_epsilon", 1e-6)?,
        activation,
        gated_mlp,
        token_types: 0,
        embed_norm: false,
        pre_norms: true,
        positional: Positional::None,
        relative: Some(RelativePositions::Buckets { count, max_distance, each_layer: is_umt5(json.architecture()) }),
        ..EncoderConfig::new(json.layers("num_layers")?, d_model, n_heads, json.size("vocab_size")?, n_ctx)
    })
}

fn encoder_weights(config: &EncoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = table();
    // Some files contain the shared embedding only under its second name.
    table.aliases = &[("shared.weight", "encoder.embed_tokens.weight")];
    stack(&mut table, "encoder", "blocks", config.n_layers, config.gated_mlp);
    match is_umt5(json.architecture()) {
        true => (0..config.n_layers).for_each(|layer| bias(&mut table, "encoder", "blocks", layer)),
        false => table.add("relative.W", bias_of("encoder", 0), Layout::AsIs),
    }
    table.add("ln_final.w", "encoder.final_layer_norm.weight", Layout::AsIs);
    Ok(table)
}

fn weights(config: &EncoderDecoderConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = table();
    for (name, layers) in [("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)] {
        stack(&mut table, name, name, layers, config.gated_mlp);
        let biased = if is_umt5(json.architecture()) { layers } else { 1 };
        (0..biased).for_each(|layer| bias(&mut table, name, name, layer));
        table.add(format!("{name}_final_ln.w"), format!("{name}.final_layer_norm.weight"), Layout::AsIs);
    }
    match is_newer(json)? {
        true => table.unembedding_if_there("lm_head.weight"),
        false => table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", defaults(json).1)?),
    }
    Ok(table)
}

fn table() -> WeightTable {
    let mut table = WeightTable::new("", &["embed_tokens.weight"]);
    table.add("embed.W_E", "shared.weight", Layout::AsIs);
    table
}

fn bias_of(stack: &str, layer: usize) -> String {
    format!("{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight")
}

/// Adds a layer's own position biases.
fn bias(table: &mut WeightTable, stack: &str, own: &str, layer: usize) {
    table.add(format!("{own}.{layer}.attn.rel_pos_bias"), bias_of(stack, layer), Layout::AsIs);
}

/// Adds the blocks of one stack, which is called `own` in the table.
fn stack(table: &mut WeightTable, stack: &str, own: &str, layers: usize, gated: bool) {
    let decodes = stack == "decoder";
    for layer in 0..layers {
        let from = |part: &str| format!("{stack}.block.{layer}.layer.{part}");
        let to = |part: &str| format!("{own}.{layer}.{part}");
        let mut attention = |to: String, from: String| {
            for letter in ["Q", "K", "V", "O"] {
                let name = format!("{from}.{}", letter.to_lowercase());
                table.linear(&format!("{to}.W_{letter}"), &name, false);
            }
        };
        attention(to("attn"), from("0.SelfAttention"));
        if decodes {
            attention(to("cross_attn"), from("1.EncDecAttention"));
        }
        let last = if decodes { 2 } else { 1 };
        for norm in 0..=last {
            let name = from(&format!("{norm}.layer_norm.weight"));
            table.add(to(&format!("ln{}.w", norm + 1)), name, Layout::AsIs);
        }
        let mlp = |part: &str| from(&format!("{last}.DenseReluDense.{part}"));
        if gated {
            table.linear(&to("mlp.W_gate"), &mlp("wi_0"), false);
            table.linear(&to("mlp.W_in"), &mlp("wi_1"), false);
        } else {
            table.linear(&to("mlp.W_in"), &mlp("wi"), false);
        }
        table.linear(&to("mlp.W_out"), &mlp("wo"), false);
    }
}
