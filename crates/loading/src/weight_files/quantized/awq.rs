//! AWQ: codes packed into words along the outputs, in an interleaved order.

use hooklens_kernels::packed::{Format, GROUP};
use serde_json::Value;

use super::codes::{CodeBook, Codes, fields, symmetric};
use super::{FLOATS, Kind, Made, Parts, check, collect};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

/// Output index within a word for each bit field.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Settings from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    group_size: i64,
    /// Whether all zero points equal the middle code.
    symmetric: bool,
}

impl Rules {
    pub(super) fn of(own: &Value) -> Result<Self, String> {
        let number = |name: &str, other: &str| own.get(name).or(own.get(other)).and_then(Value::as_i64);
        let version = own.get("version").and_then(Value::as_str).unwrap_or("gemm").to_lowercase();
        if !["gemm", "exllama", "ipex"].contains(&version.as_str()) {
            return Err(format!("awq, version {version}"));
        }
        match number("bits", "w_bit").unwrap_or(4) {
            4 => {
                let symmetric = own.get("zero_point").and_then(Value::as_bool) == Some(false);
                Ok(Self { group_size: number("group_size", "q_group_size").unwrap_or(128), symmetric })
            }
            bits => Err(format!("awq with {bits} bits")),
        }
    }
}

pub(super) fn join(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Made, LoadError> {
    let name = format!("{module}.weight");
    let wrong = |reason: &str| load_errors::bad_quantized(&name, reason);
    let shape = files.info(&format!("{module}.qweight")).map(|info| info.shape.clone()).unwrap_or_default();
    let [width, words] = shape[..] else { return Err(wrong("`qweight` is not a matrix")) };
    let rows = words.checked_mul(8).ok_or_else(|| wrong("`qweight` is too large"))?;
    let group = if rules.group_size <= 0 { width } else { rules.group_size as usize };
    let kind = Kind::Awq(Rules { group_size: group as i64, ..rules.clone() });
    let joined = collect(files, name, kind, [rows, width], (&["qweight", "qzeros", "scales"], &[]))?;
    let groups = width.div_ceil(group.max(1));
    check(&joined, "qweight", &[width, words], &["i32"])?;
    check(&joined, "qzeros", &[groups, words], &["i32"])?;
    check(&joined, "scales", &[groups, rows], FLOATS)?;
    let whole = group.is_multiple_of(GROUP) && width.is_multiple_of(GROUP);
    Ok((joined, vec![rows, width], whole.then_some(Format::Zeroed4)))
}

pub(super) fn codes(parts: &Parts<'_>, rules: &Rules) -> Result<Codes, LoadError> {
    let (rows, width, group) = (parts.joined.rows, parts.joined.width, rules.group_size as usize);
    let (words, groups) = (rows / 8, width.div_ceil(group));
    let mut codes = vec![0; rows * width];
    for (at, word) in parts.words("qweight")?.into_iter().enumerate() {
        let (column, first) = (at / words, at % words * 8);
        for (row, code) in ORDER.iter().zip(fields(word, 4)) {
            codes[(first + row) * width + column] = code;
        }
    }
    let stored = parts.floats("scales")?;
    let scales = (0..rows * groups).map(|i| stored[i % groups * rows + i / groups]).collect();
    let mut zeros = vec![0; rows * groups];
    for (at, word) in parts.words("qzeros")?.into_iter().enumerate() {
        let (group, first) = (at / words, at % words * 8);
        for (row, zero) in ORDER.iter().zip(fields(word, 4)) {
            zeros[(first + row) * groups + group] = i16::from(zero);
        }
    }
    if rules.symmetric {
        zeros = symmetric(parts, "`zero_point` is false", zeros, 8, &[0])?;
    }
    Ok(Codes { width, codes, group, of_column: None, scales, zeros, meaning: CodeBook::Unsigned })
}
