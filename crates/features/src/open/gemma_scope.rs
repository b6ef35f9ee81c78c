//! Gemma Scope (`params.npz`) and Gemma Scope 2 (`params.safetensors`): JumpReLU without input normalization.

use serde_json::Value;

use super::{Found, Lies, Parts, hook_names};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::metadata::Metadata;
use crate::normalization::Normalization;
use hooklens_model::error::Result;

pub(super) fn fits_first(found: &Found) -> bool {
    found.path.extension().is_some_and(|ending| ending == "npz") && names(found).is_some()
}

pub(super) fn fits_second(found: &Found) -> bool {
    found.has("w_enc") && found.has("w_dec") && found.has("threshold")
}

/// The tensor names of encoder and decoder, in either spelling.
fn names(found: &Found) -> Option<[&'static str; 2]> {
    [["W_enc", "W_dec"], ["w_enc", "w_dec"]].into_iter().find(|names| names.iter().all(|name| found.has(name)))
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let [encoder, decoder] = names(found).unwrap_or(["W_enc", "W_dec"]);
    let shape @ [d_in, latents] = found.matrix_shape(encoder)?;
    let [_, d_out] = found.matrix_shape(decoder)?;
    let mut parts = Parts::new(
        found.matrix(encoder, shape, Lies::AsIs)?,
        found.vector("b_enc", latents)?,
        found.matrix(decoder, [latents, d_out], Lies::AsIs)?,
        found.vector("b_dec", d_out)?,
    );
    parts.architecture = Architecture::JumpRelu { thresholds: found.numbers("threshold", latents)?, positive: true };
    if found.has("affine_skip_connection") {
        parts.skip = Some(found.matrix("affine_skip_connection", [d_in, d_out], Lies::AsIs)?);
    }
    parts.metadata = match found.path.extension().is_some_and(|ending| ending == "npz") {
        true => of_folders(found),
        false => of_config(found),
    };
    if parts.metadata.reads.as_deref() == Some("hook_embed") {
        // The dictionary was trained on rows of the embedding matrix, but the hook point comes after multiplication by
        // `sqrt(d_model)`.
        parts.normalization = Normalization::Scale(Some((d_in as f32).sqrt().recip()));
    }
    parts.dictionary(found, format)
}

/// Metadata inferred from the path: `gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82`.
fn of_folders(found: &Found) -> Metadata {
    let path = found.path.to_string_lossy().to_lowercase();
    let has = |what: &str| path.contains(what);
    let Some(layer) = layer(&path).or_else(|| has("embedding").then_some(0)) else { return Metadata::default() };
    let block = |point: &str| format!("blocks.{layer}.{point}");
    let mut metadata = if has("embedding") {
        Metadata::at("hook_embed")
    } else if has("transcoder") {
        // The norm's weights were folded into the MLP before training.
        Metadata::between(block("ln2.hook_normalized"), block("hook_mlp_out"))
    } else if has("-mlp") {
        Metadata::at(block("hook_mlp_out"))
    } else if has("-att") {
        Metadata::at(block("attn.hook_z"))
    } else {
        Metadata::at(block("hook_resid_post"))
    };
    let size = ["2b", "9b", "27b"].into_iter().find(|size| has(&format!("gemma-scope-{size}")));
    metadata.model = size.map(|size| format!("gemma-2-{size}{}", if has("-it-") { "-it" } else { "" }));
    metadata.prepend_bos = Some(true);
    metadata.context_size = Some(1024);
    metadata
}

/// The number after `layer_`.
fn layer(path: &str) -> Option<usize> {
    let (_, rest) = path.rsplit_once("layer_")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Metadata from `config.json`, or inferred from the path: `resid_post/layer_12_width_16k_l0_medium`.
fn of_config(found: &Found) -> Metadata {
    let text = |key: &str| found.field(key).and_then(Value::as_str);
    let [read, write] = ["hf_hook_point_in", "hf_hook_point_out"].map(|key| text(key).and_then(hook_names::tensor_of));
    let path = found.path.to_string_lossy().to_lowercase();
    let of_path = layer(&path).and_then(|layer| {
        let block = |point: &str| format!("blocks.{layer}.{point}");
        let sites = [("resid_post", "hook_resid_post"), ("attn_out", "attn.hook_z"), ("mlp_out", "hook_mlp_out")];
        match ["transcoder", "clt"].iter().any(|kind| path.contains(kind)) {
            true => Some(Metadata::between(block("mlp.hook_in"), block("hook_mlp_out"))),
            false => sites.iter().find(|(site, _)| path.contains(site)).map(|(_, point)| Metadata::at(block(point))),
        }
    });
    let mut metadata = match (read, write) {
        (Some(read), Some(write)) if read != write => Metadata::between(read, write),
        (Some(read), _) => Metadata::at(read),
        (None, _) => of_path.unwrap_or_default(),
    };
    metadata.model = text("model_name").map(|name| name.replace("-v3", "-3"));
    metadata.prepend_bos = Some(true);
    metadata.context_size = Some(1024);
    metadata
}
