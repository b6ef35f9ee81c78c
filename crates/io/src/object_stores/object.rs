//! An object, or a folder (key prefix), given by its URL.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use object_store::client::HttpErrorKind;
use object_store::path::Path as Key;
use object_store::{Error, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion};

use super::ranges::Ranges;
use super::read::Reader;
use super::stores::{self, Store, wait};
use super::write::Writer;
use super::{SCHEMES, fault};
use crate::regular::{LARGEST, check_length};

/// Maximum number of attempts for a put that may have succeeded without a response.
const TRIES: usize = 3;

/// An object, which may not exist.
#[derive(Debug, Clone)]
pub struct Object {
    /// Scheme and bucket, such as `s3://bucket`.
    pub(super) root: String,
    pub(super) key: Key,
    pub(super) store: Arc<dyn Store>,
}

/// Expected version of an object that is to be replaced.
#[derive(Debug)]
pub enum Version {
    /// The object must not exist yet.
    Absent,
    /// Any version.
    Any,
    /// The version that this program wrote.
    Known(UpdateVersion),
}

impl Object {
    /// The object at a URL; `None` for a path that is not a URL.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let invalid = |message: &str| io::Error::new(io::ErrorKind::InvalidInput, message);
        let Some(text) = path.to_str().filter(|_| super::is_url(path)) else { return Ok(None) };
        // Windows joins names with backslashes.
        let text = if cfg!(windows) { text.replace('\\', "/") } else { text.to_string() };
        let rest = |scheme: &&'static str| Some((&scheme[..2], text.strip_prefix(scheme)?));
        let Some((scheme, rest)) = SCHEMES.iter().find_map(rest) else { return Ok(None) };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(invalid("the URL does not name a bucket; expected a URL such as s3://bucket/key"));
        }
        let key = Key::parse(key).map_err(|error| fault::io(Error::from(error)))?;
        Ok(Some(Self { root: format!("{scheme}://{bucket}"), key, store: stores::open(scheme, bucket)? }))
    }

    /// Reads the whole object; for small objects. Like a file that is read whole, it can have at most 1 GiB.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        Ok(self.whole()?.1.into())
    }

    fn whole(&self) -> io::Result<(ObjectMeta, Bytes)> {
        let (store, key) = (self.store.clone(), self.key.clone());
        wait(async move {
            let found = store.get(&key).await?;
            check_length(found.meta.size, LARGEST)
                .map_err(|error| Error::Generic { store: "object store", source: error.into() })?;
            Ok((found.meta.clone(), found.bytes().await?))
        })
    }

    /// Whether the object exists.
    pub fn is_there(&self) -> io::Result<bool> {
        let (store, key) = (self.store.clone(), self.key.clone());
        match wait(async move { store.head(&key).await }) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens the object for sequential reading with seeking, in constant memory.
    pub fn open(&self) -> io::Result<Reader> {
        Reader::open(self.clone())
    }

    /// Opens the object for random access.
    pub fn ranges(&self) -> io::Result<Ranges> {
        Ranges::open(self.clone())
    }

    /// Starts writing the object, which appears once the writer is finished.
    pub fn writer(&self) -> Writer {
        Writer::new(self.clone())
    }

    /// Replaces the whole object if its version is still `known`. In a store without conditional writes, the object is
    /// replaced whatever its version.
    ///
    /// # Errors
    /// Kind `AlreadyExists` if another program has written the object.
    pub fn put(&self, bytes: Vec<u8>, known: &Version) -> io::Result<Version> {
        let bytes = Bytes::from(bytes);
        let mut mode = match known {
            Version::Absent => PutMode::Create,
            // Some stores return no versions.
            Version::Known(UpdateVersion { e_tag: None, version: None }) | Version::Any => PutMode::Overwrite,
            Version::Known(version) => PutMode::Update(version.clone()),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let (store, key, payload) = (self.store.clone(), self.key.clone(), PutPayload::from(bytes.clone()));
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let done = stores::begin(async move { store.put_opts(&key, payload, options).await })?.wait();
            match done {
                Ok(PutResult { e_tag, version, .. }) => return Ok(Version::Known(UpdateVersion { e_tag, version })),
                // `AWS_CONDITIONAL_PUT=disabled`, or a store without conditional writes.
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) if mode != PutMode::Overwrite => {
                    mode = PutMode::Overwrite;
                }
                Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                    // If the response of an earlier attempt was lost, the object already has the new contents.
                    return match self.whole() {
                        Ok((ObjectMeta { e_tag, version, .. }, there)) if there == bytes => {
                            Ok(Version::Known(UpdateVersion { e_tag, version }))
                        }
                        _ => Err(fault::io(error)),
                    };
                }
                // An interrupted put may have succeeded. Connection failures have already been retried.
                Err(error) => match fault::of_http(&error) {
                    Some(HttpErrorKind::Interrupted | HttpErrorKind::Timeout) if tries < TRIES => {
                        sleep(Duration::from_secs(1));
                    }
                    _ => return Err(fault::io(error)),
                },
            }
        }
    }

    /// Removes the object if it exists.
    pub fn remove(&self) -> io::Result<()> {
        let (store, key) = (self.store.clone(), self.key.clone());
        match wait(async move { store.delete(&key).await }) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::path::PathBuf;

    use object_store::memory::InMemory;

    use super::*;

    /// An object in an in-memory store.
    fn object(store: &Arc<InMemory>, key: &str) -> Object {
        Object { root: "s3://bucket".into(), key: Key::parse(key).unwrap(), store: store.clone() }
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * at / 7 + at) as u8).collect()
    }

    #[test]
    fn urls_name_a_store_and_a_key() {
        let local = |path: &str| Object::at(Path::new(path)).unwrap().is_none();
        assert!(local("corpus/a.jsonl") && local("s3:/bucket/a") && local("file:///a"));
        for wrong in ["s3://", "s3:///a", "s3://bucket/a//b", "s3://bucket/../a"] {
            assert_eq!(Object::at(Path::new(wrong)).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidInput));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let store = Arc::new(InMemory::new());
        // Empty, a single put, multipart uploads, and exact multiples of parts and blocks.
        for count in [0, 10, (8 << 20) - 1, 8 << 20, (16 << 20) + 5, 24 << 20] {
            let (own, written) = (object(&store, &format!("a/{count}")), bytes(count));
            let mut writer = own.writer();
            // Write in pieces that do not divide a part.
            written.chunks(1_000_003).for_each(|piece| writer.write_all(piece).unwrap());
            assert!(!own.is_there().unwrap());
            assert_eq!(writer.finish().unwrap(), count as u64);
            let mut read = Vec::new();
            own.open().unwrap().read_to_end(&mut read).unwrap();
            assert!(read == written, "{count}");
            assert!(own.bytes().unwrap() == written);
            let mut read = vec![0; count];
            own.ranges().unwrap().read_at(0, &mut read).unwrap();
            assert!(read == written, "{count}");
        }
    }

    #[test]
    fn any_place_is_read() {
        let store = Arc::new(InMemory::new());
        let (own, written) = (object(&store, "a"), bytes((20 << 20) + 17));
        own.put(written.clone(), &Version::Any).unwrap();
        let mut reader = own.open().unwrap();
        let mut other = reader.clone();
        for at in [20 << 20, 3, 9 << 20, (8 << 20) - 2, 0, written.len() - 1] {
            assert_eq!(reader.seek(SeekFrom::Start(at as u64)).unwrap(), at as u64);
            let mut piece = vec![0; 1000.min(written.len() - at)];
            reader.read_exact(&mut piece).unwrap();
            assert!(piece == written[at..][..piece.len()], "{at}");
        }
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
        let mut first = [0; 4];
        other.read_exact(&mut first).unwrap();
        assert_eq!(first, written[..4]);
        let mut ranges = own.ranges().unwrap();
        for holds in [true, false] {
            for (at, len) in
                [(0, 8), ((256 << 10) - 3, 3), ((256 << 10) - 3, 4), (9 << 20, 9 << 20), (written.len(), 0)]
            {
                let mut piece = vec![0; len];
                ranges.read_at(at as u64, &mut piece).unwrap();
                assert!(piece == written[at..][..len], "{holds} {at}");
            }
            for (at, len) in [(written.len() as u64, 1), (0, written.len() + 1), (u64::MAX, 2)] {
                let error = ranges.read_at(at, &mut vec![0; len]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
            ranges.let_go();
        }
    }

    #[test]
    fn an_object_that_changes_is_not_read_on() {
        let store = Arc::new(InMemory::new());
        let own = object(&store, "a");
        own.put(bytes(30 << 20), &Version::Any).unwrap();
        let mut reader = own.open().unwrap();
        let ranges = own.ranges().unwrap();
        own.put(vec![1; 30 << 20], &Version::Any).unwrap();
        let error = ranges.read_at(20 << 20, &mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn one_writer_an_object() {
        let store = Arc::new(InMemory::new());
        let own = object(&store, "log");
        let first = own.put(vec![1], &Version::Absent).unwrap();
        let taken =
            |put: io::Result<Version>| put.err().map(|error| error.kind()) == Some(io::ErrorKind::AlreadyExists);
        assert!(taken(own.put(vec![2], &Version::Absent)));
        // The response was lost, but the object has the new contents.
        let first_again = own.put(vec![1], &Version::Absent).unwrap();
        let second = own.put(vec![1, 2], &first_again).unwrap();
        assert!(taken(own.put(vec![1, 3], &first)));
        // Another program overwrites the object.
        own.put(vec![9], &Version::Any).unwrap();
        assert!(taken(own.put(vec![1, 2, 3], &second)));
        own.remove().unwrap();
        own.remove().unwrap();
        assert!(taken(own.put(vec![1, 2, 3], &second)) && !own.is_there().unwrap());
    }

    #[test]
    fn folders_and_patterns() {
        let store = Arc::new(InMemory::new());
        for key in ["c/b.gz", "c/a.gz", "c/a.txt", "c/x/a.gz", "c/x/y/b.gz", "ca.gz", "c/odd[1].gz"] {
            object(&store, key).put(vec![0; key.len()], &Version::Any).unwrap();
        }
        let urls =
            |keys: &[&str]| keys.iter().map(|key| PathBuf::from(format!("s3://bucket/{key}"))).collect::<Vec<_>>();
        let fitting =
            |pattern: &str| Object { key: Key::parse(pattern).unwrap(), ..object(&store, "") }.fitting().unwrap();
        assert_eq!(fitting("c/*.gz"), urls(&["c/a.gz", "c/b.gz", "c/odd[1].gz"]));
        assert_eq!(fitting("c/[ab].gz"), urls(&["c/a.gz", "c/b.gz"]));
        assert_eq!(fitting("c/*/a.gz"), urls(&["c/x/a.gz"]));
        assert_eq!(fitting("c/**/b.gz"), urls(&["c/b.gz", "c/x/y/b.gz"]));
        assert_eq!(fitting("*.gz"), urls(&["ca.gz"]));
        assert_eq!(fitting("d/*"), urls(&[]));
        assert_eq!(object(&store, "c").folders().unwrap(), urls(&["c/x"]));
        let mut lengths = object(&store, "c/x").lengths().unwrap();
        lengths.sort();
        assert_eq!(lengths, [("a.gz".to_string(), 8), ("y/b.gz".to_string(), 10)]);
    }
}
