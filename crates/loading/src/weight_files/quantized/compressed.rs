//! compressed-tensors: integers packed along the inputs, 8-bit integers or 8-bit floats.

use hooklens_kernels::packed::{Format, GROUP};
use serde_json::Value;

use super::codes::{CodeBook, Codes, fields, symmetric};
use super::{FLOATS, Kind, Made, Parts, check, collect, fp8};
use crate::weight_files::WeightFiles;
use hooklens_model::error::{LoadError, load_errors};

/// Setting that requires symmetric zero points, as worded in error messages.
const SYMMETRIC: &str = "`symmetric` is true";

/// Settings from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    layout: Layout,
    bits: usize,
    block: Option<[usize; 2]>,
    /// Whether all zero points must equal the middle code.
    symmetric: bool,
    /// Whether groups are not contiguous; set per module.
    permuted: bool,
    group: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Packed,
    Integers,
    Floats,
}

impl Rules {
    pub(super) fn of(own: &Value) -> Result<Self, String> {
        let refused = |what: &str| Err(format!("compressed-tensors, {what}"));
        let format = own.get("format").and_then(Value::as_str).unwrap_or("dense");
        let layout = match format {
            "pack-quantized" => Layout::Packed,
            "int-quantized" => Layout::Integers,
            "float-quantized" | "naive-quantized" => Layout::Floats,
            other => return refused(other),
        };
        let sparse = own.get("sparsity_config").and_then(|sparse| sparse.get("format")).and_then(Value::as_str);
        if let Some(sparse) = sparse.filter(|sparse| *sparse != "dense") {
            return refused(sparse);
        }
        if own.get("transform_config").is_some_and(|own| own.as_object().is_some_and(|own| !own.is_empty())) {
            return refused("with a `transform_config`");
        }
        let groups: Vec<&Value> =
            own.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|g| g.values()).collect();
        let [group] = groups[..] else { return refused("without exactly one group in `config_groups`") };
        let weights = group.get("weights").unwrap_or(&Value::Null);
        let Some(bits) = weights.get("num_bits").map_or(Some(8), Value::as_u64) else {
            return refused(&format!("with `num_bits` {}", weights["num_bits"]));
        };
        let bits = bits as usize;
        let floats = weights.get("type").and_then(Value::as_str) == Some("float");
        if floats != (layout == Layout::Floats) || !matches!(bits, 2 | 4 | 8) {
            return refused(&format!("{format} with {bits} bits"));
        }
        let block = weights.get("block_structure").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let block: Vec<usize> = block.iter().filter_map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        let block = <[usize; 2]>::try_from(block).ok().filter(|block| !block.contains(&0));
        let symmetric = weights.get("symmetric").and_then(Value::as_bool).unwrap_or(true);
        Ok(Self { layout, bits, block, symmetric, permuted: false, group: 0 })
    }

    /// Suffix of the tensor name that identifies a quantized module.
    pub(super) fn marker(&self) -> &'static str {
        if self.layout == Layout::Packed { ".weight_packed" } else { ".weight" }
    }

    pub(super) fn name(&self) -> String {
        format!("compressed-tensors, {} bits", self.bits)
    }
}

pub(super) fn join(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Option<Made>, LoadError> {
    match rules.layout {
        Layout::Floats => {
            let rules = fp8::Rules::of(&serde_json::json!({"weight_block_size": rules.block}));
            fp8::join(files, module, &rules)
        }
        Layout::Packed => packed(files, module, rules).map(Some),
        Layout::Integers => integers(files, module, rules),
    }
}

/// Checks the scales and returns the number of columns that share one.
fn grouped(joined: &super::Joined, rules: &Rules) -> Result<usize, LoadError> {
    let (shape, size) = (&joined.parts["weight_scale"].shape, [joined.rows, joined.width]);
    check(joined, "weight_scale", shape, FLOATS)?;
    match fp8::block_of(shape, size, rules.block) {
        Some([1, across]) => Ok(across),
        Some([rows, across]) if rows == joined.rows && across == joined.width => Ok(across),
        _ => Err(load_errors::bad_quantized(
            &joined.name,
            format!("`weight_scale` of shape {shape:?} does not match a matrix of shape {size:?}"),
        )),
    }
}

fn packed(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Made, LoadError> {
    let name = format!("{module}.weight");
    let wrong = |reason: String| load_errors::bad_quantized(&name, reason);
    let kind = Kind::Compressed(rules.clone());
    let needed = ["weight_packed", "weight_scale", "weight_shape"];
    let optional = ["weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point"];
    let mut joined = collect(files, name.clone(), kind, [0, 0], (&needed, &optional))?;
    let held = Parts { files, joined: &joined }.bytes("weight_shape")?;
    let shape: Vec<i64> = match joined.parts["weight_shape"].dtype.as_str() {
        "i64" => held.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => held.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
    };
    let sizes: Vec<usize> = shape.iter().filter_map(|n| usize::try_from(*n).ok().filter(|n| *n > 0)).collect();
    let [rows, width] = sizes[..] else {
        return Err(wrong(format!("its `weight_shape` is {shape:?}, not two positive sizes")));
    };
    (joined.rows, joined.width) = (rows, width);
    let per_word = 32 / rules.bits;
    check(&joined, "weight_packed", &[rows, width.div_ceil(per_word)], &["i32"])?;
    let group = grouped(&joined, rules)?;
    let groups = width.div_ceil(group);
    check(&joined, "weight_zero_point", &[rows.div_ceil(per_word), groups], &["i32"])?;
    check(&joined, "weight_g_idx", &[width], &["i32"])?;
    let permuted = match joined.parts.contains_key("weight_g_idx") {
        true => {
            let of_column = Parts { files, joined: &joined }.words("weight_g_idx")?;
            let unused = of_column.contains(&u32::MAX);
            if !unused && of_column.iter().any(|group| *group as usize >= groups) {
                return Err(wrong(format!("`weight_g_idx` contains a group index that is not less than {groups}")));
            }
            !unused && of_column.iter().enumerate().any(|(column, of_column)| *of_column as usize != column / group)
        }
        false => false,
    };
    joined.kind = Kind::Compressed(Rules { permuted, group, ..rules.clone() });
    let whole = !permuted && width.is_multiple_of(GROUP) && group.is_multiple_of(GROUP);
    let format = match rules.bits {
        4 => Some(Format::Zeroed4),
        8 => Some(Format::Zeroed8),
        _ => None,
    };
    Ok((joined, vec![rows, width], format.filter(|_| whole)))
}

fn integers(files: &WeightFiles, module: &str, rules: &Rules) -> Result<Option<Made>, LoadError> {
    let name = format!("{module}.weight");
    let Some(info) = files.info(&name).filter(|info| info.dtype == "i8") else { return Ok(None) };
    let [rows, width] = info.shape[..] else {
        return Err(load_errors::bad_quantized(&name, "`weight` is not a matrix"));
    };
    let optional = ["weight_zero_point", "input_scale", "input_zero_point"];
    let kind = Kind::Compressed(rules.clone());
    let mut joined = collect(files, name, kind, [rows, width], (&["weight", "weight_scale"], &optional))?;
    let group = grouped(&joined, rules)?;
    check(&joined, "weight_zero_point", &joined.parts["weight_scale"].shape.clone(), &["i8"])?;
    joined.kind = Kind::Compressed(Rules { group, ..rules.clone() });
    let whole = width.is_multiple_of(GROUP) && group.is_multiple_of(GROUP);
    Ok(Some((joined, vec![rows, width], whole.then_some(Format::Zeroed8))))
}

pub(super) fn codes(parts: &Parts<'_>, rules: &Rules) -> Result<Codes, LoadError> {
    let (rows, width, group) = (parts.joined.rows, parts.joined.width, rules.group);
    let groups = width.div_ceil(group);
    let stored = parts.floats("weight_scale")?;
    let one = stored.len() == 1;
    let scales = (0..rows * groups).map(|i| if one { stored[0] } else { stored[i] }).collect();
    let zeroed = parts.joined.parts.contains_key("weight_zero_point");
    if rules.layout == Layout::Integers {
        let zeros: Vec<i16> = match zeroed {
            true => parts.bytes("weight_zero_point")?.iter().map(|byte| i16::from(*byte as i8)).collect(),
            false => Vec::new(),
        };
        let mut zeros = if one && zeroed { vec![zeros[0]; rows * groups] } else { zeros };
        if rules.symmetric {
            zeros = symmetric(parts, SYMMETRIC, zeros, 0, &[0])?;
        }
        let codes = parts.bytes("weight")?.to_vec();
        return Ok(Codes { width, codes, group, of_column: None, scales, zeros, meaning: CodeBook::Signed });
    }
    let (bits, per_word) = (rules.bits, 32 / rules.bits);
    let words = parts.words("weight_packed")?;
    let mut codes = Vec::with_capacity(rows * width);
    for row in words.chunks(width.div_ceil(per_word)) {
        codes.extend(row.iter().flat_map(|word| fields(*word, bits)).take(width));
    }
    // Values are stored unsigned, so half the range is the zero point.
    let mut zeros = vec![1 << (bits - 1); rows * groups];
    if zeroed {
        for (at, word) in parts.words("weight_zero_point")?.into_iter().enumerate() {
            let (first, group) = (at / groups * per_word, at % groups);
            for (row, zero) in (first..rows).zip(fields(word, bits)) {
                zeros[row * groups + group] = i16::from(zero);
            }
        }
    }
    if rules.symmetric {
        zeros = symmetric(parts, SYMMETRIC, zeros, 1 << (bits - 1), &[0])?;
    }
    let of_column = match rules.permuted {
        true => Some(parts.words("weight_g_idx")?.into_iter().map(|group| group as usize).collect()),
        false => None,
    };
    Ok(Codes { width, codes, group, of_column, scales, zeros, meaning: CodeBook::Unsigned })
}
