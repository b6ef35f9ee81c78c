//! saprmarks' dictionary_learning: `ae.pt` with `config.json`, which names the class. Without a name, the class is
//! inferred from the tensors if possible.

use serde_json::Value;

use super::{Found, Lies, Parts, hook_names, linear_layers};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::metadata::Metadata;
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::Result;

/// The library's dictionary classes; classes that compute the same function share a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Relu,
    Gated,
    JumpRelu,
    TopK,
    BatchTopK,
    Matryoshka,
}

/// Classes by their names in `dict_class`, including old spellings.
const DICTIONARIES: [(&str, Class); 8] = [
    ("AutoEncoder", Class::Relu),
    ("AutoEncoderNew", Class::Relu),
    ("GatedAutoEncoder", Class::Gated),
    ("JumpReluAutoEncoder", Class::JumpRelu),
    ("AutoEncoderTopK", Class::TopK),
    ("BatchTopKSAE", Class::BatchTopK),
    ("MatryoshkaBatchTopKSAE", Class::Matryoshka),
    ("MatroyshkaBatchTopKSAE", Class::Matryoshka),
];

/// Classes by their names in `trainer_class`, including old ones.
const TRAINERS: [(&str, Class); 17] = [
    ("StandardTrainer", Class::Relu),
    ("StandardTrainerNew", Class::Relu),
    ("StandardTrainerAprilUpdate", Class::Relu),
    ("StandardTrainerTowardsMonosemanticity", Class::Relu),
    ("PAnnealTrainer", Class::Relu),
    ("PAnnealTrainerNew", Class::Relu),
    ("GatedSAETrainer", Class::Gated),
    ("GatedAnnealTrainer", Class::Gated),
    ("GatedTrainerNew", Class::Gated),
    ("JumpReluTrainer", Class::JumpRelu),
    ("TrainerJumpRelu", Class::JumpRelu),
    ("TopKTrainer", Class::TopK),
    ("TrainerTopK", Class::TopK),
    ("BatchTopKTrainer", Class::BatchTopK),
    ("TrainerBatchTopK", Class::BatchTopK),
    ("MatryoshkaBatchTopKTrainer", Class::Matryoshka),
    ("MatroyshkaBatchTopKTrainer", Class::Matryoshka),
];

pub(super) fn fits(found: &Found) -> bool {
    let linear = found.has("encoder.weight")
        && found.has("decoder.weight")
        && ["bias", "decoder_bias", "b_dec"].iter().any(|bias| found.has(bias));
    let plain = found.has("W_enc") && found.has("W_dec") && found.has("b_dec");
    linear || found.field("trainer").is_some() || plain && found.config.is_none() && found.has("threshold")
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let mut parts = weights(found)?;
    let latents = parts.encoder.shape()[1];
    let class = class(found, latents)?;
    let jump = |thresholds: Vec<f32>| Architecture::JumpRelu { thresholds, positive: true };
    parts.architecture = match class {
        Class::Relu => Architecture::Standard,
        Class::Gated => Architecture::Gated {
            gate_bias: found.numbers("gate_bias", latents)?,
            log_scale: found.numbers("r_mag", latents)?,
        },
        Class::JumpRelu => jump(found.numbers("threshold", latents)?),
        Class::TopK => Architecture::TopK { k: k(found)? },
        Class::BatchTopK | Class::Matryoshka if !found.has("threshold") => {
            // The library selects the largest activations of a whole batch, so a token's latents depend on other
            // tokens.
            let (path, what) = (found.path.clone(), "a BatchTopK dictionary without a threshold".to_string());
            return Err(FeatureError::Unsupported { path, what }.into());
        }
        // The threshold is -1 until training sets it; with -1, the library keeps all positive latents.
        Class::BatchTopK | Class::Matryoshka => jump(vec![found.number("threshold")?; latents]),
    };
    // JumpReLU dictionaries and those with a separate decoder bias do not center their input.
    parts.centered = class != Class::JumpRelu && !found.has("decoder.bias");
    parts.metadata = metadata(found)?;
    parts.dictionary(found, format)
}

fn trainer<'f>(found: &'f Found, key: &str) -> Option<&'f Value> {
    found.field("trainer").and_then(|trainer| trainer.get(key))
}

fn weights(found: &Found) -> Result<Parts> {
    if found.has("W_enc") {
        let shape @ [d, latents] = found.matrix_shape("W_enc")?;
        return Ok(Parts::new(
            found.matrix("W_enc", shape, Lies::AsIs)?,
            found.vector("b_enc", latents)?,
            found.matrix("W_dec", [latents, d], Lies::AsIs)?,
            found.vector("b_dec", d)?,
        ));
    }
    let (encoder, mut bias, decoder) = linear_layers(found, ["encoder", "decoder"])?;
    let [latents, d] = decoder.shape();
    let centers = ["bias", "decoder_bias", "b_dec", "decoder.bias"];
    let center = centers.iter().find(|name| found.has(name)).copied().unwrap_or("bias");
    if found.has("mag_bias") {
        bias = found.vector("mag_bias", latents)?;
    }
    Ok(Parts::new(encoder, bias, decoder, found.vector(center, d)?))
}

/// The class named in `config.json`, if it matches the tensors; without a name, the class that the tensors imply.
fn class(found: &Found, latents: usize) -> Result<Class> {
    let fitting = fitting(found, latents)?;
    let mut named: Option<(&str, &str, Class)> = None;
    for (key, classes) in [("dict_class", &DICTIONARIES[..]), ("trainer_class", &TRAINERS[..])] {
        let Some(name) = trainer(found, key).and_then(Value::as_str) else { continue };
        let Some((_, class)) = classes.iter().find(|(known, _)| *known == name) else {
            // If `dict_class` is known, an unknown trainer does not matter.
            if named.is_some() {
                continue;
            }
            let (path, what) = (found.described_by().into(), format!("`{key}` `{}`", excerpt(name)));
            return Err(FeatureError::Unsupported { path, what }.into());
        };
        if let Some((other_key, other, said)) = named
            && said != *class
        {
            return Err(found
                .wrong(format!("`{other_key}` is {}, but `{key}` is {}", excerpt(other), excerpt(name)))
                .into());
        }
        if !fitting.contains(class) {
            let fits = DICTIONARIES.iter().filter(|(_, class)| fitting.contains(class));
            let fits: Vec<&str> = fits.map(|(name, _)| *name).take(2).collect();
            return Err(found.wrong(format!("`{key}` is {name}, but the tensors fit {}", fits.join(" or "))).into());
        }
        named = Some((key, name, *class));
    }
    match (named, fitting) {
        (Some((.., class)), _) | (None, &[class]) => Ok(class),
        (None, _) => Err(found
            .wrong(
                "it is either an AutoEncoderTopK, which keeps the k largest latents of each token, or a BatchTopKSAE, \
                 which keeps those above the threshold; both save the same tensors. Set `dict_class`, or \
                 `trainer_class` under `trainer`, in the config.json next to the weights",
            )
            .into()),
    }
}

/// The classes that save these tensors.
fn fitting(found: &Found, latents: usize) -> Result<&'static [Class]> {
    let has = |names: &[&str]| names.iter().any(|name| found.has(name));
    let one = match found.has("threshold") {
        true => {
            let shape = found.shape("threshold")?;
            shape.is_empty() || latents != 1 && shape.iter().product::<usize>() == 1
        }
        false => false,
    };
    Ok(if has(&["gate_bias"]) {
        &[Class::Gated]
    } else if has(&["W_enc"]) {
        if one || has(&["k", "group_sizes", "group_indices"]) { &[Class::Matryoshka] } else { &[Class::JumpRelu] }
    // Old versions of these two classes save neither `k` nor `threshold`.
    } else if has(&["k", "threshold"]) || !has(&["bias", "decoder_bias", "decoder.bias"]) {
        &[Class::TopK, Class::BatchTopK]
    } else {
        &[Class::Relu]
    })
}

/// Number of latents kept per token.
fn k(found: &Found) -> Result<usize> {
    let said = trainer(found, "k").and_then(Value::as_u64).map(|k| k as usize);
    let own = if found.has("k") { found.integer("k")? } else { None };
    match (own, said) {
        (Some(own), Some(said)) if own != said => {
            Err(found.wrong(format!("`k` is {said} here, but the tensor `k` in the weights is {own}")).into())
        }
        (Some(k), _) | (None, Some(k)) => Ok(k),
        (None, None) => Err(found.wrong("`k` is missing").into()),
    }
}

/// Metadata from `config.json`.
fn metadata(found: &Found) -> Result<Metadata> {
    let trainer = |key: &str| trainer(found, key);
    let module = trainer("submodule_name").and_then(Value::as_str).map(str::to_string);
    let layer = trainer("layer").and_then(Value::as_u64);
    let module = module.filter(|module| module.contains('.')).or_else(|| {
        let kind = trainer("submodule_name").and_then(Value::as_str).unwrap_or_default();
        let side = match kind {
            "mlp" | "mlp_out" => ".mlp",
            "att" | "attn" | "attention" | "attn_out" => ".attn",
            _ => "",
        };
        layer.map(|layer| format!("layers.{layer}{side}"))
    });
    let side = found.field("buffer").and_then(|buffer| buffer.get("io")?.as_str()).unwrap_or("out");
    let mut metadata = match (module, side) {
        (None, _) => Metadata::default(),
        (Some(module), "in") => hook_names::tensor_of(&format!("{module}.input")).map(Metadata::at).unwrap_or_default(),
        // A transcoder from the module's input to its output.
        (Some(module), "in_and_out") => hook_names::of_module(&module, true),
        (Some(module), _) => hook_names::of_module(&module, false),
    };
    if side == "in_and_out" && !metadata.is_transcoder() {
        let (path, what) = (found.described_by().into(), "a transcoder of a module other than an MLP".to_string());
        return Err(FeatureError::Unsupported { path, what }.into());
    }
    metadata.model = trainer("lm_name").and_then(Value::as_str).map(str::to_string);
    Ok(metadata)
}
