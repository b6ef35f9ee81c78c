//! Decompresses gzip and Zstandard files.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: u32 = 0xfd2f_b528;

/// Whether a frame is skippable, as written by parallel and seekable compressors.
fn is_skipped(magic: u32) -> bool {
    magic & 0xffff_fff0 == 0x184d_2a50
}

/// Whether the first bytes of a file are those of a Zstandard file.
fn is_zstandard(start: &[u8]) -> bool {
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
        return Ok(Box::new(BufReader::new(Frames { rest: Some(reader), frame: None })));
    }
    Ok(Box::new(reader))
}

/// Decoder of a frame whose first bytes were already read.
type Frame<R> = StreamingDecoder<Chain<Cursor<[u8; 4]>, R>, FrameDecoder>;

/// Consecutive frames of a Zstandard file.
struct Frames<R: BufRead> {
    rest: Option<R>,
    frame: Option<Box<Frame<R>>>,
}

impl<R: BufRead> Frames<R> {
    /// Opens the next frame that contains data; at the end of the file, no frame is open.
    fn next(&mut self) -> io::Result<()> {
        let Some(mut rest) = self.rest.take() else { return Ok(()) };
        while !rest.fill_buf()?.is_empty() {
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
        Ok(())
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
