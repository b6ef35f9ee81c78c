//! Writing an object: one that is small at once, a large one in parts while it is made.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::multipart::PartId;
use object_store::path::Path as Key;
use object_store::{MultipartId, ObjectStoreExt, PutPayload};

use super::Object;
use super::fault;
use super::stores::{Coming, Store, begin, wait};

/// Bytes of a part. All but the last are of one length, which some stores want; there may be 10,000.
const PART: usize = 8 << 20;
/// Parts that are on their way together.
const TOGETHER: usize = 3;
/// How long a program that is ended waits for its uploads to be given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// An object that is being written. It appears whole when it is finished; until then nothing of it is to be seen, and
/// dropped, its parts are removed.
pub(crate) struct Writer {
    object: Object,
    buffer: Vec<u8>,
    written: u64,
    upload: Option<Upload>,
}

/// An upload of many parts.
struct Upload {
    id: MultipartId,
    parts: Vec<PartId>,
    coming: VecDeque<Coming<PartId>>,
}

/// An upload that was begun.
type Begun = (Arc<dyn Store>, Key, MultipartId);

/// This program's uploads, to be given up when a signal ends it.
static UPLOADS: Mutex<Vec<Begun>> = Mutex::new(Vec::new());

fn uploads() -> MutexGuard<'static, Vec<Begun>> {
    UPLOADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives up all uploads, so that the stores keep no parts of them.
#[cfg(unix)]
pub(crate) fn abandon_uploads() {
    let uploads = std::mem::take(&mut *uploads());
    let ends: Vec<_> = uploads
        .into_iter()
        .filter_map(|(store, key, id)| begin(async move { store.abort_multipart(&key, &id).await }).ok())
        .collect();
    ends.into_iter().for_each(|end| end.wait_for(PATIENCE));
}

impl Writer {
    pub(super) fn new(object: Object) -> Self {
        Self { object, buffer: Vec::new(), written: 0, upload: None }
    }

    fn upload(&mut self) -> io::Result<&mut Upload> {
        let new = match self.upload.take() {
            Some(upload) => upload,
            None => {
                let (store, key) = (self.object.store.clone(), self.object.key.clone());
                let id = wait(async move { store.create_multipart(&key).await })?;
                uploads().push((self.object.store.clone(), self.object.key.clone(), id.clone()));
                Upload { id, parts: Vec::new(), coming: VecDeque::new() }
            }
        };
        Ok(self.upload.insert(new))
    }

    /// Sends the buffer as the next part.
    fn send(&mut self) -> io::Result<()> {
        let part = std::mem::take(&mut self.buffer);
        let (store, key) = (self.object.store.clone(), self.object.key.clone());
        let upload = self.upload()?;
        let (id, number) = (upload.id.clone(), upload.parts.len() + upload.coming.len());
        let coming = begin(async move { store.put_part(&key, &id, number, PutPayload::from(part)).await })?;
        upload.coming.push_back(coming);
        upload.settle(TOGETHER)
    }

    /// Makes the object appear, and gives its length.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let (store, key) = (self.object.store.clone(), self.object.key.clone());
        if self.upload.is_none() {
            let bytes = std::mem::take(&mut self.buffer);
            wait(async move { store.put(&key, PutPayload::from(bytes)).await })?;
            return Ok(self.written);
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        let upload = self.upload()?;
        upload.settle(0)?;
        let (id, parts) = (upload.id.clone(), std::mem::take(&mut upload.parts));
        wait(async move { store.complete_multipart(&key, &id, parts).await })?;
        if let Some(upload) = self.upload.take() {
            uploads().retain(|(_, _, id)| *id != upload.id);
        }
        Ok(self.written)
    }
}

impl Upload {
    /// Waits until so many parts at most are on their way.
    fn settle(&mut self, most: usize) -> io::Result<()> {
        while self.coming.len() > most {
            if let Some(part) = self.coming.pop_front() {
                self.parts.push(part.wait().map_err(fault::io)?);
            }
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PART - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        self.written += count as u64;
        if self.buffer.len() == PART {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        uploads().retain(|(_, _, id)| *id != upload.id);
        let (store, key) = (self.object.store.clone(), self.object.key.clone());
        if let Ok(end) = begin(async move { store.abort_multipart(&key, &upload.id).await }) {
            end.wait_for(PATIENCE);
        }
    }
}
