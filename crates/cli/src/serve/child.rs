//! The server's view of a session process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::TryRngCore;
use rand::rngs::OsRng;

use super::ServeArgs;
use super::head;
use super::report::Report;

/// Time that a session process may take to start, which may include initializing a GPU.
const START: Duration = Duration::from_secs(60);

/// Time that a session process may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Events of a connection to the session process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The process will check the connection's token.
    Expected,
    /// The connection was authorized.
    Opened,
    /// The connection was refused.
    Refused,
    /// The process closed the connection.
    Ended,
}

/// A session process. Killed on drop.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    input: Mutex<ChildStdin>,
    address: SocketAddr,
    heard: Arc<ChildMessage>,
}

/// State built from the process's output.
#[derive(Debug, Default)]
struct ChildMessage {
    connections: Mutex<HashMap<SocketAddr, Sender<Event>>>,
    ended: AtomicBool,
}

impl Child {
    pub(super) fn start(args: &ServeArgs) -> Result<Self, String> {
        let program = program().map_err(|e| format!("cannot find the path of this program: {e}"))?;
        let mut command = Command::new(program);
        // The process's output is printed as text, so it should not contain color codes.
        command.env("NO_COLOR", "1").args(["serve", "--session", "--device", &args.device.join(",")]);
        if let Some(bytes) = args.memory() {
            command.args(["--max-memory", &bytes.to_string()]);
        }
        // The token is passed through the inherited environment, since other users can read arguments.
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start a session process: {e}"))?;
        let (Some(mut input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("the session process has no pipes".to_string());
        };
        let secret = secret()?;
        let (begun, begins) = channel();
        let heard = Arc::new(ChildMessage::default());
        let thread = {
            let (heard, secret) = (heard.clone(), secret.clone());
            std::thread::Builder::new().spawn(move || heard.listen(BufReader::new(output), &secret, &begun))
        };
        let sent = thread.and_then(|_| writeln!(input, "{secret}"));
        let address = sent.ok().and_then(|()| begins.recv_timeout(START).ok());
        let Some(address) = address else {
            let _ = process.kill();
            let _ = process.wait();
            return Err("the session process ended before it was ready".to_string());
        };
        Ok(Self { process, input: Mutex::new(input), address, heard })
    }

    /// Checks that sessions can be opened, by starting one, sending a request, and ending it.
    pub(super) fn try_out(args: &ServeArgs) -> Result<(), String> {
        let child = Self::start(args)?;
        let (events, heard) = channel();
        let mut stream = &child.connect(&events, &heard)?.stream;
        let mut answer = [0; 12];
        let answered = stream
            .set_read_timeout(Some(START))
            .and_then(|()| stream.write_all(head::request("AAAAAAAAAAAAAAAAAAAAAA==").as_bytes()))
            .and_then(|()| stream.read_exact(&mut answer));
        match answered {
            Ok(()) if answer == *b"HTTP/1.1 101" => Ok(()),
            _ => Err("the session process does not answer requests; its memory limit may be too low".to_string()),
        }
    }

    /// Whether the process is still running.
    pub(super) fn lives(&self) -> bool {
        !self.heard.ended.load(Ordering::Acquire)
    }

    /// Opens a connection to the process. Its events go to `events`, the sender of the channel that `heard` receives
    /// from.
    pub(super) fn connect(&self, events: &Sender<Event>, heard: &Receiver<Event>) -> Result<Connection<'_>, String> {
        let lost = |e: std::io::Error| format!("cannot reach the session process: {e}");
        let stream = TcpStream::connect_timeout(&self.address, ANSWER).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let from = stream.local_addr().map_err(lost)?;
        self.heard.connections().insert(from, events.clone());
        let connection = Connection { stream, from, child: self };
        if !self.lives() {
            return Err("the session process has ended".to_string());
        }
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(input, "{from}").and_then(|()| input.flush()).map_err(lost)?;
        drop(input);
        match heard.recv_timeout(ANSWER) {
            Ok(Event::Expected) => Ok(connection),
            _ => Err("the session process does not respond".to_string()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // No client is connected any more, so the process's remaining work can be discarded.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl ChildMessage {
    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Sender<Event>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dispatches the process's output until it ends. Lines that are not reports are Burn's log, and are printed.
    fn listen(&self, lines: impl BufRead, secret: &str, begun: &Sender<SocketAddr>) {
        for line in lines.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let (from, event) = match Report::read(&line, secret) {
                Some(Report::Listens(address)) => {
                    let _ = begun.send(address);
                    continue;
                }
                Some(Report::Expects(from)) => (from, Event::Expected),
                Some(Report::Opens(from)) => (from, Event::Opened),
                Some(Report::Refuses(from)) => (from, Event::Refused),
                None => {
                    let _ = writeln!(std::io::stdout(), "{}", hooklens_io::shown_text::shown(&line));
                    continue;
                }
            };
            if let Some(events) = self.connections().get(&from) {
                let _ = events.send(event);
            }
        }
        self.ended.store(true, Ordering::Release);
        for events in self.connections().values() {
            let _ = events.send(Event::Ended);
        }
    }
}

/// A connection to the process. Removed from the process's connections on drop.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    pub(super) stream: TcpStream,
    from: SocketAddr,
    child: &'a Child,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.child.heard.connections().remove(&self.from);
    }
}

/// Path of this program. On Linux it stays valid even if the file has been replaced since the program started.
fn program() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

fn secret() -> Result<String, String> {
    let mut bytes = [0; 16];
    OsRng.try_fill_bytes(&mut bytes).map_err(|e| format!("cannot get random numbers from the system: {e}"))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
