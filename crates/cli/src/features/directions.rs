//! Directions for dashboards: vectors from a file, or the difference between two sets of prompts.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use clap::Args;

use super::find::rows;
use crate::{Failure, direction_file};
use hooklens_analysis::experiments::SteeringVector;
use hooklens_features::{Labels, Units};
use hooklens_model::driver::HookedModel;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::{PaddingSide, Tokens};

#[derive(Debug, Args)]
pub(super) struct DirectionArgs {
    /// Show directions at the point given with --at: vectors, or matrices with one direction per row, from a
    /// .safetensors, .npz or .pt file, or a .json array
    #[arg(long, value_name = "FILE", requires = "at", conflicts_with_all = ["dictionary", "neurons", "heads", "more"])]
    direction: Option<PathBuf>,
    /// Show the difference between mean activations at the point given with --at: the mean over the last tokens of the
    /// prompts in this file, minus the mean over those in --less
    #[arg(long, value_name = "FILE", requires_all = ["less", "at"], conflicts_with_all = ["dictionary", "neurons", "heads"])]
    more: Option<PathBuf>,
    /// A file of prompts whose mean activation is subtracted from that of the --more prompts
    #[arg(long, value_name = "FILE", requires = "more")]
    less: Option<PathBuf>,
    /// The hook point that directions apply to, or that a dictionary reads if its files don't specify one
    #[arg(long, value_name = "POINT", conflicts_with_all = ["neurons", "heads"], add = crate::completions::points())]
    pub(super) at: Option<String>,
}

impl DirectionArgs {
    /// Files that the directions are read from.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        [&self.direction, &self.more, &self.less].into_iter().flatten().cloned()
    }

    /// Whether directions were requested.
    pub(super) fn is_asked(&self) -> bool {
        self.direction.is_some() || self.more.is_some()
    }

    /// The requested directions, if any.
    pub(super) fn units(&self, model: &HookedTransformer) -> Result<Option<Units>, Failure> {
        let Some(point) = &self.at else { return Ok(None) };
        if let Some(path) = &self.direction {
            return of_file(path, point).map(Some);
        }
        let (Some(more), Some(less)) = (&self.more, &self.less) else { return Ok(None) };
        let [more, less] = [rows(model, more, None)?, rows(model, less, None)?];
        if more.is_empty() || less.is_empty() {
            return Err(Failure::Failed("--more and --less must each contain a prompt".into()));
        }
        let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
        let padded = |rows: &[Vec<u32>]| Tokens::padded(rows, pad, PaddingSide::Right);
        let apart = SteeringVector::between(model, &padded(&more)?, &padded(&less)?, point)?;
        Ok(Some(Units::directions(&apart.point, apart.vector.clone().unsqueeze())))
    }
}

/// Reads directions from a file, labeled with the names of their tensors.
fn of_file(path: &Path, point: &str) -> Result<Units, Failure> {
    let named = direction_file::read(path, None)?;
    let (count, width) = (named.len(), named.first().map_or(0, |(_, row)| row.len()));
    let labels: Labels = named
        .iter()
        .enumerate()
        .filter(|(_, (name, _))| !name.is_empty())
        .map(|(place, (name, _))| (place, name.clone()))
        .collect();
    let numbers: Vec<f32> = named.into_iter().flat_map(|(_, row)| row).collect();
    let directions = Tensor::<2>::from_data(TensorData::new(numbers, [count, width]), &Device::flex());
    Ok(Units::directions(point, directions).with_labels(labels))
}
