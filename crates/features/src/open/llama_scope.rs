//! Llama Scope: `hyperparams.json` in the parent folder of `checkpoints/final.safetensors`, or, in later releases,
//! `config.json` with the weights, which include logarithms of thresholds.

use serde_json::Value;

use super::{Found, Parts, linear_layers};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::metadata::Metadata;
use crate::normalization::Normalization;
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::Result;

pub(super) fn fits(found: &Found) -> bool {
    found.has("encoder.weight") && (found.field("jump_relu_threshold").is_some() || found.has("log_jumprelu_threshold"))
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let (encoder, bias, decoder) = linear_layers(found, ["encoder", "decoder"])?;
    let ([d_in, latents], [_, d_out]) = (encoder.shape(), decoder.shape());
    let text = |key: &str| found.field(key).and_then(Value::as_str).map(str::to_string);
    let flag = |key: &str| found.field(key).and_then(Value::as_bool) == Some(true);
    let refused = |what: String| {
        let path = found.described_by().into();
        Err(FeatureError::Unsupported { path, what }.into())
    };
    if flag("use_glu_encoder") {
        return refused("`use_glu_encoder`".into());
    }
    let (read, write) = (text("hook_point_in"), text("hook_point_out"));
    let metadata = match (&read, &write) {
        (Some(read), Some(write)) if read != write => Metadata::between(read, write),
        (Some(read), _) => Metadata::at(read),
        _ => Metadata::default(),
    };
    // Inputs and, for transcoders, outputs were scaled to a mean norm of `sqrt(width)`.
    let normalized = text("norm_activation").unwrap_or_else(|| "dataset-wise".into());
    let scales = |end: &str, point: &Option<String>, width: usize| -> Result<Option<f64>> {
        let said = found.field("dataset_average_activation_norm").and_then(|norms| norms.get(end)?.as_f64());
        let named = point.as_ref().map(|point| format!("dataset_average_activation_norm.{point}"));
        let mean = match (said, named.filter(|name| found.has(name))) {
            (Some(mean), _) => Some(mean),
            (None, Some(name)) => Some(f64::from(found.number(&name)?)),
            (None, None) => None,
        };
        Ok(mean.map(|mean| (width as f64).sqrt() / mean))
    };
    let by_dataset = normalized == "dataset-wise";
    let [factor, factor_out] = match by_dataset {
        true => [scales("in", &read, d_in)?, scales("out", &write, d_out)?],
        false => [Some(1.0); 2],
    };
    let transcoder = metadata.writes.is_some();
    let mut center = found.vector("decoder.bias", d_out)?;
    let mut finetuned = None;
    if transcoder && by_dataset {
        let Some(factor_out) = factor_out else {
            return Err(found
                .wrong("`dataset_average_activation_norm` is missing for the point that the transcoder writes")
                .into());
        };
        let back = factor_out.recip() as f32;
        center = center * back;
        finetuned = Some(found.zeros(latents) + back);
    }
    let mut parts = Parts::new(encoder, bias, decoder, center);
    parts.finetuned = finetuned;
    parts.by_norms = flag("sparsity_include_decoder_norm");
    parts.centered = flag("apply_decoder_bias_to_pre_encoder");
    if parts.centered && transcoder {
        return refused("`apply_decoder_bias_to_pre_encoder` of a transcoder".into());
    }
    parts.normalization = match &*normalized {
        "dataset-wise" => Normalization::Scale(factor.map(|factor| factor as f32)),
        "token-wise" if !transcoder => Normalization::ConstantNorm,
        "inference" | "no-norm" => Normalization::None,
        other => return refused(format!("`norm_activation` `{}`", excerpt(other))),
    };
    let single = found.field("jump_relu_threshold").and_then(Value::as_f64).unwrap_or(0.0);
    let jump = |thresholds: Vec<f32>| Architecture::JumpRelu { thresholds, positive: true };
    parts.architecture = match text("act_fn").as_deref() {
        // These thresholds are relative to scaled inputs.
        _ if found.has("log_jumprelu_threshold") => {
            jump(found.numbers("log_jumprelu_threshold", latents)?.into_iter().map(f32::exp).collect())
        }
        // This threshold is relative to unscaled inputs, or to unscaled outputs if latents are ranked by their decoder
        // norms.
        None | Some("jumprelu" | "topk") if single > 0.0 => {
            let units = if parts.by_norms { factor_out.or(factor) } else { factor };
            let units = units.ok_or_else(|| found.wrong("`dataset_average_activation_norm` is missing"))?;
            jump(vec![(single * units) as f32; latents])
        }
        None | Some("jumprelu") => jump(vec![0.0; latents]),
        Some("topk") => {
            let k = found.field("top_k").and_then(Value::as_u64).ok_or_else(|| found.wrong("`top_k` is missing"))?;
            Architecture::TopK { k: k as usize }
        }
        Some("relu") => Architecture::Standard,
        Some(other) => return refused(format!("the activation `{}`", excerpt(other))),
    };
    // Without thresholds or ranking, decoder norms have no effect.
    parts.by_norms &= !matches!(parts.architecture, Architecture::Standard);
    parts.metadata = metadata;
    parts.dictionary(found, format)
}
