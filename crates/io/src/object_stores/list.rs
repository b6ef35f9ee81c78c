//! Lists the contents of a folder in a store.

use std::io;
use std::path::PathBuf;

use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path as Key;

use super::Object;
use super::stores::wait;

impl Object {
    fn url(&self, key: &Key) -> PathBuf {
        PathBuf::from(format!("{}/{key}", self.root))
    }

    /// Subfolders, sorted by name.
    pub fn folders(&self) -> io::Result<Vec<PathBuf>> {
        let (store, key) = (self.store.clone(), self.key.clone());
        let found = wait(async move { store.list_with_delimiter(Some(&key)).await })?;
        Ok(found.common_prefixes.iter().map(|key| self.url(key)).collect())
    }

    /// Relative names and lengths of all objects in the folder and its subfolders.
    pub fn lengths(&self) -> io::Result<Vec<(String, u64)>> {
        let (store, key) = (self.store.clone(), self.key.clone());
        wait(async move {
            let inside = |found: &Key| Some(found.prefix_match(&key)?.map(|part| part.as_ref().to_string()).collect());
            let objects = store.list(Some(&key)).map_ok(|object| {
                let names: Vec<String> = inside(&object.location).unwrap_or_default();
                (names.join("/"), object.size)
            });
            objects.try_collect().await
        })
    }

    /// Interprets this object's name as a file name pattern, and returns the objects that match it, sorted by name.
    pub fn fitting(&self) -> io::Result<Vec<PathBuf>> {
        let failed = |error: glob::PatternError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let pattern = glob::Pattern::new(self.key.as_ref()).map_err(failed)?;
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        let text = self.key.as_ref();
        let literal = &text[..text.find(['*', '?', '[']).unwrap_or(text.len())];
        let folder = literal.rfind('/').map_or("", |end| &literal[..end]);
        let within = Key::parse(folder).map_err(|error| super::fault::io(object_store::Error::from(error)))?;
        // If only the last component is a pattern, subfolders need not be listed.
        let flat = !text[folder.len()..].trim_start_matches('/').contains('/');
        let store = self.store.clone();
        let mut found: Vec<Key> = wait(async move {
            let fits = |key: &Key| pattern.matches_with(key.as_ref(), options);
            if flat {
                let objects = store.list_with_delimiter(Some(&within)).await?.objects;
                return Ok(objects.into_iter().map(|object| object.location).filter(fits).collect());
            }
            let objects = store.list(Some(&within)).map_ok(|object| object.location);
            objects.try_filter(|key| std::future::ready(fits(key))).try_collect().await
        })?;
        found.sort();
        Ok(found.iter().map(|key| self.url(key)).collect())
    }
}
