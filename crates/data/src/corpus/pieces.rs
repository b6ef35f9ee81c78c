//! Pieces of a corpus that can be read independently.
//!
//! Pieces are found without reading the whole corpus, and do not depend on how many tasks share the corpus. A piece is
//! a range of bytes of a file of lines, one or more frames of a Zstandard file, a row group of a Parquet file, or a
//! record batch of an Arrow file. A file that can only be read from the start (a gzip file or a stream) is one piece.

use std::io::{Error, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::selection::Selection;
use super::watch::Watch;
use super::{Corpus, InPieces, PlacedPrompts, files, files_of, frames, lines, unpacked};
use crate::error::DumpError;
use hooklens_io::object_stores::is_url;

/// Maximum and minimum size of a piece of a file of lines, in bytes. With 1-byte pieces, the second piece's search for
/// a newline would start at byte 0, and a range that starts at 0 also contains the first line, so that line would be
/// read twice.
const PIECE: (u64, u64) = (32 << 10, 2);
/// Target number of pieces of a corpus, larger than the number of tasks. Limits on the size of a piece take precedence.
const PIECES: u64 = 8192;
/// Maximum size of a piece of an object in a store, in bytes. Each piece takes a request.
const REQUEST: u64 = 1 << 20;

/// The pieces of a corpus, in the order of its prompts.
#[derive(Debug, Clone)]
pub struct Pieces {
    parts: Parts,
    /// The selected prompts, if only some prompts are selected. Pieces then consist of prompts instead of parts.
    selection: Option<Selection>,
}

/// Parts of the files of a corpus.
#[derive(Debug, Clone)]
struct Parts {
    files: Vec<FilePieces>,
    field: Option<String>,
    watch: Option<Watch>,
    size: u64,
}

/// The parts of a file.
#[derive(Debug, Clone)]
struct FilePieces {
    path: Arc<Path>,
    /// Length of the file in bytes; `None` for a stream.
    bytes: Option<u64>,
    /// Number of the file's first part.
    first: usize,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The file is one part.
    Whole,
    /// Parts are ranges of bytes.
    Ranges,
    /// Each part is one or more frames; the parts start at these bytes.
    Frames(Arc<[u64]>),
    /// Parts are row groups or record batches; the value is the number of parts.
    #[cfg(feature = "arrow")]
    Groups(usize),
}

/// Finds the pieces of a corpus. Its files are not read in full, unless [`Corpus::skip`], [`Corpus::limit`] or
/// [`Corpus::sample`] select prompts: then prompts are counted first, up to the last one that may be selected.
///
/// # Errors
/// [`DumpError::File`] if a file cannot be opened, a pattern matches no file, or counting fails.
pub fn pieces_of(corpus: &Corpus) -> Result<Pieces, DumpError> {
    let found = found(corpus)?;
    let is_cut = |file: &&FilePieces| matches!(file.kind, Kind::Ranges | Kind::Frames(_));
    let bytes: u64 = found.iter().filter(is_cut).filter_map(|file| file.bytes).sum();
    let largest = if found.iter().any(|file| is_url(&file.path)) { REQUEST } else { PIECE.0 };
    selected(corpus, numbered(corpus, found, (bytes / PIECES).clamp(PIECE.1, largest)), None)
}

/// Like [`pieces_of`], with pieces of about `size` bytes.
pub(super) fn pieces_of_size(corpus: &Corpus, size: u64) -> Result<Pieces, DumpError> {
    selected(corpus, numbered(corpus, found(corpus)?, size.max(1)), Some(size))
}

/// The files of a corpus.
fn found(corpus: &Corpus) -> Result<Vec<FilePieces>, DumpError> {
    files_of(corpus)?.par_iter().map(|path| FilePieces::of(path)).collect()
}

/// The pieces of a corpus, or of the prompts that are selected from it.
fn selected(corpus: &Corpus, mut parts: Parts, size: Option<u64>) -> Result<Pieces, DumpError> {
    if !corpus.selects() {
        return Ok(Pieces { parts, selection: None });
    }
    let selection = Selection::new(corpus, parts.open_all(0..parts.count()), size)?;
    // The watch reports only the progress of counting.
    parts.watch = None;
    Ok(Pieces { parts, selection: Some(selection) })
}

/// Numbers the parts consecutively, across all files.
fn numbered(corpus: &Corpus, mut files: Vec<FilePieces>, size: u64) -> Parts {
    let mut first = 0;
    for file in &mut files {
        if let Kind::Frames(starts) = &mut file.kind {
            *starts = together(starts, size);
        }
        file.first = first;
        first += file.count(size);
    }
    Parts { files, field: corpus.field.clone(), watch: corpus.watch.clone(), size }
}

/// Byte range of the newlines that precede the lines starting in `range`, in a file of `length` bytes.
fn after_newlines(range: Range<u64>, length: Option<u64>) -> Range<u64> {
    let is_last = length.is_none_or(|length| range.end >= length);
    range.start.saturating_sub(1)..if is_last { range.end } else { range.end - 1 }
}

/// Drops the starts of frames that are less than `size` bytes after the last start kept.
fn together(starts: &[u64], size: u64) -> Arc<[u64]> {
    let mut kept: Vec<u64> = Vec::new();
    for start in starts {
        if kept.last().is_none_or(|last| start - last >= size) {
            kept.push(*start);
        }
    }
    kept.into()
}

impl FilePieces {
    fn of(path: &Path) -> Result<Self, DumpError> {
        let failed = |source: Error| DumpError::File { path: path.to_path_buf(), source };
        let own = |bytes, kind| Self { path: path.into(), bytes, first: 0, kind };
        if path == Path::new("-") {
            return Ok(own(None, Kind::Whole));
        }
        let bytes = files::length(path).map_err(failed)?;
        #[cfg(feature = "arrow")]
        if super::is_table(path) {
            let groups = super::table::groups(path)?;
            return Ok(own(bytes, groups.map_or(Kind::Whole, Kind::Groups)));
        }
        let Some(length) = bytes.filter(|_| !super::is_table(path)) else {
            return Ok(own(bytes, Kind::Whole));
        };
        let mut start = Vec::new();
        files::open(path).map_err(failed)?.take(4).read_to_end(&mut start).map_err(failed)?;
        if unpacked::is_zstandard(&start) {
            let starts = frames::frames(&files::at_random(path).map_err(failed)?, length);
            return Ok(own(bytes, Kind::Frames(starts.into())));
        }
        Ok(own(bytes, if unpacked::is_packed(&start) { Kind::Whole } else { Kind::Ranges }))
    }

    fn count(&self, size: u64) -> usize {
        match &self.kind {
            Kind::Whole => 1,
            Kind::Ranges => self.bytes.unwrap_or(0).div_ceil(size) as usize,
            Kind::Frames(starts) => starts.len(),
            #[cfg(feature = "arrow")]
            Kind::Groups(count) => *count,
        }
    }
}

impl Pieces {
    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.selection.as_ref().map_or_else(|| self.parts.count(), Selection::pieces)
    }

    /// The files, each with its length in bytes; `None` for a stream.
    pub fn files(&self) -> impl Iterator<Item = (&Path, Option<u64>)> {
        self.parts.files.iter().map(|file| (&*file.path, file.bytes))
    }

    /// Describes a piece: its file and its range in the file or, if prompts are selected, its first prompt.
    pub fn name(&self, piece: usize) -> String {
        let Some(selection) = &self.selection else { return self.parts.name(piece) };
        match selection.first_of(piece) {
            Some((number, part)) => format!("prompt {} ({})", number + 1, self.parts.name(part)),
            None => format!("piece {piece}"),
        }
    }

    /// Opens the prompts of a piece. Every selected prompt of the corpus is in exactly one piece.
    ///
    /// # Errors
    /// Same as [`Corpus::prompts`].
    pub fn open(&self, piece: usize) -> Result<PlacedPrompts, DumpError> {
        match &self.selection {
            None => self.parts.open(piece),
            Some(_) => Ok(Box::new(self.open_all(piece..piece + 1).map(|(_, prompt)| prompt))),
        }
    }

    /// Opens the prompts of consecutive pieces. Ranges of a file are read in one pass.
    pub(super) fn open_all(&self, pieces: Range<usize>) -> InPieces {
        let Some(selection) = &self.selection else { return self.parts.open_all(pieces) };
        let (parts, own) = (self.parts.clone(), self.parts.clone());
        let changed = move |part| {
            let path = own.file(part).map(|file| file.path.to_path_buf()).unwrap_or_default();
            let source = Error::other("the file has changed since its prompts were counted");
            DumpError::File { path, source }
        };
        selection.open(pieces, move |range| parts.open_all(range), changed)
    }
}

impl Parts {
    fn count(&self) -> usize {
        self.files.last().map_or(0, |file| file.first + file.count(self.size))
    }

    /// Describes a part: its file and its range in the file.
    fn name(&self, part: usize) -> String {
        let Some(file) = self.file(part) else { return format!("part {part}") };
        let path = file.path.display();
        match file.kind {
            Kind::Whole => path.to_string(),
            Kind::Ranges | Kind::Frames(_) => {
                let range = self.range(file, part);
                format!("{path}, bytes {} to {}", range.start, range.end)
            }
            #[cfg(feature = "arrow")]
            Kind::Groups(_) => format!("{path}, part {}", part - file.first + 1),
        }
    }

    /// Opens the prompts of a part. Every prompt of the corpus is in exactly one part.
    fn open(&self, part: usize) -> Result<PlacedPrompts, DumpError> {
        let Some(file) = self.file(part) else { return Ok(Box::new(std::iter::empty())) };
        let (field, watch) = (self.field.as_deref(), self.watch.clone());
        match file.kind {
            Kind::Whole => super::open(&file.path, field, watch),
            Kind::Ranges => {
                let range = after_newlines(self.range(file, part), file.bytes);
                Ok(Box::new(lines::open_range(&file.path, range, field, watch)?))
            }
            Kind::Frames(_) => Ok(Box::new(lines::open_frames(&file.path, self.range(file, part), field, watch)?)),
            #[cfg(feature = "arrow")]
            Kind::Groups(_) => super::table::open_group(&file.path, part - file.first, field),
        }
    }

    /// Opens the prompts of consecutive parts. Ranges of a file are read in one pass.
    fn open_all(&self, parts: Range<usize>) -> InPieces {
        let all = self.clone();
        let mut next = parts.start;
        let mut runs = std::iter::from_fn(move || {
            let file = all.file(next).filter(|_| next < parts.end)?;
            let start = next;
            let last = (file.first + file.count(all.size)).min(parts.end);
            next = if file.kind == Kind::Ranges { last } else { start + 1 };
            Some(all.open_run(file, start..next))
        });
        let mut current: Option<InPieces> = None;
        Box::new(std::iter::from_fn(move || {
            loop {
                if let Some(found) = current.as_mut().and_then(Iterator::next) {
                    return Some(found);
                }
                current = Some(runs.next()?);
            }
        }))
    }

    fn open_run(&self, file: &FilePieces, parts: Range<usize>) -> InPieces {
        let (first, size) = (file.first, self.size);
        let failed = |error: DumpError| -> InPieces { Box::new(std::iter::once((parts.start, Err(error)))) };
        if file.kind != Kind::Ranges {
            return match self.open(parts.start) {
                Ok(prompts) => Box::new(prompts.map(move |prompt| (parts.start, prompt))),
                Err(error) => failed(error),
            };
        }
        let range = self.range(file, parts.start).start..self.range(file, parts.end - 1).end;
        let range = after_newlines(range, file.bytes);
        match lines::open_range(&file.path, range, self.field.as_deref(), self.watch.clone()) {
            Ok(mut lines) => Box::new(std::iter::from_fn(move || {
                let prompt = lines.next()?;
                Some((first + (lines.begun() / size) as usize, prompt))
            })),
            Err(error) => failed(error),
        }
    }

    /// The file that a part belongs to.
    fn file(&self, part: usize) -> Option<&FilePieces> {
        let after = self.files.partition_point(|file| file.first <= part);
        // Empty files have no parts.
        let file = self.files[..after].iter().rfind(|file| file.count(self.size) > 0)?;
        (part < file.first + file.count(self.size)).then_some(file)
    }

    fn range(&self, file: &FilePieces, part: usize) -> Range<u64> {
        let (number, length) = (part - file.first, file.bytes.unwrap_or(u64::MAX));
        if let Kind::Frames(starts) = &file.kind {
            return starts[number]..starts.get(number + 1).copied().unwrap_or(length);
        }
        let start = number as u64 * self.size;
        start..(start + self.size).min(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::Prompt;
    use super::*;

    fn prompts(placed: PlacedPrompts) -> Vec<(Prompt, String)> {
        placed.map(|placed| placed.map(|(prompt, place)| (prompt, place.to_string())).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn pieces_have_every_prompt_once(
            lines in proptest::collection::vec("[aä€\\r \\n]{0,9}", 0..40),
            size in 2u64..40,
            ends in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("corpus.txt");
            let text = lines.join("\n") + if ends { "\n" } else { "" };
            std::fs::write(&path, &text).unwrap();
            let other = folder.path().join("other.txt");
            std::fs::write(&other, "x\ny").unwrap();
            let empty = folder.path().join("empty.txt");
            std::fs::write(&empty, "").unwrap();
            let corpus = Corpus::new([&path, &empty, &other]);
            let pieces = pieces_of_size(&corpus, size).unwrap();
            let apart: Vec<_> = (0..pieces.count()).flat_map(|piece| prompts(pieces.open(piece).unwrap())).collect();
            prop_assert_eq!(&apart, &prompts(corpus.placed().unwrap()));
            // When all pieces are read in one pass, each prompt is in the same piece as before.
            let of = |piece| (piece, prompts(pieces.open(piece).unwrap()).len());
            let mut counts: std::collections::BTreeMap<usize, usize> = (0..pieces.count()).map(of).collect();
            let mut together = Vec::new();
            for (piece, prompt) in pieces.open_all(0..pieces.count()) {
                *counts.get_mut(&piece).unwrap() -= 1;
                together.push(prompt.unwrap().0);
            }
            prop_assert!(counts.values().all(|count| *count == 0), "{counts:?}");
            prop_assert_eq!(together, apart.into_iter().map(|(prompt, _)| prompt).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn frames_have_every_prompt_once(
            texts in proptest::collection::vec("[aä€\r \n]{0,9}", 1..20),
            skipped in any::<bool>(),
            size in 1u64..60,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let [path, plain] = ["corpus.txt.zst", "corpus.txt"].map(|name| folder.path().join(name));
            let mut bytes: Vec<u8> = Vec::new();
            for text in &texts {
                if skipped {
                    bytes.extend([0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, b'\n', 9]);
                }
                // Lines do not end where frames do, nor do characters.
                let (start, end) = text.as_bytes().split_at(text.len() / 2);
                for half in [start, end] {
                    let level = ruzstd::encoding::CompressionLevel::Fastest;
                    bytes.extend(ruzstd::encoding::compress_to_vec(half, level));
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            std::fs::write(&plain, texts.concat()).unwrap();
            let pieces = pieces_of_size(&Corpus::new([&path]), size).unwrap();
            let all = (0..pieces.count()).flat_map(|piece| pieces.open(piece).unwrap());
            let found: Vec<Prompt> = all.map(|placed| placed.unwrap().0).collect();
            let expected: Vec<Prompt> = Corpus::new([&plain]).prompts().unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(size > 10 || pieces.count() > texts.len());
        }
    }

    #[test]
    fn a_table_of_frames_that_is_wrong_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.zst");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let mut bytes =
            [&b"red fox\n"[..], b"tea owl\n"].map(|text| ruzstd::encoding::compress_to_vec(text, level)).concat();
        let (first, all) = (10u32, bytes.len() as u32);
        let table = [first, 8, all - first, 8].map(u32::to_le_bytes).concat();
        bytes.extend([0x184d_2a5e_u32, 25].map(u32::to_le_bytes).concat());
        bytes.extend([&table[..], &2u32.to_le_bytes(), &[0], &0x8f92_eab1_u32.to_le_bytes()].concat());
        std::fs::write(&path, &bytes).unwrap();
        let pieces = pieces_of_size(&Corpus::new([&path]), 1).unwrap();
        assert_eq!(pieces.count(), 2);
        let mut found = pieces.open(0).unwrap();
        assert_eq!(found.next().unwrap().unwrap().0, Prompt::Text("red fox".into()));
        assert!(matches!(found.next().unwrap(), Err(DumpError::File { .. })));
    }

    #[test]
    fn equal_lines_are_shared_equally() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.txt");
        std::fs::write(&path, "the same prompt as the others\n".repeat(20)).unwrap();
        let pieces = pieces_of(&Corpus::new([&path])).unwrap();
        let count = |range: Range<usize>| pieces.open_all(range).count();
        let quarter = pieces.count() / 4;
        assert_eq!([0, 1, 2, 3].map(|part| count(part * quarter..(part + 1) * quarter)), [5; 4]);
    }

    #[test]
    fn compressed_files_and_json_lines_have_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..100).map(|n| format!("{{\"text\": \"prompt\\n{n}\"}}\n")).collect();
        let [plain, packed] = ["a.jsonl", "b.jsonl.gz"].map(|name| folder.path().join(name));
        std::fs::write(&plain, &text).unwrap();
        let mut packer = flate2::write::GzEncoder::new(std::fs::File::create(&packed).unwrap(), Default::default());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap();
        let corpus = Corpus::new([&packed, &plain]);
        let pieces = pieces_of_size(&corpus, 64).unwrap();
        assert_eq!(pieces.count(), 1 + text.len().div_ceil(64));
        let apart: Vec<_> = (0..pieces.count()).flat_map(|piece| prompts(pieces.open(piece).unwrap())).collect();
        assert_eq!((apart.len(), apart), (200, prompts(corpus.placed().unwrap())));
        assert!(pieces.name(0).ends_with("b.jsonl.gz") && pieces.name(2).ends_with("a.jsonl, bytes 64 to 128"));
    }
}
