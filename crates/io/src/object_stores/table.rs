//! Lets the Parquet reader read objects.

use std::io::{Read, Seek, SeekFrom};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use super::Reader;

impl Length for Reader {
    fn len(&self) -> u64 {
        Reader::len(self)
    }
}

impl ChunkReader for Reader {
    type T = Self;

    fn get_read(&self, start: u64) -> Result<Self> {
        let mut at = self.clone();
        at.seek(SeekFrom::Start(start))?;
        Ok(at)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // A corrupt table may contain any length.
        if start.checked_add(length as u64).is_none_or(|end| end > Reader::len(self)) {
            return Err(ParquetError::EOF("a part of the table is beyond the end of the file".into()));
        }
        let mut bytes = vec![0; length];
        self.get_read(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use object_store::memory::InMemory;
    use object_store::path::Path as Key;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::properties::WriterProperties;

    use crate::object_stores::{Object, Version};

    /// Reads a table that spans many blocks and has column chunks that cross block boundaries.
    #[test]
    fn a_table_larger_than_what_is_held() {
        let texts: Vec<String> =
            (0..30_000u64).map(|row| format!("{:x}", row.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(60)).collect();
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(&texts));
        let rows = RecordBatch::try_from_iter([("other", column.clone()), ("text", column)]).unwrap();
        let properties =
            WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(7_000));
        let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties.build())).unwrap();
        writer.write(&rows).unwrap();
        let bytes = writer.into_inner().unwrap();
        assert!(bytes.len() > 5 * (8 << 20), "{}", bytes.len());
        let (store, key) = (Arc::new(InMemory::new()), Key::from("a.parquet"));
        let object = Object { root: "s3://bucket".into(), key, store };
        object.put(bytes, &Version::Any).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(object.open().unwrap()).unwrap().build().unwrap();
        let mut read = [Vec::new(), Vec::new()];
        for batch in reader {
            let batch = batch.unwrap();
            for (column, read) in batch.columns().iter().zip(&mut read) {
                read.extend(column.as_string::<i32>().iter().map(|text| text.unwrap().to_string()));
            }
        }
        assert!(read == [texts.clone(), texts]);
    }
}
