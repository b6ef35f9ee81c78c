//! [`Labels`]: human-readable labels of latents.

use std::collections::BTreeMap;
use std::path::Path;

use hooklens_hooks::Together;
use serde_json::{Map, Value};

use super::save::add_file;
use crate::error::FeatureError;
use hooklens_io::regular;
use hooklens_model::error::{Result, load_errors};
use hooklens_model::tokens::read_json;

/// Name of the label file stored with a dictionary.
const FILE: &str = "labels.json";

/// Labels of latents, by index.
///
/// ```
/// use hooklens::features::Labels;
/// let labels: Labels = [(3, "names of people")].into_iter().collect();
/// assert_eq!((labels.get(3), labels.get(4)), (Some("names of people"), None));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<usize, String>);

impl Labels {
    /// The label of a latent.
    pub fn get(&self, latent: usize) -> Option<&str> {
        self.0.get(&latent).map(String::as_str)
    }

    /// All labels, ordered by latent.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        self.0.iter().map(|(latent, label)| (*latent, label.as_str()))
    }

    /// Whether there are no labels.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails for a label of a latent that does not exist.
    pub(super) fn check(&self, dictionary: &str, count: usize) -> Result<()> {
        match self.0.keys().next_back().filter(|latent| **latent >= count) {
            Some(latent) => {
                let (dictionary, latent) = (dictionary.to_string(), *latent);
                Err(FeatureError::Latent { dictionary, latent, count }.into())
            }
            None => Ok(()),
        }
    }

    /// Reads labels from a JSON object with latent indices as keys, or from CSV with rows of `latent,label`. Labels
    /// with commas, quotes or line breaks must be quoted. The first row may be a header, which is recognized by its
    /// first field: `latent`, `feature`, `index` or `id`.
    ///
    /// ```
    /// use hooklens::features::Labels;
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("labels.csv");
    /// std::fs::write(&path, "latent,label\n3,\"names, of people\"\n8,digits\n")?;
    /// let labels = Labels::read(&path)?;
    /// assert_eq!((labels.get(3), labels.get(8)), (Some("names, of people"), Some("digits")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the file cannot be read; [`FeatureError::Setting`] with the line number for a row with the wrong
    /// columns or an invalid index, for a second label of the same latent, and for an unclosed quote.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
            return Self::of_json(path);
        }
        let mut labels = Self::default();
        for Row { line, numbers: [latent], label } in rows(path, ["latent"])? {
            labels.insert_new(path, line, latent, label)?;
        }
        Ok(labels)
    }

    /// Reads labels of several layers from a JSON object that maps each layer to an object with latents as keys, or
    /// from CSV with rows of `layer,latent,label` and an optional header.
    ///
    /// ```
    /// use hooklens::features::Labels;
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("labels.csv");
    /// std::fs::write(&path, "layer,latent,label\n0,3,names\n2,3,digits\n")?;
    /// let labels = Labels::read_by_layer(&path)?;
    /// assert_eq!((labels[&0].get(3), labels[&2].get(3)), (Some("names"), Some("digits")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Labels::read`].
    pub fn read_by_layer(path: impl AsRef<Path>) -> Result<BTreeMap<usize, Self>> {
        let path = path.as_ref();
        let mut layers: BTreeMap<usize, Self> = BTreeMap::new();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
            let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
            let Value::Object(object) = read_json(path.into())? else {
                return Err(
                    wrong("labels of several layers must be a JSON object with layer numbers as keys".into()).into()
                );
            };
            for (layer, labels) in object {
                let layer = layer.parse().map_err(|_| wrong(format!("`{layer}` is not a layer number")))?;
                layers.insert(layer, Self::of_value(path, labels)?);
            }
            return Ok(layers);
        }
        for Row { line, numbers: [layer, latent], label } in rows(path, ["layer", "latent"])? {
            layers.entry(layer).or_default().insert_new(path, line, latent, label)?;
        }
        Ok(layers)
    }

    /// Adds a label from a line of a file.
    fn insert_new(&mut self, path: &Path, line: u64, latent: usize, label: String) -> Result<()> {
        match self.0.insert(latent, label) {
            None => Ok(()),
            Some(_) => {
                let reason = format!("line {line}: latent {latent} already has a label");
                Err(FeatureError::Setting { path: path.into(), reason }.into())
            }
        }
    }

    fn of_json(path: &Path) -> Result<Self> {
        Self::of_value(path, read_json(path.into())?)
    }

    fn of_value(path: &Path, value: Value) -> Result<Self> {
        let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
        let Value::Object(object) = value else {
            return Err(wrong("labels must be a JSON object with latent indices as keys".into()).into());
        };
        let mut labels = BTreeMap::new();
        for (latent, label) in object {
            let (Ok(index), Value::String(label)) = (latent.parse::<usize>(), &label) else {
                let reason = format!("`\"{latent}\": {label}` is not a latent index with a text label");
                return Err(wrong(reason).into());
            };
            // Such as `3` and `03`.
            if labels.insert(index, label.clone()).is_some() {
                return Err(wrong(format!("latent {index} has two labels")).into());
            }
        }
        Ok(Self(labels))
    }

    /// Loads the labels stored with a dictionary.
    pub(super) fn beside(folder: &Path) -> Result<Self> {
        Self::beside_as(folder, FILE)
    }

    /// Loads the labels of one layer stored with transcoders of all layers.
    pub(super) fn of_layer(folder: &Path, layer: usize) -> Result<Self> {
        Self::beside_as(folder, &layer_file(layer))
    }

    fn beside_as(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        if path.is_file() { Self::of_json(&path) } else { Ok(Self::default()) }
    }

    /// Adds the label file to the files of a dictionary.
    pub(super) fn add(&self, folder: &Path, files: &mut Together) -> Result<()> {
        self.add_as(&folder.join(FILE), files)
    }

    /// Adds the label file of one layer to the files of transcoders of all layers.
    pub(super) fn add_of_layer(&self, folder: &Path, layer: usize, files: &mut Together) -> Result<()> {
        self.add_as(&folder.join(layer_file(layer)), files)
    }

    /// Removes the label files of this layer and all later ones.
    pub(super) fn remove_from(folder: &Path, layer: usize, files: &mut Together) {
        let paths = (layer..).map(|layer| folder.join(layer_file(layer)));
        paths.take_while(|path| path.exists()).for_each(|path| files.remove(&path));
    }

    fn add_as(&self, path: &Path, files: &mut Together) -> Result<()> {
        if self.is_empty() {
            // Removes labels of an earlier dictionary.
            files.remove(path);
            return Ok(());
        }
        let object: Map<String, Value> =
            self.iter().map(|(latent, label)| (latent.to_string(), label.into())).collect();
        add_file(files, path, format!("{:#}\n", Value::from(object)).as_bytes())
    }
}

/// Name of the label file of one layer in a set of transcoders.
fn layer_file(layer: usize) -> String {
    format!("labels_{layer}.json")
}

/// A row of a label file: the indices that it labels, and the label.
struct Row<const N: usize> {
    line: u64,
    numbers: [usize; N],
    label: String,
}

/// Reads the rows of a CSV file with these columns and `label`, skipping a header.
fn rows<const N: usize>(path: &Path, columns: [&str; N]) -> Result<Vec<Row<N>>> {
    let bytes = regular::read(path).map_err(load_errors::cant_read(path))?;
    let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
    let form = columns.iter().copied().chain(["label"]).collect::<Vec<_>>().join(",");
    // An unclosed quote would absorb this final row.
    let ended = bytes.iter().copied().chain(*b"\n").chain(END.bytes()).collect::<Vec<u8>>();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&*ended);
    let (mut rows, mut last) = (Vec::new(), None);
    for (place, record) in reader.records().enumerate() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() == 1 && record.get(0) == Some(END) {
            return Ok(rows);
        }
        last = Some(line);
        if record.iter().all(|field| field.trim().is_empty()) || (place == 0 && names_columns(&record, &columns)) {
            continue;
        }
        let problem = |what: &str| {
            let text = record.iter().collect::<Vec<_>>().join(",");
            let text: String = text.chars().take(SHOWN).collect();
            wrong(format!("line {line}: `{text}` is not `{form}`: {what}"))
        };
        if record.len() != N + 1 {
            return Err(problem(&format!("it has {} fields (quote labels that contain commas)", record.len())).into());
        }
        let mut numbers = [0; N];
        for (number, field) in numbers.iter_mut().zip(&record) {
            *number =
                field.trim().parse().map_err(|_| problem(&format!("`{}` is not a whole number", field.trim())))?;
        }
        rows.push(Row {
            line,
            numbers,
            label: record.get(N).unwrap_or_default().trim_matches([' ', '\t']).to_string(),
        });
    }
    Err(wrong(format!("line {}: a quote is not closed", last.unwrap_or(1))).into())
}

/// A row appended after the last, which cannot occur in a label file.
const END: &str = "\u{1}end";
/// Maximum number of characters of an invalid row shown in errors.
const SHOWN: usize = 80;

/// Whether a row is a header.
fn names_columns(record: &csv::StringRecord, columns: &[&str]) -> bool {
    let named = |(field, column): (&str, &&str)| {
        let field = field.trim().to_lowercase();
        field == **column || (*column == "latent" && ["feature", "index", "id"].contains(&field.as_str()))
    };
    record.len() > columns.len() && record.iter().zip(columns).all(named)
}

impl<L: Into<String>> FromIterator<(usize, L)> for Labels {
    fn from_iter<I: IntoIterator<Item = (usize, L)>>(all: I) -> Self {
        Self(all.into_iter().map(|(latent, label)| (latent, label.into())).collect())
    }
}
