//! GGUF, ggml's tensor file format: a header with model metadata, followed by the tensors.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use hooklens_hooks::DType;
use hooklens_kernels::packed::Format;
use serde_json::{Map, Value};

use super::tensor_file::TensorFile;
use super::{Location, TensorInfo};
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::{LoadError, load_errors};

/// Magic number at the start of a GGUF file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Maximum header size in bytes, vocabulary included.
const LONGEST: usize = 1 << 26;
/// Maximum number of fields. A field takes more space in memory than in the file, so without a limit a file could take
/// up many times its own size in memory.
const MOST_FIELDS: u64 = 1 << 16;
/// Maximum number of tensors, for the same reason.
const MOST_TENSORS: u64 = 1 << 18;
/// Maximum memory of the fields in bytes. The largest vocabularies, with their merges, take less than 100 MB.
const MOST_MEMORY: usize = 1 << 27;
/// Maximum length of a token in bytes.
const LONGEST_TOKEN: usize = 1 << 16;
/// Memory of a value in bytes.
const VALUE: usize = size_of::<Value>();
/// Memory overhead of allocating a string, in bytes.
const HEAP: usize = 32;
/// Field that is read together with the tensors.
const ALIGNED: &str = "general.alignment";
/// Maximum number of axes per tensor.
const AXES: u32 = 4;
/// Default alignment of the tensor data.
const ALIGNMENT: usize = 32;

/// The header: everything before the tensor data.
struct Header {
    fields: Map<String, Value>,
    tensors: Vec<Listed>,
    /// Offset of the tensor data.
    data: usize,
}

/// Tensor entry in the header.
struct Listed {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

/// A ggml element type.
struct Kind {
    name: &'static str,
    float: Option<DType>,
    packed: Option<Format>,
    /// Values and bytes per block.
    block: (usize, usize),
}

/// The element type with this ggml type number.
fn kind(number: u32) -> Option<Kind> {
    let float = |name, dtype: DType| Kind { name, float: Some(dtype), packed: None, block: (1, dtype.size()) };
    let packed = |name, format: Format| Kind {
        name,
        float: None,
        packed: Some(format),
        block: (format.values(), format.bytes()),
    };
    let other = |name, block| Kind { name, float: None, packed: None, block };
    Some(match number {
        0 => float("f32", DType::F32),
        1 => float("f16", DType::F16),
        2 => packed("q4_0", Format::Q4_0),
        3 => packed("q4_1", Format::Q4_1),
        6 => packed("q5_0", Format::Q5_0),
        7 => packed("q5_1", Format::Q5_1),
        8 => packed("q8_0", Format::Q8_0),
        9 => other("q8_1", (32, 36)),
        10 => packed("q2_k", Format::Q2K),
        11 => packed("q3_k", Format::Q3K),
        12 => packed("q4_k", Format::Q4K),
        13 => packed("q5_k", Format::Q5K),
        14 => packed("q6_k", Format::Q6K),
        15 => other("q8_k", (256, 292)),
        16 => other("iq2_xxs", (256, 66)),
        17 => other("iq2_xs", (256, 74)),
        18 => other("iq3_xxs", (256, 98)),
        19 => other("iq1_s", (256, 50)),
        20 => packed("iq4_nl", Format::Iq4Nl),
        21 => other("iq3_s", (256, 110)),
        22 => other("iq2_s", (256, 82)),
        23 => packed("iq4_xs", Format::Iq4Xs),
        24 => other("i8", (1, 1)),
        25 => other("i16", (1, 2)),
        26 => other("i32", (1, 4)),
        27 => other("i64", (1, 8)),
        28 => float("f64", DType::F64),
        29 => other("iq1_m", (256, 56)),
        30 => float("bf16", DType::BF16),
        34 => other("tq1_0", (256, 54)),
        35 => other("tq2_0", (256, 66)),
        39 => packed("mxfp4", Format::Mxfp4),
        _ => return None,
    })
}

/// Reads a file's metadata fields, by name.
pub(crate) fn fields(path: &Path) -> Result<Map<String, Value>, LoadError> {
    Ok(header(&TensorFile::open(path, true)?, true)?.fields)
}

/// Lists the tensors under ggml's names. The last axis of each shape is the innermost.
pub(super) fn tensors(file: &TensorFile, number: usize) -> Result<Vec<(String, TensorInfo)>, LoadError> {
    let header = header(file, false)?;
    let corrupt = |reason: String| load_errors::corrupt(&file.path, reason);
    let located = |listed: Listed| {
        let Listed { name, shape, kind: of_ggml, offset } = listed;
        let held = kind(of_ggml)
            .ok_or_else(|| corrupt(format!("the tensor `{}` has the unknown ggml type {of_ggml}", excerpt(&name))))?;
        let (values, bytes) = held.block;
        let row = shape.last().copied().unwrap_or(1);
        let elements = shape.iter().try_fold(1usize, |all, axis| all.checked_mul(*axis));
        let whole = row.is_multiple_of(values);
        let bytes = elements.filter(|_| whole).and_then(|all| (all / values).checked_mul(bytes));
        let start = usize::try_from(offset).ok().and_then(|offset| header.data.checked_add(offset));
        let range = start.zip(bytes).and_then(|(start, bytes)| Some(start..start.checked_add(bytes)?));
        let range = range.filter(|range| range.end as u64 <= file.len());
        let range = range.ok_or_else(|| {
            let shape = format!("{shape:?}, {}, offset {offset}", held.name);
            corrupt(format!(
                "the tensor `{}` ({shape}) does not consist of whole blocks within the file's {} bytes",
                excerpt(&name),
                file.len()
            ))
        })?;
        if elements == Some(0) {
            return Err(corrupt(format!("the tensor `{}` has no elements: {shape:?}", excerpt(&name))));
        }
        let (bytes, place) = (range.len(), Location::File { file: number, bytes: range });
        let (dtype, float, packed) = (held.name.to_string(), held.float, held.packed);
        Ok((name, TensorInfo { shape, dtype, float, packed, bytes, place }))
    };
    header.tensors.into_iter().map(located).collect()
}

/// Paths of all parts of a split model, given the path of one.
pub(crate) fn parts(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let count = fields(path)?.get("split.count").and_then(Value::as_u64).unwrap_or(1);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // `name-00001-of-00003.gguf`
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf")).and_then(|rest| rest.rsplit_once('-'));
    match stem {
        Some((stem, _)) if count > 1 && count <= 100_000 => {
            let part = |number| {
                let shard = format!("{stem}-{number:05}-of-{count:05}.gguf");
                let own = path.with_file_name(&shard);
                if own.is_file() { Ok(own) } else { Err(LoadError::MissingShard { shard, index: path.to_path_buf() }) }
            };
            (1..=count).map(part).collect()
        }
        None if count > 1 => {
            let reason =
                format!("it is one of {count} parts, but its name does not match `<name>-<part>-of-{count:05}.gguf`");
            Err(load_errors::corrupt(path, reason))
        }
        _ => Ok(vec![path.to_path_buf()]),
    }
}

/// Reads the header. Without `values`, its fields are skipped.
fn header(file: &TensorFile, values: bool) -> Result<Header, LoadError> {
    let corrupt = |reason: String| load_errors::corrupt(&file.path, reason);
    // A file that is not in memory is read in growing chunks until the header is complete.
    let mut size = if file.in_memory().is_some() { LONGEST } else { 1 << 20 };
    loop {
        let start: Cow<'_, [u8]> = file.start(size)?;
        let mut reader = Reader { bytes: &start, at: 0, memory: 0 };
        match read_header(&mut reader, values) {
            Ok(header) => return Ok(header),
            Err(Fault::Short) if (start.len() as u64) < file.len() && size < LONGEST => size *= 4,
            Err(Fault::Short) => {
                return Err(corrupt(format!("its header does not end within the first {} bytes", start.len())));
            }
            Err(Fault::Wrong(reason)) => return Err(corrupt(reason)),
        }
    }
}

fn read_header(reader: &mut Reader<'_>, values: bool) -> Result<Header, Fault> {
    if reader.take(4)? != MAGIC {
        return Err(Fault::Wrong("it does not start with the GGUF magic bytes".into()));
    }
    match reader.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(Fault::Wrong("it is big-endian; convert it to little-endian".into()));
        }
        version => return Err(Fault::Wrong(format!("GGUF version {version} is not supported; versions 2 and 3 are"))),
    }
    let (tensors, fields) = (reader.u64()?, reader.u64()?);
    for (count, most, what) in [(tensors, MOST_TENSORS, "tensors"), (fields, MOST_FIELDS, "fields")] {
        if count > most {
            return Err(Fault::Wrong(format!("it has {count} {what}; at most {most} are supported")));
        }
    }
    let mut named = Map::new();
    for _ in 0..fields {
        let (name, kind) = (reader.text()?, reader.u32()?);
        if named.contains_key(&name) {
            return Err(Fault::Wrong(format!("the field `{}` occurs twice", excerpt(name))));
        }
        let value = if values || name == ALIGNED { reader.value(kind, &name)? } else { reader.skip(kind, &name)? };
        named.insert(name, value);
    }
    let mut listed: Vec<Listed> = Vec::new();
    for _ in 0..tensors {
        listed.push(reader.listed()?);
    }
    let alignment = match named.get(ALIGNED).map(Value::as_u64) {
        None => ALIGNMENT,
        Some(Some(n @ 1..=65_536)) if n.is_power_of_two() => n as usize,
        Some(_) => return Err(Fault::Wrong(format!("`{ALIGNED}` is not a power of two up to 65536"))),
    };
    let data = reader.at.next_multiple_of(alignment);
    if let Some(odd) = listed.iter().find(|tensor| !tensor.offset.is_multiple_of(alignment as u64)) {
        return Err(Fault::Wrong(format!(
            "the offset of tensor `{}` is {}, not a multiple of {alignment}",
            excerpt(&odd.name),
            odd.offset
        )));
    }
    Ok(Header { fields: named, tensors: listed, data })
}

/// Why a header cannot be read.
enum Fault {
    /// The header continues past the bytes read so far.
    Short,
    Wrong(String),
}

fn unknown(kind: u32, name: &str) -> Fault {
    Fault::Wrong(format!("the field `{}` has the unknown GGUF type {kind}", excerpt(name)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Memory of the fields and names read so far, in bytes.
    memory: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end)).ok_or(Fault::Short)?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?.first_chunk().copied().ok_or(Fault::Short)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, Fault> {
        let bytes = self.bytes()?;
        let is_valid = std::str::from_utf8(bytes).is_ok();
        if !is_valid && bytes.len() > LONGEST_TOKEN {
            return Err(Fault::Wrong(format!("a text of {} bytes in its header is not UTF-8", bytes.len())));
        }
        // A token may be only part of a character. Each invalid byte becomes a three-byte character.
        self.count(HEAP + if is_valid { 1 } else { 3 } * bytes.len())?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Bytes of a text.
    fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let len = usize::try_from(self.u64()?).map_err(|_| Fault::Short)?;
        self.take(len)
    }

    /// Counts memory that is about to be allocated.
    fn count(&mut self, memory: usize) -> Result<(), Fault> {
        self.memory = self.memory.saturating_add(memory);
        if self.memory > MOST_MEMORY {
            let most = MOST_MEMORY >> 20;
            return Err(Fault::Wrong(format!("its fields and names take more than {most} MiB of memory")));
        }
        Ok(())
    }

    /// Type and number of the entries of a list.
    fn list(&mut self, name: &str) -> Result<(u32, usize), Fault> {
        let (of, len) = (self.u32()?, self.u64()?);
        if of == 9 {
            let name = excerpt(name);
            return Err(Fault::Wrong(format!("the field `{name}` is a list of lists, which is not supported")));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len.saturating_mul(VALUE) > MOST_MEMORY {
            let (name, most) = (excerpt(name), MOST_MEMORY / VALUE);
            return Err(Fault::Wrong(format!("the field `{name}` has {len} entries; at most {most} are supported")));
        }
        // Each entry takes at least one byte.
        if len > self.bytes.len() - self.at { Err(Fault::Short) } else { Ok((of, len)) }
    }

    /// Skips a value, and returns null.
    fn skip(&mut self, kind: u32, name: &str) -> Result<Value, Fault> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                self.bytes()?;
                0
            }
            9 => {
                let (of, len) = self.list(name)?;
                for _ in 0..len {
                    self.skip(of, name)?;
                }
                0
            }
            _ => return Err(unknown(kind, name)),
        };
        self.take(size)?;
        Ok(Value::Null)
    }

    fn value(&mut self, kind: u32, name: &str) -> Result<Value, Fault> {
        Ok(match kind {
            0 => self.array::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.array()?).into(),
            2 => u16::from_le_bytes(self.array()?).into(),
            3 => i16::from_le_bytes(self.array()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.array()?).into(),
            // Use the shortest decimal, which is the intended value: 0.00001, not 0.000009999999747.
            6 => f32::from_le_bytes(self.array()?).to_string().parse::<f64>().unwrap_or(f64::NAN).into(),
            7 => (self.array::<1>()?[0] != 0).into(),
            8 => self.text()?.into(),
            9 => {
                let (of, len) = self.list(name)?;
                self.count(len * VALUE)?;
                let mut values = Vec::with_capacity(len);
                for _ in 0..len {
                    values.push(self.value(of, name)?);
                }
                values.into()
            }
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.array()?).into(),
            12 => f64::from_le_bytes(self.array()?).into(),
            _ => return Err(unknown(kind, name)),
        })
    }

    fn listed(&mut self) -> Result<Listed, Fault> {
        let (name, axes) = (self.text()?, self.u32()?);
        if axes > AXES {
            let name = excerpt(name);
            return Err(Fault::Wrong(format!(
                "the tensor `{name}` has {axes} dimensions; ggml supports at most {AXES}"
            )));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            let axis = usize::try_from(self.u64()?);
            shape.push(axis.map_err(|_| Fault::Wrong(format!("the tensor `{}` is too large", excerpt(&name))))?);
        }
        // ggml lists the innermost axis first.
        shape.reverse();
        Ok(Listed { name, shape, kind: self.u32()?, offset: self.u64()? })
    }
}
