//! The `--layer` option, which picks one layer from a set of transcoders.

use std::path::Path;

use clap::Args;

use crate::Failure;
use crate::any_model::{everywhere, note_excluded_tokens};
use crate::args::ModelArg;
use crate::terminal::note;
use hooklens_features::{Dictionary, Opened, is_cross_layer, open};
use hooklens_model::model::HookedTransformer;

#[derive(Debug, Args)]
pub(super) struct LayerArg {
    /// The layer to use from a set of transcoders
    #[arg(long, value_name = "N", requires = "dictionary")]
    layer: Option<usize>,
}

impl LayerArg {
    /// Opens the dictionary or transcoders at `path`, narrowed to `--layer` if given.
    pub(super) fn open(&self, path: &Path, arg: &ModelArg) -> Result<Opened, Failure> {
        let opened = match (open(path)?, self.layer) {
            (Opened::Transcoders(all), Some(layer)) => Opened::Dictionary(all.layer(layer)?),
            (Opened::Dictionary(_), Some(_)) => {
                let message = format!(
                    "--layer requires transcoders of several layers, but {} is a single dictionary",
                    path.display()
                );
                return Err(Failure::Usage(message));
            }
            (opened, None) => opened,
        };
        Ok(everywhere(opened, arg))
    }

    /// Like [`LayerArg::open`], but fails unless the result is a single dictionary.
    pub(super) fn one(&self, path: &Path, arg: &ModelArg) -> Result<Dictionary, Failure> {
        match self.open(path, arg)? {
            Opened::Dictionary(one) => Ok(one),
            Opened::Transcoders(all) => {
                let (path, count) = (path.display(), all.layers().len());
                Err(Failure::Usage(match is_cross_layer(&all) {
                    true => format!(
                        "{path} is a cross-layer transcoder of {count} layers, but a single dictionary is required"
                    ),
                    false => format!(
                        "{path} has {count} layers; choose one with --layer N, from 0 to {}",
                        count.saturating_sub(1)
                    ),
                }))
            }
        }
    }
}

/// Prints notes on mismatches between a dictionary and a model that tokenizes prompts as recorded in the dictionary's
/// files, and on the tokens to which the dictionary is not applied.
pub(super) fn tell(one: &Dictionary, model: &HookedTransformer) -> Result<(), Failure> {
    one.compatibility_warnings(model, one.metadata().prepend_bos).iter().for_each(note);
    note_excluded_tokens(&[(one.name().to_string(), one.metadata().exclude_special_tokens.ids(model)?)], model);
    Ok(())
}
