//! Thread that writes batches while the model computes.

use std::thread::JoinHandle;

use hooklens_hooks::{ActivationQueue, WhenFull};

use super::DumpReport;
use super::batch::Batch;
use crate::error::DumpError;
use hooklens_model::error::Result;

/// Destination of batches, in order.
pub(super) trait Sink: Send {
    /// Writes one batch.
    fn write(&mut self, batch: Batch) -> Result<(), DumpError>;

    /// Completes the output after the last batch.
    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError>;
}

/// A sink on its own thread, fed by a queue. A writer that is dropped before [`Writer::finish`], for example because a
/// watcher panicked, also waits for the thread, so that batches already handed over are written and resources such as a
/// folder's lock are released.
pub(super) struct Writer {
    queue: ActivationQueue<Batch>,
    /// `None` once the thread has ended.
    thread: Option<JoinHandle<Result<DumpReport, DumpError>>>,
}

/// Name of the queue of batches.
const BATCHES: &str = "batches";

/// Closes the queue when the thread ends, even by panicking, so that the sending thread never blocks forever.
struct Close(ActivationQueue<Batch>);

impl Drop for Close {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Writer {
    pub(super) fn start(mut sink: Box<dyn Sink>) -> Result<Self, DumpError> {
        // One batch waits while another is written; with the one being computed, memory holds three.
        let queue = ActivationQueue::bounded(1, WhenFull::Block);
        let reader = Close(queue.clone());
        let thread = std::thread::Builder::new().name("hooklens-dump".into()).spawn(move || {
            while let Ok(batch) = reader.0.wait(BATCHES) {
                sink.write(batch)?;
            }
            sink.finish()
        });
        Ok(Self { queue, thread: Some(thread.map_err(|source| DumpError::Thread { source })?) })
    }

    /// Hands over a batch; `false` if the thread has stopped, in which case [`Writer::finish`] returns the error.
    pub(super) fn send(&self, batch: Batch) -> bool {
        self.queue.push(BATCHES, batch).is_ok()
    }

    /// Waits until the last batch is written.
    pub(super) fn finish(mut self) -> Result<DumpReport> {
        match self.end() {
            Some(Ok(report)) => Ok(report?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(DumpReport::default()),
        }
    }

    /// Ends the thread after the last batch.
    fn end(&mut self) -> Option<std::thread::Result<Result<DumpReport, DumpError>>> {
        self.queue.close();
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}
