//! Files as they were before gzip or Zstandard packed them.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What a reader holds, unpacked if its first bytes say that it is packed.
pub(super) fn open(mut reader: impl BufRead + 'static) -> io::Result<Box<dyn BufRead>> {
    let start = reader.fill_buf()?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(reader))));
    }
    if start.starts_with(&ZSTANDARD) {
        return Ok(Box::new(BufReader::new(Frames { rest: Some(reader), frame: None })));
    }
    Ok(Box::new(reader))
}

/// The frames of a file packed with Zstandard, one behind the other: programs that pack in parallel write several.
struct Frames<R: BufRead> {
    rest: Option<R>,
    frame: Option<Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
                self.rest = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut rest) = self.rest.take() else { return Ok(0) };
            if rest.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.frame = Some(Box::new(StreamingDecoder::new(rest).map_err(io::Error::other)?));
        }
    }
}
