//! bitsandbytes: 4-bit codes that index a table, in blocks of the flattened matrix, or 8-bit codes with one scale per
//! row.

use hooklens_kernels::packed::{Format, GROUP};
use serde_json::Value;

use super::codes::{CodeBook, Codes};
use super::{Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

/// Quantization state stored with a 4-bit matrix.
#[derive(Debug, Clone)]
pub(super) struct State {
    format: Format,
    block: usize,
    /// If the scales are quantized themselves, their block size and offset.
    nested: Option<(usize, f32)>,
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        if self.format == Format::Nf4 { "bitsandbytes, nf4" } else { "bitsandbytes, fp4" }
    }
}

pub(super) fn join(files: &WeightFiles, module: &str) -> Result<Option<Made>, LoadError> {
    let name = format!("{module}.weight");
    let there = |part: &str| files.info(&format!("{module}.{part}")).is_some();
    if there("SCB") {
        return eight_bits_of(files, name).map(Some);
    }
    for (format, own) in [(Format::Nf4, "nf4"), (Format::Fp4, "fp4")] {
        let state = format!("weight.quant_state.bitsandbytes__{own}");
        if there(&state) {
            return four_bits_of(files, name, (format, &state)).map(Some);
        }
    }
    Ok(None)
}

fn four_bits_of(files: &WeightFiles, name: String, (format, state): (Format, &str)) -> Result<Made, LoadError> {
    let needed = ["weight", "weight.absmax", "weight.quant_map", state];
    let optional = ["weight.nested_absmax", "weight.nested_quant_map"];
    let blank = State { format, block: 64, nested: None };
    let mut joined = collect(files, name.clone(), Kind::FourBits(blank), [0, 0], (&needed, &optional))?;
    let parts = Parts { files, joined: &joined };
    let wrong = |reason: String| load_errors::bad_quantized(&name, reason);
    let own: Value = serde_json::from_slice(&parts.bytes(state)?).map_err(|e| wrong(format!("`{state}`: {e}")))?;
    let size = |name: &str| own.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let shape = own.get("shape").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let shape: Vec<usize> = shape.iter().filter_map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect();
    let [rows, width] = shape[..] else { return Err(wrong(format!("`{state}` has no `shape` with two dimensions"))) };
    let block = size("blocksize").filter(|block| *block > 0);
    let block = block.ok_or_else(|| wrong(format!("`{state}` has no positive `blocksize`")))?;
    let elements = rows
        .checked_mul(width)
        .filter(|n| *n > 0)
        .ok_or_else(|| wrong(format!("its shape {shape:?} is empty or too large")))?;
    let held = joined.parts["weight"].bytes;
    if held != elements.div_ceil(2) {
        return Err(wrong(format!(
            "`weight` has {held} bytes, but {rows}x{width} 4-bit codes need {}",
            elements.div_ceil(2)
        )));
    }
    let nested = match size("nested_blocksize").filter(|n| *n > 0) {
        Some(length) => {
            let offset = own.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32;
            check(&joined, "weight.absmax", &[elements.div_ceil(block)], &["u8"])?;
            check(&joined, "weight.nested_absmax", &[elements.div_ceil(block).div_ceil(length)], &["f32"])?;
            check(&joined, "weight.nested_quant_map", &[256], &["f32"])?;
            Some((length, offset))
        }
        None => {
            check(&joined, "weight.absmax", &[elements.div_ceil(block)], &["f32"])?;
            None
        }
    };
    check(&joined, "weight.quant_map", &[16], &["f32"])?;
    let map = parts.floats("weight.quant_map")?;
    // CUDA kernels use built-in tables, regardless of the file.
    if format.table().is_none_or(|table| table.iter().zip(&map).any(|(ours, theirs)| ours != theirs)) {
        return Err(wrong("its `quant_map` differs from the table built into bitsandbytes".into()));
    }
    joined.kind = Kind::FourBits(State { format, block, nested });
    (joined.rows, joined.width) = (rows, width);
    let whole = width.is_multiple_of(GROUP) && block.is_multiple_of(GROUP);
    Ok((joined, vec![rows, width], whole.then_some(format)))
}

pub(super) fn codes(parts: &Parts<'_>, state: &State) -> Result<Codes, LoadError> {
    let (rows, width) = (parts.joined.rows, parts.joined.width);
    let bytes = parts.bytes("weight")?;
    // The high nibble comes first.
    let codes = (0..rows * width).map(|i| bytes[i / 2] >> (4 - i % 2 * 4) & 15).collect();
    let absmax = match state.nested {
        Some((length, offset)) => {
            let (map, scales) = (parts.floats("weight.nested_quant_map")?, parts.floats("weight.nested_absmax")?);
            let held = parts.bytes("weight.absmax")?;
            held.iter().enumerate().map(|(i, code)| map[usize::from(*code)] * scales[i / length] + offset).collect()
        }
        None => parts.floats("weight.absmax")?,
    };
    // Blocks continue across row boundaries.
    let group = if width.is_multiple_of(GROUP) && state.block.is_multiple_of(GROUP) { GROUP } else { 1 };
    let scales = (0..rows * width / group).map(|i| absmax[i * group / state.block]).collect();
    let Some(table) = state.format.table() else {
        return Err(load_errors::bad_quantized(&parts.joined.name, "its format has no table of codes"));
    };
    Ok(Codes { width, codes, group, of_column: None, scales, zeros: Vec::new(), meaning: CodeBook::Table(table) })
}

fn eight_bits_of(files: &WeightFiles, name: String) -> Result<Made, LoadError> {
    let shape = files.info(&name).map(|info| info.shape.clone()).unwrap_or_default();
    let [rows, width] = shape[..] else { return Err(load_errors::bad_quantized(&name, "`weight` is not a matrix")) };
    let joined = collect(files, name, Kind::EightBits, [rows, width], (&["weight", "SCB"], &["weight_format"]))?;
    check(&joined, "weight", &[rows, width], &["i8"])?;
    check(&joined, "SCB", &[rows], &["f32"])?;
    if joined.parts.contains_key("weight_format") {
        let held = Parts { files, joined: &joined }.bytes("weight_format")?;
        if held.iter().any(|byte| *byte != 0) {
            return Err(load_errors::bad_quantized(
                &joined.name,
                "its `weight_format` is a layout for GPU kernels, which is not supported",
            ));
        }
    }
    Ok((joined, vec![rows, width], width.is_multiple_of(GROUP).then_some(Format::Zeroed8)))
}

pub(super) fn eight_bits(parts: &Parts<'_>) -> Result<Codes, LoadError> {
    let width = parts.joined.width;
    Ok(Codes {
        width,
        codes: parts.bytes("weight")?.to_vec(),
        group: width,
        of_column: None,
        scales: parts.floats("SCB")?,
        zeros: Vec::new(),
        meaning: CodeBook::Absmax,
    })
}
