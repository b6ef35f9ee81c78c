//! 8-bit floats with scales per block, per row or for the whole matrix.

use hooklens_kernels::packed::{Format, GROUP};
use serde_json::Value;

use super::codes::{CodeBook, Codes};
use super::{FLOATS, Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

/// Settings from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Rows and columns that share a scale.
    block: Option<[usize; 2]>,
}

/// Possible names of the scale. Codes are multiplied by the scale under either name, despite the `_inv`.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];
/// Tensors for activation quantization, which is not applied.
const OTHERS: [&str; 4] = ["input_scale", "activation_scale", "input_scale_ub", "kv_scale"];

impl Rules {
    pub(super) fn of(own: &Value) -> Self {
        let block = own.get("weight_block_size").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let sizes: Vec<usize> = block.iter().filter_map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        Self { block: <[usize; 2]>::try_from(sizes).ok().filter(|block| !block.contains(&0)) }
    }
}

/// Joins a module whose weight consists of 8-bit floats.
pub(super) fn join(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Option<Made>, LoadError> {
    let name = format!("{module}.weight");
    let Some(info) = files.info(&name).filter(|info| info.dtype == "f8_e4m3") else { return Ok(None) };
    let [rows, width] = info.shape[..] else {
        return Err(load_errors::bad_quantized(&name, "`weight` is not a matrix"));
    };
    let there = |part: &&str| files.info(&format!("{module}.{part}")).is_some();
    let Some(scale) = SCALES.into_iter().find(there) else {
        return Err(load_errors::bad_quantized(&name, "it has no `weight_scale_inv` or `weight_scale`"));
    };
    let kind = Kind::Fp8(rules.clone());
    let joined = collect(files, name, kind, [rows, width], (&["weight", scale], &OTHERS))?;
    let block = block_of(&joined.parts[scale].shape, [rows, width], rules.block);
    let Some([down, across]) = block else {
        let (shape, name) = (&joined.parts[scale].shape, &joined.name);
        return Err(load_errors::bad_quantized(
            name,
            format!("`{scale}` of shape {shape:?} does not match a {rows}x{width} matrix"),
        ));
    };
    check(&joined, scale, &joined.parts[scale].shape.clone(), FLOATS)?;
    let joined = super::Joined { kind: Kind::Fp8(Rules { block: Some([down, across]) }), ..joined };
    let whole = width.is_multiple_of(GROUP) && (across.is_multiple_of(GROUP) || across >= width);
    Ok(Some((joined, vec![rows, width], whole.then_some(Format::E4m3))))
}

/// Number of rows and columns that share a scale, given the scale's shape.
pub(super) fn block_of(shape: &[usize], [rows, width]: [usize; 2], block: Option<[usize; 2]>) -> Option<[usize; 2]> {
    match (shape, block) {
        ([] | [1] | [1, 1], _) => Some([rows, width]),
        ([down, across], Some(block)) if *down == rows.div_ceil(block[0]) && *across == width.div_ceil(block[1]) => {
            Some(block)
        }
        ([down, 1], _) | ([down], _) if *down == rows => Some([1, width]),
        ([down, across], _) if *down == rows && *across > 0 && width.is_multiple_of(*across) => {
            Some([1, width / across])
        }
        _ => None,
    }
}

pub(super) fn codes(parts: &Parts<'_>, rules: &Rules) -> Result<Codes, LoadError> {
    let [rows, width] = [parts.joined.rows, parts.joined.width];
    let scale = SCALES.into_iter().find(|part| parts.joined.parts.contains_key(*part)).unwrap_or(SCALES[0]);
    let [down, across] = rules.block.unwrap_or([rows, width]);
    let (stored, groups) = (parts.floats(scale)?, width.div_ceil(across));
    let scales = (0..rows * groups).map(|i| stored[i / groups / down * groups + i % groups]).collect();
    let codes = parts.bytes("weight")?.to_vec();
    Ok(Codes { width, codes, group: across, of_column: None, scales, zeros: Vec::new(), meaning: CodeBook::E4m3 })
}
