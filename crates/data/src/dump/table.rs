//! Writes a batch as a Parquet file with one row per token and one column per point.

use std::sync::Arc;

use arrow_array::builder::{Float16Builder, Float32Builder, Int32Builder, ListBuilder};
use arrow_array::types::{Float16Type, Float32Type};
use arrow_array::{ArrayRef, FixedSizeListArray, Int32Array, Int64Array, PrimitiveArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use hooklens_hooks::Axis;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use safetensors::Dtype;

use super::batch::Batch;
use super::placing::FileTensor;

/// Whether a point has one row per token, so that a column can store it.
pub(super) fn is_by_token(axes: &[Axis]) -> bool {
    let of_tokens = |axis: &Axis| matches!(axis, Axis::Batch | Axis::Pos | Axis::Query | Axis::Key | Axis::Routed);
    axes.starts_with(&[Axis::Batch, Axis::Pos]) && !axes[2..].iter().any(of_tokens)
}

/// Contents of the file: `prompt`, `position` and `token`, then each point as a fixed-length list or, for latents, the
/// lists `.indices` and `.values` of the nonzero entries.
pub(super) fn bytes(batch: &Batch, tensors: &[FileTensor]) -> Result<Vec<u8>, ArrowError> {
    let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let integers = |name: &str| -> Vec<i64> {
        let bytes = named(name).map_or(&[][..], |tensor| &tensor.bytes);
        bytes.chunks_exact(8).map(|x| i64::from_le_bytes(x.try_into().unwrap_or_default())).collect()
    };
    let (ids, mask) = (integers("tokens"), integers("attention_mask"));
    let width = (ids.len() / batch.placing.rows().max(1)).max(1);
    // Places of real tokens, row by row.
    let kept: Vec<usize> = (0..mask.len()).filter(|place| mask[*place] != 0).collect();
    let prompts = kept.iter().map(|place| (batch.first_row + place / width) as i64);
    let (mut positions, mut before) = (Vec::new(), None);
    for place in &kept {
        let row = place / width;
        let next = match before {
            Some((own, position)) if own == row => position + 1,
            _ => batch.placing.first_kept(row),
        };
        positions.push(next as i32);
        before = Some((row, next));
    }
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("prompt".into(), Arc::new(Int64Array::from_iter_values(prompts))),
        ("position".into(), Arc::new(Int32Array::from(positions))),
        ("token".into(), Arc::new(Int32Array::from_iter_values(kept.iter().map(|place| ids[*place] as i32)))),
    ];
    for (tensor, axes) in tensors.iter().zip(batch.tensors.iter().map(|named| named.axes)) {
        if matches!(&*tensor.name, "tokens" | "attention_mask" | "positions") {
            continue;
        }
        match axes.last() == Some(&Axis::Feature) {
            true => columns.extend(entries(tensor, &kept)),
            false => columns.push((tensor.name.clone(), vectors(tensor, &kept)?)),
        }
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let rows = RecordBatch::try_new(schema.clone(), columns.into_iter().map(|(_, column)| column).collect())?;
    // Activations hardly compress, so dictionary encoding would only take time.
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_dictionary_enabled(false);
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties.build()))?;
    writer.write(&rows)?;
    Ok(writer.into_inner()?)
}

/// Bytes of one token's vector.
fn row(tensor: &FileTensor, place: usize, size: usize) -> &[u8] {
    let inner: usize = tensor.shape[2..].iter().product::<usize>() * size;
    &tensor.bytes[place * inner..][..inner]
}

fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap_or_default()))
}

fn f16s(bytes: &[u8]) -> impl Iterator<Item = half::f16> {
    bytes.chunks_exact(2).map(|x| half::f16::from_le_bytes(x.try_into().unwrap_or_default()))
}

/// One list of numbers per token.
fn vectors(tensor: &FileTensor, kept: &[usize]) -> Result<ArrayRef, ArrowError> {
    let length: usize = tensor.shape[2..].iter().product();
    let (kind, values): (DataType, ArrayRef) = match tensor.dtype {
        Dtype::F16 => {
            let all = kept.iter().flat_map(|place| f16s(row(tensor, *place, 2)));
            (DataType::Float16, Arc::new(PrimitiveArray::<Float16Type>::from_iter_values(all)))
        }
        _ => {
            let all = kept.iter().flat_map(|place| f32s(row(tensor, *place, 4)));
            (DataType::Float32, Arc::new(PrimitiveArray::<Float32Type>::from_iter_values(all)))
        }
    };
    let item = Arc::new(Field::new_list_field(kind, false));
    Ok(Arc::new(FixedSizeListArray::try_new(item, length as i32, values, None)?))
}

/// Nonzero latents of each token, and their activations.
fn entries(tensor: &FileTensor, kept: &[usize]) -> [(String, ArrayRef); 2] {
    let list = |kind: DataType| Arc::new(Field::new_list_field(kind, false));
    let mut indices = ListBuilder::new(Int32Builder::new()).with_field(list(DataType::Int32));
    let half = tensor.dtype == Dtype::F16;
    let mut wide = ListBuilder::new(Float32Builder::new()).with_field(list(DataType::Float32));
    let mut narrow = ListBuilder::new(Float16Builder::new()).with_field(list(DataType::Float16));
    for place in kept {
        let bytes = row(tensor, *place, if half { 2 } else { 4 });
        if half {
            for (latent, value) in f16s(bytes).enumerate().filter(|(_, value)| *value != half::f16::ZERO) {
                indices.values().append_value(latent as i32);
                narrow.values().append_value(value);
            }
            narrow.append(true);
        } else {
            for (latent, value) in f32s(bytes).enumerate().filter(|(_, value)| *value != 0.0) {
                indices.values().append_value(latent as i32);
                wide.values().append_value(value);
            }
            wide.append(true);
        }
        indices.append(true);
    }
    let values: ArrayRef = if half { Arc::new(narrow.finish()) } else { Arc::new(wide.finish()) };
    [(format!("{}.indices", tensor.name), Arc::new(indices.finish())), (format!("{}.values", tensor.name), values)]
}
