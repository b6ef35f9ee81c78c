//! NumPy's `.npz` format: arrays in a zip archive, stored or deflated. Arrays of Python objects are rejected, since
//! unpickling them would run code.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use hooklens_hooks::DType;
use zip::{CompressionMethod, ZipArchive};

use super::{Location, TensorInfo};
use hooklens_io::regular;
use hooklens_model::error::{LoadError, load_errors};

/// Maximum length of an array's header in bytes.
const LONGEST_HEADER: usize = 1 << 16;

/// Location of a deflated array.
#[derive(Debug, Clone)]
pub struct NpzArray {
    path: PathBuf,
    entry: String,
    header: usize,
    len: usize,
}

impl NpzArray {
    /// Reads all bytes of the array.
    pub(crate) fn read(&self) -> Result<Vec<u8>, LoadError> {
        let failed = load_errors::cant_read(&self.path);
        let mut archive = archive(&self.path)?;
        let mut entry = archive.by_name(&self.entry).map_err(|error| refused(&self.path, error))?;
        let mut header = vec![0; self.header];
        entry.read_exact(&mut header).map_err(&failed)?;
        let mut bytes = Vec::new();
        entry.take(self.len as u64 + 1).read_to_end(&mut bytes).map_err(&failed)?;
        if bytes.len() != self.len {
            let reason = format!("the array `{}` has {} bytes; expected {}", self.entry, bytes.len(), self.len);
            return Err(load_errors::corrupt(&self.path, reason));
        }
        Ok(bytes)
    }
}

/// Lists the arrays in the file with index `file`. Reads only the headers of the arrays.
pub(crate) fn tensors(path: &Path, file: usize) -> Result<Vec<(String, TensorInfo)>, LoadError> {
    let mut archive = archive(path)?;
    let length = std::fs::metadata(path).map_err(load_errors::cant_read(path))?.len();
    let mut tensors = Vec::new();
    for place in 0..archive.len() {
        let mut entry = archive.by_index(place).map_err(|error| refused(path, error))?;
        let entry_name = entry.name().map_err(|error| refused(path, error))?.into_owned();
        let Some(name) = entry_name.strip_suffix(".npy") else { continue };
        let (header, size, method) = (header(path, name, &mut entry)?, entry.size(), entry.compression());
        let data_start = entry.data_start();
        let elements = header.shape.iter().try_fold(1, |all: usize, len| all.checked_mul(*len));
        let bytes = elements.and_then(|elements| elements.checked_mul(header.size));
        let whole = bytes.filter(|bytes| header.len.checked_add(*bytes).is_some_and(|all| size == all as u64));
        let Some(bytes) = whole else {
            let reason =
                format!("the array `{name}` with shape {:?} does not match its size of {size} bytes", header.shape);
            return Err(load_errors::corrupt(path, reason));
        };
        let place = match (method, data_start) {
            (CompressionMethod::Stored, Some(start)) => {
                let start = usize::try_from(start).ok().and_then(|start| start.checked_add(header.len));
                let range = start.and_then(|start| Some(start..start.checked_add(bytes)?));
                let Some(range) = range.filter(|range| range.end as u64 <= length) else {
                    return Err(load_errors::corrupt(
                        path,
                        format!("the array `{name}` extends beyond the end of the file"),
                    ));
                };
                Location::File { file, bytes: range }
            }
            _ => {
                let array = NpzArray { path: path.into(), entry: entry_name.clone(), header: header.len, len: bytes };
                Location::Npz(array)
            }
        };
        let (shape, dtype, float) = (header.shape, header.dtype, header.float);
        tensors.push((name.to_string(), TensorInfo { shape, dtype, float, packed: None, bytes, place }));
    }
    Ok(tensors)
}

fn archive(path: &Path) -> Result<ZipArchive<BufReader<File>>, LoadError> {
    let file = regular::open(path).map_err(load_errors::cant_read(path))?;
    ZipArchive::new(BufReader::new(file)).map_err(|error| refused(path, error))
}

fn refused(path: &Path, error: zip::result::ZipError) -> LoadError {
    load_errors::rejected(path, "it is not a valid .npz archive", error)
}

/// Parsed header of an array.
struct Header {
    /// Length of the header in bytes.
    len: usize,
    shape: Vec<usize>,
    dtype: String,
    float: Option<DType>,
    /// Bytes per element.
    size: usize,
}

/// Reads a header: `\x93NUMPY`, version, length, and a Python dictionary such as
/// `{'descr': '<f4', 'fortran_order': False, 'shape': (8, 32), }`.
///
/// The crates `npyz` and `ndarray-npy` read this dictionary with a general parser of Python literals, whose running
/// time doubles with each level of nested brackets: 20 levels take many seconds.
fn header(path: &Path, name: &str, entry: &mut impl Read) -> Result<Header, LoadError> {
    let unsound = |what: &str| load_errors::corrupt(path, format!("the array `{name}` {what}"));
    let mut start = [0; 8];
    entry.read_exact(&mut start).map_err(|_| unsound("has no NumPy header"))?;
    if &start[..6] != b"\x93NUMPY" {
        return Err(unsound("has no NumPy header"));
    }
    let mut length = [0; 4];
    let wide = if start[6] == 1 { 2 } else { 4 };
    entry.read_exact(&mut length[..wide]).map_err(|_| unsound("has a truncated header"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_HEADER {
        return Err(unsound("has a header that is too long"));
    }
    let mut text = vec![0; length];
    entry.read_exact(&mut text).map_err(|_| unsound("has a truncated header"))?;
    let text = String::from_utf8_lossy(&text);
    let field = |key: &str| text.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let descr = field("descr").and_then(|rest| rest.strip_prefix('\'')?.split_once('\'')).map(|(descr, _)| descr);
    let descr = descr.ok_or_else(|| unsound("is a structured array, which is not supported"))?;
    if descr.ends_with('O') {
        return Err(unsound("contains Python objects, which are not read because unpickling can run code"));
    }
    let (float, size) = match descr {
        "<f8" => (Some(DType::F64), 8),
        "<f4" => (Some(DType::F32), 4),
        "<f2" => (Some(DType::F16), 2),
        other => (None, item_size(other)),
    };
    let shape = field("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).map(|(shape, _)| shape);
    let shape = shape
        .ok_or_else(|| unsound("has no valid shape in its header"))?
        .split(',')
        .map(str::trim)
        .filter(|len| !len.is_empty());
    let shape = shape
        .map(str::parse)
        .collect::<Result<Vec<usize>, _>>()
        .map_err(|_| unsound("has no valid shape in its header"))?;
    if field("fortran_order").is_some_and(|rest| rest.starts_with("True")) && shape.len() > 1 {
        return Err(unsound("is in Fortran order, which is not supported"));
    }
    Ok(Header { len: 8 + wide + length, shape, dtype: descr.to_string(), float, size })
}

/// Bytes per element of other NumPy types, such as `|b1`, `<M8[ns]` or `<U12`, which has four bytes per character.
fn item_size(descr: &str) -> usize {
    let mut rest = descr.trim_start_matches(['<', '>', '|', '=']).chars();
    let kind = rest.next();
    let number = rest.as_str().split(|c: char| !c.is_ascii_digit()).next();
    let number: usize = number.and_then(|digits| digits.parse().ok()).unwrap_or(1);
    if kind == Some('U') { number.saturating_mul(4) } else { number }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// Writes an archive with one stored array, with this header and this many bytes of data.
    fn archive_of(path: &Path, header: &str, bytes: usize) {
        let mut archive = ZipWriter::new(File::create(path).unwrap());
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        archive.start_file("a.npy", options).unwrap();
        archive.write_all(b"\x93NUMPY\x02\x00").unwrap();
        archive.write_all(&(header.len() as u32).to_le_bytes()).unwrap();
        archive.write_all(header.as_bytes()).unwrap();
        archive.write_all(&vec![0; bytes]).unwrap();
        archive.finish().unwrap();
    }

    /// Strings and dates beside the weights, as `numpy.savez` writes them, do not make the file unreadable.
    #[test]
    fn arrays_of_any_type_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        for (descr, size) in [("<f4", 4), ("|b1", 1), ("|S5", 5), ("<U3", 12), ("<M8[ns]", 8), (">c16", 16)] {
            archive_of(&path, &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (7,), }}"), 7 * size);
            let found = tensors(&path, 0).unwrap();
            assert_eq!((found[0].1.shape.as_slice(), found[0].1.dtype.as_str()), (&[7][..], descr));
        }
    }

    /// Brackets nested as deep as a header allows neither take long nor overflow the stack.
    #[test]
    fn nested_headers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        for open in ["[", "(", "{1:"] {
            archive_of(&path, &format!("{{'descr': {}", open.repeat(LONGEST_HEADER / 4)), 4);
            assert!(matches!(tensors(&path, 0), Err(LoadError::Corrupt { .. })), "{open}");
        }
    }
}
