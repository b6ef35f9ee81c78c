//! Hub ids, tested with a small local server that implements as much of the hub's protocol as a download needs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::fixtures;

/// Requests that the server received: path and authorization.
type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// Serves the files of `folder` as the model `org/tiny`, and those of GPT-2 as its revision step 7, until the test
/// program ends.
fn serve(folder: PathBuf) -> (String, Asked) {
    serve_slowly(folder, Duration::ZERO)
}

/// Like [`serve`], but delays the last weight file.
fn serve_slowly(folder: PathBuf, late: Duration) -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked: Asked = Arc::default();
    let log = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, log) = (folder.clone(), log.clone());
            std::thread::spawn(move || answer(stream, &folder, late, &log));
        }
    });
    (endpoint, asked)
}

fn answer(mut stream: TcpStream, folder: &Path, late: Duration, log: &Asked) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = request.split_whitespace().nth(1).unwrap_or_default().to_string();
    let (mut start, mut end, mut token) = (0, None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (a, b) = value.trim().trim_start_matches("bytes=").split_once('-').unwrap();
                (start, end) = (a.parse().unwrap(), b.parse::<usize>().ok());
            }
            "authorization" => token = Some(value.trim().to_string()),
            _ => {}
        }
    }
    log.lock().unwrap().push((path.clone(), token));
    if path.ends_with("model-00002-of-00002.safetensors") && end != Some(0) {
        std::thread::sleep(late);
    }
    let earlier = fixtures().join("gpt2");
    let revisions = [("main/", "abc123", folder), ("abc123/", "abc123", folder), ("step7/", "de7", &earlier)];
    let revisions =
        revisions.into_iter().chain([("de7/", "de7", earlier.as_path()), ("refs%2Fpr%2F1/", "de7", &earlier)]);
    let found = revisions.into_iter().find_map(|(revision, commit, folder)| {
        let name = path.strip_prefix("/org/tiny/resolve/")?.strip_prefix(revision)?;
        Some((fs::read(folder.join(name)).ok()?, commit))
    });
    // A file that the server has but can't send now.
    if path.rsplit('/').next().is_some_and(|name| folder.join(format!("{name}.broken")).exists()) {
        return stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    let Some((bytes, commit)) = found else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    let part = &bytes[start..end.map_or(bytes.len(), |end| (end + 1).min(bytes.len()))];
    let name = path.rsplit('/').next().unwrap();
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nx-repo-commit: {commit}\r\netag: \"{name}-etag\"\r\ncontent-range: bytes {start}-{}/{}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        start + part.len().max(1) - 1,
        bytes.len(),
        part.len()
    )?;
    stream.write_all(part)
}

fn info(model: &str, home: &Path, environment: &[(&str, &str)]) -> Output {
    run(&["info", "--model", model], home, environment)
}

fn dump(model: &str, home: &Path, environment: &[(&str, &str)]) -> Output {
    let out = home.join("out.safetensors");
    run(&["dump", "--model", model, "--tokens", "1,2", "--out", out.to_str().unwrap()], home, environment)
}

fn run(arguments: &[&str], home: &Path, environment: &[(&str, &str)]) -> Output {
    let mut command = crate::support::program();
    command
        .args(arguments)
        .env_remove("HF_HUB_CACHE")
        .env("HF_HOME", home)
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("HF_TOKEN");
    for (name, value) in environment {
        command.env(name, value);
    }
    command.output().unwrap()
}

#[test]
fn a_hub_model_is_fetched_once_and_then_works_offline() {
    let (endpoint, asked) = serve(fixtures().join("llama-sharded"));
    let home = tempfile::tempdir().unwrap();
    let online = [("HF_ENDPOINT", endpoint.as_str()), ("HF_TOKEN", "hf_secret")];
    let first = info("org/tiny", home.path(), &online);
    let said = String::from_utf8_lossy(&first.stdout);
    assert!(first.status.success() && said.contains("llama"), "{said}{}", String::from_utf8_lossy(&first.stderr));
    assert!(said.contains("not downloaded"), "{said}");
    let described = asked.lock().unwrap().clone();
    assert!(described.iter().all(|(path, _)| !path.contains("model-0000")), "{described:?}");
    // Cached information is not requested again; the rest comes from the same commit.
    let made = dump("org/tiny", home.path(), &online);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let requests = asked.lock().unwrap().clone();
    assert!(requests[described.len()..].iter().all(|(path, _)| path.contains("abc123")), "{requests:?}");
    assert!(requests.iter().any(|(path, _)| path.ends_with("model-00002-of-00002.safetensors")), "{requests:?}");
    assert!(requests.iter().all(|(_, token)| token.as_deref() == Some("Bearer hf_secret")), "{requests:?}");
    assert!(home.path().join("hub/models--org--tiny/snapshots/abc123/config.json").exists());

    // Everything is in the standard cache now, so no server is needed.
    let nowhere = [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")];
    let offline = dump("org/tiny", home.path(), &nowhere);
    assert!(offline.status.success(), "{}", String::from_utf8_lossy(&offline.stderr));
    let again = dump("org/tiny", home.path(), &online);
    assert!(again.status.success() && asked.lock().unwrap().len() == requests.len(), "asked for what is there");

    // The cache may be in another folder.
    let hub = home.path().join("hub");
    let elsewhere = [&nowhere[..], &[("HF_HUB_CACHE", hub.to_str().unwrap())]].concat();
    let other = tempfile::tempdir().unwrap();
    assert!(info("org/tiny", other.path(), &elsewhere).status.success());
}

/// Jobs that start at once with a model that is not cached: one downloads it, and all get it.
#[test]
fn many_at_once_share_one_download() {
    let (endpoint, asked) = serve_slowly(fixtures().join("llama-sharded"), Duration::from_secs(7));
    let home = tempfile::tempdir().unwrap();
    let jobs: Vec<_> = (0..8)
        .map(|_| {
            let (endpoint, home) = (endpoint.clone(), home.path().to_path_buf());
            std::thread::spawn(move || {
                let out = tempfile::tempdir().unwrap();
                let file = out.path().join("out.safetensors");
                let arguments = ["dump", "--model", "org/tiny", "--tokens", "1,2", "--out", file.to_str().unwrap()];
                run(&arguments, &home, &[("HF_ENDPOINT", &endpoint)])
            })
        })
        .collect();
    for job in jobs {
        let done = job.join().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let asked = asked.lock().unwrap();
    let last = asked.iter().filter(|(path, _)| path.ends_with("model-00002-of-00002.safetensors")).count();
    assert!(last <= 3, "the last file was asked for {last} times");
}

#[test]
fn a_revision_is_what_the_model_was_then() {
    let (endpoint, _) = serve(fixtures().join("llama-sharded"));
    let home = tempfile::tempdir().unwrap();
    let online = [("HF_ENDPOINT", endpoint.as_str())];
    let offline = [("HF_HUB_OFFLINE", "1")];
    // The latest revision first, so that the cache contains another commit.
    for (model, family) in [("org/tiny", "llama"), ("org/tiny@step7", "gpt2"), ("org/tiny@refs/pr/1", "gpt2")] {
        let output = info(model, home.path(), &online);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(family), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    let made = dump("org/tiny@step7", home.path(), &online);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for model in ["org/tiny@step7", "org/tiny@de7", "org/tiny@refs/pr/1"] {
        let made = dump(model, home.path(), &offline);
        assert!(made.status.success(), "{model}: {}", String::from_utf8_lossy(&made.stderr));
    }
    // Another program's cache may not have a commit under its own name.
    fs::remove_file(home.path().join("hub/models--org--tiny/refs/de7")).unwrap();
    assert!(dump("org/tiny@de7", home.path(), &offline).status.success());

    // An adapter names the revision of its base that it was trained on.
    let adapter = home.path().join("adapter");
    fs::create_dir(&adapter).unwrap();
    let from = fixtures().join("lora-gpt2");
    let config = fs::read_to_string(from.join("adapter_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    (config["base_model_name_or_path"], config["revision"]) = ("org/tiny".into(), "step7".into());
    fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    fs::copy(from.join("adapter_model.safetensors"), adapter.join("adapter_model.safetensors")).unwrap();
    let made = dump(adapter.to_str().unwrap(), home.path(), &offline);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let secret = home.path().join("secret");
    for (model, says) in [
        ("org/tiny@step8", "404"),
        ("org/tiny@", "branch, tag or commit"),
        ("org/tiny@refs/../../../../secret", "branch, tag or commit"),
        ("org/tiny@..", "branch, tag or commit"),
        ("org/tiny@../../../secret", "no such folder"),
        (&format!("org/tiny@{}", secret.display()), "no such folder"),
        ("./tiny@step7", "no such folder"),
        ("runs/tiny@lr1/step7", "no such folder"),
    ] {
        let output = info(model, home.path(), &online);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(model) && said.contains(says), "{said}");
    }
    assert!(!secret.exists());
}

#[test]
fn a_model_that_can_not_be_had_says_what_to_do() {
    let (endpoint, _) = serve(fixtures().join("llama"));
    let home = tempfile::tempdir().unwrap();
    for (model, environment) in [
        ("org/other", [("HF_ENDPOINT", endpoint.as_str())]),
        ("org/tiny", [("HF_ENDPOINT", "http://127.0.0.1:9")]),
        ("org/tiny", [("HF_HUB_OFFLINE", "1")]),
    ] {
        let output = info(model, home.path(), &environment);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(model) && said.contains("pass a folder"), "{said}");
    }
}

/// A model without one of its files must not pass for the whole model, neither now nor later.
#[test]
fn a_file_that_could_not_be_fetched_is_not_a_file_that_is_not_there() {
    let (served, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(fixtures().join("llama-sharded")).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&entry, served.path().join(entry.file_name().unwrap())).unwrap();
    }
    let broken = served.path().join("generation_config.json.broken");
    fs::write(&broken, "").unwrap();
    let (endpoint, _) = serve(served.path().to_path_buf());
    let online = [("HF_ENDPOINT", endpoint.as_str())];
    let first = dump("org/tiny", home.path(), &online);
    let said = String::from_utf8_lossy(&first.stderr);
    assert!(
        !first.status.success() && said.contains("downloading `generation_config.json` from the hub failed"),
        "{said}"
    );
    fs::remove_file(broken).unwrap();
    let second = dump("org/tiny", home.path(), &online);
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
}
