//! Pairs of prompts in a file of JSON lines.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Cursor, Error, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde::de::IgnoredAny;
use xxhash_rust::xxh3::Xxh3;

use hooklens_hooks::nearest;

use super::Failure;
use hooklens_analysis::activations::TokenChoice;
use hooklens_analysis::experiments::{IoiPrompt, ioi_prompts};
use hooklens_io::regular;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result as LibResult;
use hooklens_model::tokens::token_text;

/// A prompt: text, or token ids that are used as they are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a prompt: a string or a list of token ids")]
pub(super) enum PairPrompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// A token, given by its text or its id.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a token: a string or an id")]
pub(super) enum PairToken {
    Text(String),
    Id(u32),
}

impl PairPrompt {
    /// Token ids, with texts tokenized by `tokenize`.
    pub(super) fn row(&self, tokenize: impl Fn(&str) -> LibResult<Vec<u32>>) -> LibResult<Vec<u32>> {
        match self {
            Self::Text(text) => tokenize(text),
            Self::Tokens(ids) => Ok(ids.clone()),
        }
    }
}

impl PairToken {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Id(_) => None,
        }
    }

    /// Text to display for the token.
    pub(super) fn label<M: HookedModel>(&self, model: &M) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Id(id) => token_text(model.tokenizer().ok(), *id),
        }
    }

    /// The token as a [`TokenChoice`].
    pub(super) fn choice(&self) -> TokenChoice {
        match self {
            Self::Text(text) => TokenChoice::Text(text.clone()),
            Self::Id(id) => TokenChoice::Id(*id),
        }
    }
}

impl fmt::Display for PairToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairToken::Text(text) => write!(f, "{text:?}"),
            PairToken::Id(id) => write!(f, "{id}"),
        }
    }
}

/// One pair: a clean and maybe a corrupted prompt, with the answer and maybe a wrong token.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Line {
    pub(super) clean: PairPrompt,
    pub(super) corrupted: Option<PairPrompt>,
    pub(super) answer: PairToken,
    pub(super) wrong: Option<PairToken>,
    /// Where the pair comes from, if it was not given as options.
    #[serde(skip)]
    pub(super) place: Option<PairPlace>,
}

/// Where a pair comes from. Lines and pairs are counted from one.
#[derive(Debug, Clone)]
pub(super) enum PairPlace {
    Line(Arc<Path>, usize),
    Ioi(usize),
}

impl fmt::Display for PairPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(path, number) => write!(f, "{}, line {number}", path.display()),
            Self::Ioi(number) => write!(f, "--ioi (prompts in the words of embedded:ioi), pair {number}"),
        }
    }
}

/// Pairs generated from the grammar that `embedded:ioi` was trained on.
pub(super) fn ioi_lines(count: u32) -> Result<Vec<Line>, Failure> {
    if count == 0 {
        return Err(Failure::Usage("--ioi must be at least 1".into()));
    }
    let line = |(number, prompt): (usize, IoiPrompt)| Line {
        clean: PairPrompt::Text(prompt.text),
        corrupted: Some(PairPrompt::Text(prompt.corrupted)),
        answer: PairToken::Text(prompt.answer.into()),
        wrong: Some(PairToken::Text(prompt.wrong.into())),
        place: Some(PairPlace::Ioi(number)),
    };
    Ok((1..).zip(ioi_prompts(count as usize, 0)).map(line).collect())
}

/// Maximum length of a line in bytes. Bounds memory on input without newlines.
const LONGEST_LINE: u64 = 4 << 20;
/// Maximum length of a stream in bytes. A stream is kept in memory, and may never end.
const LONGEST_STREAM: u64 = 64 << 20;

/// A file of pairs in JSON Lines. It is read as often as needed, one line at a time.
#[derive(Debug, Clone)]
pub(super) struct PairFile {
    path: Arc<Path>,
    /// Contents of a stream, which can be read only once.
    stream: OnceLock<Vec<u8>>,
    /// Result of [`PairFile::count_and_hash`].
    counted: OnceLock<(usize, u128)>,
}

impl From<OsString> for PairFile {
    fn from(path: OsString) -> Self {
        Self { path: PathBuf::from(path).into(), stream: OnceLock::new(), counted: OnceLock::new() }
    }
}

impl PairFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All pairs. All lines are checked before any is kept.
    pub(super) fn lines(&self) -> Result<Vec<Line>, Failure> {
        self.read(0..usize::MAX, drop)?;
        self.lines_in(0..usize::MAX)
    }

    /// The pairs with these numbers, counted from zero.
    pub(super) fn lines_in(&self, numbers: Range<usize>) -> Result<Vec<Line>, Failure> {
        let mut found = Vec::new();
        self.read(numbers, |pair| found.push(pair))?;
        Ok(found)
    }

    /// Number of lines that are not blank, and a hash of them. Fails if there are none. Does not check the pairs.
    pub(super) fn count_and_hash(&self) -> Result<(usize, u128), Failure> {
        if let Some(counted) = self.counted.get() {
            return Ok(*counted);
        }
        let (mut lines, mut count, mut hash) = (self.open()?, 0, Xxh3::new());
        while lines.advance()? {
            count += 1;
            hash.update(lines.line.trim_ascii());
            // Without separators, different lines could have the same hash.
            hash.update(b"\n");
        }
        self.check_count(count)?;
        Ok(*self.counted.get_or_init(|| (count, hash.digest128())))
    }

    /// Calls `found` with the pairs with these numbers. Other pairs are not checked.
    fn read(&self, numbers: Range<usize>, mut found: impl FnMut(Line)) -> Result<(), Failure> {
        let (mut lines, mut count) = (self.open()?, 0);
        while count < numbers.end && lines.advance()? {
            if count >= numbers.start {
                let place = PairPlace::Line(self.path.clone(), lines.number);
                let pair = pair(&lines.line).map_err(|reason| Failure::Failed(format!("{place}: {reason}").into()))?;
                found(Line { place: Some(place), ..pair });
            }
            count += 1;
        }
        self.check_count(count)
    }

    fn check_count(&self, count: usize) -> Result<(), Failure> {
        match count {
            0 => Err(Failure::Failed(format!("{}: the file contains no pairs", self.path.display()).into())),
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<Lines<'_>, Failure> {
        let failed = |e: Error| Failure::Failed(format!("{}: {e}", self.path.display()).into());
        let reader = self.reader().map_err(failed)?;
        Ok(Lines { path: &self.path, reader, line: Vec::new(), number: 0 })
    }

    fn reader(&self) -> std::io::Result<Box<dyn BufRead + '_>> {
        if let Some(bytes) = self.stream.get() {
            return Ok(Box::new(Cursor::new(bytes)));
        }
        let file = regular::open_stream(&self.path)?;
        if file.metadata()?.is_file() {
            return Ok(Box::new(BufReader::new(file)));
        }
        let mut bytes = Vec::new();
        match BufReader::new(file).take(LONGEST_STREAM + 1).read_to_end(&mut bytes)? as u64 > LONGEST_STREAM {
            true => Err(Error::other(format!("the stream is longer than {} MiB", LONGEST_STREAM >> 20))),
            false => Ok(Box::new(Cursor::new(self.stream.get_or_init(|| bytes)))),
        }
    }
}

/// The lines of a file that are not blank, read one at a time.
struct Lines<'f> {
    path: &'f Path,
    reader: Box<dyn BufRead + 'f>,
    /// The last line read.
    line: Vec<u8>,
    /// Number of the last line read, counted from one.
    number: usize,
}

impl Lines<'_> {
    /// Reads the next line; `false` at the end.
    fn advance(&mut self) -> Result<bool, Failure> {
        let failed = |number: usize, reason: String| {
            Failure::Failed(format!("{}, line {number}: {reason}", self.path.display()).into())
        };
        loop {
            self.line.clear();
            self.number += 1;
            let read = self.reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut self.line);
            match read.map_err(|e| failed(self.number, e.to_string()))? as u64 {
                0 => return Ok(false),
                read if read > LONGEST_LINE => {
                    return Err(failed(self.number, format!("the line is longer than {} MiB", LONGEST_LINE >> 20)));
                }
                _ if self.line.trim_ascii().is_empty() => {}
                _ => return Ok(true),
            }
        }
    }
}

/// Reads a pair. Fails on a key that looks like a misspelling of a known key. Other keys, such as a line's own id, are
/// allowed.
fn pair(line: &[u8]) -> Result<Line, String> {
    const KEYS: [&str; 4] = ["clean", "corrupted", "answer", "wrong"];
    let pair = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
    for key in keys.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        if let Some(known) = nearest(key, KEYS).first() {
            return Err(format!("unknown key `{key}`; did you mean `{known}`?"));
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PairFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pairs.jsonl");
        std::fs::write(&path, text).unwrap();
        (folder, PairFile::from(path.into_os_string()))
    }

    fn message<T>(read: Result<T, Failure>) -> String {
        match read {
            Err(Failure::Failed(error)) => error.to_string(),
            _ => "no error".into(),
        }
    }

    #[test]
    fn a_range_is_read_without_the_other_pairs() {
        let (_folder, pairs) =
            file("{\"clean\": \"a\", \"answer\": 1}\n\n {\"clean\": [2], \"answer\": \"b\"} \r\nnot a pair");
        let found = pairs.lines_in(1..2).unwrap();
        assert_eq!((found.len(), &found[0].clean), (1, &PairPrompt::Tokens(vec![2])));
        assert!(found[0].place.as_ref().unwrap().to_string().ends_with("pairs.jsonl, line 3"));
        assert_eq!(pairs.count_and_hash().unwrap().0, 3);
        assert!(message(pairs.lines()).contains("pairs.jsonl, line 4"));
        let (_folder, blank) = file("\n \n");
        assert!(message(blank.lines()).contains("no pairs") && message(blank.count_and_hash()).contains("no pairs"));
        let (_folder, long) = file(&" ".repeat(LONGEST_LINE as usize + 1));
        assert!(message(long.lines()).contains("line 1: the line is longer than 4 MiB"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let own = path.clone();
        let writer = std::thread::spawn(move || std::fs::write(own, "{\"clean\": \"a\", \"answer\": 1}\n".repeat(3)));
        let pairs = PairFile::from(path.into_os_string());
        assert_eq!((pairs.count_and_hash().unwrap().0, pairs.lines().unwrap().len()), (3, 3));
        writer.join().unwrap().unwrap();
    }
}
