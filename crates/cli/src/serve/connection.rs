//! Handling of one client connection.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::child::Event;
use super::frames::{Frames, Violation};
use super::guard::Guard;
use super::head::{self, Refusal};
use super::places::Place;

/// Maximum length of the first message, in bytes. It contains a version, numbers and the token.
const LONGEST_FIRST: u64 = 64 << 10;

/// Size of the copy buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Time that the other end has to close a finished connection.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// Either side closed the connection.
    Closed,
    /// The request was refused.
    Refused(Refusal),
    /// The session process did not authorize the connection.
    Unauthorized,
    /// No complete first message arrived in time.
    NoMessage,
    /// A message was too long or malformed.
    Message(Violation),
    /// The maximum number of sessions is open.
    Full,
    /// The server failed to start or reach the session process.
    Failed(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => write!(f, "closed"),
            End::Refused(refusal) => write!(f, "refused: {}", refusal.status()),
            End::Unauthorized => write!(f, "refused: its first message did not open a session"),
            End::NoMessage => write!(f, "disconnected: its first message did not arrive in time"),
            End::Message(Violation::Overlong(length)) => {
                write!(f, "disconnected: a message of {length} bytes is too long")
            }
            End::Message(Violation::Malformed) => write!(f, "disconnected: malformed message"),
            End::Full => write!(f, "disconnected: the maximum number of sessions is open"),
            End::Failed(reason) => write!(f, "disconnected: {reason}"),
        }
    }
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> Self {
        End::Closed
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Message(violation)
    }
}

/// Slots that a connection holds until everything is over, including final answers and the session process.
#[derive(Debug)]
struct Taken {
    pending: Option<Place>,
    session: Option<Place>,
}

/// Serves a connection until it ends. Logs why it ended, unless one side closed it.
pub(super) fn serve(guard: &Guard, client: &TcpStream, peer: SocketAddr, pending: Place) {
    let mut taken = Taken { pending: Some(pending), session: None };
    let end = run(guard, client, peer, &mut taken).unwrap_or_else(|end| end);
    match end {
        End::Refused(refusal) => answer(client, refusal),
        End::Failed(_) => answer(client, Refusal::NoProcess),
        _ => {}
    }
    if !matches!(end, End::Closed) {
        hooklens_io::stderr::line(format_args!("{peer} {end}"));
    }
}

/// Handles the connection. Returns `Err` if the connection ends before its session process is reached.
fn run(guard: &Guard, client: &TcpStream, peer: SocketAddr, taken: &mut Taken) -> Result<End, End> {
    client.set_nodelay(true)?;
    client.set_write_timeout(Some(guard.times.first))?;
    let head = read_head(client, Instant::now() + guard.times.head);
    if matches!(head, Err(End::Refused(Refusal::Slow))) {
        // A slow client occupies a slot that others could use.
        guard.note_failure(peer.ip());
    }
    let (head, behind) = head?;
    let key = head::key(&head, &guard.hosts).map_err(End::Refused)?;
    guard.admits(peer.ip()).map_err(End::Refused)?;
    let child = guard.child(peer.ip()).map_err(End::Failed)?;
    let (events, heard) = channel();
    let connection = child.connect(&events, &heard).map_err(End::Failed)?;
    let server = &connection.stream;
    // Sends our own request instead of the client's bytes, which another parser might read differently.
    (&*server).write_all(head::request(key).as_bytes())?;
    std::thread::scope(|scope| {
        let (over, is_over) = channel();
        std::thread::Builder::new()
            .spawn_scoped(scope, move || answers(server, client, &events, &is_over))
            .map_err(|e| End::Failed(e.to_string()))?;
        let mut up = Up { guard, client, server, heard, frames: Frames::new(LONGEST_FIRST) };
        let end = up.run(peer, behind, taken);
        up.close(&end);
        let _ = over.send(());
        Ok(end)
    })
}

/// The direction from the client to the session process.
struct Up<'a> {
    guard: &'a Guard,
    client: &'a TcpStream,
    server: &'a TcpStream,
    heard: Receiver<Event>,
    frames: Frames,
}

impl Up<'_> {
    fn run(&mut self, peer: SocketAddr, behind: Vec<u8>, taken: &mut Taken) -> End {
        let behind = match self.open(behind) {
            Ok(behind) => behind,
            Err(end) => {
                // Each failure counts against the client, because it cost a process.
                self.guard.note_failure(peer.ip());
                return end;
            }
        };
        taken.session = self.guard.sessions.take(peer.ip());
        if taken.session.is_none() {
            return End::Full;
        }
        taken.pending = None;
        match self.copy(behind) {
            Err(end) => end,
            Ok(()) => End::Closed,
        }
    }

    /// Forwards the first message and waits for the session process to authorize it. Returns the bytes that follow the
    /// message.
    fn open(&mut self, mut bytes: Vec<u8>) -> Result<Vec<u8>, End> {
        let (deadline, mut total) = (Instant::now() + self.guard.times.first, 0);
        let behind = loop {
            let passed = self.frames.pass(&bytes)?;
            total += passed.count as u64;
            // Pings and empty frames are not messages, so their total size is limited, too.
            if total > 2 * LONGEST_FIRST {
                return Err(End::Message(Violation::Overlong(total)));
            }
            self.server.write_all(&bytes[..passed.count])?;
            if passed.message_ends {
                break bytes.split_off(passed.count);
            }
            bytes = read_before(self.client, deadline)?.ok_or(End::NoMessage)?;
            if bytes.is_empty() {
                return Err(End::Closed);
            }
        };
        let left = deadline.saturating_duration_since(Instant::now()).max(LINGER);
        match self.heard.recv_timeout(left) {
            Ok(Event::Opened) => Ok(behind),
            Ok(_) => Err(End::Unauthorized),
            Err(_) => Err(End::NoMessage),
        }
    }

    /// Forwards everything until the client closes.
    fn copy(&mut self, behind: Vec<u8>) -> Result<(), End> {
        self.client.set_read_timeout(None)?;
        self.client.set_write_timeout(None)?;
        keep_alive(self.client);
        self.frames.limit = self.guard.max_message;
        let mut buffer = vec![0; BUFFER];
        let mut bytes = behind.as_slice();
        loop {
            let mut checked = 0;
            while checked < bytes.len() {
                checked += self.frames.pass(&bytes[checked..])?.count;
            }
            self.server.write_all(bytes)?;
            match self.client.read(&mut buffer)? {
                0 => return Ok(()),
                count => bytes = &buffer[..count],
            }
        }
    }

    /// Closes both directions, at once or after a final exchange.
    fn close(&self, end: &End) {
        match end {
            End::Closed => {
                let _ = self.server.shutdown(Shutdown::Write);
                self.wait_for_end();
            }
            End::Unauthorized => {
                self.wait_for_end();
                drain(self.client);
            }
            _ => {}
        }
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn wait_for_end(&self) {
        let deadline = Instant::now() + LINGER;
        while let Ok(event) = self.heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if event == Event::Ended {
                break;
            }
        }
    }
}

/// Forwards the session process's answers until the process closes, then disconnects the client if the client does not
/// close in time.
fn answers(mut server: &TcpStream, mut client: &TcpStream, events: &Sender<Event>, is_over: &Receiver<()>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        if client.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = events.send(Event::Ended);
    let _ = client.shutdown(Shutdown::Write);
    let _ = is_over.recv_timeout(2 * LINGER);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Reads the request's head. Returns the head and the bytes that follow it.
fn read_head(client: &TcpStream, deadline: Instant) -> Result<(Vec<u8>, Vec<u8>), End> {
    let mut bytes = vec![];
    loop {
        if let Some(end) = head::end(&bytes).filter(|end| *end <= head::LONGEST) {
            let behind = bytes.split_off(end);
            return Ok((bytes, behind));
        }
        if bytes.len() > head::LONGEST {
            return Err(End::Refused(Refusal::Overlong));
        }
        let more = read_before(client, deadline)?.ok_or(End::Refused(Refusal::Slow))?;
        if more.is_empty() {
            return Err(End::Closed);
        }
        bytes.extend(more);
    }
}

/// Reads up to 16 KiB. Returns an empty vector at the end of the stream and `None` on timeout.
fn read_before(mut client: &TcpStream, deadline: Instant) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(Some(bytes));
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Answers the request with a refusal.
fn answer(mut client: &TcpStream, refusal: Refusal) {
    let (status, ends) = (refusal.status(), "Connection: close\r\nContent-Length: 0\r\n\r\n");
    let said = client.write_all(format!("HTTP/1.1 {status}\r\n{ends}").as_bytes());
    if said.and_then(|()| client.shutdown(Shutdown::Write)).is_ok() {
        drain(client);
    }
}

/// Reads pending input. Closing a socket with unread bytes would discard data on its way to the client.
fn drain(client: &TcpStream) {
    let deadline = Instant::now() + LINGER;
    for _ in 0..64 {
        if !read_before(client, deadline).is_ok_and(|bytes| bytes.is_some_and(|bytes| !bytes.is_empty())) {
            break;
        }
    }
}

/// Enables TCP keep-alive, so that the slot of a client that vanished is freed after 30 s.
#[cfg(unix)]
fn keep_alive(client: &TcpStream) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
    let _ = set_socket_keepalive(client, true)
        .and_then(|()| set_tcp_keepidle(client, Duration::from_secs(10)))
        .and_then(|()| set_tcp_keepintvl(client, Duration::from_secs(5)))
        .and_then(|()| set_tcp_keepcnt(client, 4));
}

/// Does nothing on this platform: only a closed connection is noticed.
#[cfg(not(unix))]
fn keep_alive(_client: &TcpStream) {}
