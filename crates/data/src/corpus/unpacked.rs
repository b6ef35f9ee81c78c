//! Decompresses gzip and Zstandard files.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::ops::Range;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Magic number of a Zstandard frame.
pub(super) const ZSTANDARD: u32 = 0xfd2f_b528;
/// The first of sixteen magic numbers of skippable frames.
pub(super) const SKIPPED: u32 = 0x184d_2a50;

/// Whether a frame is skippable, as written by parallel and seekable compressors.
pub(super) fn is_skipped(magic: u32) -> bool {
    magic & 0xffff_fff0 == SKIPPED
}

/// Whether the first bytes of a file indicate Zstandard.
pub(super) fn is_zstandard(start: &[u8]) -> bool {
    let magic = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    magic.is_some_and(|magic| magic == ZSTANDARD || is_skipped(magic))
}

/// Whether the first bytes of a file indicate compression.
pub(super) fn is_packed(start: &[u8]) -> bool {
    start.starts_with(&GZIP) || is_zstandard(start)
}

/// Wraps a reader with a decompressor if its first bytes indicate compression.
pub(super) fn open(mut reader: impl BufRead + 'static) -> io::Result<Box<dyn BufRead>> {
    let start = reader.fill_buf()?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(reader))));
    }
    if is_zstandard(start) {
        return Ok(open_frames(reader, 0..u64::MAX).0);
    }
    Ok(Box::new(reader))
}

/// Decompresses the frames of a Zstandard file from the start of `range`, where `reader` is positioned, to the end of
/// the file. Once the frames of the range have been read, the cell contains their decompressed size; until then,
/// `u64::MAX`.
pub(super) fn open_frames(reader: impl BufRead + 'static, range: Range<u64>) -> (Box<dyn BufRead>, Rc<Cell<u64>>) {
    let (frames, size) = Frames::new(reader, range);
    (Box::new(BufReader::new(frames)), size)
}

/// A reader that counts bytes, to know its position in a file.
struct Counted<R> {
    reader: R,
    at: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.at += bytes as u64;
    }
}

/// Decoder of a frame whose first bytes were already read.
type Frame<R> = StreamingDecoder<Chain<Cursor<[u8; 4]>, Counted<R>>, FrameDecoder>;

/// Consecutive frames of a Zstandard file.
struct Frames<R: BufRead> {
    rest: Option<Counted<R>>,
    frame: Option<Box<Frame<R>>>,
    /// Byte of the file at which a range of frames ends.
    end: u64,
    /// Number of bytes decompressed.
    read: u64,
    /// Decompressed size of the range's frames, once it is known.
    size: Rc<Cell<u64>>,
}

impl<R: BufRead> Frames<R> {
    fn new(reader: R, range: Range<u64>) -> (Self, Rc<Cell<u64>>) {
        let size = Rc::new(Cell::new(u64::MAX));
        let rest = Some(Counted { reader, at: range.start });
        (Self { rest, frame: None, end: range.end, read: 0, size: size.clone() }, size)
    }

    /// Opens the next frame that contains data; at the end of the file, no frame is open.
    fn next(&mut self) -> io::Result<()> {
        let Some(mut rest) = self.rest.take() else { return Ok(()) };
        loop {
            if rest.at >= self.end && self.size.get() == u64::MAX {
                // A frame that crosses the end of the range would be read twice.
                if rest.at > self.end {
                    let message = format!(
                        "the file's seek table says that a Zstandard frame ends at byte {}, but none does",
                        self.end
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                self.size.set(self.read);
            }
            if rest.fill_buf()?.is_empty() {
                return Ok(());
            }
            let mut magic = [0; 4];
            rest.read_exact(&mut magic)?;
            if !is_skipped(u32::from_le_bytes(magic)) {
                let frame = StreamingDecoder::new(Cursor::new(magic).chain(rest)).map_err(io::Error::other)?;
                self.frame = Some(Box::new(frame));
                return Ok(());
            }
            let mut length = [0; 4];
            rest.read_exact(&mut length)?;
            let length = u64::from(u32::from_le_bytes(length));
            if io::copy(&mut (&mut rest).take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Finishes a frame and verifies its checksum.
    fn end(&mut self, frame: Frame<R>) -> io::Result<()> {
        let (source, decoder) = frame.into_parts();
        if let Some(stored) = decoder.get_checksum_from_data()
            && decoder.get_calculated_checksum() != Some(stored)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the Zstandard checksum does not match the data"));
        }
        self.rest = Some(source.into_inner().1);
        Ok(())
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    self.read += read as u64;
                    return Ok(read);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.end(*frame)?;
            }
            self.next()?;
            if self.frame.is_none() {
                return Ok(0);
            }
        }
    }
}
