//! SAELens: `cfg.json` with `sae_weights.safetensors`, before and since 6.0; and the attention dictionaries of Kissane
//! et al., which have the same tensors but a different description.

use serde_json::{Map, Value};

use super::{Found, Lies, Parts};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::metadata::Metadata;
use crate::normalization::Normalization;
use crate::save::{WEIGHTS, WRITER};
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::Result;

/// Tolerance within which finetuned factors count as 1.
const ONE: f32 = 1e-5;

/// Keys of legacy descriptions that belong to the metadata.
const METADATA: [&str; 14] = [
    "sae_lens_version",
    "sae_lens_training_version",
    "model_name",
    "model_class_name",
    "hook_name",
    "hook_name_out",
    "hook_head_index",
    "hook_head_index_out",
    "model_from_pretrained_kwargs",
    "prepend_bos",
    "exclude_special_tokens",
    "neuronpedia_id",
    "context_size",
    "dataset_path",
];

pub(super) fn fits(found: &Found) -> bool {
    found.field("d_sae").is_some() && (found.has("W_enc") || found.has("W_dec") || is_temporal(found))
}

fn is_temporal(found: &Found) -> bool {
    found.field("architecture").and_then(Value::as_str) == Some("temporal")
}

pub(super) fn fits_kissane(found: &Found) -> bool {
    found.field("dict_size").is_some() && found.has("W_enc") && found.has("b_dec")
}

/// Reads ReLU dictionaries that read attention head outputs, with centered inputs.
pub(super) fn read_kissane(found: &Found, format: &'static str) -> Result<Dictionary> {
    let mut parts = plain(found)?;
    let layer = found.field("layer").and_then(Value::as_u64).unwrap_or(0);
    let point = found.field("act_name").and_then(Value::as_str).map_or_else(
        || format!("blocks.{layer}.attn.hook_z"),
        |name| if name.starts_with("blocks.") { name.to_string() } else { format!("blocks.{layer}.attn.{name}") },
    );
    parts.metadata = Metadata::at(point);
    parts.metadata.model = found.field("model_name").and_then(Value::as_str).map(str::to_string);
    parts.centered = true;
    parts.dictionary(found, format)
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let Some((path, Value::Object(given))) = &found.config else {
        return Err(found.wrong("it is not a JSON object").into());
    };
    let said = |key: &str| given.get(key).filter(|value| !value.is_null());
    let version = ["sae_lens_version", "sae_lens_training_version"]
        .into_iter()
        .find_map(|key| said(key).or_else(|| said("metadata")?.get(key).filter(|version| !version.is_null())));
    let major = version.and_then(|version| version.as_str()?.split('.').next()?.parse::<u32>().ok());
    let legacy = major.is_none_or(|major| major < 6);
    let cfg = if legacy { migrated(given) } else { given.clone() };
    let text = |key: &str| cfg.get(key).and_then(Value::as_str);
    let mut metadata = cfg.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    if let Some(Value::String(weights)) = metadata.shift_remove(WEIGHTS) {
        found.check_belongs(path, &weights)?;
    }
    metadata.shift_remove(WRITER);

    let name = match cfg.get("architecture") {
        None => "standard",
        Some(Value::String(name)) => name,
        Some(other) => return Err(found.wrong(format!("`architecture` is {}, not a name", excerpt(other))).into()),
    };
    check_activation(found, &cfg, name)?;
    for said in [cfg.get("seqpos_slice"), metadata.get("seqpos_slice")].into_iter().flatten() {
        check_positions(found, said)?;
    }
    let kind = name.strip_prefix("skip_").unwrap_or(name).replace("skip_", "");
    let transcoder = kind.ends_with("transcoder");
    if let "temporal" | "crosscoder" = name {
        let (path, what) = (path.clone(), format!("the architecture `{name}`"));
        return Err(FeatureError::Unsupported { path, what }.into());
    }
    let mut parts = if kind == "matching_pursuit" { tied(found)? } else { plain(found)? };
    let latents = parts.encoder.shape()[1];
    let [d_in, d_out] = [parts.encoder.shape()[0], parts.decoder.shape()[1]];
    for (key, is) in [("d_in", d_in), ("d_sae", latents), ("d_out", d_out)] {
        if let Some(said) = cfg.get(key).and_then(Value::as_u64).filter(|said| *said != is as u64) {
            return Err(found.wrong(format!("`{key}` is {said}, but the tensors have {is}")).into());
        }
    }
    parts.architecture = match &*kind {
        "standard" | "transcoder" => Architecture::Standard,
        "jumprelu" | "jumprelu_transcoder" | "batchtopk" | "matryoshka_batchtopk" => {
            Architecture::JumpRelu { thresholds: thresholds(found, latents)?, positive: true }
        }
        "topk" | "abstopk" => {
            let k = k(found, &cfg)?;
            if kind == "topk" { Architecture::TopK { k } } else { Architecture::AbsTopK { k } }
        }
        "gated" => Architecture::Gated {
            gate_bias: found.numbers("b_gate", latents)?,
            log_scale: found.numbers("r_mag", latents)?,
        },
        "matching_pursuit" => Architecture::MatchingPursuit {
            residual_threshold: cfg.get("residual_threshold").and_then(Value::as_f64).unwrap_or(1e-2) as f32,
            max_iterations: cfg.get("max_iterations").and_then(Value::as_u64).map_or(d_in, |most| most as usize),
            until_repeated: cfg.get("stop_on_duplicate_support").and_then(Value::as_bool).unwrap_or(true),
        },
        _ => {
            let (path, what) = (path.clone(), format!("the architecture `{name}`"));
            return Err(FeatureError::Unsupported { path, what }.into());
        }
    };
    // If the setting is missing, it is true for checkpoints of BatchTopK training.
    let training = found.has("topk_threshold");
    parts.by_norms = cfg.get("rescale_acts_by_decoder_norm").and_then(Value::as_bool).unwrap_or(training);
    parts.centered = !transcoder && cfg.get("apply_b_dec_to_input").and_then(Value::as_bool).unwrap_or(true);
    parts.normalization = match text("normalize_activations").unwrap_or("none") {
        "none" => Normalization::None,
        "constant_norm_rescale" => Normalization::ConstantNorm,
        "layer_norm" => Normalization::LayerNorm,
        "expected_average_only_in" => Normalization::Scale(None),
        other => {
            let (path, what) = (path.clone(), format!("`normalize_activations` `{}`", excerpt(other)));
            return Err(FeatureError::Unsupported { path, what }.into());
        }
    };
    let by_heads = text("reshape_activations") == Some("hook_z");
    if found.has("W_skip") {
        parts.skip = Some(found.matrix("W_skip", [d_in, d_out], Lies::Turned)?);
    }
    if found.has("scaling_factor") || found.has("finetuning_scaling_factor") {
        let tensor = if found.has("scaling_factor") { "scaling_factor" } else { "finetuning_scaling_factor" };
        let factors = found.numbers(tensor, latents)?;
        if factors.iter().any(|factor| (factor - 1.0).abs() > ONE) {
            if cfg.get("finetuning_scaling_factor").and_then(Value::as_bool) != Some(true) {
                return Err(found
                    .wrong(format!(
                        "`{tensor}` has values other than 1, but `finetuning_scaling_factor` is not set to true"
                    ))
                    .into());
            }
            parts.finetuned = Some(found.vector(tensor, latents)?);
        }
    }
    parts.metadata = Metadata::of_json(metadata).map_err(|reason| found.wrong(reason))?;
    parts.metadata.writes.take_if(|_| !transcoder);
    // A single head needs no flattening, even if the point is flattened by default.
    parts.by_heads = Some(by_heads && parts.metadata.head.is_none());
    parts.dictionary(found, if legacy { "SAELens before 6.0" } else { format })
}

/// Reads `W_enc [d_in, F]`, `b_enc`, `W_dec [F, d_out]`, `b_dec`.
fn plain(found: &Found) -> Result<Parts> {
    let shape @ [_, latents] = found.matrix_shape("W_enc")?;
    let [_, d_out] = found.matrix_shape("W_dec")?;
    let bias = if found.has("b_mag") { "b_mag" } else { "b_enc" };
    Ok(Parts::new(
        found.matrix("W_enc", shape, Lies::AsIs)?,
        found.vector(bias, latents)?,
        found.matrix("W_dec", [latents, d_out], Lies::AsIs)?,
        found.vector("b_dec", d_out)?,
    ))
}

/// Reads a decoder whose transpose is the encoder.
fn tied(found: &Found) -> Result<Parts> {
    let [latents, d] = found.matrix_shape("W_dec")?;
    Ok(Parts::new(
        found.matrix("W_dec", [d, latents], Lies::Turned)?,
        found.zeros(latents),
        found.matrix("W_dec", [latents, d], Lies::AsIs)?,
        found.vector("b_dec", d)?,
    ))
}

/// Thresholds, stored as they are, as logarithms (in old checkpoints), or as the single threshold at the end of
/// BatchTopK training.
fn thresholds(found: &Found, latents: usize) -> Result<Vec<f32>> {
    if found.has("threshold") {
        return found.numbers("threshold", latents);
    }
    if found.has("log_threshold") {
        return Ok(found.numbers("log_threshold", latents)?.into_iter().map(f32::exp).collect());
    }
    if found.has("topk_threshold") {
        return Ok(vec![found.number("topk_threshold")?; latents]);
    }
    found.numbers("threshold", latents)
}

/// Number of latents kept per token. In old versions, it is an argument of the activation function.
fn k(found: &Found, cfg: &Map<String, Value>) -> Result<usize> {
    let argument = cfg.get("activation_fn_kwargs").and_then(|kwargs| kwargs.get("k"));
    let number = |said: Option<&Value>| said.and_then(Value::as_u64).map(|k| k as usize);
    match (number(cfg.get("k")), number(argument)) {
        (Some(k), Some(argument)) if k != argument => {
            Err(found.wrong(format!("`k` is {k}, but `activation_fn_kwargs` has {argument}")).into())
        }
        (Some(k), _) | (None, Some(k)) => Ok(k),
        (None, None) => Err(found.wrong("`k` is missing").into()),
    }
}

/// Fails if the activation function does not match the architecture. ReLU is accepted for every architecture, because
/// SAELens writes it as the default.
fn check_activation(found: &Found, cfg: &Map<String, Value>, architecture: &str) -> Result<()> {
    let said = ["activation_fn", "activation_fn_str"].into_iter().filter_map(|key| cfg.get(key));
    match said.into_iter().find(|said| !said.is_null() && *said != "relu" && *said != architecture) {
        None => Ok(()),
        Some(said) => {
            let what = format!("the activation function {said} with the architecture `{architecture}`");
            Err(FeatureError::Unsupported { path: found.described_by().into(), what }.into())
        }
    }
}

/// Fails if the dictionary was trained only at some positions of its prompts, because hooklens would use it at all
/// positions. `said` holds the arguments of Python's `slice`.
fn check_positions(found: &Found, said: &Value) -> Result<()> {
    let none = Value::Null;
    let (start, stop, step) = match said {
        Value::Null => return Ok(()),
        Value::Array(all) => match &all[..] {
            [stop] => (&none, stop, &none),
            [start, stop] => (start, stop, &none),
            [start, stop, step] => (start, stop, step),
            _ => return Err(found.wrong(format!("`seqpos_slice` is {said}; expected one to three numbers")).into()),
        },
        _ => {
            return Err(found
                .wrong(format!("`seqpos_slice` is {said}; expected a list of one to three numbers"))
                .into());
        }
    };
    if (start.is_null() || *start == 0) && stop.is_null() && (step.is_null() || *step == 1) {
        return Ok(());
    }
    let what = format!("a dictionary trained at some positions only (`seqpos_slice` {said})");
    Err(FeatureError::Unsupported { path: found.described_by().into(), what }.into())
}

/// Converts a description from before 6.0 to the current form.
fn migrated(given: &Map<String, Value>) -> Map<String, Value> {
    let renamed = |key: &str| match key {
        "hook_point" => "hook_name".to_string(),
        "hook_point_head_index" => "hook_head_index".to_string(),
        "activation_fn_str" => "activation_fn".to_string(),
        other => other.to_string(),
    };
    let mut cfg: Map<String, Value> = given.iter().map(|(key, value)| (renamed(key), value.clone())).collect();
    let mut default = |key: &str, value: Value| {
        cfg.entry(key).or_insert(value);
    };
    default("prepend_bos", true.into());
    default("apply_b_dec_to_input", true.into());
    default("architecture", "standard".into());
    default("hook_name", "".into());
    let heads = cfg["hook_name"].as_str().is_some_and(|name| name.contains("hook_z"));
    cfg.entry("reshape_activations").or_insert(if heads { "hook_z" } else { "none" }.into());
    // Before 6.0, TopK was an activation function of the standard architecture.
    let standard = cfg["architecture"].as_str().is_none_or(|name| name == "standard");
    if standard && cfg.get("activation_fn").is_some_and(|name| name == "topk") {
        cfg.insert("architecture".to_string(), "topk".into());
    }
    let normalized = match cfg.get("normalize_activations") {
        Some(Value::Bool(true)) => "expected_average_only_in".into(),
        Some(Value::String(name)) => name.clone(),
        _ => "none".to_string(),
    };
    cfg.insert("normalize_activations".into(), normalized.into());
    let about = |key: &&str| Some((key.to_string(), cfg.get(*key)?.clone()));
    let mut metadata: Map<String, Value> = METADATA.iter().filter_map(about).collect();
    // Values under `metadata`, where current versions store them, take precedence.
    if let Some(Value::Object(said)) = given.get("metadata") {
        metadata
            .extend(said.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())));
    }
    cfg.insert("metadata".into(), metadata.into());
    cfg
}
