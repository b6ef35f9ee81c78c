//! Names that people gave to latents.

use std::collections::BTreeMap;
use std::path::Path;

use hooklens_hooks::write_file;
use serde_json::{Map, Value};

use crate::error::{FeatureError, LoadError, Result};
use crate::regular;
use crate::tokens::read_json;

/// The file beside a dictionary that holds them.
const FILE: &str = "labels.json";

/// What latents are called, by number.
///
/// ```
/// use hooklens::features::Labels;
/// let labels: Labels = [(3, "names of people")].into_iter().collect();
/// assert_eq!((labels.get(3), labels.get(4)), (Some("names of people"), None));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<usize, String>);

impl Labels {
    /// What a latent is called.
    pub fn get(&self, latent: usize) -> Option<&str> {
        self.0.get(&latent).map(String::as_str)
    }

    /// Every label, by latent.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        self.0.iter().map(|(latent, label)| (*latent, label.as_str()))
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An error for a label of a latent that is not there.
    pub(super) fn check(&self, dictionary: &str, count: usize) -> Result<()> {
        match self.0.keys().next_back().filter(|latent| **latent >= count) {
            Some(latent) => {
                let (dictionary, latent) = (dictionary.to_string(), *latent);
                Err(FeatureError::Latent { dictionary, latent, count }.into())
            }
            None => Ok(()),
        }
    }

    /// Reads labels: a JSON object of them by latent, or lines of `latent,label` (a first line that names the columns is
    /// passed over; a label may stand in quotes).
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
    /// A file that can't be read; [`FeatureError::Setting`] with the line that is none.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
            return Self::of_json(path);
        }
        lines(path, "latent,label", |line| {
            let (latent, label) = line.split_once(',').unwrap_or((line, ""));
            Some((number(latent)?, unquoted(label)))
        })
        .map(Self)
    }

    /// Reads labels of several layers: a JSON object of objects, by layer and latent, or lines of `layer,latent,label`.
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
    /// As [`Labels::read`].
    pub fn read_by_layer(path: impl AsRef<Path>) -> Result<BTreeMap<usize, Self>> {
        let path = path.as_ref();
        let mut layers: BTreeMap<usize, Self> = BTreeMap::new();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
            let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
            let Value::Object(object) = read_json(path.into())? else {
                return Err(wrong("labels of several layers are an object of them by layer".into()).into());
            };
            for (layer, labels) in object {
                let layer = layer.parse().map_err(|_| wrong(format!("`{layer}` is no layer")))?;
                layers.insert(layer, Self::of_value(path, labels)?);
            }
            return Ok(layers);
        }
        let all: Vec<(usize, usize, String)> = lines(path, "layer,latent,label", |line| {
            let (layer, rest) = line.split_once(',')?;
            let (latent, label) = rest.split_once(',').unwrap_or((rest, ""));
            Some((number(layer)?, number(latent)?, unquoted(label)))
        })?;
        for (layer, latent, label) in all {
            layers.entry(layer).or_default().0.insert(latent, label);
        }
        Ok(layers)
    }

    fn of_json(path: &Path) -> Result<Self> {
        Self::of_value(path, read_json(path.into())?)
    }

    fn of_value(path: &Path, value: Value) -> Result<Self> {
        let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
        let Value::Object(object) = value else {
            return Err(wrong("labels are an object of them by latent".into()).into());
        };
        let one = |(latent, label): (String, Value)| match (latent.parse(), label) {
            (Ok(latent), Value::String(label)) => Ok((latent, label)),
            (_, label) => Err(wrong(format!("`\"{latent}\": {label}` is no label of a latent")).into()),
        };
        object.into_iter().map(one).collect::<Result<_>>().map(Self)
    }

    /// Those saved beside a dictionary.
    pub(super) fn beside(folder: &Path) -> Result<Self> {
        Self::beside_as(folder, FILE)
    }

    /// Those saved beside the transcoders of all layers.
    pub(super) fn of_layer(folder: &Path, layer: usize) -> Result<Self> {
        Self::beside_as(folder, &layer_file(layer))
    }

    fn beside_as(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        if path.is_file() { Self::of_json(&path) } else { Ok(Self::default()) }
    }

    /// Saves them beside a dictionary.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        self.save_as(folder, FILE)
    }

    /// Saves them beside the transcoders of all layers.
    pub(super) fn save_of_layer(&self, folder: &Path, layer: usize) -> Result<()> {
        self.save_as(folder, &layer_file(layer))
    }

    fn save_as(&self, folder: &Path, name: &str) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let object: Map<String, Value> =
            self.iter().map(|(latent, label)| (latent.to_string(), label.into())).collect();
        let path = folder.join(name);
        Ok(write_file(&path, format!("{:#}\n", Value::from(object)).as_bytes()).map_err(LoadError::write(&path))?)
    }
}

/// The file that holds the labels of a layer, beside the transcoders of all.
fn layer_file(layer: usize) -> String {
    format!("labels_{layer}.json")
}

/// What the lines of a file say; a first one that says nothing names the columns.
fn lines<T, C: FromIterator<T>>(path: &Path, form: &str, read: impl Fn(&str) -> Option<T>) -> Result<C> {
    let text = regular::read(path).map_err(LoadError::file(path))?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let said = lines.filter_map(|(place, line)| match read(line) {
        Some(one) => Some(Ok(one)),
        None if place == 0 => None,
        None => {
            let reason = format!("line {}: `{line}` is not `{form}`", place + 1);
            Some(Err(FeatureError::Setting { path: path.into(), reason }.into()))
        }
    });
    said.collect()
}

/// A whole number in a field.
fn number(field: &str) -> Option<usize> {
    field.trim().trim_matches('"').parse().ok()
}

/// A field of a line as CSV writes it.
fn unquoted(field: &str) -> String {
    let field = field.trim();
    match field.strip_prefix('"').and_then(|field| field.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => field.to_string(),
    }
}

impl<L: Into<String>> FromIterator<(usize, L)> for Labels {
    fn from_iter<I: IntoIterator<Item = (usize, L)>>(all: I) -> Self {
        Self(all.into_iter().map(|(latent, label)| (latent, label.into())).collect())
    }
}
