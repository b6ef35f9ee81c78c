//! Where a dictionary and a model do not agree.

use burn::tensor::DType;
use serde_json::Value;

use super::dictionary::Dictionary;
use crate::config::NormKind;
use crate::driver::HookedModel;
use crate::model::HookedTransformer;

/// How far the means of centered vectors are from zero, of their root mean square.
const CENTERED: f64 = 1e-4;
/// Rows of the embedding that are looked at.
const ROWS: usize = 32;

/// A step of processing, by TransformerLens's name, that changes activations; those that move logits alone are left out.
struct Step {
    name: &'static str,
    /// Whether a model went through it; nothing where that makes no difference.
    done: fn(&HookedTransformer, &Dictionary) -> Option<bool>,
}

const STEPS: [Step; 3] = [
    Step { name: "fold_ln", done: folded },
    Step { name: "center_writing_weights", done: centered },
    Step { name: "fold_value_biases", done: without_value_biases },
];

/// Whether norms' weights are folded into the matrices behind them.
fn folded(model: &HookedTransformer, _: &Dictionary) -> Option<bool> {
    match model.config().norm {
        NormKind::LayerNormPre | NormKind::RmsPre => Some(true),
        NormKind::LayerNorm | NormKind::Rms => Some(false),
        _ => None,
    }
}

/// Whether what is written to the stream has mean zero: only where norms take means away does that change nothing.
fn centered(model: &HookedTransformer, _: &Dictionary) -> Option<bool> {
    if !matches!(model.config().norm, NormKind::LayerNorm | NormKind::LayerNormPre) {
        return None;
    }
    let ids: Vec<u32> = (0..model.config().d_vocab.min(ROWS) as u32).collect();
    let rows = model.weights.embed.rows(&ids, DType::F32);
    let mean = rows.clone().mean_dim(1).square().mean().into_scalar::<f64>().sqrt();
    Some(mean <= CENTERED * rows.square().mean().into_scalar::<f64>().sqrt())
}

/// Whether values have no biases, where a dictionary reads them or their sums.
fn without_value_biases(model: &HookedTransformer, dictionary: &Dictionary) -> Option<bool> {
    let metadata = dictionary.metadata();
    let values = |point: &String| ["hook_z", "hook_v", "hook_result"].iter().any(|end| point.ends_with(end));
    if !metadata.reads.iter().chain(&metadata.writes).any(values) {
        return None;
    }
    let biases = model.weights.blocks.iter().filter_map(|block| block.attn.as_ref()?.v.bias.as_ref());
    Some(biases.map(|bias| bias.val().abs().max().into_scalar::<f64>()).all(|largest| largest == 0.0))
}

impl Dictionary {
    /// What of the model is otherwise than it was for the activations this dictionary was trained on, a sentence each:
    /// the model itself, by its name; the processing of its weights; whether prompts get a token of their beginning. What
    /// is not said is not compared.
    ///
    /// ```no_run
    /// # use hooklens::features::Dictionary;
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("gpt2")?;
    /// let sae = Dictionary::open("gpt2-small-res-jb/blocks.8.hook_resid_pre")?;
    /// for concern in sae.concerns(&model) {
    ///     eprintln!("note: {concern}"); // trained on centered weights
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn concerns(&self, model: &HookedTransformer) -> Vec<String> {
        let mut concerns = Vec::new();
        let metadata = self.metadata();
        let given = &model.load_report().name;
        if let Some(said) = metadata.model.as_ref().filter(|said| !same_model(said, given)) {
            concerns.push(format!("{} was trained on the model {said}, and this one is {given}", self.name()));
        }
        for Step { name, done } in STEPS {
            let asked = metadata.model_options.get(name).and_then(Value::as_bool);
            let (Some(asked), Some(done)) = (asked, asked.and_then(|_| done(model, self))) else { continue };
            if asked != done {
                let with = |done: bool| if done { "with" } else { "without" };
                concerns.push(format!(
                    "{} was trained on a model processed {} {name}, and this one is {} it",
                    self.name(),
                    with(asked),
                    with(done)
                ));
            }
        }
        if let Some(bos) = metadata.prepend_bos
            && bos != model.config().default_prepend_bos
            && model.tokenizer().is_ok_and(|tokenizer| tokenizer.bos().is_some())
        {
            let with = |bos: bool| if bos { "with" } else { "without" };
            concerns.push(format!(
                "{} was trained on prompts {} a token of their beginning, and this model's are {} one",
                self.name(),
                with(bos),
                with(!bos)
            ));
        }
        concerns
    }
}

/// Whether two names may be of one model: owners, places and spellings are not compared.
fn same_model(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        let name = name.split('@').next().unwrap_or_default().trim_end_matches('/');
        let last = name.rsplit(['/', ':']).next().unwrap_or_default();
        let last = last.strip_suffix(".gguf").or_else(|| last.strip_suffix(".safetensors")).unwrap_or(last);
        last.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
    };
    // TransformerLens's short name.
    let plain = |name: &str| plain(name).replace("gpt2small", "gpt2");
    let (one, other) = (plain(one), plain(other));
    // Names that say nothing, and folders that are called by more or less than the model.
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
