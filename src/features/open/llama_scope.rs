//! Llama Scope: `hyperparams.json` above `checkpoints/final.safetensors`, or for later ones `config.json` beside the
//! weights with logarithms of thresholds.

use serde_json::Value;

use super::{Found, Parts, linear_layers};
use crate::error::{FeatureError, Result};
use crate::features::architecture::Architecture;
use crate::features::dictionary::Dictionary;
use crate::features::metadata::Metadata;
use crate::features::normalization::Normalization;

pub(super) fn fits(found: &Found) -> bool {
    found.has("encoder.weight") && (found.field("jump_relu_threshold").is_some() || found.has("log_jumprelu_threshold"))
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let (encoder, bias, decoder) = linear_layers(found, ["encoder", "decoder"])?;
    let ([d_in, latents], [_, d_out]) = (encoder.shape(), decoder.shape());
    let mut parts = Parts::new(encoder, bias, decoder, found.vector("decoder.bias", d_out)?);
    if found.field("sparsity_include_decoder_norm").and_then(Value::as_bool) == Some(true) {
        // Thresholds are then compared with products of pre-activations and norms.
        let (path, what) = (found.described_by().into(), "`sparsity_include_decoder_norm`".to_string());
        return Err(FeatureError::Unsupported { path, what }.into());
    }
    let said = found.field("dataset_average_activation_norm").and_then(|norms| norms.get("in")?.as_f64());
    let mean = match said {
        Some(mean) => Some(mean),
        None => found.number_beginning("dataset_average_activation_norm.")?.map(f64::from),
    };
    let factor = mean.map(|mean| (d_in as f64).sqrt() / mean);
    parts.normalization = Normalization::Scale(factor.map(|factor| factor as f32));
    let thresholds = if found.has("log_jumprelu_threshold") {
        // These are in the units of scaled inputs.
        found.numbers("log_jumprelu_threshold", latents)?.into_iter().map(f32::exp).collect()
    } else {
        let threshold = found.field("jump_relu_threshold").and_then(Value::as_f64);
        let threshold = threshold.ok_or_else(|| found.wrong("`jump_relu_threshold` is missing"))?;
        vec![(threshold * factor.unwrap_or(1.0)) as f32; latents]
    };
    parts.architecture = Architecture::JumpRelu { thresholds, positive: true };
    let text = |key: &str| found.field(key).and_then(Value::as_str).map(str::to_string);
    let (read, write) = (text("hook_point_in"), text("hook_point_out"));
    parts.metadata = match (read, write) {
        (Some(read), Some(write)) if read != write => Metadata::between(read, write),
        (Some(read), _) => Metadata::at(read),
        _ => Metadata::default(),
    };
    parts.dictionary(found, format)
}
