//! An opened object, pinned to its version, from which parts are requested.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::Object;
use super::stores::{Coming, begin, wait};

/// An opened object; reads fail if it is replaced meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    object: Object,
    len: u64,
    /// ETag of the opened version.
    e_tag: Option<String>,
}

impl Opened {
    pub(super) fn new(object: Object) -> io::Result<Self> {
        let (store, key) = (object.store.clone(), object.key.clone());
        let meta = wait(async move { store.head(&key).await })?;
        Ok(Self { object, len: meta.size, e_tag: meta.e_tag })
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Requests a part. If the connection breaks, the download resumes at the byte where it stopped.
    pub(super) fn part(&self, range: Range<u64>) -> io::Result<Coming<Bytes>> {
        let (store, key) = (self.object.store.clone(), self.object.key.clone());
        // Some servers don't answer with a partial response if the range is the whole object.
        let range = (range != (0..self.len)).then_some(GetRange::Bounded(range));
        let options = GetOptions { range, if_match: self.e_tag.clone(), ..GetOptions::default() };
        begin(async move { store.get_opts(&key, options).await?.bytes().await })
    }
}
