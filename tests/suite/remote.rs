//! Models on a device of a remote machine. In these tests, client and server are two processes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hooklens::prelude::*;
use hooklens::{Error, parse_device};

use crate::support::assert_close;

/// A CPU server, stopped on drop.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) device: String,
}

impl Server {
    fn start(token: Option<&str>) -> Self {
        Self::with(token, &[])
    }

    /// At an address that this process has not used yet, because Burn keeps a session per address forever, even a lost
    /// one.
    pub(crate) fn with(token: Option<&str>, options: &[&str]) -> Self {
        static USED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        loop {
            let server = Self::anywhere(token, options);
            if USED.lock().unwrap().insert(server.device.clone()) {
                return server;
            }
        }
    }

    fn anywhere(token: Option<&str>, options: &[&str]) -> Self {
        let mut command = crate::support::program();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(options).env("RUST_LOG", "off");
        if !options.contains(&"--device") {
            command.args(["--device", "flex"]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null()).env_remove("HOOKLENS_TOKEN");
        if let Some(token) = token {
            command.env("HOOKLENS_TOKEN", token);
        }
        let mut process = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let device = said.trim().rsplit_once(' ').expect("says where it listens").1.to_string();
        Self { process, device }
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn loaded(device: &str) -> HookedTransformer {
    let options = LoadOptions::new().device(&parse_device(device).unwrap());
    HookedTransformer::from_pretrained_with("embedded:ioi", options).unwrap()
}

pub(crate) const TEXT: &str = "When Mary and John went to the store, John gave a drink to";
const TOKEN: &str = "a secret of the tests";

/// With the model and caches on the server and hooks in the client, results are the same.
#[test]
fn hooks_here_and_the_model_there() {
    let server = Server::start(None);
    let (there, here) = (loaded(&server.device), loaded("flex"));
    let (logits, cache) = there.run_with_cache(TEXT, Record::all()).unwrap();
    let (expected, on_cpu) = here.run_with_cache(TEXT, Record::all()).unwrap();
    assert_ne!(logits.device(), expected.device());
    assert_close(&logits, &expected, 1e-4, "logits");
    for layer in 0..here.config().n_layers() as isize {
        let (pattern, stream) = (hook::pattern(layer), hook::resid_post(layer));
        assert_close(&cache.get(pattern).unwrap(), &on_cpu.get(hook::pattern(layer)).unwrap(), 1e-4, "pattern");
        assert_close(&cache.get(stream).unwrap(), &on_cpu.get(hook::resid_post(layer)).unwrap(), 1e-4, "stream");
    }
    // An edit that is computed on the server, and one that reads the values in the client.
    let mut seen = vec![];
    let edited = |model: &HookedTransformer, seen: &mut Vec<f32>| {
        let edit = hook::z(1).edit(|z, _| z * 0.5);
        let look =
            hook::resid_post(2).read(|x, _| seen.push(Activation::from(x.clone()).to_ndarray().unwrap()[[0, 3, 5]]));
        model.run_with_hooks(TEXT, [edit, look]).unwrap()
    };
    let a = edited(&there, &mut seen);
    let b = edited(&here, &mut seen);
    assert_close(&a, &b, 1e-4, "edited");
    assert!((seen[0] - seen[1]).abs() < 1e-3, "{seen:?}");
    // The KV cache stays on the server, too.
    let behind = |model: &HookedTransformer| {
        let mut kv = model.prefill("When Mary and John went").unwrap();
        kv.freeze();
        assert_eq!(kv[0].keys().unwrap().device(), model.device());
        let rows = [[5u32, 6, 7], [8, 9, 10]];
        model.forward_with(rows.map(Vec::from).to_vec(), ForwardOptions::new().kv_cache(&mut kv)).unwrap()
    };
    assert_close(&behind(&there), &behind(&here), 1e-4, "behind a prefix");
    let written = |model: &HookedTransformer| {
        model.generate_with(TEXT, GenerateOptions::new().max_new_tokens(5)).unwrap().columns
    };
    assert_eq!(written(&there).ids(), written(&here).ids());
}

/// With the program as a client, output files are the same as without a server.
#[test]
fn dumps_from_there() {
    let server = Server::start(Some(TOKEN));
    let folder = tempfile::tempdir().unwrap();
    let dump = |device: &str, token: &str, out: &str| {
        let mut command = crate::support::program();
        command.args(["dump", "--model", "embedded:ioi", "--prompt", TEXT, "--hooks", "*hook_z", "--device", device]);
        command
            .args(["--out", folder.path().join(out).to_str().unwrap()])
            .env("HOOKLENS_TOKEN", token)
            .output()
            .unwrap()
    };
    assert!(dump(&server.device, TOKEN, "there.safetensors").status.success());
    assert!(dump("flex", "", "here.safetensors").status.success());
    let z = |file: &str| {
        let bytes = std::fs::read(folder.path().join(file)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let data = tensors.tensor("blocks.2.attn.hook_z").unwrap().data().to_vec();
        data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
    };
    let (there, here) = (z("there.safetensors"), z("here.safetensors"));
    assert_eq!(there.len(), here.len());
    assert!(there.iter().zip(&here).all(|(a, b)| (a - b).abs() < 1e-4));
    // Rejected without the token.
    let refused = dump(&server.device, "guess", "none.safetensors");
    let said = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(!refused.status.success() && said.contains("rejected the credential"), "{said}");
    // A device that the server does not have.
    let refused = dump(&format!("{}#3", server.device), TOKEN, "none.safetensors");
    let said = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(!refused.status.success() && said.contains("hosts only 1"), "{said}");
}

/// Blocks on two devices of a server: activations passed between them stay on the server.
#[test]
fn two_devices_there() {
    let server = Server::with(None, &["--device", "flex,flex"]);
    let devices = ["#0", "#1"].map(|number| parse_device(format!("{}{number}", server.device)).unwrap());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let options = LoadOptions::new().devices(&devices);
        let there = HookedTransformer::from_pretrained_with("embedded:ioi", options).unwrap();
        let recorded = there.record(TEXT, "*resid_post").unwrap();
        let places: Vec<_> = [0, -1].map(|layer| recorded.get(hook::resid_post(layer)).unwrap().device()).into();
        assert_eq!(places, devices);
        assert_close(&there.forward(TEXT).unwrap(), &loaded("flex").forward(TEXT).unwrap(), 1e-4, "logits");
        done.send(()).unwrap();
    });
    // If a tensor did not arrive, the client would wait forever.
    is_done.recv_timeout(Duration::from_secs(60)).expect("one device's tensors reach the other");
}

/// Two servers can't send tensors to each other, which is reported before anything is computed.
#[test]
fn two_servers_are_no_devices_of_one_model() {
    let mut command = crate::support::program();
    command.args(["dump", "--model", "embedded:ioi", "--prompt", TEXT, "--out", "none.safetensors", "--device"]);
    let refused = command.arg("remote:ws://127.0.0.1:1#0,remote:ws://127.0.0.1:2#0").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && said.contains("must belong to one server"), "{said}");
}

/// If the server disappears during a run, the run fails without a long wait.
#[test]
fn a_server_that_is_gone() {
    const GONE: &str = "the server no longer responds: it has exited, or the connection was lost";
    let mut server = Server::start(None);
    let there = loaded(&server.device);
    there.forward(TEXT).unwrap();
    let start = Instant::now();
    let look = hook::resid_post(1).read(|_, _| server.stop());
    let output = there.run(TEXT, ForwardOptions::new().hooks([look]).record("*resid_post"));
    let lost = match output {
        Err(error) => hooklens::error_chain(&error),
        Ok(output) => {
            let error = output.cache.get(hook::resid_post(3)).map(Activation::from).unwrap().to_ndarray().unwrap_err();
            hooklens::error_chain(&error)
        }
    };
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(lost.contains(&format!("on {}", server.device)) && lost.contains(GONE), "{lost}");
    let again = there.generate_with(TEXT, GenerateOptions::new().max_new_tokens(3)).unwrap_err();
    let again = hooklens::error_chain(&again);
    assert!(again.contains(&format!("on {}", server.device)) && again.contains(GONE), "{again}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Listens on an address and gives this answer; returns the address as a device.
fn impostor(answer: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(answer));
    format!("remote:ws://{address}")
}

/// Something that answers but is not a hooklens server is rejected.
#[test]
fn something_else_at_the_address() {
    let name = impostor(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    });
    assert!(matches!(parse_device(&name), Err(Error::Device { name: named, .. }) if named == name));
}

/// A server of another release announces its version in its first message, whose encoding Burn keeps stable. The error
/// names both versions.
#[test]
fn a_server_of_another_version() {
    use base64::Engine;
    let name = impostor(|mut stream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let mut key = String::new();
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            let Some((name, value)) = line.split_once(": ") else { continue };
            if name.eq_ignore_ascii_case("sec-websocket-key") {
                key = value.trim().to_string();
            }
        }
        let digest = sha1_smol::Sha1::from(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11")).digest().bytes();
        let accept = base64::engine::general_purpose::STANDARD.encode(digest);
        let upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade";
        write!(stream, "{upgrade}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n").unwrap();
        // One binary frame: a refusal by a server of protocol version 9.
        let refusal = [&[0x92, 0x81, 0xab][..], b"InitRefused", &[0x81, 0xb4], b"IncompatibleProtocol", &[0x91, 9, 0]];
        let refusal = refusal.concat();
        stream.write_all(&[&[0x82, refusal.len() as u8][..], &refusal].concat()).unwrap();
        std::thread::sleep(Duration::from_secs(2));
    });
    let refused = parse_device(name).unwrap_err().to_string();
    assert!(refused.contains("version 9") && refused.contains("this client version"), "{refused}");
}
