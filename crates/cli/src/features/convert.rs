//! `hooklens features convert`.

use std::path::PathBuf;

use clap::Args;
use hooklens_hooks::Together;

use super::locked::Locked;
use crate::out::{Names, prepare, said, unwritten};
use crate::{CliResult, Failure};
use hooklens_features::{DictionaryFiles, Labels, Normalization, Opened, open};

#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    /// A dictionary file or folder, or a folder with transcoders of all layers
    #[arg(value_name = "PATH", add = crate::completions::dictionary())]
    path: PathBuf,
    /// The hook point that the dictionary reads, if its files don't specify one
    #[arg(long, value_name = "POINT", add = crate::completions::points())]
    at: Option<String>,
    /// The factor to multiply the dictionary's inputs by, if its files don't specify one
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f32>,
    /// Labels of latents to save with the dictionary: a .csv of `latent,label`, or a .json object; for transcoders of
    /// all layers, a .csv of `layer,latent,label` or an object of objects
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// The folder to write
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

pub(super) fn run(args: &ConvertArgs) -> CliResult {
    prepare(Some(&args.out), Names::Folder, [args.path.clone()].into_iter().chain(args.labels.clone()))?;
    let _locked = Locked::take([&*args.out])?;
    let mut files = Together::new();
    match open(&args.path)? {
        Opened::Dictionary(mut one) => {
            if let Some(point) = &args.at {
                one = one.at(point);
            }
            if let Some(factor) = args.scale {
                one = one.with_normalization(Normalization::Scale(Some(factor)));
            }
            if let Some(path) = &args.labels {
                one = one.with_labels(Labels::read(path)?)?;
            }
            one.add_files(&args.out, &mut files)?;
        }
        Opened::Transcoders(mut all) => {
            if args.at.is_some() || args.scale.is_some() {
                return Err(Failure::Usage("--at and --scale require a single dictionary".into()));
            }
            if let Some(path) = &args.labels {
                all = all.with_labels(Labels::read_by_layer(path)?)?;
            }
            all.add_files(&args.out, &mut files)?;
        }
    }
    files.finish().map_err(|e| unwritten(&args.out, &e))?;
    said(&args.out)
}
