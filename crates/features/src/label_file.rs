//! Reads files of labels. Nothing but the labels is kept in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::labels::Labels;
use crate::error::FeatureError;
use hooklens_io::excerpt::excerpt;
use hooklens_io::regular;
use hooklens_model::config::MOST_LAYERS;
use hooklens_model::error::{LoadError, Result, load_errors};

/// Maximum number of labels in a file. The largest sets of dictionaries have a few million latents.
const MOST_LABELS: usize = 1 << 22;
/// Maximum length of a row in bytes. An unclosed quote turns the rest of the file into one row.
const LONGEST_ROW: usize = 1 << 24;
/// A row appended after the last, which cannot occur in a label file.
const END: &str = "\u{1}end";
/// Maximum number of characters of an invalid row shown in errors.
const SHOWN: usize = 80;

/// Reads the labels of one dictionary.
pub(super) fn read(path: &Path) -> Result<Labels> {
    let mut labels = Labels::default();
    if is_json(path) {
        labels = read_json::<OfLatents>(path)?.0;
    } else {
        each_row(path, ["latent"], |[latent], label| {
            labels.push(latent, label);
            Ok(())
        })?;
    }
    labels.sort();
    match labels.repeated() {
        None => Ok(labels),
        Some(latent) if is_json(path) => Err(wrong(path, format!("latent {latent} has two labels"))),
        Some(latent) => Err(repeated(path, ["latent"], [latent])),
    }
}

/// Reads the labels of several layers.
pub(super) fn read_by_layer(path: &Path) -> Result<BTreeMap<usize, Labels>> {
    let mut layers: BTreeMap<usize, Labels> = BTreeMap::new();
    if is_json(path) {
        layers = read_json::<OfLayers>(path)?.0;
    } else {
        each_row(path, ["layer", "latent"], |[layer, latent], label| {
            check_layer(layer)?;
            layers.entry(layer).or_default().push(latent, label);
            Ok(())
        })?;
    }
    for (layer, labels) in &mut layers {
        labels.sort();
        match labels.repeated() {
            None => {}
            Some(latent) if is_json(path) => {
                return Err(wrong(path, format!("latent {latent} of layer {layer} has two labels")));
            }
            Some(latent) => return Err(repeated(path, ["layer", "latent"], [*layer, latent])),
        }
    }
    Ok(layers)
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"))
}

fn wrong(path: &Path, reason: String) -> hooklens_model::error::Error {
    FeatureError::Setting { path: path.into(), reason }.into()
}

fn check_layer(layer: usize) -> std::result::Result<(), String> {
    if layer < MOST_LAYERS { Ok(()) } else { Err(format!("layer {layer} is too large for any supported model")) }
}

fn check_count(labels: usize) -> std::result::Result<(), String> {
    if labels <= MOST_LABELS { Ok(()) } else { Err(format!("it has more than {MOST_LABELS} labels")) }
}

/// The error for a second label of a latent, with its line.
fn repeated<const N: usize>(path: &Path, columns: [&str; N], numbers: [usize; N]) -> hooklens_model::error::Error {
    let mut count = 0;
    let found = each_row(path, columns, |own, _| {
        count += usize::from(own == numbers);
        let latent = numbers[N - 1];
        if count < 2 { Ok(()) } else { Err(format!("latent {latent} already has a label")) }
    });
    found.err().unwrap_or_else(|| wrong(path, "it was modified while it was read".into()))
}

/// Calls `take` on the numbers and the label of each row of a CSV file, except the header. The columns are `columns`,
/// then `label`.
fn each_row<const N: usize>(
    path: &Path,
    columns: [&str; N],
    mut take: impl FnMut([usize; N], &str) -> std::result::Result<(), String>,
) -> Result<()> {
    let form = columns.iter().copied().chain(["label"]).collect::<Vec<_>>().join(",");
    // An unclosed quote would absorb this final row.
    let file = RowByRow { file: regular::open(path).map_err(load_errors::cant_read(path))?, left: LONGEST_ROW };
    let ended = file.chain(b"\n".as_slice()).chain(END.as_bytes());
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(ended);
    let (mut record, mut last, mut count) = (csv::StringRecord::new(), None, 0);
    for place in 0.. {
        if !reader.read_record(&mut record).map_err(|error| unread(path, error))? {
            break;
        }
        reader.get_mut().get_mut().0.get_mut().0.left = LONGEST_ROW;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() == 1 && record.get(0) == Some(END) {
            return Ok(());
        }
        last = Some(line);
        if record.iter().all(|field| field.trim().is_empty()) || (place == 0 && names_columns(&record, &columns)) {
            continue;
        }
        let problem = |what: &str| {
            let letters = record.iter().flat_map(|field| std::iter::once(',').chain(field.chars()));
            let text: String = letters.skip(1).take(SHOWN).collect();
            wrong(path, format!("line {line}: `{text}` is not `{form}`: {what}"))
        };
        if record.len() != N + 1 {
            return Err(problem(&format!(
                "the number of fields is {} (quote labels that contain commas)",
                record.len()
            )));
        }
        let mut numbers = [0; N];
        for (number, field) in numbers.iter_mut().zip(&record) {
            let field = field.trim();
            *number = field.parse().map_err(|_| problem(&format!("`{}` is not a whole number", excerpt(field))))?;
        }
        count += 1;
        check_count(count).map_err(|reason| wrong(path, reason))?;
        let label = record.get(N).unwrap_or_default().trim_matches([' ', '\t']);
        take(numbers, label).map_err(|reason| wrong(path, format!("line {line}: {reason}")))?;
    }
    Err(wrong(path, format!("line {}: a quote is not closed", last.unwrap_or(1))))
}

fn unread(path: &Path, error: csv::Error) -> hooklens_model::error::Error {
    if error.is_io_error() { load_errors::cant_read(path)(error.into()).into() } else { wrong(path, error.to_string()) }
}

/// Whether a row is a header.
fn names_columns(record: &csv::StringRecord, columns: &[&str]) -> bool {
    let named = |(field, column): (&str, &&str)| {
        let field = field.trim().to_lowercase();
        field == **column || (*column == "latent" && ["feature", "index", "id"].contains(&field.as_str()))
    };
    record.len() > columns.len() && record.iter().zip(columns).all(named)
}

/// A file with a limit on the number of bytes read per row.
struct RowByRow {
    file: File,
    left: usize,
}

impl Read for RowByRow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(self.left);
        if wanted == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!("a row is longer than {LONGEST_ROW} bytes; is a quote not closed?")));
        }
        let read = self.file.read(&mut buffer[..wanted])?;
        self.left -= read;
        Ok(read)
    }
}

/// Reads a JSON file.
fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let file = regular::open(path).map_err(load_errors::cant_read(path))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|source| match source.classify() {
        serde_json::error::Category::Data => wrong(path, excerpt(source)),
        _ => LoadError::Json { path: path.to_path_buf(), source }.into(),
    })
}

/// Labels as an object with latents as keys.
#[derive(Default)]
struct OfLatents(Labels);

/// Labels as an object with layers as keys, and objects with latents as keys.
#[derive(Default)]
struct OfLayers(BTreeMap<usize, Labels>);

impl<'de> Deserialize<'de> for OfLatents {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for OfLatents {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with latent indices as keys")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut all: A) -> std::result::Result<Self, A::Error> {
        while let Some(latent) = all.next_key::<String>()? {
            let number = latent.parse();
            let latent =
                number.map_err(|_| A::Error::custom(format!("`{}` is not a latent index", excerpt(latent))))?;
            all.next_value_seed(Label { latent, labels: &mut self.0 })?;
            check_count(self.0.count()).map_err(A::Error::custom)?;
        }
        Ok(self)
    }
}

/// Visitor that adds the label of a latent.
struct Label<'l> {
    latent: usize,
    labels: &'l mut Labels,
}

impl<'de> DeserializeSeed<'de> for Label<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Label<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string as the label of latent {}", self.latent)
    }

    fn visit_str<E: Error>(self, label: &str) -> std::result::Result<(), E> {
        self.labels.push(self.latent, label);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for OfLayers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for OfLayers {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with layer numbers as keys")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut all: A) -> std::result::Result<Self, A::Error> {
        while let Some(layer) = all.next_key::<String>()? {
            let number = layer.parse();
            let layer = number.map_err(|_| A::Error::custom(format!("`{}` is not a layer number", excerpt(layer))))?;
            check_layer(layer).map_err(A::Error::custom)?;
            if self.0.insert(layer, all.next_value::<OfLatents>()?.0).is_some() {
                return Err(A::Error::custom(format!("layer {layer} is given twice")));
            }
            check_count(self.0.values().map(Labels::count).sum()).map_err(A::Error::custom)?;
        }
        Ok(self)
    }
}
