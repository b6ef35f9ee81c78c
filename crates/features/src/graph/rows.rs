//! Storage for rows of direct effects, in memory or in a file.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use super::active::Active;
use super::row_file::{Entry, Found, RowFile, io, read_at};
use super::row_of::RowOf;
use hooklens_model::error::Result;

/// The nodes that can affect a target: features and errors of earlier sites, at positions up to the target's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cone {
    /// Number of earlier sites.
    pub(super) sites: usize,
    /// The target's position.
    pub(super) pos: usize,
}

impl Cone {
    /// The columns that may be nonzero.
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

/// Rows of effects without the columns that are always zero. Stored in memory, in a temporary file if there are too
/// many, or in a folder if they must outlive the process.
#[derive(Debug)]
pub(super) struct RowStore {
    place: Place,
    /// Maximum number of elements in memory.
    most: u64,
    rows: Vec<Stored>,
    /// Total number of elements.
    len: u64,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<Vec<f32>>),
    Temporary(File),
    Kept(RowFile),
}

#[derive(Debug, Clone)]
struct Stored {
    entry: Entry,
    columns: Vec<Range<usize>>,
    /// Byte offset of the row's effects in the file.
    place: u64,
}

impl RowStore {
    /// A store that keeps at most this many bytes in memory.
    pub(super) fn new(most: usize) -> Self {
        Self { place: Place::Memory(Vec::new()), most: most as u64 / 4, rows: Vec::new(), len: 0 }
    }

    /// Opens a store in `folder`, resuming rows already computed for the same graph.
    pub(super) fn in_folder(
        folder: &Path,
        identity: u128,
        columns: impl Fn(RowOf) -> Option<Vec<Range<usize>>>,
    ) -> Result<Self> {
        let (file, found) = RowFile::open(folder, identity, columns)?;
        let rows = found.into_iter().map(|Found { entry, columns, place }| Stored { entry, columns, place });
        Ok(Self { place: Place::Kept(file), most: 0, rows: rows.collect(), len: 0 })
    }

    /// Number of bytes in the folder's row file that were dropped because of damage.
    pub(super) fn damaged(&self) -> u64 {
        if let Place::Kept(file) = &self.place { file.damaged() } else { 0 }
    }

    /// Adds the row of a target computed in a batch.
    pub(super) fn add(
        &mut self,
        of: RowOf,
        batch: u64,
        row: &[f32],
        columns: Vec<Range<usize>>,
        constant: f64,
    ) -> Result<()> {
        let size = columns.iter().flat_map(|range| &row[range.clone()]).map(|x| f64::from(x.abs())).sum();
        let count: usize = columns.iter().map(Range::len).sum();
        if let Place::Memory(rows) = &mut self.place
            && self.len + count as u64 > self.most
        {
            let mut file = tempfile::tempfile().map_err(temporary)?;
            // Each row is converted and written before the next one, so that there is never a copy of all rows.
            let mut rows = std::mem::take(rows).into_iter();
            rows.try_for_each(|row| file.write_all(&bytes(&row))).map_err(temporary)?;
            self.place = Place::Temporary(file);
        }
        let mut packed = Vec::with_capacity(count);
        columns.iter().for_each(|range| packed.extend_from_slice(&row[range.clone()]));
        let entry = Entry { of, batch, constant, size };
        let mut place = 4 * self.len;
        match &mut self.place {
            Place::Memory(rows) => rows.push(packed),
            Place::Temporary(file) => {
                let written = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&bytes(&packed)));
                written.map_err(temporary)?;
            }
            Place::Kept(file) => place = file.add(entry, &bytes(&packed))?,
        }
        self.rows.push(Stored { entry, columns, place });
        self.len += count as u64;
        Ok(())
    }

    /// Syncs stored rows to disk.
    pub(super) fn sync(&self) -> Result<()> {
        if let Place::Kept(file) = &self.place { file.sync() } else { Ok(()) }
    }

    /// The target of a row.
    pub(super) fn of(&self, row: usize) -> RowOf {
        self.rows[row].entry.of
    }

    /// The batch that a row was computed in.
    pub(super) fn batch(&self, row: usize) -> u64 {
        self.rows[row].entry.batch
    }

    pub(super) fn constant(&self, row: usize) -> f64 {
        self.rows[row].entry.constant
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The sum of the magnitudes of a row's effects.
    pub(super) fn size(&self, row: usize) -> f64 {
        self.rows[row].entry.size
    }

    /// Calls `show` on the entries of a row, one column range at a time.
    pub(super) fn each(&mut self, row: usize, mut show: impl FnMut(Range<usize>, &[f32])) -> Result<()> {
        let stored = self.rows[row].clone();
        let count: usize = stored.columns.iter().map(Range::len).sum();
        let read;
        let entries = match &mut self.place {
            Place::Memory(rows) => &rows[row][..],
            Place::Temporary(file) => {
                read = read_at(file, stored.place, count).map_err(temporary)?;
                &read[..]
            }
            Place::Kept(file) => {
                read = file.read(stored.place, count)?;
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

/// An error for a file in the system's temporary folder.
fn temporary(source: std::io::Error) -> hooklens_model::error::Error {
    io(&std::env::temp_dir(), source)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
