//! Files of directions.

use std::path::Path;

use hooklens_hooks::DType;

use super::Failure;
use hooklens_loading::weight_files::WeightFiles;
use hooklens_model::tokens::read_json;

/// The vectors of a .safetensors, .npz or .pt file, each row of a matrix one, or of a .json array, with the names of their
/// tensors: finite, of one width.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Vec<f32>)>, Failure> {
    let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
    let mut named: Vec<(String, Vec<f32>)> = Vec::new();
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let value = read_json(path.into()).map_err(hooklens_model::error::Error::from)?;
        let one: Option<Vec<f32>> = serde_json::from_value(value.clone()).ok();
        let several = one.map(|one| vec![one]).or_else(|| serde_json::from_value(value).ok());
        let several: Vec<Vec<f32>> = several.ok_or_else(|| failed("it is no array of numbers, or of such".into()))?;
        named.extend(several.into_iter().map(|row| (String::new(), row)));
    } else {
        let files = WeightFiles::open(&[path.to_path_buf()]).map_err(hooklens_model::error::Error::from)?;
        for (name, info) in files.tensors() {
            let width = match info.shape[..] {
                [width] | [_, width] if width > 0 => width,
                _ => {
                    return Err(failed(format!("the tensor `{name}` has shape {:?}, and is no direction", info.shape)));
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
        return Err(failed("it holds no directions of one width".into()));
    }
    if named.iter().any(|(_, row)| row.iter().any(|x| !x.is_finite())) {
        return Err(failed("a direction holds what is no finite number".into()));
    }
    Ok(named)
}
