//! Where a dictionary and a model do not agree.

use serde_json::Value;

use super::dictionary::Dictionary;
use crate::driver::HookedModel;
use crate::model::HookedTransformer;

/// TransformerLens's names of what processing does.
const PROCESSING: [&str; 3] = ["fold_ln", "center_writing_weights", "center_unembed"];

impl Dictionary {
    /// What of the model is otherwise than it was for the activations this dictionary was trained on, a sentence each:
    /// the processing of its weights, whether prompts get a token of their beginning. What is not said is not compared.
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
        let (metadata, processed) = (self.metadata(), model.catalog().note());
        let asked: Vec<&str> = PROCESSING
            .into_iter()
            .filter(|name| metadata.model_options.get(*name).and_then(Value::as_bool) == Some(true))
            .collect();
        let differs = asked.iter().any(|name| !processed.contains(name));
        if differs {
            concerns.push(format!(
                "{} was trained on activations of a model with {}, and this one is {processed}",
                self.name(),
                asked.join(", ")
            ));
        } else if asked.is_empty() && PROCESSING.iter().any(|name| processed.contains(name)) {
            concerns.push(format!(
                "{} was trained on activations of a model as published, and this one is {processed}",
                self.name()
            ));
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
