//! Writes an object: a small one at once, a large one as a multipart upload while it is produced.

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

/// Part size in bytes. Some stores require all parts but the last to have the same size; at most 10,000 parts are
/// allowed.
const PART: usize = 8 << 20;
/// Maximum number of parts being uploaded at a time.
const TOGETHER: usize = 3;
/// How long a terminating program waits for its uploads to be aborted.
const PATIENCE: Duration = Duration::from_secs(3);

/// An object being written. It appears only once it is finished; dropping the writer removes the uploaded parts.
pub struct Writer {
    object: Object,
    buffer: Vec<u8>,
    written: u64,
    upload: Option<Upload>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// A multipart upload.
struct Upload {
    id: MultipartId,
    parts: Vec<PartId>,
    coming: VecDeque<Coming<PartId>>,
}

/// A multipart upload that was started.
type Begun = (Arc<dyn Store>, Key, MultipartId);

/// This program's uploads, which are aborted if a signal terminates it.
static UPLOADS: Mutex<Vec<Begun>> = Mutex::new(Vec::new());

fn uploads() -> MutexGuard<'static, Vec<Begun>> {
    UPLOADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts all uploads, so that the stores keep no parts of them.
#[cfg(unix)]
pub fn abandon_uploads() {
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

    /// Completes the object and returns its length.
    pub fn finish(mut self) -> io::Result<u64> {
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
    /// Waits until at most `most` parts are being uploaded.
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
