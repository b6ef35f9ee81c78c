//! An object as it was when it was opened, of which parts are asked for.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::Object;
use super::stores::{Coming, begin, wait};

/// An object that may not become another while it is read.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    object: Object,
    len: u64,
    /// What it was.
    e_tag: Option<String>,
}

impl Opened {
    pub(super) fn new(object: Object) -> io::Result<Self> {
        let (store, key) = (object.store.clone(), object.key.clone());
        let meta = wait(async move { store.head(&key).await })?;
        Ok(Self { object, len: meta.size, e_tag: meta.e_tag })
    }

    /// Its bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Asks for a part. A connection that breaks within is taken up at the byte where it broke.
    pub(super) fn part(&self, range: Range<u64>) -> io::Result<Coming<Bytes>> {
        let (store, key) = (self.object.store.clone(), self.object.key.clone());
        // Some servers do not answer with a part where all is asked for as one.
        let range = (range != (0..self.len)).then_some(GetRange::Bounded(range));
        let options = GetOptions { range, if_match: self.e_tag.clone(), ..GetOptions::default() };
        begin(async move { store.get_opts(&key, options).await?.bytes().await })
    }
}
