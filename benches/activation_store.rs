//! Throughput of reading a dump's vectors in random order, compared with reading the same files sequentially.
//!
//! `cargo bench --bench activation_store -- FOLDER POINT`, where FOLDER is a dump. To measure the disk, the system's
//! page cache must be empty before each pass; `--drop` empties it (Linux, as root).

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use hooklens::dump::ActivationStore;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [folder, point, rest @ ..] = &arguments[..] else {
        println!("usage: activation_store FOLDER POINT: a dump's folder and one of its hook points");
        return Ok(());
    };
    let empty = || match rest.iter().any(|option| option == "--drop") {
        true => std::fs::write("/proc/sys/vm/drop_caches", "3"),
        false => Ok(()),
    };
    for _ in 0..3 {
        empty()?;
        let begin = Instant::now();
        let bytes = read(Path::new(folder))?;
        let plain = bytes as f64 / begin.elapsed().as_secs_f64() / 1e9;
        empty()?;
        let begin = Instant::now();
        let mut served = 0;
        for batch in ActivationStore::new([folder], [point]).batch_size(4096).batches()? {
            served += batch?.vectors(point)?.len() * 4;
        }
        let store = served as f64 / begin.elapsed().as_secs_f64() / 1e9;
        println!("plain reading {plain:.2} GB/s, store {store:.2} GB/s, ratio {:.2}", store / plain);
    }
    Ok(())
}

/// Reads the files of a folder and returns their total size in bytes.
fn read(folder: &Path) -> std::io::Result<usize> {
    let (mut all, mut buffer) = (0, vec![0; 4 << 20]);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all += read(&path)?;
        } else if path.extension().is_some_and(|ending| ending == "safetensors") {
            let mut file = std::fs::File::open(path)?;
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    read => all += read,
                }
            }
        }
    }
    Ok(all)
}
