//! Model families. A family converts a `config.json` to a [`TransformerConfig`] and maps weights to tensors in the
//! files. Each one is a file in this folder and a line in [`FAMILIES`].

mod afmoe;
mod albert;
mod apertus;
mod arcee;
mod baichuan;
mod bailing_moe;
mod bart;
mod bart_decoder;
mod bert;
mod biogpt;
mod bloom;
mod codegen;
mod cohere;
mod ctrl;
mod dbrx;
mod deberta;
mod deberta_v2;
mod deci_lm;
mod deepseek;
mod distilbert;
mod dots1;
mod electra;
mod ernie4_5_moe;
mod esm;
mod exaone;
mod fairseq;
mod falcon;
mod falcon_h1;
mod flex_olmo;
mod gemma;
mod gemma4;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_neox_japanese;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_hybrid;
mod granitemoe;
mod helium;
mod hf_config;
mod hf_olmo;
mod hooked_transformer;
mod hunyuan;
mod hunyuan_moe;
mod hy_v3;
mod internlm;
mod jais;
mod jetmoe;
mod kormo;
mod lfm2;
mod llama;
mod llama2c;
mod llama4;
mod llama_like;
mod mamba2;
mod mellum;
mod minicpm;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mixtral;
mod mixtures;
mod modernbert;
mod mpnet;
mod mpt;
mod nanogpt;
mod nemotron;
mod nemotron_h;
mod nested;
mod nomic_bert;
mod olmo;
mod olmo2;
mod olmoe;
mod open_sci;
mod openai_gpt;
mod opt;
mod orion;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen1;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod rita;
mod roberta;
mod rope;
mod santacoder;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod t5gemma;
mod xlm_roberta_xl;

use serde_json::Value;

use crate::weight_files::WeightTable;
use hf_config::HfConfig;
use hooklens_io::excerpt::excerpt;
use hooklens_model::config::TransformerConfig;
use hooklens_model::encoder::EncoderConfig;
use hooklens_model::encoder_decoder::EncoderDecoderConfig;
use hooklens_model::error::ConfigError;

pub(crate) use hooked_transformer::{to_json as native_json, weights as native_weights};
pub(crate) use nested::{place, text_part};

/// A family of models with configuration type `C`.
#[derive(Debug)]
pub(crate) struct Family<C: 'static = TransformerConfig> {
    /// Name of the family.
    pub(crate) name: &'static str,
    /// Values of `architectures` in the `config.json` of its models.
    pub(crate) architectures: &'static [&'static str],
    /// Prefix of tensor names that some files omit.
    pub(crate) prefix: &'static str,
    config: fn(&HfConfig<'_>) -> Result<C, ConfigError>,
    weights: fn(&C, &HfConfig<'_>) -> Result<WeightTable, ConfigError>,
}

impl<C> Family<C> {
    /// Maps each weight to its location in the files.
    pub(crate) fn weights_table(&self, config: &C, json: &Value) -> Result<WeightTable, ConfigError> {
        let mut table = (self.weights)(config, &HfConfig::new(self.name, json))?;
        table.prefix = self.prefix;
        Ok(table)
    }
}

/// All families of decoders, in the order that error messages list them.
static FAMILIES: &[&Family] = &[
    &afmoe::FAMILY,
    &apertus::FAMILY,
    &arcee::FAMILY,
    &baichuan::FAMILY,
    &bailing_moe::ONE,
    &bailing_moe::SARVAM,
    &bailing_moe::TWO,
    &bart_decoder::BART,
    &bart_decoder::BLENDERBOT,
    &bart_decoder::BLENDERBOT_SMALL,
    &bart_decoder::MARIAN,
    &bart_decoder::MBART,
    &bart_decoder::PEGASUS,
    &bart_decoder::PLBART,
    &bart_decoder::TROCR,
    &biogpt::BIOGPT,
    &biogpt::XGLM,
    &bloom::FAMILY,
    &codegen::CODEGEN,
    &codegen::MOSS,
    &codegen::PROGEN,
    &codegen::PROGEN_2,
    &cohere::ONE,
    &cohere::MIXTURE,
    &cohere::TWO,
    &ctrl::FAMILY,
    &dbrx::FAMILY,
    &deci_lm::FAMILY,
    &deepseek::V1,
    &deepseek::V2,
    &deepseek::V3,
    &deepseek::V3_2,
    &deepseek::SARVAM,
    &deepseek::YOUTU,
    &dots1::FAMILY,
    &ernie4_5_moe::FAMILY,
    &exaone::FOUR,
    &exaone::THREE,
    &falcon::FAMILY,
    &falcon_h1::FAMILY,
    &flex_olmo::FAMILY,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::VAULT,
    &gemma4::FAMILY,
    &gemma4::UNIFIED,
    &deepseek::GLM_LITE,
    &deepseek::GLM_SPARSE,
    &glm4_moe::FAMILY,
    &glm::GLM,
    &glm::GLM4,
    &gpt2::FAMILY,
    &gpt_bigcode::FAMILY,
    &gpt_neo::FAMILY,
    &gpt_neox::FAMILY,
    &gpt_neox_japanese::FAMILY,
    &gpt_oss::FAMILY,
    &gptj::FAMILY,
    &granite::FAMILY,
    &granite_hybrid::FAMILY,
    &granitemoe::FAMILY,
    &granitemoe::SHARED,
    &helium::ERNIE,
    &helium::HELIUM,
    &hf_olmo::FAMILY,
    &hunyuan::FAMILY,
    &hunyuan_moe::FAMILY,
    &hy_v3::FAMILY,
    &internlm::ONE,
    &internlm::THREE,
    &internlm::TWO,
    &jais::FAMILY,
    &jetmoe::FAMILY,
    &kormo::FAMILY,
    &lfm2::DENSE,
    &lfm2::MIXTURE,
    &llama2c::FAMILY,
    &llama4::FAMILY,
    &llama::FAMILY,
    &mamba2::FAMILY,
    &mellum::FAMILY,
    &minicpm::FAMILY,
    &minimax_m2::FAMILY,
    &ministral3::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &mpt::FAMILY,
    &nanogpt::FAMILY,
    &nemotron::FAMILY,
    &nemotron_h::FAMILY,
    &olmo2::FAMILY,
    &olmo::FAMILY,
    &olmoe::FAMILY,
    &open_sci::FAMILY,
    &openai_gpt::FAMILY,
    &opt::FAMILY,
    &orion::FAMILY,
    &persimmon::FAMILY,
    &phi3::FAMILY,
    &phi3::MULTIMODAL,
    &phi::FAMILY,
    &phimoe::FAMILY,
    &qwen1::FAMILY,
    &qwen2::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_moe::VL,
    &qwen3_next::NEXT,
    &qwen3_next::THREE_FIVE,
    &qwen3_next::THREE_FIVE_MOE,
    &rita::FAMILY,
    &santacoder::FAMILY,
    &seed_oss::FAMILY,
    &smollm3::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
    &hooked_transformer::FAMILY,
];

/// Architecture named in a `config.json`.
pub(crate) fn architecture(json: &Value) -> Result<&str, ConfigError> {
    let malformed = |reason: &str| ConfigError::Malformed { reason: reason.to_string() };
    let listed = json.get("architectures").and_then(|a| a.as_array()).and_then(|a| a.first()).and_then(Value::as_str);
    if listed.is_none() && json.get("model_type").is_none() && json.get("d_model").is_some() {
        // The toy models by TransformerLens's authors name no architecture.
        return Ok("HookedTransformer");
    }
    // Checkpoints of base models name only their model type.
    listed.or_else(|| json.get("model_type").and_then(Value::as_str)).ok_or_else(|| {
        if json.is_object() {
            malformed("it has neither `architectures` nor `model_type`")
        } else {
            malformed("it is not a JSON object")
        }
    })
}

/// Whether a family supports this architecture directly.
fn is_known(json: &Value, given: &str) -> bool {
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or(given);
    let names = |name: &str, listed: &[&str]| listed.contains(&given) || (name == model_type && given == model_type);
    FAMILIES.iter().any(|family| names(family.name, family.architectures))
        || ENCODERS.iter().any(|family| names(family.name, family.architectures))
        || ENCODER_DECODERS.iter().any(|family| names(family.name, family.architectures))
}

/// Whether the architecture is a base model without a head.
pub(crate) fn is_base(architecture: &str) -> bool {
    let with_head = ["LMHeadModel", "ChatModel"].iter().any(|end| architecture.ends_with(end));
    architecture.ends_with("Model") && !with_head || !architecture.contains(|letter: char| letter.is_ascii_uppercase())
}

/// All families of encoders.
static ENCODERS: &[&Family<EncoderConfig>] = &[
    &albert::FAMILY,
    &bert::FAMILY,
    &deberta::FAMILY,
    &deberta_v2::FAMILY,
    &distilbert::FAMILY,
    &electra::FAMILY,
    &esm::FAMILY,
    &modernbert::FAMILY,
    &mpnet::FAMILY,
    &nomic_bert::FAMILY,
    &roberta::FAMILY,
    &t5::ENCODER,
    &t5::UMT5_ENCODER,
    &xlm_roberta_xl::FAMILY,
];

/// All families of encoder-decoders.
static ENCODER_DECODERS: &[&Family<EncoderDecoderConfig>] = &[
    &bart::BART,
    &bart::BLENDERBOT,
    &bart::BLENDERBOT_SMALL,
    &bart::M2M_100,
    &bart::MARIAN,
    &bart::MBART,
    &bart::PEGASUS,
    &t5::FAMILY,
    &t5::UMT5,
    &t5gemma::FAMILY,
];

/// All families, with kind, name and `architectures`.
pub fn listed() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    let decoders = FAMILIES.iter().map(|family| ("decoder", family.name, family.architectures));
    let encoders = ENCODERS.iter().map(|family| ("encoder", family.name, family.architectures));
    let both = ENCODER_DECODERS.iter().map(|family| ("encoder-decoder", family.name, family.architectures));
    decoders.chain(nested::listed()).chain(encoders).chain(both)
}

/// A family, with the configuration it read from a `config.json`.
#[derive(Debug)]
pub(crate) enum Described {
    Decoder(&'static Family, Box<TransformerConfig>),
    Encoder(&'static Family<EncoderConfig>, Box<EncoderConfig>),
    EncoderDecoder(&'static Family<EncoderDecoderConfig>, Box<EncoderDecoderConfig>),
}

impl Described {
    /// Name of the family.
    pub(crate) fn family(&self) -> &'static str {
        match self {
            Described::Decoder(family, _) => family.name,
            Described::Encoder(family, _) => family.name,
            Described::EncoderDecoder(family, _) => family.name,
        }
    }

    /// Applies token settings of `generation_config.json` to an encoder-decoder.
    pub(crate) fn set_generation(&mut self, json: &Value) -> Result<(), ConfigError> {
        match self {
            Described::EncoderDecoder(family, config) => bart::generation(config, &HfConfig::new(family.name, json)),
            _ => Ok(()),
        }
    }

    /// Maps each weight to its location in the files.
    pub(crate) fn weights_table(&self, json: &Value) -> Result<WeightTable, ConfigError> {
        match self {
            Described::Decoder(family, config) => {
                let mut table = family.weights_table(config, json)?;
                if config.d_vocab_out() == 0 {
                    for weight in ["unembed.W_U", "unembed.b_U", "unembed.projection"] {
                        table.remove(weight);
                    }
                }
                Ok(table)
            }
            Described::Encoder(family, config) => family.weights_table(config, json),
            Described::EncoderDecoder(family, config) => family.weights_table(config, json),
        }
    }
}

/// Finds the family of the architecture `given`, or of the model type if the file names no architecture, and reads and
/// validates the configuration.
fn find<C>(
    families: &'static [&'static Family<C>],
    given: &str,
    json: &Value,
    validate: impl FnOnce(&C) -> Result<(), ConfigError>,
) -> Result<Option<(&'static Family<C>, C)>, ConfigError> {
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or(given);
    // Transformers 5 converts these models to an architecture of another family, but keeps the model type.
    let own = [&exaone::THREE, &bailing_moe::SARVAM, &deepseek::SARVAM].into_iter().find(|own| own.name == model_type);
    let given = own.map_or(given, |own| own.architectures[usize::from(is_base(given))]);
    let by_architecture = families.iter().find(|f| f.architectures.contains(&given));
    let by_type = || families.iter().find(|f| f.name == model_type && given == model_type);
    let Some(family) = by_architecture.or_else(by_type) else { return Ok(None) };
    let config = (family.config)(&HfConfig::new(family.name, json))?;
    validate(&config)?;
    Ok(Some((family, config)))
}

/// Determines the family and configuration of a `config.json`.
///
/// # Errors
/// [`ConfigError`] for an unsupported architecture, or a missing or contradictory field.
pub(crate) fn read(json: &Value) -> Result<Described, ConfigError> {
    let given = architecture(json)?;
    if let Some((family, config)) = find(FAMILIES, given, json, TransformerConfig::validate)? {
        return Ok(Described::Decoder(family, Box::new(config)));
    }
    if let Some((family, config)) = find(ENCODERS, given, json, EncoderConfig::validate)? {
        return Ok(Described::Encoder(family, Box::new(config)));
    }
    if let Some((family, config)) = find(ENCODER_DECODERS, given, json, EncoderDecoderConfig::validate)? {
        return Ok(Described::EncoderDecoder(family, Box::new(config)));
    }
    let decoders = FAMILIES.iter().map(|f| f.architectures[0]);
    let others = ENCODERS.iter().map(|f| f.architectures[0]).chain(ENCODER_DECODERS.iter().map(|f| f.architectures[0]));
    Err(ConfigError::UnknownArchitecture { given: excerpt(given), supported: decoders.chain(others).collect() })
}

/// Settings that do not affect the computation, or that [`as_llama`] reads.
const LLAMA_FIELDS: &[&str] = &[
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_dropout",
    "hidden_size",
    "id2label",
    "initializer_range",
    "intermediate_size",
    "label2id",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "partial_rotary_factor",
    "resid_pdrop",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "vocab_size",
    "_name_or_path",
    "_attn_implementation_autoset",
];

/// Settings that have no effect in a family's models, with the reason.
pub(crate) fn ignored(family: &'static str, json: &Value) -> Result<Vec<String>, ConfigError> {
    let json = HfConfig::new(family, json);
    if json.is_of(&gemma::GEMMA3) {
        return gemma::ignored(&json);
    }
    if json.is_of(&mpt::FAMILY) {
        return mpt::ignored(&json);
    }
    bart_decoder::ignored(&json)
}

/// Reads a configuration as a Llama configuration if it has the necessary settings. Returns the model, and the settings
/// that Llama lacks.
pub(crate) fn as_llama(json: &Value) -> Option<(Described, Vec<String>)> {
    let config = (llama::FAMILY.config)(&HfConfig::new(llama::FAMILY.name, json)).ok()?;
    config.validate().ok()?;
    let off = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    // These models rotate adjacent pairs without a setting that requests it; all else is as in Llama.
    let kind = json.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let turned = ["ernie4_5", "helium"]
        .contains(&kind)
        .then(|| format!("model_type = {kind}, which applies rotary embeddings to adjacent pairs"));
    let fields = json.as_object()?.iter();
    let strange = fields.filter(|(field, value)| !LLAMA_FIELDS.contains(&field.as_str()) && !off(value));
    let strange = strange.map(|(field, value)| format!("{field} = {value}"));
    let rotation = json.get("rope_parameters").and_then(Value::as_object).into_iter().flatten();
    let rotation = rotation.filter(|(field, value)| !rope::FIELDS.contains(&field.as_str()) && !off(value));
    let rotation = rotation.map(|(field, value)| format!("rope_parameters.{field} = {value}"));
    let strange = turned.into_iter().chain(strange).chain(rotation).collect();
    Some((Described::Decoder(&llama::FAMILY, Box::new(config)), strange))
}
