//! OpenAI's sparse_autoencoder: a single PyTorch file. The TopK versions normalize each token.

use serde::Deserialize;

use super::{Found, Parts, linear_layers};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::metadata::Metadata;
use crate::normalization::Normalization;
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::Result;

/// Hook points for the library's location names.
const LOCATIONS: [(&str, &str); 5] = [
    ("mlp_post_act", "mlp.hook_post"),
    ("resid_delta_attn", "hook_attn_out"),
    ("resid_post_attn", "hook_resid_mid"),
    ("resid_delta_mlp", "hook_mlp_out"),
    ("resid_post_mlp", "hook_resid_post"),
];

/// Contents of the file besides tensors.
#[derive(Deserialize, Default)]
struct OpenAi {
    activation: Option<String>,
    #[serde(default)]
    activation_state_dict: ActivationState,
}

#[derive(Deserialize, Default)]
struct ActivationState {
    k: Option<usize>,
}

pub(super) fn fits(found: &Found) -> bool {
    found.has("pre_bias") && found.has("latent_bias")
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let (encoder, _, decoder) = linear_layers(found, ["encoder", "decoder"])?;
    let ([_, latents], [_, d]) = (encoder.shape(), decoder.shape());
    let bias = found.vector("latent_bias", latents)?;
    let mut parts = Parts::new(encoder, bias, decoder, found.vector("pre_bias", d)?);
    parts.centered = true;
    let path = found.path.to_string_lossy();
    let said: OpenAi = found.beside_tensors()?;
    match said.activation.as_deref() {
        Some("TopK") => {
            let k = said.activation_state_dict.k.ok_or_else(|| found.wrong("`activation_state_dict.k` is missing"))?;
            parts.architecture = Architecture::TopK { k };
            parts.normalization = Normalization::LayerNorm;
        }
        Some("ReLU") | None => {}
        Some(other) => {
            let (path, what) = (found.path.clone(), format!("the activation `{}`", excerpt(other)));
            return Err(FeatureError::Unsupported { path, what }.into());
        }
    }
    let layer = path
        .rsplit_once("layer_")
        .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok());
    let point = LOCATIONS.iter().find(|(location, _)| path.contains(location));
    if let (Some(layer), Some((_, point))) = (layer, point) {
        parts.metadata = Metadata::at(format!("blocks.{layer}.{point}"));
    }
    parts.dictionary(found, format)
}
