//! [`Labels`]: human-readable labels of latents.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use hooklens_hooks::Together;
use serde_json::{Map, Value};

use super::label_file;
use super::save::add_file;
use crate::error::FeatureError;
use hooklens_model::error::Result;

/// Name of the label file stored with a dictionary.
const FILE: &str = "labels.json";

/// Labels of latents, by index.
///
/// ```
/// use hooklens::features::Labels;
/// let labels: Labels = [(3, "names of people")].into_iter().collect();
/// assert_eq!((labels.get(3), labels.get(4)), (Some("names of people"), None));
/// ```
#[derive(Clone, Default)]
pub struct Labels {
    /// Where the label of each latent is in the text, ordered by latent.
    entries: Vec<Entry>,
    /// All labels, concatenated, because millions of separate strings would take several times as much memory.
    text: String,
}

/// A label in the text of all labels.
#[derive(Debug, Clone, Copy)]
struct Entry {
    latent: usize,
    start: usize,
    len: usize,
}

impl Labels {
    /// The label of a latent.
    pub fn get(&self, latent: usize) -> Option<&str> {
        let found = self.entries.binary_search_by_key(&latent, |entry| entry.latent).ok()?;
        Some(self.label(self.entries[found]))
    }

    /// All labels, ordered by latent.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        self.entries.iter().map(|entry| (entry.latent, self.label(*entry)))
    }

    fn label(&self, entry: Entry) -> &str {
        &self.text[entry.start..entry.start + entry.len]
    }

    /// Whether there are no labels.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of labels.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Adds a label. The labels are ordered only after [`Labels::sort`].
    pub(super) fn push(&mut self, latent: usize, label: &str) {
        self.entries.push(Entry { latent, start: self.text.len(), len: label.len() });
        self.text.push_str(label);
    }

    /// Orders the labels by latent. Several labels of one latent stay in the order in which they were added.
    pub(super) fn sort(&mut self) {
        if !self.entries.is_sorted_by_key(|entry| entry.latent) {
            self.entries.sort_by_key(|entry| entry.latent);
        }
    }

    /// The first latent that has several labels. Requires sorted labels.
    pub(super) fn repeated(&self) -> Option<usize> {
        self.entries.windows(2).find(|pair| pair[0].latent == pair[1].latent).map(|pair| pair[0].latent)
    }

    /// Fails for a label of a latent that does not exist.
    pub(super) fn check(&self, dictionary: &str, count: usize) -> Result<()> {
        match self.entries.last().map(|entry| entry.latent).filter(|latent| *latent >= count) {
            Some(latent) => {
                let dictionary = dictionary.to_string();
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
    /// columns or an invalid index, for a second label of the same latent, and for an unclosed quote. A file may have
    /// at most 4,194,304 labels.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        label_file::read(path.as_ref())
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
        label_file::read_by_layer(path.as_ref())
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
        if path.is_file() { label_file::read(&path) } else { Ok(Self::default()) }
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

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Labels {}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<L: Into<String>> FromIterator<(usize, L)> for Labels {
    /// Collects labels. Of several labels of one latent, the last is kept.
    fn from_iter<I: IntoIterator<Item = (usize, L)>>(all: I) -> Self {
        let mut labels = Self::default();
        all.into_iter().for_each(|(latent, label)| labels.push(latent, &label.into()));
        labels.entries.reverse();
        labels.sort();
        labels.entries.dedup_by_key(|entry| entry.latent);
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_label_of_a_latent_is_kept() {
        let labels: Labels = [(7, "a"), (2, ""), (7, "b"), (usize::MAX, "c"), (2, "d")].into_iter().collect();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [(2, "d"), (7, "b"), (usize::MAX, "c")]);
        assert_eq!([2, 7, 3].map(|latent| labels.get(latent)), [Some("d"), Some("b"), None]);
        assert_eq!(labels, [(2, "d"), (7, "b"), (usize::MAX, "c")].into_iter().collect());
        assert_ne!(labels, [(2, "d"), (7, "b")].into_iter().collect());
    }
}
