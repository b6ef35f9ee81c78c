//! Parquet files with one row per token and one column per point.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float16Builder, Float32Builder, Int32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Int32Type, Int64Type};
use arrow_array::{ArrayRef, FixedSizeListArray, Int32Array, Int64Array, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use half::f16;
use hooklens_hooks::Axis;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;
use safetensors::Dtype;

use super::place;
use hooklens_io::regular;

/// Size in bytes at which a row group is written.
const GROUP: usize = 32 << 20;

/// Whether a point has one row per token, so that a column can store it.
pub(super) fn is_by_token(axes: &[Axis]) -> bool {
    let of_tokens = |axis: &Axis| matches!(axis, Axis::Batch | Axis::Pos | Axis::Query | Axis::Key | Axis::Routed);
    axes.starts_with(&[Axis::Batch, Axis::Pos]) && !axes[2..].iter().any(of_tokens)
}

/// Some tokens, in the order of their prompts.
pub(super) struct Tokens {
    /// Number of each token's prompt.
    pub(super) prompts: Vec<i64>,
    /// Position of each token in its prompt.
    pub(super) positions: Vec<i64>,
    /// Id of each token.
    pub(super) ids: Vec<i64>,
    pub(super) points: Vec<Point>,
}

/// Activations of a point at some tokens.
pub(super) struct Point {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) values: Vec<u8>,
    pub(super) form: PointForm,
}

/// How the values of a point are stored.
pub(super) enum PointForm {
    /// A vector of this length per token.
    Vectors(usize),
    /// The nonzero entries: their number for each token, and the latent of each entry.
    Entries { counts: Vec<usize>, latents: Vec<i32> },
}

/// Writes a table: `prompt`, `position` and `token`, then each point as a fixed-length list or, for latents, the lists
/// `.indices` and `.values` of the nonzero entries. `next` returns the tokens, part by part.
pub(super) fn write(
    to: &mut (impl Write + Send),
    mut next: impl FnMut() -> io::Result<Option<Tokens>>,
) -> io::Result<()> {
    let mut next = || next()?.map(Tokens::record_batch).transpose();
    let Some(first) = next()? else { return Ok(()) };
    // Activations hardly compress, so dictionary encoding would only take time.
    let level = ZstdLevel::try_new(1).map_err(io::Error::other)?;
    let properties =
        WriterProperties::builder().set_compression(Compression::ZSTD(level)).set_dictionary_enabled(false).build();
    let mut writer = ArrowWriter::try_new(to, first.schema(), Some(properties)).map_err(io::Error::other)?;
    let mut rows = Some(first);
    while let Some(part) = rows {
        writer.write(&part).map_err(io::Error::other)?;
        if writer.in_progress_size() >= GROUP {
            writer.flush().map_err(io::Error::other)?;
        }
        rows = next()?;
    }
    writer.close().map(drop).map_err(io::Error::other)
}

impl Tokens {
    fn record_batch(self) -> io::Result<RecordBatch> {
        let narrow =
            |all: Vec<i64>| -> ArrayRef { Arc::new(Int32Array::from_iter_values(all.iter().map(|x| *x as i32))) };
        let mut columns: Vec<(String, ArrayRef)> = vec![
            ("prompt".into(), Arc::new(Int64Array::from(self.prompts))),
            ("position".into(), narrow(self.positions)),
            ("token".into(), narrow(self.ids)),
        ];
        for Point { name, dtype, values, form } in self.points {
            let is_half = dtype == Dtype::F16;
            match form {
                PointForm::Vectors(width) => columns.push((name, vectors(&values, is_half, width)?)),
                PointForm::Entries { counts, latents } => {
                    let [indices, values] = entries(&values, is_half, &counts, &latents);
                    columns.extend([(format!("{name}.indices"), indices), (format!("{name}.values"), values)]);
                }
            }
        }
        let fields: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), false)).collect();
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(io::Error::other)
    }
}

fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn f16s(bytes: &[u8]) -> impl Iterator<Item = f16> {
    bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes))
}

/// One list of `width` numbers per token.
fn vectors(bytes: &[u8], is_half: bool, width: usize) -> io::Result<ArrayRef> {
    let (kind, values): (DataType, ArrayRef) = match is_half {
        true => (DataType::Float16, Arc::new(PrimitiveArray::<Float16Type>::from_iter_values(f16s(bytes)))),
        false => (DataType::Float32, Arc::new(PrimitiveArray::<Float32Type>::from_iter_values(f32s(bytes)))),
    };
    let item = Arc::new(Field::new_list_field(kind, false));
    let lists = FixedSizeListArray::try_new(item, width as i32, values, None);
    Ok(Arc::new(lists.map_err(io::Error::other)?))
}

/// Nonzero latents of each token, and their activations.
fn entries(bytes: &[u8], is_half: bool, counts: &[usize], latents: &[i32]) -> [ArrayRef; 2] {
    let list = |kind: DataType| Arc::new(Field::new_list_field(kind, false));
    let mut indices = ListBuilder::new(Int32Builder::new()).with_field(list(DataType::Int32));
    let mut wide = ListBuilder::new(Float32Builder::new()).with_field(list(DataType::Float32));
    let mut narrow = ListBuilder::new(Float16Builder::new()).with_field(list(DataType::Float16));
    let size = if is_half { 2 } else { 4 };
    let mut at = 0;
    for count in counts {
        let end = at + count;
        indices.values().append_slice(&latents[at..end]);
        indices.append(true);
        let own = &bytes[at * size..end * size];
        match is_half {
            true => {
                f16s(own).for_each(|value| narrow.values().append_value(value));
                narrow.append(true);
            }
            false => {
                f32s(own).for_each(|value| wide.values().append_value(value));
                wide.append(true);
            }
        }
        at = end;
    }
    let values: ArrayRef = if is_half { Arc::new(narrow.finish()) } else { Arc::new(wide.finish()) };
    [Arc::new(indices.finish()), values]
}

/// The token ids of each prompt of a table.
pub(super) fn token_rows(path: &Path) -> io::Result<Vec<Vec<u32>>> {
    match place::object(path).map_err(io::Error::other)? {
        Some(object) => token_rows_in(bytes::Bytes::from(object.bytes()?)),
        None => token_rows_in::<File>(regular::open(path)?),
    }
}

fn token_rows_in<F: ChunkReader + 'static>(file: F) -> io::Result<Vec<Vec<u32>>> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(io::Error::other)?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), ["prompt", "token"]);
    let (mut rows, mut last) = (Vec::<Vec<u32>>::new(), None);
    for batch in builder.with_projection(mask).build().map_err(io::Error::other)? {
        let batch = batch.map_err(io::Error::other)?;
        let prompts = batch.column(0).as_primitive_opt::<Int64Type>();
        let ids = batch.column(1).as_primitive_opt::<Int32Type>();
        let (Some(prompts), Some(ids)) = (prompts, ids) else { return Err(io::ErrorKind::InvalidData.into()) };
        for (prompt, id) in prompts.values().iter().zip(ids.values()) {
            if last != Some(*prompt) {
                (last, _) = (Some(*prompt), rows.push(Vec::new()));
            }
            rows.last_mut().into_iter().for_each(|row| row.push(*id as u32));
        }
    }
    Ok(rows)
}
