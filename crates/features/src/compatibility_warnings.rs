//! Mismatches between a dictionary and a model.

use hooklens_hooks::Axis;
use serde_json::Value;

use super::dictionary::Dictionary;
use crate::error::FeatureError;
use hooklens_model::config::{Layers, NormDetails, NormKind, Positional, ResidualScheme, Settings};
use hooklens_model::driver::{HookedModel, private};
use hooklens_model::error::Result;
use hooklens_model::model::{Block, HookedTransformer, ModelParts, ModelWeights, Norm};
use hooklens_model::processing::{has_folded_norms, has_folded_value_biases, is_centered};

/// A weight processing step that changes activations, with TransformerLens's name for it. Steps that change only logits
/// are not listed.
struct Step {
    name: &'static str,
    /// Returns whether activations at a hook point differ between a model and the dictionary's model. The last argument
    /// says whether the step was applied to the dictionary's model.
    differs: fn(&HookedTransformer, &str, bool) -> bool,
}

const STEPS: [Step; 3] = [
    Step { name: "center_writing_weights", differs: centered_otherwise },
    Step { name: "fold_ln", differs: folded_otherwise },
    Step { name: "fold_value_biases", differs: biased_otherwise },
];

/// Whether centering makes activations at a point differ. It removes the mean from the residual stream and from
/// everything added to it. Norm layers remove the mean anyway, so activations after a norm layer do not change.
fn centered_otherwise(model: &HookedTransformer, point: &str, done: bool) -> bool {
    let Ok(id) = model.catalog().find(point) else { return false };
    let info = model.catalog().info(id);
    let of_stream = info.axes.last() == Some(&Axis::DModel)
        && read_norm(model, point).is_none()
        && !is_normalized_embedding(model, point)
        // Computed (not learned) position embeddings are not centered.
        && (point != "hook_pos_embed" || *model.config().positional() == Positional::Learned);
    of_stream && is_centered(model).is_some_and(|centered| centered != done)
}

/// Whether a point shows the output of the norm layer on the embedding, before anything centered is added. There, the
/// norm layer's weights determine the mean, so centering does not change it.
fn is_normalized_embedding(model: &HookedTransformer, point: &str) -> bool {
    let config = model.config();
    let first = match point.strip_prefix("blocks.0.") {
        None => ["hook_embed", "embed.ln.hook_normalized"].contains(&point),
        Some(_) if *config.positional() == Positional::Learned => false,
        Some("hook_resid_pre" | "hook_attn_in" | "hook_q_input" | "hook_k_input" | "hook_v_input") => true,
        Some("hook_mlp_in") => config.residual() == ResidualScheme::Parallel,
        Some(_) => false,
    };
    config.post_embedding_norm() && first
}

/// Whether folding norms makes activations at a point differ. Folding moves a norm layer's weights into the layers that
/// read its output. (In TransformerLens, the hook on an RMS norm's output comes before multiplication by the norm's
/// weight, and weights are not folded into experts.)
fn folded_otherwise(model: &HookedTransformer, point: &str, done: bool) -> bool {
    let Some((norm, shown)) = read_norm(model, point) else { return false };
    if shown == Shown::ByNorm && !norm.centers() {
        return false;
    }
    match done && model.config().experts().is_none() {
        true => norm.has_effect(),
        false => has_folded_norms(model),
    }
}

/// Whether folding value biases makes activations at a point differ. It removes a constant from values and from their
/// sums over positions.
fn biased_otherwise(model: &HookedTransformer, point: &str, done: bool) -> bool {
    // Mixers other than attention keep their value biases.
    if ![".attn.hook_v", ".attn.hook_z", ".attn.hook_result"].iter().any(|end| point.ends_with(end)) {
        return false;
    }
    let bias = block_of(model, point).and_then(|block| block.attn()?.v.bias.as_ref());
    match done {
        true => bias.is_some_and(|bias| bias.val().abs().max().into_scalar::<f64>() > 0.0),
        false => has_folded_value_biases(model),
    }
}

/// Where a norm's output is visible: at the norm's own point, or at a point of the layer that reads it.
#[derive(PartialEq, Eq)]
enum Shown {
    ByNorm,
    ByReader,
}

/// The norm whose output a point shows; `None` for other points.
fn read_norm<'m>(model: &'m HookedTransformer, point: &str) -> Option<(&'m Norm, Shown)> {
    if point == "ln_final.hook_normalized" {
        return Some((&model.parts().ln_final, Shown::ByNorm));
    }
    let block = block_of(model, point)?;
    // In models with RMS norms, the MLP's norm has no weights.
    let mlp = || block.dense_mlp()?.norm.as_ref().filter(|_| model.config().norm().centers());
    let found = match point.splitn(3, '.').nth(2)? {
        "ln1.hook_normalized" => Some((&block.ln1, Shown::ByNorm)),
        "ln2.hook_normalized" => Some((block.ln2.as_ref()?, Shown::ByNorm)),
        "mlp.hook_in" => Some((block.ln2.as_ref()?, Shown::ByReader)),
        "mlp.ln.hook_normalized" => Some((mlp()?, Shown::ByNorm)),
        "mlp.hook_post" => Some((mlp()?, Shown::ByReader)),
        _ => None,
    };
    found.filter(|(norm, _)| norm.kind != NormKind::None)
}

fn block_of<'m>(model: &'m HookedTransformer, point: &str) -> Option<&'m Block> {
    let layer: usize = point.strip_prefix("blocks.")?.split('.').next()?.parse().ok()?;
    model.parts().blocks.get(layer)
}

/// Fails if the dictionary's files show that it was trained on a model with different weight processing, and the
/// difference changes a point that the dictionary reads or writes. Options that the files do not mention are not
/// compared.
pub(crate) fn check_processing<M: HookedModel + private::Spliceable>(model: &M, dictionary: &Dictionary) -> Result<()> {
    let decoder = model.processed_model().and_then(|model| model.downcast_ref::<HookedTransformer>());
    let Some(decoder) = decoder else { return Ok(()) };
    let metadata = dictionary.metadata();
    for Step { name, differs } in STEPS {
        let Some(trained) = metadata.model_options.get(name).and_then(Value::as_bool) else { continue };
        for point in metadata.reads.iter().chain(&metadata.writes) {
            // Look up the point's full name, since files may use a short name.
            let Ok(id) = model.catalog().find(point) else { continue };
            let point = &model.catalog().info(id).name;
            if differs(decoder, point, trained) {
                let (dictionary, point) = (dictionary.name().to_string(), point.to_string());
                return Err(FeatureError::Processing { dictionary, point, step: name, trained }.into());
            }
        }
    }
    Ok(())
}

impl Dictionary {
    /// Returns one sentence for each difference from the dictionary's training setup: the model's name, and whether
    /// prompts start with a BOS token. `prepend_bos` says whether they do in this run; `None` means the model's
    /// default. Facts that the files do not mention are not compared. (Different weight processing is an error when the
    /// dictionary is used: [`FeatureError::Processing`].)
    ///
    /// ```
    /// use hooklens::features::Dictionary;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let sae = Dictionary::open("embedded:ioi-sae")?;
    /// // With the BOS setting that the dictionary expects, there is no mismatch.
    /// assert!(sae.compatibility_warnings(&model, sae.metadata().prepend_bos).is_empty());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn compatibility_warnings(&self, model: &HookedTransformer, prepend_bos: Option<bool>) -> Vec<String> {
        let mut warnings = Vec::new();
        let metadata = self.metadata();
        let given = &model.load_report().name;
        if let Some(said) = metadata.model.as_ref().filter(|said| !same_model(said, given)) {
            warnings.push(format!("{} was trained on the model {said}, but this model is {given}", self.name()));
        }
        if let Some(bos) = metadata.prepend_bos
            && bos != prepend_bos.unwrap_or(model.config().default_prepend_bos())
            && model.tokenizer().is_ok_and(|tokenizer| tokenizer.bos().is_some())
        {
            let with = |bos: bool| if bos { "with" } else { "without" };
            warnings.push(format!(
                "{} was trained on prompts {} a beginning-of-sequence token, but these prompts are {} one",
                self.name(),
                with(bos),
                with(!bos)
            ));
        }
        warnings
    }
}

/// Whether two names may refer to the same model, ignoring owners, folders and spelling.
fn same_model(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        let name = name.split('@').next().unwrap_or_default().trim_end_matches('/');
        let last = name.rsplit(['/', ':']).next().unwrap_or_default();
        let last = last.strip_suffix(".gguf").or_else(|| last.strip_suffix(".safetensors")).unwrap_or(last);
        last.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
    };
    // TransformerLens calls this model `gpt2-small`.
    let plain = |name: &str| plain(name).replace("gpt2small", "gpt2");
    let (one, other) = (plain(one), plain(other));
    // Uninformative names match any name. Otherwise, it is enough that one name contains the other, because folder
    // names often add a prefix or a suffix.
    one.is_empty() || other.is_empty() || one == "unknown" || one.contains(&other) || other.contains(&one)
}

#[cfg(test)]
mod tests {
    use super::same_model;

    #[test]
    fn names_of_one_model_are_told_from_others() {
        for (one, other) in [
            ("gpt2-small", "openai-community/gpt2"),
            ("google/gemma-2-2b", "./models/gemma-2-2b/"),
            ("embedded:ioi", "embedded:ioi"),
            ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct@main"),
            ("gemma-2-2b", ""),
        ] {
            assert!(same_model(one, other), "{one} {other}");
        }
        for (one, other) in
            [("gpt2-small", "embedded:ioi"), ("gemma-2-2b", "google/gemma-2-9b"), ("gpt2-xl", "pythia-70m")]
        {
            assert!(!same_model(one, other), "{one} {other}");
        }
    }
}
