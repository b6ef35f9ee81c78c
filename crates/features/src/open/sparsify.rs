//! EleutherAI's sparsify: `cfg.json` with `sae.safetensors`, in a folder named after the Hugging Face module.

use serde_json::Value;

use super::{Found, Lies, Parts, hook_names};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::Result;

pub(super) fn fits(found: &Found) -> bool {
    found.has("encoder.weight") && found.has("W_dec") && found.has("b_dec")
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let [latents, d_in] = found.matrix_shape("encoder.weight")?;
    let [_, d_out] = found.matrix_shape("W_dec")?;
    let bias = match found.has("encoder.bias") {
        true => found.vector("encoder.bias", latents)?,
        false => found.zeros(latents),
    };
    let mut parts = Parts::new(
        found.matrix("encoder.weight", [d_in, latents], Lies::Turned)?,
        bias,
        found.matrix("W_dec", [latents, d_out], Lies::AsIs)?,
        found.vector("b_dec", d_out)?,
    );
    let flag = |key: &str| found.field(key).and_then(Value::as_bool).unwrap_or(false);
    let k = found.field("k").and_then(Value::as_u64).ok_or_else(|| found.wrong("`k` is missing"))? as usize;
    if flag("signed") {
        let (path, what) = (found.described_by().into(), "`signed`".to_string());
        return Err(FeatureError::Unsupported { path, what }.into());
    }
    parts.architecture = match found.field("activation").and_then(Value::as_str).unwrap_or("topk") {
        "topk" => Architecture::TopK { k },
        "groupmax" => Architecture::GroupMax { k },
        other => {
            let (path, what) = (found.described_by().into(), format!("the activation `{}`", excerpt(other)));
            return Err(FeatureError::Unsupported { path, what }.into());
        }
    };
    let transcoder = flag("transcode");
    parts.centered = !transcoder;
    if found.has("W_skip") {
        parts.skip = Some(found.matrix("W_skip", [d_in, d_out], Lies::Turned)?);
    }
    let folder = found.folder().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    parts.metadata = hook_names::of_module(&folder, transcoder);
    parts.dictionary(found, format)
}
