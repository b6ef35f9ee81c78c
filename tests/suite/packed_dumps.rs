//! Dumps of prompt files to folders, which are read, computed and written as a stream.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hooklens::dump::ActivationStore;
use serde_json::{Value, json};

use crate::dump::read;
use crate::support::program;

/// Values of one prompt, by the name of the point: the shape and the values.
pub(crate) type Row = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn ran(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = program().current_dir(folder).args(arguments).env("HOOKLENS_DEVICE", "flex").output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), said)
}

fn done(folder: &Path, arguments: &[&str]) -> String {
    let (code, said) = ran(folder, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
    said
}

fn manifest(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap()
}

/// Prompts of 1 to 12 tokens, with a few that begin alike.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    (0..count).map(|n| (0..1 + n * 7 % 12).map(|at| ((n * 31 + at * at * 5) % 62 + 1) as u32).collect()).collect()
}

fn write(path: &Path, rows: &[Vec<u32>]) {
    fs::write(path, rows.iter().map(|row| format!("{row:?}\n")).collect::<String>()).unwrap();
}

/// The rows of a folder of packed files, in the order of its prompts.
pub(crate) fn packed(folder: &Path) -> Vec<Row> {
    let manifest = manifest(folder);
    assert_eq!(
        (&manifest["version"], &manifest["layout"], &manifest["complete"]),
        (&json!(6), &json!("packed"), &json!(true))
    );
    let mut rows = BTreeMap::new();
    for entry in manifest["shards"].as_array().unwrap() {
        let tensors = read(&folder.join(entry["file"].as_str().unwrap()));
        let all: BTreeMap<&str, &[f32]> =
            tensors.iter().map(|(name, tensor)| (&**name, tensor.as_slice().unwrap())).collect();
        let integers = |name: &str| tensors[name].iter().map(|value| *value as usize).collect::<Vec<usize>>();
        let (offsets, numbers) = (integers("row_offsets"), integers("prompt_numbers"));
        let mut at: BTreeMap<&str, usize> = BTreeMap::new();
        for (stored, number) in numbers.iter().enumerate() {
            let (start, end) = (offsets[stored], offsets[stored + 1]);
            let mut row = Row::new();
            for (name, tensor) in &tensors {
                if ["row_offsets", "prompt_numbers"].contains(&&**name) || name.ends_with(".shapes") {
                    continue;
                }
                let (shape, own) = match tensors.get(&format!("{name}.shapes")) {
                    Some(shapes) => {
                        let axes = shapes.shape()[1];
                        let shape: Vec<usize> =
                            shapes.iter().skip(stored * axes).take(axes).map(|len| *len as usize).collect();
                        let first = *at.entry(name).or_insert(0);
                        *at.get_mut(&**name).unwrap() += shape.iter().product::<usize>();
                        (shape.clone(), first..first + shape.iter().product::<usize>())
                    }
                    None if tensor.shape()[0] == numbers.len() && name == "logits" => {
                        let width = tensor.len() / numbers.len();
                        (vec![1, width], stored * width..(stored + 1) * width)
                    }
                    None => {
                        let width = tensor.len() / tensor.shape()[0];
                        let shape = [&[end - start], &tensor.shape()[1..]].concat();
                        (shape, start * width..end * width)
                    }
                };
                row.insert(name.clone(), (shape, all[&**name][own].to_vec()));
            }
            let number = entry["first_row"].as_u64().unwrap() as usize + number;
            assert!(rows.insert(number, row).is_none(), "prompt {number} twice");
        }
    }
    assert!(rows.keys().copied().eq(0..rows.len()) && manifest["rows"] == rows.len());
    rows.into_values().collect()
}

/// Compares a row with one of a padded file. Padding is on the right.
fn assert_same(row: &Row, padded: &BTreeMap<String, ndarray::ArrayD<f32>>, number: usize) {
    for (name, (shape, values)) in row {
        let Some(all) = padded.get(name) else {
            assert_eq!(name, "positions");
            continue;
        };
        let mut own = all.index_axis(ndarray::Axis(0), number);
        for (axis, len) in shape.iter().enumerate() {
            own.slice_axis_inplace(ndarray::Axis(axis), (0..*len).into());
        }
        let most = values.iter().filter(|value| value.is_finite()).fold(1f32, |most, value| most.max(value.abs()));
        for (a, b) in own.iter().zip(values) {
            assert!(a == b || (a - b).abs() <= 1e-5 * most, "{name} of prompt {number}: {a} and {b}");
        }
        assert_eq!(own.len(), values.len(), "{name}");
    }
}

const HOOKS: &str = "*resid_post,*attn.hook_z,*hook_pattern,*attn_scores";

/// A packed dump has the values of a single, padded file; so have shards, whatever their number, and other sizes of
/// files and batches.
#[test]
fn packed_files_have_the_values_of_padded_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // Several pieces.
    let rows = prompts(3000);
    write(&path.join("prompts.jsonl"), &rows);
    let dump =
        ["dump", "--model", "embedded:induction", "--prompts", "prompts.jsonl", "--hooks", HOOKS, "--logits", "last"];
    done(path, &[&dump[..], &["--out", "one.safetensors"]].concat());
    let padded = read(&path.join("one.safetensors"));
    let run = |out: &str, more: &[&str]| done(path, &[&dump[..], &["--out", out], more].concat());
    run("whole", &[]);
    let whole = packed(&path.join("whole"));
    assert_eq!(whole.len(), rows.len());
    for (number, row) in whole.iter().enumerate() {
        let tokens: Vec<f32> = rows[number].iter().map(|id| *id as f32).collect();
        assert_eq!(row["tokens"], (vec![tokens.len()], tokens));
        assert_same(row, &padded, number);
    }
    assert!(manifest(&path.join("whole"))["pieces"][1].as_u64().unwrap() > 2);
    // Small files: as many as their size says.
    run("small", &["--file-size", "1MB"]);
    assert_eq!(packed(&path.join("small")), whole);
    let files = manifest(&path.join("small"))["shards"].as_array().unwrap().clone();
    assert!(
        files.len() > 5 && files[..files.len() - 1].iter().all(|file| file["bytes"].as_u64().unwrap() >= 1_000_000)
    );
    for count in [1, 3, 7] {
        let out = format!("of{count}");
        for index in 1..=count {
            run(&out, &["--shard", &format!("{index}/{count}")]);
        }
        done(path, &["merge", "--out", &out]);
        // A shard's first window starts elsewhere, so that prompts are computed in other batches.
        let merged = packed(&path.join(&out));
        assert_eq!(merged.len(), whole.len(), "{count} shards");
        for (number, row) in merged.iter().enumerate() {
            assert_same(row, &padded, number);
        }
    }
    run("single", &["--batch-size", "1", "--positions", "-2.."]);
    let single = packed(&path.join("single"));
    for (number, row) in single.iter().enumerate() {
        let kept = rows[number].len().min(2);
        let (_, positions) = &row["positions"];
        let first = rows[number].len() - kept;
        assert_eq!(positions, &(first..rows[number].len()).map(|at| at as f32).collect::<Vec<_>>());
        let (shape, values) = &row["blocks.1.hook_resid_post"];
        let (_, all) = &whole[number]["blocks.1.hook_resid_post"];
        assert_eq!(shape[0], kept);
        for (a, b) in values.iter().zip(&all[first * shape[1]..]) {
            assert!((a - b).abs() < 1e-3, "{a} and {b}");
        }
    }
}

/// Vectors of a store are those of the prompts, wherever they are stored.
#[test]
fn a_store_reads_packed_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = prompts(2000);
    write(&path.join("prompts.jsonl"), &rows);
    let dump = ["dump", "--model", "embedded:induction", "--prompts", "prompts.jsonl", "--hooks", "resid_post1"];
    for index in ["1/2", "2/2"] {
        done(path, &[&dump[..], &["--shard", index, "--out", "out", "--file-size", "100kB"]].concat());
    }
    let point = "blocks.1.hook_resid_post";
    let count = |folder: PathBuf| {
        let whole = packed(&folder);
        let mut seen = 0;
        for batch in ActivationStore::new([&folder], [point]).batch_size(100).batches().unwrap() {
            let batch = batch.unwrap();
            let vectors = batch.vectors(point).unwrap();
            for (at, token) in batch.tokens().iter().enumerate() {
                let (row, position) = (batch.rows()[at], batch.positions()[at]);
                assert_eq!(*token, rows[row][position]);
                let (shape, values) = &whole[row][point];
                assert_eq!(vectors.row(at).to_vec(), values[position * shape[1]..(position + 1) * shape[1]]);
                seen += 1;
            }
        }
        seen
    };
    done(path, &["merge", "--out", "out"]);
    assert_eq!(count(path.join("out")), rows.iter().map(Vec::len).sum::<usize>());
    // Training on it works like training on any dump.
    let train =
        ["features", "train", "--model", "embedded:induction", "--dump", "out", "--at", point, "--latents", "16"];
    let said =
        done(path, &[&train[..], &["--k", "4", "--tokens", "10k", "--batch-size", "200", "--out", "sae"]].concat());
    assert!(said.contains("16 latents, 50 steps"), "{said}");
}

/// Latents are stored by their nonzero entries.
#[test]
fn latents_are_packed_sparsely() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let prompt = "When Mary and John went to the store, John gave a drink to Mary.";
    fs::write(path.join("prompts.txt"), format!("{prompt}\nWhen Tom and Anna went to\n").repeat(300)).unwrap();
    let dump = ["dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--prompts", "prompts.txt"];
    let dump = [&dump[..], &["--hooks", "*hook_sae_acts_post"]].concat();
    done(path, &[&dump[..], &["--out", "packed"]].concat());
    done(path, &[&dump[..], &["--out", "dense.safetensors"]].concat());
    let point = "blocks.2.hook_resid_post.hook_sae_acts_post";
    let (sparse, dense) = (read(&path.join("packed/part-00000.safetensors")), read(&path.join("dense.safetensors")));
    let part = |part: &str| sparse[&format!("{point}.{part}")].iter().map(|value| *value as usize).collect::<Vec<_>>();
    let (offsets, indices, shape) = (part("offsets"), part("indices"), part("shape"));
    let values: Vec<f32> = sparse[&format!("{point}.values")].iter().copied().collect();
    let tokens = sparse["tokens"].len();
    assert_eq!((offsets.len(), shape), (tokens + 1, vec![tokens, 256]));
    let (starts, numbers) = (&sparse["row_offsets"], &sparse["prompt_numbers"]);
    for stored in 0..numbers.len() {
        let [start, end] = [stored, stored + 1].map(|row| starts[[row]] as usize);
        for token in start..end {
            let row = dense[point].index_axis(ndarray::Axis(0), numbers[[stored]] as usize).to_owned();
            let row = row.index_axis(ndarray::Axis(0), token - start).to_owned();
            let mut own = vec![0f32; 256];
            (offsets[token]..offsets[token + 1]).for_each(|at| own[indices[at]] = values[at]);
            assert!(own.iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-4), "token {token}");
        }
    }
}

/// A line that is not a prompt ends a dump, or is left out, counted and named.
#[test]
fn bad_lines_are_left_out_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut text: String = prompts(1500).iter().map(|row| format!("{row:?}\n")).collect();
    text.push_str("{\"wrong\": 1}\n[1, 99]\n[5, 6]\n\u{0}\n[7]\n");
    fs::write(path.join("p.jsonl"), &text).unwrap();
    let dump =
        ["dump", "--model", "embedded:induction", "--prompts", "p.jsonl", "--hooks", "resid_post1", "--out", "out"];
    let (code, said) = ran(path, &dump);
    assert!(code == Some(1) && said.contains("p.jsonl:1501"), "{said}");
    fs::remove_dir_all(path.join("out")).unwrap();
    let said = done(path, &[&dump[..], &["--on-error", "skip"]].concat());
    for line in ["p.jsonl:1501: ", "p.jsonl:1502: ", "p.jsonl:1504: "] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("left out 3 prompts") && said.contains("1,502 prompts"), "{said}");
    let manifest = manifest(&path.join("out"));
    let skipped =
        manifest["shards"].as_array().unwrap().iter().filter_map(|file| file["skipped"].as_u64()).sum::<u64>();
    assert_eq!((skipped, &manifest["rows"]), (3, &json!(1502)));
    let last = packed(&path.join("out")).pop().unwrap();
    assert_eq!(last["tokens"].1, [7.0]);
}

/// A dump is not continued with other prompts, and says which.
#[test]
fn a_changed_corpus_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = prompts(3000);
    write(&path.join("p.jsonl"), &rows);
    let dump =
        ["dump", "--model", "embedded:induction", "--prompts", "p.jsonl", "--hooks", "resid_post1", "--out", "out"];
    done(path, &[&dump[..], &["--file-size", "100kB"]].concat());
    let resume = [&dump[..], &["--resume"]].concat();
    assert!(done(path, &resume).contains("already complete"));
    let whole = fs::read_to_string(path.join("p.jsonl")).unwrap();
    // The same length.
    let at = whole.len() - 40;
    let changed = whole[at..].find(|c: char| c.is_ascii_digit()).unwrap() + at;
    let digit = if &whole[changed..=changed] == "1" { "2" } else { "1" };
    fs::write(path.join("p.jsonl"), [&whole[..changed], digit, &whole[changed + 1..]].concat()).unwrap();
    let (code, said) = ran(path, &resume);
    assert!(code == Some(1) && said.contains("p.jsonl, bytes ") && said.contains("have changed"), "{said}");
    fs::write(path.join("p.jsonl"), format!("{whole}[1]\n")).unwrap();
    let (code, said) = ran(path, &resume);
    assert!(code == Some(1) && said.contains(&format!("p.jsonl: {} bytes before", whole.len())), "{said}");
}
