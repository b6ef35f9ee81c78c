//! The public-facing server: accepts connections, limits them, and gives each a session process.

use std::collections::HashMap;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::child::Child;
use super::failures::Failures;
use super::head::Refusal;
use super::host::Hosts;
use super::places::Places;
use super::{ServeArgs, connection};

/// Time limits for connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Limit for the head of the request.
    pub(super) head: Duration,
    /// Limit from the end of the head to the end of the first message.
    pub(super) first: Duration,
}

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) times: Times,
    pub(super) max_message: u64,
    pub(super) hosts: Hosts,
    pub(super) sessions: Arc<Places>,
    pending: Arc<Places>,
    failures: Mutex<Failures>,
    args: ServeArgs,
    /// Session process per address, if clients may move tensors between several devices.
    shared: Mutex<HashMap<IpAddr, Weak<Child>>>,
}

impl Guard {
    pub(super) fn new(args: &ServeArgs, hosts: Hosts) -> Self {
        let bounds = &args.bounds;
        Self {
            times: Times { head: Duration::from_millis(bounds.head_ms), first: Duration::from_millis(bounds.first_ms) },
            max_message: args.max_message,
            hosts,
            // Clients with a session know the token, so one address may take all slots.
            sessions: Places::new(args.max_sessions, args.max_sessions),
            pending: Places::new(bounds.max_pending, bounds.max_pending_of_address),
            failures: Mutex::new(Failures::new(bounds.max_failures, Duration::from_millis(bounds.failures_ms))),
            args: args.clone(),
            shared: Mutex::default(),
        }
    }

    /// Serves until the process ends.
    pub(super) fn serve(self, listener: &TcpListener) {
        let guard = Arc::new(self);
        loop {
            let Ok((client, peer)) = listener.accept() else {
                // File descriptors may have run out. Some may be freed soon.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            // Too many connections, in total or from this address, have not opened a session yet, so this one is
            // closed.
            let Some(pending) = guard.pending.take(peer.ip()) else { continue };
            let guard = Arc::clone(&guard);
            let thread = std::thread::Builder::new();
            if let Err(e) = thread.spawn(move || connection::serve(&guard, &client, peer, pending)) {
                hooklens_io::stderr::line(format_args!("{peer} closed: {e}"));
            }
        }
    }

    /// Whether a session for this address may be opened now.
    pub(super) fn admits(&self, address: IpAddr) -> Result<(), Refusal> {
        if self.failures.lock().unwrap_or_else(PoisonError::into_inner).refuses(address, Instant::now()) {
            return Err(Refusal::Failures);
        }
        if self.sessions.full() { Err(Refusal::Full) } else { Ok(()) }
    }

    pub(super) fn note_failure(&self, address: IpAddr) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).note(address, Instant::now());
    }

    /// The process for a session of this address. With one device, each session gets its own process. With several, a
    /// client opens a session per device, and tensors can only move between devices within one process, so all sessions
    /// of an address share a process.
    pub(super) fn child(&self, address: IpAddr) -> Result<Arc<Child>, String> {
        if self.args.device.len() == 1 {
            return Child::start(&self.args).map(Arc::new);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, child| child.strong_count() > 0);
        if let Some(child) = shared.get(&address).and_then(Weak::upgrade).filter(|child| child.lives()) {
            return Ok(child);
        }
        let child = Arc::new(Child::start(&self.args)?);
        shared.insert(address, Arc::downgrade(&child));
        Ok(child)
    }
}
