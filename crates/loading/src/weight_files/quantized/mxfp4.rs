//! MXFP4 as GPT-OSS publishes its experts: floats of 4 bits, a power of two for each 32.

use std::ops::Range;

use hooklens_kernels::packed::{Format, GROUP};

use super::codes::{Codes, Meaning};
use super::{Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::LoadError;

pub(super) fn join(files: &WeightFiles, name: &str) -> Result<Made, LoadError> {
    let shape = files.info(&format!("{name}_blocks")).map(|info| info.shape.clone()).unwrap_or_default();
    let [experts, rows, blocks, 16] = shape[..] else {
        return Err(LoadError::quantized(
            name,
            format!("`blocks` has shape {shape:?}, not [expert, out, in / 32, 16]"),
        ));
    };
    let size = blocks.checked_mul(GROUP).zip(experts.checked_mul(rows)).filter(|(width, rows)| *width > 0 && *rows > 0);
    let Some((width, all)) = size else { return Err(LoadError::quantized(name, format!("`blocks` is of {shape:?}"))) };
    let kind = Kind::Mxfp4 { experts };
    let joined = collect(files, name.to_string(), kind, [all, width], (&["blocks", "scales"], &[]))?;
    check(&joined, "blocks", &[experts, rows, blocks, 16], &["u8"])?;
    check(&joined, "scales", &[experts, rows, blocks], &["u8"])?;
    // The checkpoint in 16 bits holds them the other way round.
    Ok((joined, vec![experts, width, rows], Some(Format::Mxfp4)))
}

pub(super) fn codes(parts: &Parts<'_>, rows: Range<usize>) -> Result<Codes, LoadError> {
    let width = parts.joined.width;
    let groups = width / GROUP;
    let read = |part: &str, row: usize| parts.files.raw(parts.info(part)?, Some(rows.start * row..rows.end * row));
    // The low half of a byte comes first.
    let codes = read("blocks", width / 2)?.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    let power = |exponent: &u8| match exponent {
        0 => f32::from_bits(0x0040_0000),
        exponent => f32::from_bits(u32::from(*exponent) << 23),
    };
    let scales = read("scales", groups)?.iter().map(power).collect();
    Ok(Codes { width, codes, group: GROUP, of_column: None, scales, zeros: Vec::new(), meaning: Meaning::E2m1 })
}
