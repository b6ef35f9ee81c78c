//! Rows of direct effects, in memory or in a file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

use super::active::Active;
use crate::error::{GraphError, Result};

/// What can have an effect on a target: features and errors of sites below its own, at positions up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cone {
    /// Sites below.
    pub(super) sites: usize,
    /// The target's position.
    pub(super) pos: usize,
}

impl Cone {
    /// The columns that are not zero for sure.
    pub(super) fn columns(self, active: &Active, places: usize, learned: bool) -> Vec<Range<usize>> {
        let mut columns = Vec::new();
        for site in 0..self.sites {
            columns.push(active.range(site, 0).start..active.range(site, self.pos).end);
        }
        let first = active.count();
        for place in 0..self.sites {
            let first = first + place * active.len;
            columns.push(first..first + self.pos + 1);
        }
        let first = first + places * active.len;
        columns.push(first..first + self.pos + 1);
        if learned {
            columns.push(first + active.len..first + active.len + self.pos + 1);
        }
        columns
    }
}

/// Rows one behind the other, without the columns that are zero; in a file once they are too many.
#[derive(Debug)]
pub(super) struct RowStore {
    memory: Vec<f32>,
    /// Elements that may lie in memory.
    most: usize,
    file: Option<File>,
    rows: Vec<Stored>,
    len: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    columns: Vec<Range<usize>>,
    first: u64,
    /// The sum of magnitudes.
    size: f64,
}

impl RowStore {
    /// One that may hold so many bytes in memory.
    pub(super) fn new(most: usize) -> Self {
        Self { memory: Vec::new(), most: most / 4, file: None, rows: Vec::new(), len: 0 }
    }

    /// Adds the row of a target.
    pub(super) fn add(&mut self, row: &[f32], columns: Vec<Range<usize>>) -> Result<()> {
        let size = columns.iter().flat_map(|range| &row[range.clone()]).map(|x| f64::from(x.abs())).sum();
        let count: usize = columns.iter().map(Range::len).sum();
        if self.file.is_none() && self.memory.len() + count > self.most {
            let mut file = tempfile::tempfile().map_err(failed)?;
            file.write_all(&bytes(&self.memory)).map_err(failed)?;
            (self.file, self.memory) = (Some(file), Vec::new());
        }
        match &mut self.file {
            None => columns.iter().for_each(|range| self.memory.extend_from_slice(&row[range.clone()])),
            Some(file) => {
                let packed: Vec<f32> = columns.iter().flat_map(|range| row[range.clone()].iter().copied()).collect();
                file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&bytes(&packed))).map_err(failed)?;
            }
        }
        self.rows.push(Stored { columns, first: self.len, size });
        self.len += count as u64;
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The sum of a row's magnitudes.
    pub(super) fn size(&self, row: usize) -> f64 {
        self.rows[row].size
    }

    /// Shows a row's entries, by runs of columns.
    pub(super) fn each(&mut self, row: usize, mut show: impl FnMut(Range<usize>, &[f32])) -> Result<()> {
        let stored = self.rows[row].clone();
        let count: usize = stored.columns.iter().map(Range::len).sum();
        let read;
        let entries = match &mut self.file {
            None => &self.memory[stored.first as usize..][..count],
            Some(file) => {
                let mut raw = vec![0; 4 * count];
                file.seek(SeekFrom::Start(4 * stored.first)).and_then(|_| file.read_exact(&mut raw)).map_err(failed)?;
                read = raw.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect::<Vec<_>>();
                &read[..]
            }
        };
        let mut at = 0;
        for columns in stored.columns {
            let count = columns.len();
            show(columns, &entries[at..at + count]);
            at += count;
        }
        Ok(())
    }
}

fn failed(source: std::io::Error) -> crate::error::Error {
    GraphError::Rows { path: std::env::temp_dir(), source }.into()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
