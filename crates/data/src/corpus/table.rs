//! Prompts in a column of a Parquet or Arrow file.

use std::io::{BufReader, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::reader::ChunkReader;

use super::{Place, PlacedPrompts, Prompt};
use crate::error::DumpError;
use hooklens_io::caught::caught;
use hooklens_io::object_stores::Object;
use hooklens_io::regular;
use hooklens_model::error::{place_of_row, place_of_row_in};

/// Number of rows read together.
const TOGETHER: usize = 1024;
/// Default names of the column.
const USUAL: [&str; 4] = ["text", "prompt", "tokens", "input_ids"];

/// Error text for a null row.
const NULL: &str = "is null";

/// Returns the error that made a read fail, since table readers keep only an error's text.
type Cause = Box<dyn Fn() -> Option<std::io::Error>>;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

/// Opens the prompts in a column. A corrupt file may make the table reader panic, which is converted to an error.
pub(super) fn open(path: &Path, field: Option<&str>) -> Result<PlacedPrompts, DumpError> {
    caught(|| opened(path, field, None)).unwrap_or_else(|_| Err(damaged(path)))
}

/// Opens the prompts in a column of one row group or record batch.
pub(super) fn open_group(path: &Path, group: usize, field: Option<&str>) -> Result<PlacedPrompts, DumpError> {
    caught(|| opened(path, field, Some(group))).unwrap_or_else(|_| Err(damaged(path)))
}

fn damaged(path: &Path) -> DumpError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "the table is damaged");
    DumpError::File { path: path.to_path_buf(), source }
}

fn opened(path: &Path, field: Option<&str>, group: Option<usize>) -> Result<PlacedPrompts, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    match Object::at(path).map_err(failed)? {
        #[cfg(feature = "object-stores")]
        Some(object) => {
            let reader = object.open().map_err(failed)?;
            opened_from(reader.clone(), path, field, group, Box::new(move || reader.fault()))
        }
        #[cfg(not(feature = "object-stores"))]
        Some(object) => match object {},
        None => opened_from(regular::open(path).map_err(failed)?, path, field, group, Box::new(|| None)),
    }
}

/// Number of row groups of a Parquet file, or record batches of an Arrow file; `None` for a file that can only be read
/// from the start.
pub(super) fn groups(path: &Path) -> Result<Option<usize>, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let counted = || match Object::at(path).map_err(failed)? {
        #[cfg(feature = "object-stores")]
        Some(object) => groups_in(object.open().map_err(failed)?, path),
        #[cfg(not(feature = "object-stores"))]
        Some(object) => match object {},
        None => {
            // A stream has no groups.
            if !std::fs::metadata(path).map_err(failed)?.is_file() {
                return Ok(None);
            }
            groups_in(regular::open(path).map_err(failed)?, path)
        }
    };
    caught(counted).unwrap_or_else(|_| Err(damaged(path)))
}

fn groups_in<F: Read + Seek + ChunkReader + 'static>(mut file: F, path: &Path) -> Result<Option<usize>, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let mut start = [0; 6];
    let begun = file.read(&mut start).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let other = |error: ArrowError| failed(std::io::Error::other(error));
    Ok(match &start[..begun] {
        [b'P', b'A', b'R', b'1', ..] => {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| other(error.into()))?;
            Some(builder.metadata().num_row_groups())
        }
        b"ARROW1" => Some(FileReader::try_new(BufReader::new(file), None).map_err(other)?.num_batches()),
        _ => None,
    })
}

fn opened_from<F: Read + Seek + ChunkReader + 'static>(
    mut file: F,
    path: &Path,
    field: Option<&str>,
    group: Option<usize>,
    fault: Cause,
) -> Result<PlacedPrompts, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let other = |error: ArrowError| failed(fault().unwrap_or_else(|| std::io::Error::other(error)));
    let mut start = [0; 6];
    let begun = file.read(&mut start).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let (batches, column): (Batches, Vec<String>) = match &start[..begun] {
        [b'P', b'A', b'R', b'1', ..] => {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| other(error.into()))?;
            let column = column(builder.schema(), field).map_err(|reason| failed(std::io::Error::other(reason)))?;
            let root = builder.schema().index_of(&column[0]).map_err(other)?;
            let mask = ProjectionMask::roots(builder.parquet_schema(), [root]);
            let builder = builder.with_projection(mask).with_batch_size(TOGETHER);
            let reader = group.into_iter().fold(builder, |builder, group| builder.with_row_groups(vec![group])).build();
            (Box::new(reader.map_err(|error| other(error.into()))?), column)
        }
        b"ARROW1" => {
            let mut reader = FileReader::try_new(BufReader::new(file), None).map_err(other)?;
            let column = column(&reader.schema(), field).map_err(|reason| failed(std::io::Error::other(reason)))?;
            match group {
                None => (Box::new(reader), column),
                Some(group) => {
                    reader.set_index(group).map_err(other)?;
                    (Box::new(reader.take(1)), column)
                }
            }
        }
        // The streaming format, as written by `datasets`.
        _ => {
            let reader = StreamReader::try_new(BufReader::new(file), None).map_err(other)?;
            let column = column(&reader.schema(), field).map_err(|reason| failed(std::io::Error::other(reason)))?;
            (Box::new(reader), column)
        }
    };
    let rows = Rows { batches, column, path: path.into(), batch: None, number: 0, group, ended: false, fault };
    Ok(Box::new(rows))
}

/// Path to the named column, or to the first one with a default name.
fn column(schema: &Schema, field: Option<&str>) -> Result<Vec<String>, String> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let has = || names.iter().take(12).copied().collect::<Vec<_>>().join(", ");
    let Some(field) = field else {
        let usual = USUAL.iter().find(|name| names.contains(name));
        return usual.map(|name| vec![(*name).to_string()]).ok_or_else(|| {
            format!("it has none of the default columns {}; choose one of {}", USUAL.join(", "), has())
        });
    };
    if names.contains(&field) {
        return Ok(vec![field.to_string()]);
    }
    let way: Vec<String> = field.split('.').map(str::to_string).collect();
    match names.contains(&&*way[0]) && way.len() > 1 {
        true => Ok(way),
        false => Err(format!("it has no column `{field}`; it has {}", has())),
    }
}

struct Rows {
    batches: Batches,
    column: Vec<String>,
    path: Arc<Path>,
    /// Current batch: the column, preceded by the structs that contain it; and the index of the next row.
    batch: Option<(Vec<ArrayRef>, usize)>,
    /// Row number, counted from one.
    number: usize,
    /// The row group or record batch, if only one is read.
    group: Option<usize>,
    ended: bool,
    fault: Cause,
}

impl Rows {
    /// Position of the last row read.
    fn place(&self) -> Place {
        match self.group {
            None => place_of_row(&self.path, self.number),
            Some(group) => place_of_row_in(&self.path, group + 1, self.number),
        }
    }

    fn bad(&self, reason: String) -> DumpError {
        DumpError::Prompt { place: self.place(), reason, source: None }
    }

    fn prompt(&mut self) -> Result<Option<Prompt>, DumpError> {
        loop {
            if let Some((way, row)) = &mut self.batch
                && let Some(array) = way.last().cloned()
                && *row < array.len()
            {
                let (at, null) = (*row, way.iter().any(|array| array.is_null(*row)));
                *row += 1;
                self.number += 1;
                let made = if null { Err(NULL.to_string()) } else { prompt(&array, at) };
                return made.map(Some).map_err(|reason| self.bad(format!("`{}` {reason}", self.column.join("."))));
            }
            let Some(batch) = self.batches.next() else { return Ok(None) };
            let failed = |source| DumpError::File { path: self.path.to_path_buf(), source };
            let cause = |error| (self.fault)().unwrap_or_else(|| std::io::Error::other(error));
            let batch = batch.map_err(|error| failed(cause(error)))?;
            let array = within(&batch, &self.column).ok_or_else(|| {
                failed(std::io::Error::other(format!("it has no column `{}`", self.column.join("."))))
            })?;
            self.batch = Some((array, 0));
        }
    }
}

/// Arrays of the column. For a field of a struct column, the structs that contain the field come first, because a field
/// of a null struct is null.
fn within(batch: &RecordBatch, column: &[String]) -> Option<Vec<ArrayRef>> {
    let mut way = vec![batch.column_by_name(&column[0])?.clone()];
    for name in &column[1..] {
        way.push(way.last()?.as_struct_opt()?.column_by_name(name)?.clone());
    }
    Some(way)
}

/// Text or token ids in a row. Dictionary-encoded values are looked up.
fn prompt(array: &ArrayRef, row: usize) -> Result<Prompt, String> {
    let text = |text: &str| Ok(Prompt::Text(text.to_string()));
    match array.data_type() {
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(array.as_string_view().value(row)),
        DataType::List(_) => tokens(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => tokens(&array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => tokens(&array.as_fixed_size_list().value(row)),
        DataType::Dictionary(..) => {
            let row = array.slice(row, 1);
            let row = row.as_any_dictionary();
            let values = row.values();
            // The row is not null, so the dictionary has values.
            match row.normalized_keys().first() {
                Some(key) if values.is_valid(*key) => prompt(values, *key),
                _ => Err(NULL.to_string()),
            }
        }
        other => Err(format!("has type {other}; expected strings or lists of token ids")),
    }
}

fn tokens(list: &ArrayRef) -> Result<Prompt, String> {
    use arrow_array::types::{
        Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    };
    macro_rules! ids {
        ($($kind:ident => $of:ty),*) => {
            match list.data_type() {
                $(DataType::$kind => list.as_primitive::<$of>().iter().map(|id| u32::try_from(id?).ok()).collect(),)*
                other => return Err(format!("contains lists of {other}; expected lists of token ids")),
            }
        };
    }
    let ids: Option<Vec<u32>> = ids!(
        Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
        UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type
    );
    ids.map(Prompt::Tokens).ok_or_else(|| "contains a value that is not a token id".to_string())
}

impl Iterator for Rows {
    type Item = Result<(Prompt, Place), DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = caught(|| self.prompt()).unwrap_or_else(|_| Err(damaged(&self.path)));
        self.ended = !matches!(next, Ok(Some(_)) | Err(DumpError::Prompt { .. }));
        Some(next.transpose()?.map(|prompt| (prompt, self.place())))
    }
}
