//! Parsing of a WebSocket client's frames as they are forwarded (RFC 6455).

/// Maximum length of a frame header: two bytes, eight of length, four of mask.
pub(super) const LONGEST_HEADER: usize = 14;

/// Protocol violations by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// A message is longer than allowed. Holds the message's length so far, in bytes.
    Overlong(u64),
    /// Not a valid client frame.
    Malformed,
}

/// Parser state within the stream of frames.
#[derive(Debug)]
pub(super) struct Frames {
    /// Maximum message length, in bytes.
    pub(super) limit: u64,
    header: [u8; LONGEST_HEADER],
    /// Number of header bytes read so far.
    known: usize,
    /// Number of payload bytes of the current frame still to come.
    left: u64,
    /// Length of the current message so far, summed over its frames.
    message: u64,
    /// Whether the current message has further frames.
    open: bool,
    /// Whether the current frame ends a message.
    last: bool,
}

/// What [`Frames::pass`] consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) count: usize,
    /// Whether a message ends with the last byte consumed.
    pub(super) message_ends: bool,
}

impl Frames {
    pub(super) fn new(limit: u64) -> Self {
        let header = [0; LONGEST_HEADER];
        Self { limit, header, known: 0, left: 0, message: 0, open: false, last: false }
    }

    /// Consumes bytes up to the end of a message, or all of them.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<Passed, Violation> {
        let mut count = 0;
        loop {
            if self.left > 0 {
                let part = self.left.min((bytes.len() - count) as u64);
                self.left -= part;
                count += part as usize;
                if self.left > 0 {
                    return Ok(Passed { count, message_ends: false });
                }
                if self.ended() {
                    return Ok(Passed { count, message_ends: true });
                }
            }
            let Some(&byte) = bytes.get(count) else {
                return Ok(Passed { count, message_ends: false });
            };
            self.header[self.known] = byte;
            self.known += 1;
            count += 1;
            if self.known == self.length_of_header() {
                self.begin()?;
                self.known = 0;
                if self.left == 0 && self.ended() {
                    return Ok(Passed { count, message_ends: true });
                }
            }
        }
    }

    fn length_of_header(&self) -> usize {
        match self.header[1] & 0x7f {
            _ if self.known < 2 => 2,
            126 => 8,
            127 => 14,
            _ => 6,
        }
    }

    /// Validates the header and starts the frame's payload.
    fn begin(&mut self) -> Result<(), Violation> {
        let [first, second, extended @ ..] = &self.header;
        let (fin, code) = (first & 0x80 != 0, first & 0x0f);
        let length = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes([extended[0], extended[1]])),
            127 => extended[..8].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
            short => u64::from(short),
        };
        let control = code >= 8;
        let sound = first & 0x70 == 0
            && second & 0x80 != 0
            && match code {
                0 => self.open,
                1 | 2 => !self.open,
                8..=10 => fin && length <= 125,
                _ => false,
            };
        if !sound {
            return Err(Violation::Malformed);
        }
        if !control {
            self.message = if code == 0 { self.message.saturating_add(length) } else { length };
            if self.message > self.limit {
                return Err(Violation::Overlong(self.message));
            }
            self.open = !fin;
        }
        (self.left, self.last) = (length, fin && !control);
        Ok(())
    }

    /// Whether the frame that was just consumed ended a message.
    fn ended(&mut self) -> bool {
        std::mem::take(&mut self.last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A client frame with a zero payload and a zero mask.
    fn frame(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match length {
            0..126 => bytes.push(0x80 | length as u8),
            126..65536 => bytes.extend([&[0xfe][..], &(length as u16).to_be_bytes()].concat()),
            _ => bytes.extend([&[0xff][..], &(length as u64).to_be_bytes()].concat()),
        }
        bytes.resize(bytes.len() + 4 + length, 0);
        bytes
    }

    /// Offsets at which messages end, with the stream split at `cuts`.
    fn ends(stream: &[u8], limit: u64, cuts: &[usize]) -> Result<Vec<usize>, Violation> {
        let (mut frames, mut at, mut found) = (Frames::new(limit), 0, vec![]);
        for &cut in cuts.iter().chain([&stream.len()]) {
            while at < cut {
                let passed = frames.pass(&stream[at..cut])?;
                assert!(passed.count > 0);
                at += passed.count;
                if passed.message_ends {
                    found.push(at);
                }
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_end_where_they_do_however_the_stream_is_cut() {
        // A message in one frame; a message in three frames with a ping in between; an empty message; a pong; and a
        // message with an eight-byte length.
        let parts = [
            frame(0x82, 5),
            frame(0x02, 200),
            frame(0x89, 3),
            frame(0x00, 0),
            frame(0x80, 126),
            frame(0x82, 0),
            frame(0x8a, 0),
            frame(0x81, 70_000),
        ];
        let stream = parts.concat();
        let place = |count: usize| parts[..count].iter().map(Vec::len).sum::<usize>();
        let expected = Ok(vec![place(1), place(5), place(6), place(8)]);
        for cut in 0..1200 {
            assert_eq!(ends(&stream, 70_000, &[cut]), expected, "{cut}");
        }
        assert_eq!(ends(&stream, 70_000, &(0..stream.len()).collect::<Vec<_>>()), expected);
        assert_eq!(ends(&stream, 69_999, &[]), Err(Violation::Overlong(70_000)));
        assert_eq!(ends(&stream, 325, &[]), Err(Violation::Overlong(326)));
    }

    #[test]
    fn a_message_too_long_is_known_by_its_header() {
        let mut frames = Frames::new(1 << 30);
        assert_eq!(frames.pass(&frame(0x82, 100_000)[..8]), Ok(Passed { count: 8, message_ends: false }));
        let header = [0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(Frames::new(1 << 30).pass(&header), Err(Violation::Overlong((1 << 30) + 1)));
        let header = [0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        assert_eq!(Frames::new(1 << 30).pass(&header), Err(Violation::Overlong(u64::MAX)));
    }

    #[test]
    fn what_is_no_frame_of_a_client() {
        let unmasked = [0x82, 0x03, 1, 2, 3, 4];
        let wrong = [frame(0xc2, 1), frame(0x83, 1), frame(0x80, 1), frame(0x09, 1), frame(0x89, 126), unmasked.into()];
        for bytes in wrong {
            assert_eq!(ends(&bytes, 1000, &[]), Err(Violation::Malformed), "{bytes:?}");
        }
        assert_eq!(ends(&[frame(0x02, 1), frame(0x82, 1)].concat(), 1000, &[]), Err(Violation::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_pass_or_are_refused_however_they_are_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(0usize..200, 0..8),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            prop_assert_eq!(ends(&bytes, 1000, &cuts), ends(&bytes, 1000, &[]));
        }

        #[test]
        fn frames_pass_however_they_are_cut(
            parts in prop::collection::vec((0usize..300, 0u8..3), 1..6),
            cuts in prop::collection::vec(0usize..2000, 0..8),
        ) {
            let parts: Vec<_> = parts.iter().map(|&(length, more)| {
                [frame(if more == 0 { 0x82 } else { 0x02 }, length), if more == 0 { vec![] } else { frame(0x80, length) }].concat()
            }).collect();
            let stream = parts.concat();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.sort_unstable();
            let expected: Vec<usize> =
                parts.iter().scan(0, |at, part| { *at += part.len(); Some(*at) }).collect();
            prop_assert_eq!(ends(&stream, 1000, &cuts), Ok(expected));
        }
    }
}
