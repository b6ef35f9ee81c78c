//! The thread that writes while the model computes.

use std::thread::JoinHandle;

use hooklens_hooks::{ActivationQueue, WhenFull};

use super::DumpReport;
use super::batch::Batch;
use crate::error::DumpError;
use hooklens_model::error::Result;

/// Where batches go, in order.
pub(super) trait Sink: Send {
    /// Takes one batch.
    fn write(&mut self, batch: Batch) -> Result<(), DumpError>;

    /// Makes the output whole after the last batch.
    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError>;
}

/// A sink on a thread of its own, fed by a queue. Dropped before [`Writer::finish`], as by a panic of a dump's watcher, it
/// waits for the thread too: what was handed over is written, and what the sink holds, such as a folder's lock, is free.
pub(super) struct Writer {
    queue: ActivationQueue<Batch>,
    /// `None` once it has ended.
    thread: Option<JoinHandle<Result<DumpReport, DumpError>>>,
}

/// The name of the batches' queue.
const BATCHES: &str = "batches";

/// Closes the queue when the thread ends, also by a panic, so that the pushing thread never waits for it.
struct Close(ActivationQueue<Batch>);

impl Drop for Close {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Writer {
    pub(super) fn start(mut sink: Box<dyn Sink>) -> Result<Self, DumpError> {
        // One batch waits while one is written: memory holds three with the one being computed.
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

    /// Hands a batch over; `false` if the thread has stopped, and [`Writer::finish`] tells why.
    pub(super) fn send(&self, batch: Batch) -> bool {
        self.queue.push(BATCHES, batch).is_ok()
    }

    /// Waits for the last batch to be written.
    pub(super) fn finish(mut self) -> Result<DumpReport> {
        match self.end() {
            Some(Ok(report)) => Ok(report?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(DumpReport::default()),
        }
    }

    /// Ends the thread behind the last batch.
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
