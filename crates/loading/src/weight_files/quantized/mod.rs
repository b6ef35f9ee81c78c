//! Quantized checkpoints in Hugging Face formats, where several tensors together form one matrix.

mod awq;
mod bitsandbytes;
mod codes;
mod compressed;
mod fp8;
mod gptq;
mod mxfp4;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Bytes;
use bytes::Bytes as SharedBytes;
use hooklens_hooks::DType;
use hooklens_kernels::packed::{Format, Order};
use serde_json::Value;

use super::convert::Converted;
use super::{Location, RawTensors, Runs, TensorInfo, WeightFiles};
use codes::Codes;
use hooklens_model::cpu::packed_matrix::PackedMatrix;
use hooklens_model::error::{ConfigError, LoadError, load_errors};

/// Matrix formed by several tensors, with rows of codes along the input dimension.
#[derive(Debug, Clone)]
pub struct Joined {
    /// Name of the matrix.
    name: String,
    kind: Kind,
    /// Tensors that form the matrix, keyed by the last part of their names.
    parts: BTreeMap<String, TensorInfo>,
    rows: usize,
    width: usize,
}

/// How the tensors form a matrix.
#[derive(Debug, Clone)]
enum Kind {
    Gptq(gptq::Rules),
    Awq(awq::Rules),
    FourBits(bitsandbytes::State),
    EightBits,
    Fp8(fp8::Rules),
    Compressed(compressed::Rules),
    Mxfp4 { experts: usize },
}

/// Quantization method of a checkpoint.
#[derive(Debug, Clone)]
pub(crate) enum Quantized {
    Gptq(gptq::Rules),
    Awq(awq::Rules),
    BitsAndBytes,
    Fp8(fp8::Rules),
    Compressed(compressed::Rules),
    Mxfp4,
}

impl Quantized {
    /// Reads the method from `config.json`; `None` if the model is not quantized. `architecture` is for error messages.
    ///
    /// # Errors
    /// [`ConfigError::Quantized`] if the method is not supported.
    pub(crate) fn of(json: &Value, architecture: &str) -> Result<Option<Self>, ConfigError> {
        let found = json.get("quantization_config").or_else(|| json.get("compression_config"));
        let Some(own) = found.filter(|own| !own.is_null()) else { return Ok(None) };
        let flag = |name: &str| own.get(name).and_then(Value::as_bool).unwrap_or(false);
        let method = match own.get("quant_method").and_then(Value::as_str) {
            // Older bitsandbytes configurations name no method.
            _ if flag("load_in_4bit") || flag("load_in_8bit") => "bitsandbytes",
            method => method.unwrap_or("unnamed"),
        };
        // Settings whose default differs from what null would mean.
        let settings = ["bits", "w_bit", "group_size", "q_group_size", "checkpoint_format", "version"];
        if let Some(field) = settings.into_iter().find(|field| own.get(field).is_some_and(Value::is_null)) {
            let method = format!("{method}, with `{field}` null");
            return Err(ConfigError::Quantized { architecture: architecture.to_string(), method });
        }
        let read = match method {
            "gptq" => gptq::Rules::of(own).map(Quantized::Gptq),
            "awq" => awq::Rules::of(own).map(Quantized::Awq),
            "bitsandbytes" => Ok(Quantized::BitsAndBytes),
            "fp8" | "fbgemm_fp8" => Ok(Quantized::Fp8(fp8::Rules::of(own))),
            "compressed-tensors" => compressed::Rules::of(own).map(Quantized::Compressed),
            "mxfp4" => Ok(Quantized::Mxfp4),
            other => Err(other.to_string()),
        };
        match read {
            Ok(quantized) => Ok(Some(quantized)),
            Err(method) => Err(ConfigError::Quantized { architecture: architecture.to_string(), method }),
        }
    }
}

impl WeightFiles {
    /// Replaces each group of tensors that form a matrix with the matrix, named as in an unquantized checkpoint.
    ///
    /// # Errors
    /// [`LoadError::Quantized`] if the tensors of a matrix are inconsistent.
    pub(crate) fn joined(mut self, quantized: &Quantized) -> Result<Self, LoadError> {
        // Suffix that identifies a quantized module.
        let marker = match quantized {
            Quantized::Gptq(_) | Quantized::Awq(_) => ".qweight",
            Quantized::BitsAndBytes | Quantized::Fp8(_) => ".weight",
            Quantized::Compressed(rules) => rules.marker(),
            Quantized::Mxfp4 => "_blocks",
        };
        let marked: Vec<String> = self.tensors.keys().filter(|name| name.ends_with(marker)).cloned().collect();
        for name in marked {
            let module = &name[..name.len() - marker.len()];
            let made = match quantized {
                Quantized::Gptq(rules) => Some(gptq::join(&self, module, rules)?),
                Quantized::Awq(rules) => Some(awq::join(&self, module, rules)?),
                Quantized::BitsAndBytes => bitsandbytes::join(&self, module)?,
                Quantized::Fp8(rules) => fp8::join(&self, module, rules)?,
                Quantized::Compressed(rules) => compressed::join(&self, module, rules)?,
                Quantized::Mxfp4 => Some(mxfp4::join(&self, module)?),
            };
            let Some((joined, shape, packed)) = made else { continue };
            let mut bytes = 0;
            for (part, info) in &joined.parts {
                bytes += info.bytes;
                self.tensors.remove(&joined.part_name(part));
            }
            let dtype = joined.kind.name();
            let (float, name) = (packed.is_none().then_some(DType::F32), joined.name.clone());
            let place = Location::Joined(Box::new(joined));
            if self.tensors.insert(name.clone(), TensorInfo { shape, dtype, float, packed, bytes, place }).is_some() {
                return Err(load_errors::bad_quantized(&name, "the files contain it both quantized and unquantized"));
            }
        }
        Ok(self)
    }

    /// Reads a tensor's raw bytes.
    fn raw(&self, info: &TensorInfo, part: Option<Range<usize>>) -> Result<SharedBytes, LoadError> {
        match &info.place {
            Location::File { file, bytes } => {
                let part = part.unwrap_or(0..bytes.len());
                self.files[*file].bytes(bytes.start + part.start..bytes.start + part.end)
            }
            place => {
                let all = SharedBytes::from(place.read_whole()?);
                Ok(part.map_or(all.clone(), |part| all.slice(part)))
            }
        }
    }

    /// Packs rows of a quantized matrix into blocks.
    pub(super) fn packed_codes(
        &self,
        joined: &Joined,
        format: Format,
        rows: Range<usize>,
        order: Order,
    ) -> Result<PackedMatrix, LoadError> {
        let bytes = joined.codes(self, rows)?.pack(format);
        Ok(PackedMatrix::new(bytes.into(), format, joined.width, order))
    }

    /// Dequantizes a subset of a quantized matrix's elements.
    pub(super) fn decoded_codes(&self, joined: &Joined, compute: DType, runs: Runs) -> Result<Bytes, LoadError> {
        let mut out = Converted::with_capacity(compute, runs.len * runs.count);
        let (rows, width) = (joined.rows, joined.width);
        let experts = if let Kind::Mxfp4 { experts } = joined.kind { experts } else { 1 };
        // Mixture-of-experts tensors are read one expert at a time and are `[in, out]`.
        let size = rows / experts.max(1) * width;
        let mut held: Option<(usize, Vec<f32>)> = None;
        for run in 0..runs.count {
            let (mut at, end) = (runs.offset + run * runs.stride, runs.offset + run * runs.stride + runs.len);
            while at < end {
                let expert = at / size.max(1);
                if held.as_ref().is_none_or(|(own, _)| *own != expert) {
                    let of_expert = expert * (rows / experts)..(expert + 1) * (rows / experts);
                    let codes = joined.codes(self, of_expert)?;
                    held = Some((expert, if experts > 1 { codes.turned() } else { codes.decode() }));
                }
                let (first, left) = (at % size.max(1), end - at);
                let numbers = held.as_ref().map_or(&[][..], |(_, numbers)| &numbers[first..size.min(first + left)]);
                out.extend_floats(numbers);
                at += numbers.len().max(1);
            }
        }
        Ok(out.into_bytes())
    }
}

impl Kind {
    /// Display name of the format.
    fn name(&self) -> String {
        match self {
            Kind::Gptq(rules) => format!("gptq, {} bits", rules.bits),
            Kind::Awq(_) => "awq, 4 bits".into(),
            Kind::FourBits(state) => state.name().into(),
            Kind::EightBits => "bitsandbytes, 8 bits".into(),
            Kind::Fp8(_) => "fp8".into(),
            Kind::Compressed(rules) => rules.name(),
            Kind::Mxfp4 { .. } => "mxfp4".into(),
        }
    }
}

impl Joined {
    /// Full name of the matrix's tensor `part`.
    fn part_name(&self, part: &str) -> String {
        match &self.kind {
            Kind::Mxfp4 { .. } => format!("{}_{part}", self.name),
            _ => format!("{}.{part}", self.name.trim_end_matches(".weight")),
        }
    }

    /// Reads the codes of some rows.
    fn codes(&self, files: &WeightFiles, rows: Range<usize>) -> Result<Codes, LoadError> {
        let parts = Parts { files, joined: self };
        let all = match &self.kind {
            Kind::Mxfp4 { .. } => return mxfp4::codes(&parts, rows),
            Kind::Gptq(rules) => gptq::codes(&parts, rules)?,
            Kind::Awq(rules) => awq::codes(&parts, rules)?,
            Kind::FourBits(state) => bitsandbytes::codes(&parts, state)?,
            Kind::EightBits => bitsandbytes::eight_bits(&parts)?,
            Kind::Fp8(rules) => fp8::codes(&parts, rules)?,
            Kind::Compressed(rules) => compressed::codes(&parts, rules)?,
        };
        Ok(if rows == (0..self.rows) { all } else { all.some(rows) })
    }
}

/// The tensors that make up one quantized matrix, ready to be read.
struct Parts<'p> {
    files: &'p WeightFiles,
    joined: &'p Joined,
}

impl Parts<'_> {
    fn info(&self, part: &str) -> Result<&TensorInfo, LoadError> {
        let missing = || LoadError::MissingTensor { name: self.joined.part_name(part), nearest: Vec::new() };
        self.joined.parts.get(part).ok_or_else(missing)
    }

    fn bytes(&self, part: &str) -> Result<SharedBytes, LoadError> {
        self.files.raw(self.info(part)?, None)
    }

    /// Reads 32-bit words.
    fn words(&self, part: &str) -> Result<Vec<u32>, LoadError> {
        Ok(self.bytes(part)?.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
    }

    /// Reads floats of any width.
    fn floats(&self, part: &str) -> Result<Vec<f32>, LoadError> {
        let info = self.info(part)?;
        let Some(dtype) = info.float else {
            let reason = format!("`{part}` has element type {}, not floats", info.dtype);
            return Err(load_errors::bad_quantized(&self.joined.name, reason));
        };
        let mut floats = Converted::with_capacity(DType::F32, info.shape.iter().product());
        floats.extend(&self.bytes(part)?, dtype);
        Ok(floats.into_floats())
    }
}

/// Collects the required and optional tensors of a module.
fn collect(
    files: &WeightFiles,
    name: String,
    kind: Kind,
    [rows, width]: [usize; 2],
    (needed, optional): (&[&str], &[&str]),
) -> Result<Joined, LoadError> {
    let mut joined = Joined { name, kind, parts: BTreeMap::new(), rows, width };
    for part in needed.iter().chain(optional) {
        let own = joined.part_name(part);
        match files.info(&own) {
            Some(info) => drop(joined.parts.insert(part.to_string(), info.clone())),
            None if optional.contains(part) => {}
            None => return Err(LoadError::MissingTensor { nearest: files.nearest(&own), name: own }),
        }
    }
    Ok(joined)
}

/// Fails unless a tensor has this shape and one of these element types.
fn check(joined: &Joined, part: &str, shape: &[usize], dtypes: &[&str]) -> Result<(), LoadError> {
    let Some(info) = joined.parts.get(part) else { return Ok(()) };
    if info.shape != shape {
        let (name, expected, given) = (joined.part_name(part), shape.to_vec(), info.shape.clone());
        return Err(LoadError::Shape { name, expected, given });
    }
    if !dtypes.contains(&info.dtype.as_str()) {
        let reason = format!("`{part}` has element type {}, not {}", info.dtype, dtypes.join(" or "));
        return Err(load_errors::bad_quantized(&joined.name, reason));
    }
    Ok(())
}

/// Element types allowed for scales.
const FLOATS: &[&str] = &["f32", "f16", "bf16"];

/// A quantized matrix, its shape, and the block format it can be kept in.
type Made = (Joined, Vec<usize>, Option<Format>);
