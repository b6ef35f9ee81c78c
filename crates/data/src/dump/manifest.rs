//! Manifest of a dump folder, and the log of its finished files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use hooklens_hooks::{Unfinished, append};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::manifest_outline::ManifestOutline;
use super::object_log::ObjectLog;
use super::place::{self, VersionedFile};
use super::{Dump, DumpedModel, Shard, StoredTensor};
use crate::error::DumpError;
use hooklens_io::excerpt::excerpt;
use hooklens_io::object_stores::is_url;

/// Name of the manifest in the folder.
pub(super) const NAME: &str = "manifest.json";

/// Current version of the manifest. Version 4 added a checksum for each file; version 5 has settings of any JSON type,
/// and describes tensors and tokens; version 6 allows for packed files.
const VERSION: u32 = 6;
/// Version of dumps with padded files.
const PADDED: u32 = 5;
/// Version whose settings were strings.
const OF_STRINGS: u32 = 4;

/// Key of the manifest, as JSON, in the header of a single file. Values in a safetensors header can only be strings.
pub(super) const KEY: &str = "hooklens_dump";

/// Name of the list of finished files, one JSON object per line, which exists until the dump is complete.
pub(super) const LOG: &str = "shards.jsonl";

/// Settings of a dump and, once it is complete, its files. Until then, files are listed in the log, one line each, so
/// that a dump of many files does not rewrite the whole list for each one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u32,
    /// Version of hooklens that wrote the manifest; empty in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) hooklens: String,
    /// How files are laid out: `packed`; `None` for padded batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) layout: Option<String>,
    /// Number of prompts. For a packed dump, it is set when the dump is complete.
    pub(super) rows: usize,
    /// Hash of all token ids, which detects different prompts.
    pub(super) input: String,
    /// The files of the prompts and their number of pieces; only for a packed dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) corpus: Option<Value>,
    /// The pieces in this folder, as a half-open range; only for a packed dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pieces: Option<[usize; 2]>,
    /// Where the prompts come from, for readers of the manifest.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) prompts: Map<String, Value>,
    pub(super) settings: BTreeMap<String, Value>,
    /// The model that the activations come from; `None` if the dump does not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<DumpedModel>,
    /// Tensors of the files by name; empty until the first batch is written, and in manifests of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    #[serde(rename = "shards")]
    pub(super) files: Vec<BatchFile>,
    /// Shard of the prompts in this folder; `None` if the folder contains all of them.
    #[serde(rename = "part", default, skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<Shard>,
    /// Number of prompts in the shard.
    #[serde(rename = "part_rows", default, skip_serializing_if = "Option::is_none")]
    pub(super) shard_rows: Option<usize>,
    pub(super) complete: bool,
    /// Text of each token that occurs in the prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) token_texts: BTreeMap<u32, String>,
}

/// A finished file, which contains one batch or, if it is packed, many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ListedFile")]
pub(super) struct BatchFile {
    pub(super) file: String,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) bytes: u64,
    /// Hash of the file's contents.
    pub(super) checksum: String,
    /// The prompts of a packed file.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) packed: Option<PackedEntry>,
}

/// The fields of a [`BatchFile`] as they are read. They are listed one by one because serde's `flatten` would keep
/// all unknown fields in memory.
#[derive(Deserialize)]
struct ListedFile {
    file: String,
    first_row: usize,
    rows: usize,
    bytes: u64,
    checksum: String,
    tokens: Option<usize>,
    from: Option<Mark>,
    to: Option<Mark>,
    input: Option<Hexadecimal>,
    longest: Option<[usize; 2]>,
    #[serde(default)]
    skipped: usize,
    with_bos: Option<usize>,
}

impl From<ListedFile> for BatchFile {
    fn from(listed: ListedFile) -> Self {
        let ListedFile { file, first_row, rows, bytes, checksum, .. } = listed;
        let ListedFile { tokens, from, to, input, longest, skipped, with_bos, .. } = listed;
        let packed = match (tokens, from, to, input, longest) {
            (Some(tokens), Some(from), Some(to), Some(Hexadecimal(input)), Some(longest)) => {
                Some(PackedEntry { tokens, from, to, input, longest, skipped, with_bos })
            }
            _ => None,
        };
        Self { file, first_row, rows, bytes, checksum, packed }
    }
}

/// The prompts of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct PackedEntry {
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Where the file's prompts start.
    pub(super) from: Mark,
    /// Where the file's prompts end.
    pub(super) to: Mark,
    /// Hash of the file's prompts: combines the hashes of its pieces and, if the file ends within a piece, the hash of
    /// the mark `to`.
    #[serde(with = "hexadecimal")]
    pub(super) input: u64,
    /// Maximum numbers of tokens and of kept positions per prompt.
    pub(super) longest: [usize; 2],
    /// Number of prompts that were skipped because they are invalid.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) skipped: usize,
    /// Number of prompts that begin with the beginning-of-sequence token; `None` in logs of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) with_bos: Option<usize>,
}

/// A number that is written as hexadecimal text.
#[derive(Deserialize)]
struct Hexadecimal(#[serde(with = "hexadecimal")] u64);

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl PackedEntry {
    /// Hash of a file's prompts: combines `input`, the hash of the pieces so far, with `hash`, the hash of the next
    /// piece.
    pub(super) fn with_piece(input: u64, hash: u64) -> u64 {
        xxh3_64(&[input.to_le_bytes(), hash.to_le_bytes()].concat())
    }
}

/// A position between two rows of a corpus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Number of whole pieces before the position.
    pub(super) piece: usize,
    /// Number of rows before the position in the piece that follows these whole pieces.
    pub(super) row: usize,
    /// Hash of that piece's prompts up to the position, as in `CorpusRow::hash`; 0 if `row` is 0.
    #[serde(with = "hexadecimal")]
    pub(super) hash: u64,
}

/// Stores numbers as text, because other JSON parsers round large numbers.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
    }
}

impl BatchFile {
    /// Describes a written file of `bytes` bytes with this hash.
    pub(super) fn new(file: String, first_row: usize, rows: usize, bytes: u64, hash: u128) -> Self {
        Self { file, first_row, rows, bytes, checksum: hex(hash), packed: None }
    }

    /// Whether the file's path stays within the folder.
    pub(super) fn is_within(&self) -> bool {
        !self.file.is_empty() && Path::new(&self.file).components().all(|part| matches!(part, Component::Normal(_)))
    }
}

/// Append-only list of finished files.
pub(super) enum Log {
    File { path: PathBuf, file: File },
    Objects(ObjectLog),
}

impl Log {
    /// Replaces the folder's log with one that lists these files.
    pub(super) fn begin(folder: &Path, files: &[BatchFile]) -> Result<Self, DumpError> {
        if is_url(folder) {
            return Ok(Self::Objects(ObjectLog::begin(folder, files)?));
        }
        let path = folder.join(LOG);
        place::check_no_link(&path)?;
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        let mut unfinished = Unfinished::beside(&path).map_err(failed)?;
        for entry in files {
            let line = line(entry).map_err(failed)?;
            unfinished.write_all(&line).map_err(failed)?;
        }
        let file = unfinished.finish().map_err(failed)?;
        Ok(Self::File { path, file })
    }

    /// Appends an entry for a file that is already on disk or in the store.
    pub(super) fn add(&mut self, entry: &BatchFile) -> Result<(), DumpError> {
        let (path, file) = match self {
            Self::File { path, file } => (path, file),
            Self::Objects(log) => return log.add(entry),
        };
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        let line = line(entry).map_err(failed)?;
        append(file, &line).and_then(|()| file.sync_data()).map_err(failed)
    }

    /// Removes the log once the manifest lists all files.
    pub(super) fn remove(self) -> Result<(), DumpError> {
        match self {
            Self::File { path, .. } => fs::remove_file(&path).map_err(|source| DumpError::File { path, source }),
            Self::Objects(log) => log.remove(),
        }
    }

    /// Files listed in a folder's log, up to the first incomplete line.
    pub(super) fn read(folder: &Path) -> Result<Vec<BatchFile>, DumpError> {
        let text = match is_url(folder) {
            true => ObjectLog::read(folder)?,
            false => place::read(&folder.join(LOG))?.unwrap_or_default(),
        };
        Ok(text.split(|b| *b == b'\n').map_while(|line| serde_json::from_slice(line).ok()).collect())
    }
}

/// Log line of a file.
pub(super) fn line(entry: &BatchFile) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

impl Manifest {
    /// Describes a dump of these rows. `text` returns the text of a token.
    pub(super) fn new(
        dump: &Dump,
        model: DumpedModel,
        rows: &[Vec<u32>],
        text: impl Fn(u32) -> Option<String>,
    ) -> Self {
        let own = dump.own(rows.len());
        let mut used = Vec::new();
        for id in rows[own.clone()].iter().flatten().chain(&dump.prefix) {
            let id = *id as usize;
            if id >= used.len() {
                used.resize(id + 1, false);
            }
            used[id] = true;
        }
        let ids = (0..).zip(used).filter(|(_, used)| *used).map(|(id, _)| id);
        Self {
            format: "hooklens-dump".into(),
            version: PADDED,
            hooklens: env!("CARGO_PKG_VERSION").into(),
            rows: rows.len(),
            input: hash_of_rows(rows),
            prompts: dump.prompts.clone(),
            layout: None,
            corpus: None,
            pieces: None,
            settings: dump.settings().into_iter().collect(),
            model: Some(model),
            tensors: BTreeMap::new(),
            files: Vec::new(),
            shard: dump.shard,
            shard_rows: dump.shard.map(|_| own.len()),
            complete: false,
            token_texts: ids.filter_map(|id| Some((id, text(id)?))).collect(),
        }
    }

    /// Describes a packed dump of these pieces of a corpus.
    pub(super) fn packed(dump: &Dump, model: DumpedModel, corpus: Value, pieces: Range<usize>) -> Self {
        let padded = Self::new(dump, model, &[], |_| None);
        Self {
            version: VERSION,
            layout: Some("packed".into()),
            input: hash_bytes(corpus.to_string().as_bytes()),
            corpus: Some(corpus),
            pieces: Some([pieces.start, pieces.end]),
            shard_rows: None,
            ..padded
        }
    }

    /// Whether the dump's files are packed.
    pub(super) fn is_packed(&self) -> bool {
        self.corpus.is_some()
    }

    /// Reads a folder's manifest; `None` if it has none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, DumpError> {
        let path = folder.join(NAME);
        let Some(text) = place::read(&path)? else { return Ok(None) };
        let invalid = |source| DumpError::Manifest { path: path.clone(), source };
        serde_json::from_slice::<ManifestOutline>(&text).map_err(invalid)?;
        let manifest: Self = serde_json::from_slice(&text).map_err(invalid)?;
        if manifest.version > VERSION {
            let found = manifest.version;
            let reason = format!("it has version {found}, but this version of hooklens reads versions up to {VERSION}");
            return Err(DumpError::Refused { path, reason });
        }
        Ok(Some(manifest.upgraded()))
    }

    /// Converts a manifest of the version whose settings were strings and included the description of the model.
    fn upgraded(mut self) -> Self {
        if self.version != OF_STRINGS {
            return self;
        }
        self.version = PADDED;
        self.model = self.model.take().or_else(|| DumpedModel::of_settings(&self.settings));
        ["weights", "edits", "part"].iter().for_each(|name| drop(self.settings.remove(*name)));
        for name in ["hooks", "batch_size", "prefix_tokens"] {
            if let Some(value) = self.settings.get_mut(name)
                && let Some(parsed) = value.as_str().and_then(|text| serde_json::from_str(text).ok())
            {
                *value = parsed;
            }
        }
        self
    }

    /// Settings that all runs of one dump have in common, by name, including the model.
    pub(super) fn common(&self) -> BTreeMap<&str, String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let mut common: BTreeMap<_, _> =
            self.settings.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
        if let Some(model) = &self.model {
            common.extend(model.fingerprint.iter().map(|fingerprint| ("weights", fingerprint.clone())));
            let lists = [("edits", &model.edits), ("parts", &model.parts)];
            common
                .extend(lists.into_iter().filter(|(_, all)| !all.is_empty()).map(|(name, all)| (name, all.join(", "))));
        }
        common
    }

    /// Adds the next shard: its files, and the descriptions of its tensors and tokens.
    pub(super) fn join(&mut self, mut shard: Self) {
        self.files.append(&mut shard.files);
        self.token_texts.append(&mut shard.token_texts);
        // A manifest of an earlier version does not describe its tensors.
        if self.tensors.is_empty() || shard.tensors.is_empty() {
            self.tensors.clear();
            return;
        }
        for (name, tensor) in shard.tensors {
            match self.tensors.entry(name) {
                Entry::Occupied(own) => own.into_mut().join(&tensor),
                Entry::Vacant(place) => drop(place.insert(tensor)),
            }
        }
    }

    /// Number of prompts in the complete dump or shard.
    pub(super) fn own_rows(&self) -> usize {
        self.shard_rows.unwrap_or(self.rows)
    }

    /// Number of prompts in the listed files.
    pub(super) fn rows_done(&self) -> usize {
        self.files.iter().map(|entry| entry.rows).fold(0, usize::saturating_add)
    }

    /// Replaces the folder's manifest atomically.
    pub(super) fn write(&self, own: &mut VersionedFile) -> Result<(), DumpError> {
        own.put(serde_json::to_vec_pretty(self).map_err(|error| own.failed(error.into()))?)
    }

    /// Checks that a run with the manifest `now` may resume this dump, or that two shards belong to one dump.
    pub(super) fn check_same(&self, now: &Manifest, folder: &Path) -> Result<(), DumpError> {
        let differs = |what: &str, before: &dyn Display, now: &dyn Display| DumpError::Mismatch {
            path: folder.join(NAME),
            what: excerpt(what),
            before: excerpt(before),
            now: excerpt(now),
        };
        if (&self.format, self.version) != (&now.format, now.version) {
            let of = |manifest: &Manifest| match manifest.is_packed() {
                true => "packed files made from prompt files".to_string(),
                false => format!("{} {} made from prompts in memory", manifest.format, manifest.version),
            };
            return Err(differs("format", &of(self), &of(now)));
        }
        let (own, others) = (self.common(), now.common());
        for name in own.keys().chain(others.keys()) {
            let [before, now] = [&own, &others].map(|common| common.get(name).map_or("not set", String::as_str));
            if before != now {
                return Err(differs(name, &before, &now));
            }
        }
        if let (Some(own), Some(other)) = (&self.corpus, &now.corpus) {
            return match corpus_difference(own, other) {
                None => Ok(()),
                Some((what, before, now)) => Err(differs(&what, &before, &now)),
            };
        }
        if self.rows != now.rows {
            return Err(differs("number of prompts", &self.rows, &now.rows));
        }
        if self.input != now.input {
            return Err(differs("set of prompts", &self.input, &now.input));
        }
        Ok(())
    }
}

/// What differs between two corpora: a file, or how the prompts are read.
fn corpus_difference(own: &Value, other: &Value) -> Option<(String, String, String)> {
    let files = |corpus: &Value| corpus["corpus"].as_array().cloned().unwrap_or_default();
    let name =
        |file: Option<&Value>| file.map_or("none".to_string(), |file| file["file"].as_str().unwrap_or("").to_string());
    let (before, now) = (files(own), files(other));
    for at in 0..before.len().max(now.len()) {
        let (a, b) = (before.get(at), now.get(at));
        if name(a) != name(b) {
            return Some(("prompt file".into(), name(a), name(b)));
        }
        let bytes = |file: Option<&Value>| file.map_or(Value::Null, |file| file["bytes"].clone());
        if bytes(a) != bytes(b) {
            let text = |bytes: Value| format!("{bytes} bytes");
            return Some((name(a), text(bytes(a)), text(bytes(b))));
        }
    }
    let tokenization = |corpus: &Value| corpus["tokenization"].as_object().cloned().unwrap_or_default();
    let (before, now) = (tokenization(own), tokenization(other));
    if let Some(name) = before.keys().chain(now.keys()).find(|name| before.get(*name) != now.get(*name)) {
        let text = |all: &Map<String, Value>| all.get(name).map_or("not set".into(), Value::to_string);
        return Some((name.clone(), text(&before), text(&now)));
    }
    (own != other).then(|| ("set of prompts".into(), own.to_string(), other.to_string()))
}

/// Whether a folder contains a complete dump; `None` if it contains no dump.
///
/// # Errors
/// Fails if a manifest cannot be read.
pub fn is_whole(folder: &Path) -> Result<Option<bool>, DumpError> {
    Ok(Manifest::read(folder)?.map(|manifest| manifest.complete && manifest.shard.is_none()))
}

/// Hash of all ids and row boundaries.
pub fn hash_of_rows(rows: &[Vec<u32>]) -> String {
    let words = rows.iter().flat_map(|row| row.iter().copied().chain([u32::MAX]));
    hash_bytes(&words.flat_map(u32::to_le_bytes).collect::<Vec<_>>())
}

/// 128-bit XXH3, which is the same on every machine and in every version.
fn hash_bytes(bytes: &[u8]) -> String {
    hex(xxh3_128(bytes))
}

/// Hash in hexadecimal.
pub(super) fn hex(hash: u128) -> String {
    format!("{hash:032x}")
}
