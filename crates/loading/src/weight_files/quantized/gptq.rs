//! GPTQ: codes packed into words along the inputs, with an optional group index per input.

use hooklens_kernels::packed::{Format, GROUP};
use serde_json::Value;

use super::codes::{CodeBook, Codes, fields, symmetric};
use super::{FLOATS, Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

/// Settings from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(super) bits: usize,
    group_size: i64,
    /// Whether zero points are stored minus one (format version 1).
    first: bool,
    /// Whether all zero points equal the middle code.
    symmetric: bool,
    /// Whether groups are not contiguous in input order.
    permuted: bool,
}

impl Rules {
    pub(super) fn of(own: &Value) -> Result<Self, String> {
        let number = |name: &str| own.get(name).and_then(Value::as_i64);
        let text = |name: &str| own.get(name).and_then(Value::as_str);
        let layout = text("checkpoint_format").or(text("format")).unwrap_or("gptq");
        let bits = number("bits").unwrap_or(4);
        match (bits, layout) {
            (4 | 8, "gptq" | "gptq_v2") => {}
            (4 | 8, other) => return Err(format!("gptq, format {other}")),
            (bits, _) => return Err(format!("gptq with {bits} bits")),
        }
        if own.get("dynamic").is_some_and(|dynamic| dynamic.as_object().is_some_and(|map| !map.is_empty())) {
            return Err("gptq with different settings per module (`dynamic`)".into());
        }
        if own.get("is_marlin_format").and_then(Value::as_bool) == Some(true) {
            return Err("gptq, format marlin".into());
        }
        let group_size = number("group_size").unwrap_or(128);
        let symmetric = own.get("sym").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { bits: bits as usize, group_size, first: layout == "gptq", symmetric, permuted: false })
    }
}

pub(super) fn join(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Made, LoadError> {
    let name = format!("{module}.weight");
    let wrong = |reason: &str| load_errors::bad_quantized(&name, reason);
    let per_word = 32 / rules.bits;
    let shape = files.info(&format!("{module}.qweight")).map(|info| info.shape.clone()).unwrap_or_default();
    let [words, rows] = shape[..] else { return Err(wrong("`qweight` is not a matrix")) };
    let width = words.checked_mul(per_word).ok_or_else(|| wrong("`qweight` is too large"))?;
    let group = if rules.group_size <= 0 { width } else { rules.group_size as usize };
    let kind = Kind::Gptq(rules.clone());
    let mut joined = collect(files, name.clone(), kind, [rows, width], (&["qweight", "qzeros", "scales"], &["g_idx"]))?;
    let groups = width.div_ceil(group.max(1));
    check(&joined, "qweight", &[words, rows], &["i32"])?;
    check(&joined, "qzeros", &[groups, rows.div_ceil(per_word)], &["i32"])?;
    check(&joined, "scales", &[groups, rows], FLOATS)?;
    check(&joined, "g_idx", &[width], &["i32"])?;
    let permuted = match joined.parts.contains_key("g_idx") {
        true => {
            let of_column = Parts { files, joined: &joined }.words("g_idx")?;
            if of_column.iter().any(|of_column| *of_column as usize >= groups) {
                return Err(load_errors::bad_quantized(
                    &name,
                    format!("`g_idx` contains a group index that is not less than {groups}"),
                ));
            }
            of_column.iter().enumerate().any(|(column, of_column)| *of_column as usize != column / group)
        }
        false => false,
    };
    joined.kind = Kind::Gptq(Rules { permuted, group_size: group as i64, ..rules.clone() });
    let whole = !permuted && group.is_multiple_of(GROUP) && width.is_multiple_of(GROUP);
    let format = whole.then_some(if rules.bits == 4 { Format::Zeroed4 } else { Format::Zeroed8 });
    Ok((joined, vec![rows, width], format))
}

pub(super) fn codes(parts: &Parts<'_>, rules: &Rules) -> Result<Codes, LoadError> {
    let (rows, width, bits) = (parts.joined.rows, parts.joined.width, rules.bits);
    let per_word = 32 / bits;
    let group = rules.group_size as usize;
    let groups = width.div_ceil(group);
    let of_column = match rules.permuted {
        true => Some(parts.words("g_idx")?.into_iter().map(|group| group as usize).collect()),
        false => None,
    };
    let mut codes = vec![0; rows * width];
    for (at, word) in parts.words("qweight")?.into_iter().enumerate() {
        let (first, row) = (at / rows * per_word, at % rows);
        let to = &mut codes[row * width + first..][..per_word];
        to.iter_mut().zip(fields(word, bits)).for_each(|(to, code)| *to = code);
    }
    let stored = parts.floats("scales")?;
    let scales = (0..rows * groups).map(|i| stored[i % groups * rows + i / groups]).collect();
    let words_of_row = rows.div_ceil(per_word);
    // Version 1 files store zero points minus one, subtracted from whole words at once.
    let less = if rules.first { 0x1111_1111u32 } else { 0 };
    let less = if bits == 8 { less & 0x0101_0101 } else { less };
    let mut zeros = vec![0; rows * groups];
    for (at, word) in parts.words("qzeros")?.into_iter().enumerate() {
        let (group, first) = (at / words_of_row, at % words_of_row * per_word);
        for (row, zero) in (first..rows).zip(fields(word.wrapping_add(less), bits)) {
            zeros[row * groups + group] = i16::from(zero);
        }
    }
    if rules.symmetric {
        // Some tools omit the offset in version 1 files, or apply it in version 2 files.
        let off_by_one = if rules.first { 1 } else { -1 };
        zeros = symmetric(parts, "`sym` is true", zeros, 1 << (bits - 1), &[0, off_by_one])?;
    }
    Ok(Codes { width, codes, group, of_column, scales, zeros, meaning: CodeBook::Unsigned })
}
