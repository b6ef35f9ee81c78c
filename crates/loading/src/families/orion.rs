//! Orion: Llama with layer norms.

use super::llama_like::{BEFORE, Names};
use super::{Family, llama_like};
use hooklens_model::config::NormKind;

pub(super) static FAMILY: Family = Family {
    name: "orion",
    architectures: &["OrionForCausalLM", "OrionModel"],
    prefix: "model.",
    config: |json| {
        let eps = json.number("rms_norm_eps", 1e-5)?;
        Ok(llama_like::config(json)?.with_norm(NormKind::LayerNorm).with_eps(eps))
    },
    weights: |config, json| {
        let names = Names { norms: &[], ..Names::LLAMA }.with_biases_of(json)?;
        let mut table = llama_like::weights_with(config, json, names)?;
        llama_like::layer_norms(&mut table, config.n_layers(), BEFORE);
        Ok(table)
    },
};
