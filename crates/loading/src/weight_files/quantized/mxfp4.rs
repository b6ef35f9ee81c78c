//! MXFP4, as in GPT-OSS's experts: 4-bit floats with one power-of-two scale per 32 values.

use std::ops::Range;

use hooklens_kernels::packed::{Format, GROUP};

use super::codes::{CodeBook, Codes};
use super::{Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

pub(super) fn join(files: &WeightFiles, name: &str) -> Result<Made, LoadError> {
    let shape = files.info(&format!("{name}_blocks")).map(|info| info.shape.clone()).unwrap_or_default();
    let [experts, rows, blocks, 16] = shape[..] else {
        return Err(load_errors::bad_quantized(
            name,
            format!("`blocks` has shape {shape:?}, not [expert, out, in / 32, 16]"),
        ));
    };
    let size = blocks.checked_mul(GROUP).zip(experts.checked_mul(rows)).filter(|(width, rows)| *width > 0 && *rows > 0);
    let Some((width, all)) = size else {
        return Err(load_errors::bad_quantized(
            name,
            format!("`blocks` has shape {shape:?}, which is empty or too large"),
        ));
    };
    let kind = Kind::Mxfp4 { experts };
    let joined = collect(files, name.to_string(), kind, [all, width], (&["blocks", "scales"], &[]))?;
    check(&joined, "blocks", &[experts, rows, blocks, 16], &["u8"])?;
    check(&joined, "scales", &[experts, rows, blocks], &["u8"])?;
    // Report the transposed shape, in which the 16-bit checkpoint stores the experts.
    Ok((joined, vec![experts, width, rows], Some(Format::Mxfp4)))
}

pub(super) fn codes(parts: &Parts<'_>, rows: Range<usize>) -> Result<Codes, LoadError> {
    let width = parts.joined.width;
    let groups = width / GROUP;
    let read = |part: &str, row: usize| parts.files.raw(parts.info(part)?, Some(rows.start * row..rows.end * row));
    // The low nibble comes first.
    let codes = read("blocks", width / 2)?.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    let power = |exponent: &u8| match exponent {
        0 => f32::from_bits(0x0040_0000),
        exponent => f32::from_bits(u32::from(*exponent) << 23),
    };
    let scales = read("scales", groups)?.iter().map(power).collect();
    Ok(Codes { width, codes, group: GROUP, of_column: None, scales, zeros: Vec::new(), meaning: CodeBook::E2m1 })
}
