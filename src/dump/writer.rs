//! The thread that writes while the model computes.

use std::thread::JoinHandle;

use hooklens_hooks::{ActivationQueue, WhenFull};

use super::DumpReport;
use super::batch::Batch;
use crate::error::{DumpError, Result};

/// Where batches go, in order.
pub(super) trait Sink: Send {
    /// Takes one batch.
    fn write(&mut self, batch: Batch) -> Result<(), DumpError>;

    /// Makes the output whole after the last batch.
    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError>;
}

/// A sink on a thread of its own, fed by a queue.
pub(super) struct Writer {
    queue: ActivationQueue<Batch>,
    thread: JoinHandle<Result<DumpReport, DumpError>>,
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
    pub(super) fn start(mut sink: Box<dyn Sink>) -> Self {
        // One batch waits while one is written: memory holds three with the one being computed.
        let queue = ActivationQueue::bounded(1, WhenFull::Block);
        let reader = Close(queue.clone());
        let thread = std::thread::spawn(move || {
            while let Ok(batch) = reader.0.wait(BATCHES) {
                sink.write(batch)?;
            }
            sink.finish()
        });
        Self { queue, thread }
    }

    /// Hands a batch over; `false` if the thread has stopped, and [`Writer::finish`] tells why.
    pub(super) fn send(&self, batch: Batch) -> bool {
        self.queue.push(BATCHES, batch).is_ok()
    }

    /// Waits for the last batch to be written.
    pub(super) fn finish(self) -> Result<DumpReport> {
        self.queue.close();
        match self.thread.join() {
            Ok(report) => Ok(report?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
