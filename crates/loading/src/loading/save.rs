//! Saves a model as `config.json` and safetensors, under TransformerLens's tensor names.

use std::collections::HashMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use hooklens_hooks::{Activation, FolderLock, Together, write_safetensors_to};

use crate::families;
use crate::weight_files::{Layout, StoredTensor};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{Result, load_errors};
use hooklens_model::model::{HookedTransformer, ModelParts, Weight, each_weight};
use hooklens_model::tokens::tokenizer_files;

/// Saves models in TransformerLens's file format. In the prelude.
pub trait SavePretrained {
    /// Saves the model to a folder that `HookedTransformer::from_pretrained` can load, creating the folder if
    /// necessary. Writes `config.json`, `model.safetensors`, the tokenizer if there is one, and the end-of-sequence
    /// tokens in `generation_config.json`. Biases that the model lacks are written as zeros, as in TransformerLens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// model.save_pretrained(folder)?;
    /// let again = HookedTransformer::from_pretrained(folder.display().to_string())?;
    /// assert_eq!(again.config(), model.config());
    /// let gap = again.forward("When Mary and John")? - model.forward("When Mary and John")?;
    /// assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A tokenizer and chat templates that a different model left in the folder are removed.
    ///
    /// # Errors
    /// Fails if the folder or a file cannot be written, or if another process is writing to the folder.
    fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()>;
}

/// Files that describe a tokenizer.
const TOKENIZER: [&str; 6] =
    ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "source.spm", "target.spm"];
/// Files that are read together with the files in [`TOKENIZER`], but are not written.
const BESIDE_TOKENIZER: [&str; 3] = ["special_tokens_map.json", "added_tokens.json", "chat_template.jinja"];

impl SavePretrained for HookedTransformer {
    fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(load_errors::cant_write(folder))?;
        let _lock = FolderLock::take(folder).map_err(|e| load_errors::cant_write(folder)(std::io::Error::other(e)))?;
        let extra_biases = has_extra_biases(self);
        let table = families::native_weights(self.config(), extra_biases);
        let mut tensors: Vec<(String, Activation)> = Vec::new();
        each_weight(self, &mut |weight, value| {
            let Some(source) = table.sources.get(&weight) else { return };
            let of_matrix = |m| match source.layout.unmatrix(m) {
                StoredTensor::Matrix(m) => m.into(),
                StoredTensor::Cube(c) => c.into(),
            };
            let stored = match value {
                Weight::Matrix(m) => of_matrix(m),
                Weight::Map(map) => of_matrix(map.matrix()),
                Weight::Tokens(embed) => of_matrix(embed.matrix()),
                Weight::Vector(v) => match source.layout {
                    Layout::HeadsOut { heads } => {
                        let len = v.dims()[0];
                        v.reshape([heads, len / heads]).into()
                    }
                    _ => v.into(),
                },
            };
            tensors.push((source.name.clone(), stored));
        });
        let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
        // Write all files together, so that a failed write leaves a previously saved model unchanged.
        let mut files = Together::new();
        let weights = folder.join("model.safetensors");
        let failed = load_errors::cant_write(&weights);
        let mut buffered = BufWriter::with_capacity(1 << 20, files.add(&weights).map_err(&failed)?);
        let metadata = HashMap::from([("format".into(), "pt".into())]);
        write_safetensors_to(&mut buffered, named, metadata).map_err(|e| failed(std::io::Error::other(e)))?;
        buffered.flush().map_err(&failed)?;
        drop(buffered);
        let mut write = |name: &str, text: &str| {
            let path = folder.join(name);
            let written = files.add(&path).and_then(|file| file.write_all(text.as_bytes()));
            written.map_err(load_errors::cant_write(&path))
        };
        let (ends, begins) = (self.eos_tokens(), self.bos_token());
        let mut generation = serde_json::Map::new();
        generation.extend(begins.map(|id| ("bos_token_id".to_string(), id.into())));
        if !ends.is_empty() {
            generation.insert("eos_token_id".into(), ends.into());
        }
        if !generation.is_empty() {
            write("generation_config.json", &format!("{:#}\n", serde_json::Value::from(generation.clone())))?;
        }
        if let Ok(tokenizer) = self.tokenizer() {
            for (name, json) in tokenizer_files(tokenizer)? {
                write(name, &json)?;
            }
        }
        write("config.json", &format!("{:#}\n", families::native_json(self.config(), extra_biases)))?;
        if generation.is_empty() {
            files.remove(&folder.join("generation_config.json"));
        }
        // Files left by a different model would be read as files of this model.
        let stale = if self.tokenizer().is_ok() { &[] } else { &TOKENIZER[..] };
        BESIDE_TOKENIZER.iter().chain(stale).for_each(|name| files.remove(&folder.join(name)));
        let templates = fs::read_dir(folder.join("additional_chat_templates")).into_iter().flatten().flatten();
        templates.for_each(|file| files.remove(&file.path()));
        Ok(files.finish().map_err(load_errors::cant_write(folder))?)
    }
}

/// Whether the model has biases that TransformerLens has no name for.
fn has_extra_biases(model: &HookedTransformer) -> bool {
    model.parts().blocks.iter().any(|block| {
        let gate = block.dense_mlp().and_then(|mlp| Some([mlp.gate.as_ref()?, &mlp.input]));
        let mixture = block.moe().into_iter().flat_map(|moe| moe.maps());
        gate.into_iter().flatten().chain(mixture).any(|linear| linear.bias.is_some())
    })
}
