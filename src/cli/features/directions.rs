//! Directions that are shown: vectors of a file, or what sets two files of texts apart.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use clap::Args;
use hooklens_hooks::DType;

use super::find::rows;
use crate::cli::Failure;
use crate::driver::HookedModel;
use crate::experiments::SteeringVector;
use crate::features::{Labels, Units};
use crate::model::HookedTransformer;
use crate::tokens::{PaddingSide, Tokens, read_json};
use crate::weight_files::WeightFiles;

#[derive(Debug, Args)]
pub(super) struct DirectionArgs {
    /// Show directions at the point that --at names: vectors, or matrices with a direction a row, of a .safetensors,
    /// .npz or .pt file, or of a .json array
    #[arg(long, value_name = "FILE", requires = "at", conflicts_with_all = ["dictionary", "neurons", "heads", "more"])]
    direction: Option<PathBuf>,
    /// Show the direction from the last tokens of the prompts of --less to those of this file, at the point that --at
    /// names
    #[arg(long, value_name = "FILE", requires_all = ["less", "at"], conflicts_with_all = ["dictionary", "neurons", "heads"])]
    more: Option<PathBuf>,
    /// A file of prompts to compare those of --more with
    #[arg(long, value_name = "FILE", requires = "more")]
    less: Option<PathBuf>,
    /// The point that directions are of, or that a dictionary reads where its files don't say it
    #[arg(long, value_name = "POINT", conflicts_with_all = ["neurons", "heads"])]
    pub(super) at: Option<String>,
}

impl DirectionArgs {
    /// The files it reads.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        [&self.direction, &self.more, &self.less].into_iter().flatten().cloned()
    }

    /// Whether directions are to be shown.
    pub(super) fn is_asked(&self) -> bool {
        self.direction.is_some() || self.more.is_some()
    }

    /// The directions, if any are asked for.
    pub(super) fn units(&self, model: &HookedTransformer) -> Result<Option<Units>, Failure> {
        let Some(point) = &self.at else { return Ok(None) };
        if let Some(path) = &self.direction {
            return of_file(path, point).map(Some);
        }
        let (Some(more), Some(less)) = (&self.more, &self.less) else { return Ok(None) };
        let [more, less] = [rows(model, more, None)?, rows(model, less, None)?];
        if more.is_empty() || less.is_empty() {
            return Err(Failure::Failed("there are no prompts to compare".into()));
        }
        let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
        let padded = |rows: &[Vec<u32>]| Tokens::padded(rows, pad, PaddingSide::Right);
        let apart = SteeringVector::between(model, &padded(&more)?, &padded(&less)?, point)?;
        Ok(Some(Units::directions(apart.point(), apart.vector().clone().unsqueeze())))
    }
}

/// Directions of a file, with the names of their tensors.
fn of_file(path: &Path, point: &str) -> Result<Units, Failure> {
    let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
    let mut named: Vec<(String, Vec<f32>)> = Vec::new();
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let value = read_json(path.into()).map_err(crate::error::Error::from)?;
        let one: Option<Vec<f32>> = serde_json::from_value(value.clone()).ok();
        let several = one.map(|one| vec![one]).or_else(|| serde_json::from_value(value).ok());
        let several: Vec<Vec<f32>> = several.ok_or_else(|| failed("it is no array of numbers, or of such".into()))?;
        named.extend(several.into_iter().map(|row| (String::new(), row)));
    } else {
        let files = WeightFiles::open(&[path.to_path_buf()]).map_err(crate::error::Error::from)?;
        for (name, info) in files.tensors() {
            let width = match info.shape[..] {
                [width] | [_, width] if width > 0 => width,
                _ => {
                    return Err(failed(format!("the tensor `{name}` has shape {:?}, and is no direction", info.shape)));
                }
            };
            let numbers: Vec<f32> = files.read(name, DType::F32).map_err(crate::error::Error::from)?.iter().collect();
            let several = info.shape.len() > 1;
            for (row, numbers) in numbers.chunks_exact(width).enumerate() {
                named.push((if several { format!("{name} {row}") } else { name.to_string() }, numbers.to_vec()));
            }
        }
    }
    let width = named.first().map_or(0, |(_, row)| row.len());
    if width == 0 || named.iter().any(|(_, row)| row.len() != width) {
        return Err(failed("it holds no directions of one width".into()));
    }
    if named.iter().any(|(_, row)| row.iter().any(|x| !x.is_finite())) {
        return Err(failed("a direction holds what is no finite number".into()));
    }
    let labels: Labels = named
        .iter()
        .enumerate()
        .filter(|(_, (name, _))| !name.is_empty())
        .map(|(place, (name, _))| (place, name.clone()))
        .collect();
    let count = named.len();
    let numbers: Vec<f32> = named.into_iter().flat_map(|(_, row)| row).collect();
    let directions = Tensor::<2>::from_data(TensorData::new(numbers, [count, width]), &Device::flex());
    Ok(Units::directions(point, directions).with_labels(labels))
}
