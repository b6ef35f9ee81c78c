//! The dictionary that a command is about: one, or a layer of a set of transcoders.

use std::path::Path;

use clap::Args;

use crate::Failure;
use crate::any_model::without_tokens;
use crate::args::ModelArg;
use crate::terminal::note;
use hooklens_features::{Dictionary, Opened, open};
use hooklens_model::model::HookedTransformer;

#[derive(Debug, Args)]
pub(super) struct LayerArg {
    /// The layer that is meant, of a set of transcoders
    #[arg(long, value_name = "N", requires = "dictionary")]
    layer: Option<usize>,
}

impl LayerArg {
    /// What is at a path, and of a set of transcoders the layer that was named, if one was.
    pub(super) fn open(&self, path: &Path, arg: &ModelArg) -> Result<Opened, Failure> {
        let opened = match (open(path)?, self.layer) {
            (Opened::Transcoders(all), Some(layer)) => Opened::Dictionary(all.layer(layer)?),
            (Opened::Dictionary(_), Some(_)) => {
                let told = format!("{} is one dictionary; --layer is for transcoders of all layers", path.display());
                return Err(Failure::Usage(told));
            }
            (opened, None) => opened,
        };
        Ok(if arg.all_tokens { opened.excluding(&[]) } else { opened })
    }

    /// The same where it has to be one dictionary.
    pub(super) fn one(&self, path: &Path, arg: &ModelArg) -> Result<Dictionary, Failure> {
        match self.open(path, arg)? {
            Opened::Dictionary(one) => Ok(one),
            Opened::Transcoders(all) => {
                let (path, count) = (path.display(), all.layers().len());
                Err(Failure::Usage(match all.is_cross_layer() {
                    true => format!(
                        "{path} is a cross-layer transcoder of {count} layers, and this is about one dictionary"
                    ),
                    false => format!("{path} has {count} layers; --layer N names one"),
                }))
            }
        }
    }
}

/// Says what does not agree between a dictionary and a model that reads prompts as the dictionary's files say, and at which
/// tokens it is not used.
pub(super) fn tell(one: &Dictionary, model: &HookedTransformer) -> Result<(), Failure> {
    one.concerns_on(model, one.metadata().prepend_bos).iter().for_each(note);
    without_tokens(one, model)
}
