//! Files of directions.

use std::path::Path;

use hooklens_hooks::DType;
use serde::Deserialize;

use super::Failure;
use hooklens_loading::weight_files::WeightFiles;
use hooklens_model::error::Error;
use hooklens_model::tokens::read_json;

/// Maximum number of directions in a file.
const MOST_DIRECTIONS: usize = 1 << 17;
/// Maximum number of elements of all directions in a file. The size of the file is no limit, because the file may be
/// compressed a thousandfold.
const MOST_NUMBERS: usize = 1 << 25;

/// Reads vectors from a .safetensors, .npz or .pt file, or a .json array, with the names of their tensors. Each row of
/// a matrix is a vector. All vectors must be finite and have the same width, which is `expected` if that is known.
pub(super) fn read(path: &Path, expected: Option<usize>) -> Result<Vec<(String, Vec<f32>)>, Failure> {
    let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()).into());
    let named = match path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        true => of_json(path, &failed)?,
        false => of_tensors(path, expected, &failed)?,
    };
    let width = named.first().map_or(0, |(_, row)| row.len());
    if width == 0 || named.iter().any(|(_, row)| row.len() != width) {
        return Err(failed("expected at least one direction, and the same width for all".into()));
    }
    check_width(width, expected).map_err(&failed)?;
    if named.iter().any(|(_, row)| row.iter().any(|x| !x.is_finite())) {
        return Err(failed("a direction contains NaN or infinite values".into()));
    }
    Ok(named)
}

fn check_width(width: usize, expected: Option<usize>) -> Result<(), String> {
    match expected.filter(|expected| *expected != width) {
        Some(expected) => Err(format!("its directions have {width} elements, but the model's width is {expected}")),
        None => Ok(()),
    }
}

fn of_json(path: &Path, failed: &impl Fn(String) -> Failure) -> Result<Vec<(String, Vec<f32>)>, Failure> {
    let value = read_json(path.into()).map_err(Error::from)?;
    let one = Vec::<f32>::deserialize(&value).ok().map(|one| vec![one]);
    let several = one.or_else(|| Vec::<Vec<f32>>::deserialize(&value).ok());
    let several =
        several.ok_or_else(|| failed("expected an array of numbers, or an array of arrays of numbers".into()))?;
    Ok(several.into_iter().map(|row| (String::new(), row)).collect())
}

fn of_tensors(
    path: &Path,
    expected: Option<usize>,
    failed: &impl Fn(String) -> Failure,
) -> Result<Vec<(String, Vec<f32>)>, Failure> {
    let files = WeightFiles::open(&[path.to_path_buf()]).map_err(Error::from)?;
    // Values are read only after the shapes of all tensors have been checked.
    let (mut directions, mut count, mut common) = (0usize, 0usize, expected);
    for (name, info) in files.tensors() {
        let (rows, width) = match info.shape[..] {
            [width] if width > 0 => (1, width),
            [rows, width] if width > 0 => (rows, width),
            _ => {
                return Err(failed(format!(
                    "tensor `{name}` has shape {:?}; expected a vector or a matrix",
                    info.shape
                )));
            }
        };
        check_width(width, expected).map_err(failed)?;
        if *common.get_or_insert(width) != width {
            return Err(failed("expected at least one direction, and the same width for all".into()));
        }
        directions = directions.saturating_add(rows);
        count = count.saturating_add(rows.saturating_mul(width));
        if directions > MOST_DIRECTIONS || count > MOST_NUMBERS {
            return Err(failed(format!(
                "it has more than the maximum of {MOST_DIRECTIONS} directions or {MOST_NUMBERS} numbers"
            )));
        }
    }
    let mut named = Vec::new();
    for (name, info) in files.tensors() {
        let numbers: Vec<f32> = files.read(name, DType::F32).map_err(Error::from)?.iter().collect();
        let several = info.shape.len() > 1;
        for (row, numbers) in numbers.chunks_exact(info.shape[info.shape.len() - 1]).enumerate() {
            named.push((if several { format!("{name} {row}") } else { name.to_string() }, numbers.to_vec()));
        }
    }
    Ok(named)
}
