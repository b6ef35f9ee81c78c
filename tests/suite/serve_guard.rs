//! `hooklens serve` with malicious clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use hooklens::parse_device;
use hooklens::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::remote::{Server, TEXT, loaded};

const TOKEN: &str = "0123456789abcdef";
const HOST: &str = "Host: 127.0.0.1\r\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.device.strip_prefix("remote:ws://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// First line of the answer to these bytes; empty if the connection is closed without an answer.
    fn said(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        first_line(&rest(&mut stream))
    }

    /// A connection after the handshake.
    fn upgraded(&self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(request("/session", UPGRADE).as_bytes()).unwrap();
        let said = answer(&mut stream);
        assert!(said.starts_with("HTTP/1.1 101 "), "{said}");
        stream
    }

    /// An open session, or the answer received instead.
    fn session(&self, token: &str) -> Result<TcpStream, String> {
        let mut stream = self.connect();
        stream.write_all(request("/session", UPGRADE).as_bytes()).map_err(|e| e.to_string())?;
        let said = answer(&mut stream);
        if !said.starts_with("HTTP/1.1 101 ") {
            return Err(first_line(said.as_bytes()));
        }
        stream.write_all(&frame(&init(token))).map_err(|e| e.to_string())?;
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).map_err(|e| e.to_string())?;
        let reply = String::from_utf8_lossy(&reply).to_string();
        if reply.contains("InitRefused") { Err(reply) } else { Ok(stream) }
    }
}

fn request(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{HOST}{headers}\r\n")
}

/// All bytes until the connection is closed.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let (mut said, mut buffer) = (vec![], [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return said,
            Ok(count) => said.extend(&buffer[..count]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(e) => panic!("still open: {e}"),
        }
    }
}

fn first_line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().next().unwrap_or_default().to_string()
}

/// The head of an answer, with nothing after it.
fn answer(stream: &mut TcpStream) -> String {
    let mut said = vec![];
    let mut byte = [0];
    while !said.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        said.push(byte[0]);
    }
    String::from_utf8_lossy(&said).to_string()
}

/// A client's binary frame with a zero mask.
fn frame(payload: &[u8]) -> Vec<u8> {
    let length = match payload.len() {
        short @ 0..126 => vec![0x80 | short as u8],
        long => [&[0xff][..], &(long as u64).to_be_bytes()].concat(),
    };
    [&[0x82][..], &length, &[0; 4], payload].concat()
}

/// First message of Burn's client: version, session, device, token.
fn init(token: &str) -> Vec<u8> {
    let id = rand::rng().random::<u64>().to_be_bytes();
    let numbers = [&[0x94, 2, 0x91, 0xcf][..], &id, &[0, 0xc4, token.len() as u8]].concat();
    [&[0x91, 0x81, 0xa4][..], b"Init", &numbers, token.as_bytes()].concat()
}

/// Waits until the condition holds.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn pages_and_other_routes_are_refused() {
    let server = Server::with(None, &[]);
    for origin in ["http://127.0.0.1:3000", "null", ""] {
        let said = server.said(request("/session", &format!("{UPGRADE}Origin: {origin}\r\n")).as_bytes());
        assert_eq!(said, "HTTP/1.1 403 Forbidden");
    }
    for target in ["/data", "/", "/session/", "/Session", "/session?x=1", "http://127.0.0.1/session"] {
        assert_eq!(server.said(request(target, UPGRADE).as_bytes()), "HTTP/1.1 404 Not Found", "{target}");
    }
    let wrong = [
        request("/session", ""),
        request("/session", &format!("{UPGRADE}Content-Length: 10\r\n")),
        request("/session", UPGRADE).replace("HTTP/1.1", "HTTP/1.0"),
        "\r\n\r\n".to_string(),
        format!("{}\r\n\r\n", "\u{16}\u{3}\u{1}".repeat(100)),
    ];
    for request in wrong {
        assert_eq!(server.said(request.as_bytes()), "HTTP/1.1 400 Bad Request", "{request:?}");
    }
    assert!(server.session("").is_ok());
}

#[test]
fn a_head_is_short_and_comes_at_once() {
    let server = Server::with(None, &["--head-ms", "700"]);
    let filler = format!("X: {}\r\n", "x".repeat(1000)).repeat(17);
    let too_large = "HTTP/1.1 431 Request Header Fields Too Large";
    assert_eq!(server.said(request("/session", &format!("{filler}{UPGRADE}")).as_bytes()), too_large);
    assert_eq!(server.said(filler.replace("\r\n", "").as_bytes()), too_large);
    // A silent connection, and one that sends a byte at a time, are closed when the time limit is reached.
    let start = Instant::now();
    assert_eq!(server.said(b""), "HTTP/1.1 408 Request Timeout");
    assert!((700..3000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    let (start, mut slow) = (Instant::now(), server.connect());
    for byte in request("/session", UPGRADE).bytes() {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(3));
    }
    assert_eq!(first_line(&rest(&mut slow)), "HTTP/1.1 408 Request Timeout");
    // A request in pieces is accepted if it is complete in time.
    let mut pieces = server.connect();
    for piece in request("/session", UPGRADE).as_bytes().chunks(40) {
        pieces.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(answer(&mut pieces).starts_with("HTTP/1.1 101 "));
}

#[test]
fn a_first_message_is_short_and_comes_in_time() {
    let server = Server::with(None, &["--max-failures", "100"]);
    // A message that is too long is rejected as soon as its length is known, long before the time limit.
    let mut over = server.upgraded();
    let start = Instant::now();
    let _ = over.write_all(&frame(&vec![0; 1 << 20])[..1000]);
    assert!(rest(&mut over).is_empty());
    let mut pings = server.upgraded();
    while pings.write_all(&[&[0x89, 0xfd, 0, 0, 0, 0][..], &[0; 125]].concat()).is_ok() {}
    let mut unmasked = server.upgraded();
    unmasked.write_all(&[0x82, 0x04, 1, 2, 3, 4]).unwrap();
    assert!(rest(&mut unmasked).is_empty());
    let mut nonsense = server.upgraded();
    nonsense.write_all(&frame(b"nonsense")).unwrap();
    assert!(String::from_utf8_lossy(&rest(&mut nonsense)).contains("IncompatibleProtocol"));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    let server = Server::with(None, &["--first-ms", "1200"]);
    for begun in [&b""[..], &frame(&init(""))[..9], b"\x81\x80\0\0\0\0"] {
        let mut silent = server.upgraded();
        silent.write_all(begun).unwrap();
        let start = Instant::now();
        rest(&mut silent);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    // A client with a session may be silent.
    let mut session = server.session("").unwrap();
    session.set_read_timeout(Some(Duration::from_millis(2500))).unwrap();
    while session.read(&mut [0; 64]).inspect(|count| assert!(*count > 0, "closed")).is_ok() {}
}

/// Whether a tensor of this many values can be sent and received.
fn sent(device: &str, count: usize) -> bool {
    let device = parse_device(device).unwrap();
    let values = burn::tensor::TensorData::new(vec![1f32; count], [count]);
    let tensor = burn::tensor::Tensor::<1>::from_data(values, &device);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tensor.try_into_data().is_ok())).unwrap_or(false)
}

#[test]
fn a_message_may_be_as_long_as_allowed() {
    let server = Server::with(None, &["--max-message", "200KB"]);
    let (one, other) = (server.device.clone(), server.device.replace("127.0.0.1", "localhost"));
    assert!(sent(&one, 40_000) && sent(&other, 40_000));
    assert!(!sent(&other, 60_000));
    assert!(sent(&one, 40_000));
}

#[test]
fn connections_are_counted_and_places_become_free() {
    let server = Server::with(None, &["--max-sessions", "2", "--max-pending", "3"]);
    let mut open = vec![server.session("").unwrap(), server.session("").unwrap()];
    // Until both sessions are counted, a third connection is closed. It is never accepted.
    soon("both are counted", || server.session("").unwrap_err() == "HTTP/1.1 503 Service Unavailable");
    drop(open.pop());
    soon("a place becomes free", || server.session("").is_ok());
    open.clear();
    // Connections without a session are counted separately.
    let silent = [server.connect(), server.connect(), server.connect()];
    soon("the fourth is closed", || server.said(b"").is_empty());
    drop(silent);
    // So are connections that were refused but not closed by the client.
    let crowded = || {
        let refused: Vec<_> = (0..3)
            .map(|_| {
                let mut stream = server.connect();
                stream.write_all(request("/data", UPGRADE).as_bytes()).unwrap();
                answer(&mut stream);
                stream
            })
            .collect();
        let said = server.said(request("/data", UPGRADE).as_bytes());
        drop(refused);
        said.is_empty()
    };
    soon("one more is closed", crowded);
    soon("their places become free", || server.session("").is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn memory_of_a_session_is_its_own() {
    // This is more than a program with LibTorch needs for itself.
    let server = Server::with(None, &["--max-memory", "3GB"]);
    let modest = loaded(&server.device);
    let expected = modest.forward(TEXT).unwrap().into_data();
    let greedy = parse_device(server.device.replace("127.0.0.1", "localhost")).unwrap();
    let asked = |millions: usize| {
        let tensor = burn::tensor::Tensor::<1>::ones([millions << 20], &greedy);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tensor.sum().try_into_data().is_ok())).unwrap_or(false)
    };
    assert!(asked(10));
    assert!(!asked(1000));
    assert_eq!(modest.forward(TEXT).unwrap().into_data(), expected);
}

#[test]
fn what_would_be_open_to_all_does_not_start() {
    let said = |listen: &str, token: Option<&str>| {
        let mut command = crate::support::program();
        command.args(["serve", "--device", "flex", "--listen", listen]).env_remove("HOOKLENS_TOKEN");
        if let Some(token) = token {
            command.env("HOOKLENS_TOKEN", token);
        }
        let (said, output) = (tempfile::NamedTempFile::new().unwrap(), std::process::Stdio::null());
        let mut process = command.stdout(output).stderr(said.reopen().unwrap()).spawn().unwrap();
        // A server that starts after all is a failure, not a hang.
        let start = Instant::now();
        while process.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = process.kill();
        (process.wait().unwrap().code(), std::fs::read_to_string(said.path()).unwrap())
    };
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let (code, reason) = said(listen, None);
        assert!(code == Some(2) && reason.contains("HOOKLENS_TOKEN must be set"), "{listen}: {reason}");
    }
    for token in ["secret", "", "fifteen letters"] {
        let (code, reason) = said("127.0.0.1:0", Some(token));
        assert!(code == Some(2) && reason.contains("HOOKLENS_TOKEN"), "{token}: {reason}");
    }
    assert_eq!(said("0.0.0.0:0", Some(TOKEN)).0, None, "with a token it serves until it is killed");
}

/// Configurations that can't open any session are detected before the first client connects.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_for_any_session() {
    let mut command = crate::support::program();
    command.args(["serve", "--device", "flex", "--listen", "127.0.0.1:0", "--max-memory", "1MB"]);
    let ended = command.env_remove("HOOKLENS_TOKEN").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).to_string();
    assert!(ended.status.code() == Some(1) && said.contains("session process"), "{said}");
}

/// Long enough for all processes of a test to start.
const LONG: [&str; 2] = ["--failures-ms", "60000"];

#[test]
fn guesses_are_few() {
    let server = Server::with(Some(TOKEN), &LONG);
    for guess in 0..5 {
        assert!(server.session(TOKEN).is_ok(), "{guess}");
        let refused = server.session(&format!("{guess}123456789abcdef0")).unwrap_err();
        assert!(refused.contains("InitRefused"), "{refused}");
    }
    // Now the correct token is refused, too.
    soon("the address is refused", || server.session("").unwrap_err() == "HTTP/1.1 429 Too Many Requests");
    assert_eq!(server.session(TOKEN).unwrap_err(), "HTTP/1.1 429 Too Many Requests");
}

#[test]
fn an_address_is_let_in_again() {
    let server = Server::with(Some(TOKEN), &["--max-failures", "1", "--failures-ms", "4000"]);
    assert!(server.session("0123456789abcdef0").is_err());
    soon("the address is refused", || server.session(TOKEN).is_err_and(|said| said.contains(" 429 ")));
    soon("the address is let in again", || server.session(TOKEN).is_ok());
}

/// A client that leaves without sending a token counts as a failure, because it cost a process.
#[test]
fn sessions_that_come_to_nothing_are_few() {
    let server = Server::with(Some(TOKEN), &LONG);
    for _ in 0..5 {
        drop(server.upgraded());
    }
    soon("the address is refused", || server.session(TOKEN).is_err_and(|said| said.contains(" 429 ")));
}

#[test]
fn random_heads() {
    let server = Server::with(None, &["--max-failures", "3", "--failures-ms", "3000"]);
    let mut random = StdRng::seed_from_u64(7);
    let (sound, mut refused) = (request("/session", UPGRADE).into_bytes(), 0);
    for round in 0..3000 {
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..random.random_range(0..300)).map(|_| random.random()).collect(),
            1 => sound[..random.random_range(0..sound.len())].to_vec(),
            _ => {
                let mut bytes = sound.clone();
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
                bytes
            }
        };
        // Two in three inputs end like a request head.
        let bytes = if random.random_ratio(2, 3) { [&bytes, &b"\r\n\r\n"[..]].concat() } else { bytes };
        let mut stream = server.connect();
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let said = first_line(&rest(&mut stream));
        assert!(["", "HTTP/1.1 4", "HTTP/1.1 1"].iter().any(|start| said.starts_with(start)), "{said}");
        refused += usize::from(said.starts_with("HTTP/1.1 4"));
    }
    assert!(refused > 1500, "{refused}");
    soon("it serves on", || server.session("").is_ok());
}

/// Bytes after a valid start reach Burn's parser, in a session process that they can crash without affecting others.
#[test]
fn garbage_in_a_session() {
    let server = Server::with(None, &["--max-failures", "1000", "--max-sessions", "64"]);
    let bystander = loaded(&server.device);
    let mut random = StdRng::seed_from_u64(8);
    for round in 0..20 {
        let mut stream = if round % 2 == 0 { server.upgraded() } else { server.session("").unwrap() };
        let bytes: Vec<u8> = (0..random.random_range(1..500)).map(|_| random.random()).collect();
        let _ = stream.write_all(&if round % 4 < 2 { bytes } else { frame(&bytes) });
        let _ = stream.shutdown(Shutdown::Write);
        rest(&mut stream);
    }
    bystander.forward(TEXT).unwrap();
}

/// The session processes of a server.
#[cfg(target_os = "linux")]
fn sessions(server: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |process: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<u32>().ok()
    };
    processes.filter(|process| parent(process) == Some(server)).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn processes_of_sessions_end() {
    let alive = |process: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("State:\tZ")
    };
    let mut server = Server::with(Some(TOKEN), &[]);
    let one = server.session(TOKEN).unwrap();
    let _two = server.session(TOKEN).unwrap();
    let processes = sessions(server.process.id());
    assert_eq!(processes.len(), 2);
    for process in &processes {
        let arguments = std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap();
        assert!(arguments.contains("--session") && !arguments.contains(TOKEN), "{arguments}");
    }
    drop(one);
    soon("with its connection", || sessions(server.process.id()).len() == 1);
    server.stop();
    soon("with the server", || !processes.iter().any(alive));
}

#[test]
fn the_process_of_a_session_is_not_for_the_shell() {
    let mut command = crate::support::program();
    let ended = command.args(["serve", "--session"]).stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
}
