//! Files of directions.

use std::path::Path;

use hooklens_hooks::DType;

use super::Failure;
use hooklens_loading::weight_files::WeightFiles;
use hooklens_model::tokens::read_json;

/// Reads vectors from a .safetensors, .npz or .pt file, or a .json array, with the names of their tensors. Each row of
/// a matrix is a vector. All vectors must be finite and have the same width.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Vec<f32>)>, Failure> {
    let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
    let mut named: Vec<(String, Vec<f32>)> = Vec::new();
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let value = read_json(path.into()).map_err(hooklens_model::error::Error::from)?;
        let one: Option<Vec<f32>> = serde_json::from_value(value.clone()).ok();
        let several = one.map(|one| vec![one]).or_else(|| serde_json::from_value(value).ok());
        let several: Vec<Vec<f32>> =
            several.ok_or_else(|| failed("expected an array of numbers, or an array of arrays of numbers".into()))?;
        named.extend(several.into_iter().map(|row| (String::new(), row)));
    } else {
        let files = WeightFiles::open(&[path.to_path_buf()]).map_err(hooklens_model::error::Error::from)?;
        for (name, info) in files.tensors() {
            let width = match info.shape[..] {
                [width] | [_, width] if width > 0 => width,
                _ => {
                    return Err(failed(format!(
                        "tensor `{name}` has shape {:?}; expected a vector or a matrix",
                        info.shape
                    )));
                }
            };
            let numbers: Vec<f32> =
                files.read(name, DType::F32).map_err(hooklens_model::error::Error::from)?.iter().collect();
            let several = info.shape.len() > 1;
            for (row, numbers) in numbers.chunks_exact(width).enumerate() {
                named.push((if several { format!("{name} {row}") } else { name.to_string() }, numbers.to_vec()));
            }
        }
    }
    let width = named.first().map_or(0, |(_, row)| row.len());
    if width == 0 || named.iter().any(|(_, row)| row.len() != width) {
        return Err(failed("expected at least one direction, and the same width for all".into()));
    }
    if named.iter().any(|(_, row)| row.iter().any(|x| !x.is_finite())) {
        return Err(failed("a direction contains NaN or infinite values".into()));
    }
    Ok(named)
}
