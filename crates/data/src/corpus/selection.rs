//! The prompts that [`Corpus::skip`], [`Corpus::limit`] and [`Corpus::sample`] select, by their numbers.

use std::ops::Range;

use super::{Corpus, InPieces, Prompt, sample};
use crate::error::DumpError;

/// Maximum number of pieces that the selected prompts are divided into, unless [`LARGEST`] requires more.
const PIECES: usize = 8192;
/// Maximum number of prompts per piece.
const LARGEST: usize = 256;

/// Selected prompts, in pieces with the same number of prompts each. Only the prompts' numbers are kept in memory.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// For each part of the corpus, the number of its first prompt.
    starts: Vec<u64>,
    numbers: Numbers,
    /// Number of prompts per piece.
    size: usize,
}

/// Numbers of prompts, counted from zero in the whole corpus.
#[derive(Debug, Clone)]
enum Numbers {
    Range(Range<u64>),
    Drawn(Vec<u64>),
}

/// Whether an item of a corpus counts as a prompt. An invalid prompt counts, so it can be skipped, too.
pub(super) fn is_prompt<P>(item: &Result<P, DumpError>) -> bool {
    !matches!(item, Err(DumpError::File { .. }))
}

impl Selection {
    /// Selects prompts of a corpus, given its items and the part that each belongs to. Nothing is read after the last
    /// selected prompt. `bytes` is the desired average size of a piece.
    pub(super) fn new(corpus: &Corpus, items: InPieces, bytes: Option<u64>) -> Result<Self, DumpError> {
        let first = corpus.skip as u64;
        let last = corpus.limit.map_or(u64::MAX, |limit| first.saturating_add(limit as u64));
        let (mut starts, mut count, mut read) = (Vec::new(), 0, 0);
        let numbers = items.map(|(part, item)| {
            if starts.len() <= part {
                starts.resize(part + 1, count);
            }
            count += 1;
            read += match item {
                Ok((Prompt::Text(text), _)) => text.len(),
                Ok((Prompt::Tokens(ids), _)) => size_of_val(&*ids),
                Err(error @ DumpError::File { .. }) => return Err(error),
                Err(_) => 0,
            };
            Ok(count - 1)
        });
        let numbers = numbers.take(usize::try_from(last).unwrap_or(usize::MAX));
        let mut selected = numbers.filter(|number| !matches!(number, Ok(number) if *number < first));
        let numbers = match corpus.sample {
            Some((size, seed)) => Numbers::Drawn(sample::drawn(selected, size, seed)?),
            None => Numbers::Range(first..selected.try_fold(first, |_, number| number.map(|number| number + 1))?),
        };
        let size = match bytes {
            Some(bytes) => ((bytes as f64 * count as f64 / read.max(1) as f64) as usize).max(1),
            None => numbers.len().div_ceil(PIECES).clamp(1, LARGEST),
        };
        Ok(Self { starts, numbers, size })
    }

    /// Number of pieces.
    pub(super) fn pieces(&self) -> usize {
        self.numbers.len().div_ceil(self.size)
    }

    /// The first prompt of a piece: its number, and the part of the corpus that contains it.
    pub(super) fn first_of(&self, piece: usize) -> Option<(u64, usize)> {
        let rank = piece.checked_mul(self.size).filter(|rank| *rank < self.numbers.len())?;
        Some((self.numbers.at(rank), self.part(rank)))
    }

    /// Opens the prompts of consecutive pieces. `open` opens parts of the corpus; `changed` returns the error for a
    /// part that has fewer prompts than before.
    pub(super) fn open(
        &self,
        pieces: Range<usize>,
        open: impl Fn(Range<usize>) -> InPieces + 'static,
        changed: impl Fn(usize) -> DumpError + Clone + 'static,
    ) -> InPieces {
        let len = self.numbers.len();
        let rank = |piece: usize| piece.saturating_mul(self.size).min(len);
        let (all, mut left) = (self.clone(), rank(pieces.start)..rank(pieces.end));
        let runs = std::iter::from_fn(move || {
            let (parts, ranks) = (!left.is_empty()).then(|| all.run(&left))?;
            left.start = ranks.end;
            let last = parts.end - 1;
            let changed = changed.clone();
            Some(all.clone().chosen(all.starts[parts.start], ranks, open(parts), move || changed(last)))
        });
        Box::new(runs.flatten())
    }

    /// The prompts with these ranks among the selected ones. `items` are the corpus's items from prompt `number` on;
    /// `missing` returns the error if they end too early.
    fn chosen(
        self,
        mut number: u64,
        mut ranks: Range<usize>,
        mut items: InPieces,
        missing: impl Fn() -> DumpError,
    ) -> impl Iterator<Item = <InPieces as Iterator>::Item> {
        std::iter::from_fn(move || {
            while !ranks.is_empty() {
                let (piece, wanted) = (ranks.start / self.size, self.numbers.at(ranks.start));
                let item = items.next().map_or_else(|| Err(missing()), |(_, item)| item);
                if !is_prompt(&item) {
                    ranks.start = ranks.end;
                    return Some((piece, item));
                }
                number += 1;
                if number > wanted {
                    ranks.start += 1;
                    return Some((piece, item));
                }
            }
            None
        })
    }

    /// Splits off the first ranks whose prompts are in consecutive parts of the corpus. Other parts are not read.
    fn run(&self, ranks: &Range<usize>) -> (Range<usize>, Range<usize>) {
        let first = self.part(ranks.start);
        let (mut parts, mut end) = (first..first + 1, ranks.start + 1);
        if let Numbers::Range(_) = self.numbers {
            (parts.end, end) = (self.part(ranks.end - 1) + 1, ranks.end);
        }
        while end < ranks.end && self.part(end) <= parts.end {
            parts.end = self.part(end) + 1;
            end += 1;
        }
        (parts, ranks.start..end)
    }

    /// The part of the corpus that contains the prompt of this rank.
    fn part(&self, rank: usize) -> usize {
        let number = self.numbers.at(rank);
        // Parts without prompts start at the same number as the next one.
        self.starts.partition_point(|start| *start <= number).saturating_sub(1)
    }
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Self::Range(range) => (range.end - range.start) as usize,
            Self::Drawn(numbers) => numbers.len(),
        }
    }

    /// Number of the prompt with this rank among the selected ones.
    fn at(&self, rank: usize) -> u64 {
        match self {
            Self::Range(range) => range.start + rank as u64,
            Self::Drawn(numbers) => numbers[rank],
        }
    }
}

#[cfg(test)]
mod tests {
    use hooklens_model::error::error_chain;
    use proptest::prelude::*;

    use super::super::pieces::pieces_of_size;
    use super::super::pieces_of;
    use super::*;

    fn read(items: impl Iterator<Item = Result<(Prompt, hooklens_model::error::Place), DumpError>>) -> Vec<String> {
        items
            .map(|item| item.map_or_else(|error| error_chain(&error), |(prompt, place)| format!("{prompt:?} {place}")))
            .collect()
    }

    proptest! {
        /// Read together or one by one, pieces of any size contain the same prompts as the corpus read in order.
        #[test]
        fn pieces_have_the_selected_prompts(
            lines in proptest::collection::vec("(\"[a-z]\"|[a-z]|)", 0..40),
            skip in 0..12usize, limit in proptest::option::of(0..30usize), sample in proptest::option::of(0..9usize),
            seed: u64, size in 2u64..40,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
            let (first, second) = lines.split_at(lines.len() / 2);
            for (path, lines) in paths.iter().zip([first, second]) {
                std::fs::write(path, lines.join("\n")).unwrap();
            }
            let corpus = Corpus::new(&paths).skip(skip);
            let corpus = limit.into_iter().fold(corpus, Corpus::limit);
            let corpus = sample.into_iter().fold(corpus, |corpus, count| corpus.sample(count, seed));
            let expected = read(corpus.placed().unwrap());
            let pieces = pieces_of_size(&corpus, size).unwrap();
            let (mut numbers, mut items) = (Vec::new(), Vec::new());
            for (piece, item) in pieces.open_all(0..pieces.count()) {
                numbers.push(piece);
                items.push(item);
            }
            prop_assert_eq!(read(items.into_iter()), expected.clone());
            prop_assert!(numbers.is_sorted());
            let apart: Vec<String> = (0..pieces.count()).flat_map(|piece| read(pieces.open(piece).unwrap())).collect();
            prop_assert_eq!(apart, expected);
        }
    }

    #[test]
    fn large_selections_have_pieces_of_equal_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.txt");
        let text: String = (0..20_000).map(|number| format!("prompt {number}\n")).collect();
        std::fs::write(&path, text).unwrap();
        let pieces = pieces_of(&Corpus::new([&path]).skip(100).limit(10_000)).unwrap();
        assert_eq!(pieces.count(), 5000);
        let third = read(pieces.open(3).unwrap());
        assert!(third.len() == 2 && third[0].contains("prompt 106"), "{third:?}");
    }

    #[test]
    fn prompts_that_have_gone_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.txt");
        std::fs::write(&path, "red fox\ntea owl\nblue elk\n").unwrap();
        let pieces = pieces_of(&Corpus::new([&path]).skip(1)).unwrap();
        std::fs::write(&path, "red fox\ntea owl and cat\n").unwrap();
        let found = read(pieces.open_all(0..2).map(|(_, item)| item));
        assert!(found.len() == 2 && found[1].contains("corpus.txt") && found[1].contains("changed"), "{found:?}");
    }
}
