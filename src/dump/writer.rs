//! The thread that writes while the model computes.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::{Batch, DumpReport};
use crate::error::{DumpError, Result};

/// Where batches go, in order.
pub(super) trait Sink: Send {
    /// Takes one batch.
    fn write(&mut self, batch: Batch) -> Result<(), DumpError>;

    /// Makes the output whole after the last batch.
    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError>;
}

/// A sink on a thread of its own.
pub(super) struct Writer {
    batches: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<Result<DumpReport, DumpError>>>,
}

impl Writer {
    pub(super) fn start(mut sink: Box<dyn Sink>) -> Self {
        // One batch waits while one is written: memory holds three with the one being computed.
        let (batches, queue) = sync_channel::<Batch>(1);
        let thread = std::thread::spawn(move || {
            for batch in queue {
                sink.write(batch)?;
            }
            sink.finish()
        });
        Self { batches: Some(batches), thread: Some(thread) }
    }

    /// Hands a batch over; `false` if the thread has stopped, and [`Writer::finish`] tells why.
    pub(super) fn send(&mut self, batch: Batch) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok())
    }

    /// Waits for the last batch to be written.
    pub(super) fn finish(mut self) -> Result<DumpReport> {
        self.batches = None;
        let Some(thread) = self.thread.take() else { return Ok(DumpReport::default()) };
        match thread.join() {
            Ok(report) => Ok(report?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
