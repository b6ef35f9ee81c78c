//! saprmarks' dictionary_learning: `ae.pt` beside `config.json`. The class is told by the tensors.

use serde_json::Value;

use super::{Found, Lies, Parts, hook_names, linear_layers};
use crate::error::{FeatureError, Result};
use crate::features::architecture::Architecture;
use crate::features::dictionary::Dictionary;
use crate::features::metadata::Metadata;

pub(super) fn fits(found: &Found) -> bool {
    let linear = found.has("encoder.weight")
        && found.has("decoder.weight")
        && ["bias", "decoder_bias", "b_dec"].iter().any(|bias| found.has(bias));
    let plain = found.has("W_enc") && found.has("W_dec") && found.has("b_dec");
    linear || found.field("trainer").is_some() || plain && found.config.is_none() && found.has("threshold")
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let trainer = |key: &str| found.field("trainer").and_then(|trainer| trainer.get(key));
    let plain = found.has("W_enc");
    let mut parts = match plain {
        true => {
            let shape @ [d, latents] = found.matrix_shape("W_enc")?;
            Parts::new(
                found.matrix("W_enc", shape, Lies::AsIs)?,
                found.vector("b_enc", latents)?,
                found.matrix("W_dec", [latents, d], Lies::AsIs)?,
                found.vector("b_dec", d)?,
            )
        }
        false => {
            let (encoder, mut bias, decoder) = linear_layers(found, ["encoder", "decoder"])?;
            let [latents, d] = decoder.shape();
            let centers = ["bias", "decoder_bias", "b_dec", "decoder.bias"];
            let center = centers.iter().find(|name| found.has(name)).copied().unwrap_or("bias");
            if found.has("mag_bias") {
                bias = found.vector("mag_bias", latents)?;
            }
            Parts::new(encoder, bias, decoder, found.vector(center, d)?)
        }
    };
    let latents = parts.encoder.shape()[1];
    let class = trainer("dict_class").and_then(Value::as_str).unwrap_or_default();
    let threshold = found.has("threshold").then(|| found.shape("threshold").map(<[usize]>::to_vec)).transpose()?;
    let jump = |thresholds: Vec<f32>| Architecture::JumpRelu { thresholds, positive: true };
    parts.architecture = if found.has("gate_bias") {
        Architecture::Gated {
            gate_bias: found.numbers("gate_bias", latents)?,
            log_scale: found.numbers("r_mag", latents)?,
        }
    } else if let Some(shape) = threshold {
        let one = shape.iter().product::<usize>() == 1 && latents != 1;
        let per_token = class == "AutoEncoderTopK";
        match one {
            false => jump(found.numbers("threshold", latents)?),
            // Until training has set it, it is -1.
            true => match found.number("threshold")? {
                set if set >= 0.0 && !per_token => jump(vec![set; latents]),
                _ => {
                    let k = found.integer("k")?.or_else(|| trainer("k")?.as_u64().map(|k| k as usize));
                    Architecture::TopK { k: k.ok_or_else(|| found.wrong("`k` is missing"))? }
                }
            },
        }
    } else if let Some(k) = found.integer("k")? {
        Architecture::TopK { k }
    } else {
        Architecture::Standard
    };
    // JumpReLU dictionaries and those with a bias of the decoder's own take their input as it is.
    let jumps = class == "JumpReluAutoEncoder" || plain && !found.has("k") && !found.has("group_sizes");
    parts.centered = !jumps && !found.has("decoder.bias");
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
    parts.metadata = match (module, side) {
        (None, _) => Metadata::default(),
        (Some(module), "in") => hook_names::tensor_of(&format!("{module}.input")).map(Metadata::at).unwrap_or_default(),
        // What the module makes of its input.
        (Some(module), "in_and_out") => hook_names::of_module(&module, true),
        (Some(module), _) => hook_names::of_module(&module, false),
    };
    if side == "in_and_out" && !parts.metadata.is_transcoder() {
        let (path, what) = (found.described_by().into(), "a transcoder of a module other than an MLP".to_string());
        return Err(FeatureError::Unsupported { path, what }.into());
    }
    parts.metadata.model = trainer("lm_name").and_then(Value::as_str).map(str::to_string);
    parts.dictionary(found, format)
}
