//! Finds the frames of a Zstandard file without decompressing it.
//!
//! Format: [RFC 8878](https://www.rfc-editor.org/rfc/rfc8878). Files of the
//! [seekable format](https://github.com/facebook/zstd/tree/dev/contrib/seekable_format) list their frames at the end;
//! in other files, each block states its length.

use std::io::{Error, ErrorKind, Result};

use super::unpacked::{SKIPPED, ZSTANDARD, is_skipped};

/// Magic number at the end of a seek table, which lists the frames.
const TABLE: u32 = 0x8f92_eab1;
/// Magic number of the skippable frame that contains the seek table.
const TABLE_FRAME: u32 = SKIPPED + 0xe;
/// Length of the seek table's footer.
const FOOTER: u64 = 9;
/// Maximum number of blocks whose headers are read in a file without a seek table. Reading them takes one to a few
/// seconds on a local disk. All frames after these blocks count as one.
const BLOCKS: usize = 1 << 20;

/// Reads a range of bytes of a file.
pub(super) trait ReadAt {
    /// Fills the buffer with the bytes at this offset.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Whether many small reads are fast.
    fn is_local(&self) -> bool;
}

/// Offsets at which the frames of a file of `length` bytes start. If the frames cannot be found, returns only the
/// offset of the first one: an invalid file is reported when it is read.
pub(super) fn frames(file: &impl ReadAt, length: u64) -> Vec<u64> {
    let listed = listed(file, length).unwrap_or_default();
    if !listed.is_empty() {
        return listed;
    }
    match file.is_local() {
        true => walked(file, length),
        false => vec![0],
    }
}

fn number(file: &impl ReadAt, at: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    file.read_at(at, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn invalid() -> Error {
    ErrorKind::InvalidData.into()
}

/// Offsets of the frames listed in the seek table at the end of the file; empty if there is no seek table.
fn listed(file: &impl ReadAt, length: u64) -> Result<Vec<u64>> {
    let footer_at = length.checked_sub(FOOTER).ok_or_else(invalid)?;
    let mut footer = [0; FOOTER as usize];
    file.read_at(footer_at, &mut footer)?;
    let word = |at: usize| footer[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if word(5) != TABLE {
        return Ok(Vec::new());
    }
    // A checksum follows the two lengths of each frame if the highest bit is set.
    let entry = if footer[4] & 0x80 == 0 { 8 } else { 12 };
    let size = u64::from(word(0)) * entry;
    let table = footer_at.checked_sub(size).ok_or_else(invalid)?;
    let data = table.checked_sub(8).ok_or_else(invalid)?;
    if number(file, data)? != TABLE_FRAME || u64::from(number(file, data + 4)?) != size + FOOTER {
        return Err(invalid());
    }
    let mut entries = vec![0; size as usize];
    file.read_at(table, &mut entries)?;
    let (mut at, mut starts) = (0u64, Vec::new());
    for entry in entries.chunks_exact(entry as usize) {
        starts.push(at);
        at += entry.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    }
    if at == data { Ok(starts) } else { Err(invalid()) }
}

/// Offsets of the frames, found from the lengths of their blocks.
fn walked(file: &impl ReadAt, length: u64) -> Vec<u64> {
    let (mut starts, mut at, mut blocks) = (vec![0], 0, 0);
    while blocks < BLOCKS
        && let Ok((end, own)) = frame_end(file, at, BLOCKS - blocks)
        && end < length
    {
        starts.push(end);
        (at, blocks) = (end, blocks + own);
    }
    starts
}

/// The end of the frame that starts at offset `at`, and its number of blocks.
fn frame_end(file: &impl ReadAt, at: u64, most: usize) -> Result<(u64, usize)> {
    let magic = number(file, at)?;
    if is_skipped(magic) {
        return Ok((at + 8 + u64::from(number(file, at + 4)?), 1));
    }
    if magic != ZSTANDARD {
        return Err(invalid());
    }
    let mut descriptor = [0];
    file.read_at(at + 4, &mut descriptor)?;
    let [descriptor] = descriptor;
    let is_single = descriptor & 0x20 != 0;
    let content_size = match descriptor >> 6 {
        0 => u64::from(is_single),
        power => 1 << power,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let mut at = at + 5 + u64::from(!is_single) + dictionary + content_size;
    for blocks in 1..=most {
        let mut header = [0; 3];
        file.read_at(at, &mut header)?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let content = match header >> 1 & 3 {
            // Run-length encoding: a single byte, which is repeated.
            1 => 1,
            3 => return Err(invalid()),
            _ => u64::from(header >> 3),
        };
        at += 3 + content;
        if header & 1 == 1 {
            let checksum = if descriptor & 4 == 0 { 0 } else { 4 };
            return Ok((at + checksum, blocks));
        }
    }
    Err(invalid())
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    impl ReadAt for &[u8] {
        fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
            let found = self.get(at as usize..).and_then(|rest| rest.get(..bytes.len()));
            bytes.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
            Ok(())
        }

        fn is_local(&self) -> bool {
            true
        }
    }

    fn of(bytes: &[u8]) -> Vec<u64> {
        frames(&bytes, bytes.len() as u64)
    }

    #[test]
    fn frames_are_found_by_their_blocks_and_in_tables() {
        let texts: [&[u8]; 4] = [b"a", &[b'x'; 400_000], b"", b"text\nand more text\n"];
        let (mut file, mut starts, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for (number, text) in texts.into_iter().enumerate() {
            starts.push(file.len() as u64);
            let level = if number % 2 == 0 { CompressionLevel::Fastest } else { CompressionLevel::Uncompressed };
            let frame = compress_to_vec(text, level);
            table.extend([frame.len() as u32, text.len() as u32].map(u32::to_le_bytes).concat());
            file.extend(frame);
        }
        assert_eq!(of(&file), starts);
        // A skippable frame counts as a frame.
        let skipped = [&[0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc", &file].concat();
        let after: Vec<u64> = std::iter::once(0).chain(starts.iter().map(|start| start + 11)).collect();
        assert_eq!(of(&skipped), after);
        // The search for frames ends at damaged data and at the end of the file.
        assert_eq!(of(&file[..file.len() - 3]), starts);
        assert_eq!(of(&[&file[..], b"more"].concat()).len(), starts.len() + 1);
        assert_eq!(of(b"what"), [0]);
        // The second half of the table lists frames that do not exist in the file.
        let end = file.len();
        let half = [&table[..24], &[table[24] - 4, 0, 0, 0, 0, 0, 0, 0], &[4, 0, 0, 0, 0, 0, 0, 0]].concat();
        for (table, count) in [(&table, 4), (&half, 5), (&table[8..].to_vec(), 0)] {
            let entries = (table.len() / 8) as u32;
            let length = table.len() as u32 + 9;
            file.truncate(end);
            file.extend([TABLE_FRAME.to_le_bytes(), length.to_le_bytes()].concat());
            file.extend([&table[..], &entries.to_le_bytes(), &[0], &TABLE.to_le_bytes()].concat());
            match count {
                // The table does not match the file, so frames are found from their blocks; the table is another frame.
                0 => assert_eq!(of(&file), starts.iter().copied().chain([end as u64]).collect::<Vec<_>>()),
                count => assert_eq!((of(&file).len(), &of(&file)[..4]), (count, &starts[..])),
            }
        }
    }
}
