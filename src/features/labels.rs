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
        let text = regular::read(path).map_err(LoadError::file(path))?;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let labels = lines.filter_map(|(number, line)| {
            let (latent, label) = line.split_once(',').unwrap_or((line, ""));
            match latent.trim().trim_matches('"').parse::<usize>() {
                Ok(latent) => Some(Ok((latent, unquoted(label)))),
                Err(_) if number == 0 => None,
                Err(_) => {
                    let reason = format!("line {}: `{line}` is not `latent,label`", number + 1);
                    Some(Err(FeatureError::Setting { path: path.into(), reason }.into()))
                }
            }
        });
        labels.collect::<Result<_>>().map(Self)
    }

    fn of_json(path: &Path) -> Result<Self> {
        let wrong = |reason: String| FeatureError::Setting { path: path.into(), reason };
        let Value::Object(object) = read_json(path.into())? else {
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
        let path = folder.join(FILE);
        if path.is_file() { Self::of_json(&path) } else { Ok(Self::default()) }
    }

    /// Saves them beside a dictionary.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let object: Map<String, Value> =
            self.iter().map(|(latent, label)| (latent.to_string(), label.into())).collect();
        let path = folder.join(FILE);
        Ok(write_file(&path, format!("{:#}\n", Value::from(object)).as_bytes()).map_err(LoadError::write(&path))?)
    }
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
