//! Dumps of prompt files to folders, which are read, computed and written as a stream.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hooklens::corpus::Prompt;
use hooklens::dump::ActivationStore;
use serde_json::{Value, json};

use crate::corpora::gzipped;
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

/// A corpus has the same rows in every format and in any number of shards.
#[test]
fn formats_have_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let words = ["red", "fox", "tea", "owl", "blue", "elk", "king", "drum", "sun", "star", "moon"];
    let text =
        |n: usize| (0..1 + n * 7 % 12).map(|at| words[(n * 31 + at * at * 5) % 11]).collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = (0..600).map(text).collect();
    let plain = texts.iter().map(|text| format!("{text}\n")).collect::<String>();
    let json = texts.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect::<String>();
    // Frames end within lines.
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let frames = plain.as_bytes().chunks(500).flat_map(|part| ruzstd::encoding::compress_to_vec(part, level));
    fs::write(path.join("frames.txt.zst"), frames.collect::<Vec<u8>>()).unwrap();
    fs::write(path.join("packed.jsonl.gz"), crate::corpora::gzipped(json.as_bytes())).unwrap();
    fs::write(path.join("lines.jsonl"), json).unwrap();
    fs::write(path.join("plain.txt"), plain).unwrap();
    let mut files = vec!["plain.txt", "lines.jsonl", "packed.jsonl.gz", "frames.txt.zst"];
    if cfg!(feature = "arrow") {
        write_tables(path, &texts);
        files.extend(["table.parquet", "table.arrow"]);
    }
    let mut whole: Option<Vec<Row>> = None;
    for file in files {
        for count in [1, 7, 64] {
            let out = format!("{file}-{count}");
            for index in 1..=count {
                let shard = format!("{index}/{count}");
                let dump = ["dump", "--model", "embedded:induction", "--prompts", file, "--hooks", "*resid_post"];
                done(path, &[&dump[..], &["--quiet", "--shard", &shard, "--out", &out]].concat());
            }
            done(path, &["merge", "--out", &out]);
            let rows = packed(&path.join(&out));
            let whole = whole.get_or_insert_with(|| rows.clone());
            assert_eq!(rows.len(), texts.len(), "{out}");
            for (row, own) in rows.iter().zip(whole) {
                for ((name, (shape, values)), (_, expected)) in row.iter().zip(own.values()) {
                    // Shards compute prompts in other batches.
                    let apart = values.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                    assert!(values.len() == expected.len() && apart < 1e-4, "{out}: {name} {shape:?}");
                }
                assert!(row.keys().eq(own.keys()) && row["tokens"] == own["tokens"]);
            }
            let pieces = manifest(&path.join(&out))["pieces"][1].as_u64().unwrap();
            assert!(file.ends_with(".gz") || pieces > 7, "{file} has {pieces} pieces");
        }
    }
}

#[cfg(not(feature = "arrow"))]
fn write_tables(_: &Path, _: &[String]) {}

/// Writes tables of 20 row groups and 20 record batches.
#[cfg(feature = "arrow")]
fn write_tables(folder: &Path, texts: &[String]) {
    use std::sync::Arc;
    let field = arrow_schema::Field::new("text", arrow_schema::DataType::Utf8, false);
    let schema = Arc::new(arrow_schema::Schema::new(vec![field]));
    let file = |name: &str| fs::File::create(folder.join(name)).unwrap();
    let mut parquet = parquet::arrow::ArrowWriter::try_new(file("table.parquet"), schema.clone(), None).unwrap();
    let mut arrow = arrow_ipc::writer::FileWriter::try_new(file("table.arrow"), &schema).unwrap();
    for texts in texts.chunks(30) {
        let column = Arc::new(arrow_array::StringArray::from_iter_values(texts));
        let rows = arrow_array::RecordBatch::try_new(schema.clone(), vec![column]).unwrap();
        parquet.write(&rows).unwrap();
        parquet.flush().unwrap();
        arrow.write(&rows).unwrap();
    }
    parquet.close().unwrap();
    arrow.finish().unwrap();
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

/// A dump that leaves prompts out can be continued after any of its files: prompts that can't be read, that can't be
/// tokenized and that don't fit are counted alike by both runs. Joined prompts may be too short for a row.
#[test]
fn dumps_that_leave_prompts_out_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let bad = ["{\"wrong\": 1}", "{\"text\": \"\"}", "[1, 99]", "{\"text\": \"zebra\"}", "\u{0}"];
    let lines = prompts(1500).into_iter().enumerate().flat_map(|(number, row)| {
        let left_out = (number % 100 == 50).then(|| bad[number / 100 % bad.len()].to_string());
        left_out.into_iter().chain([format!("{row:?}")])
    });
    let text = lines.map(|line| line + "\n").collect::<String>();
    fs::write(path.join("a.jsonl.gz"), gzipped(text.as_bytes())).unwrap();
    fs::write(path.join("b.jsonl"), "{\"text\": \"\"}\n").unwrap();
    fs::write(path.join("c.jsonl"), format!("{text}{{\"text\": \"zebra\"}}\n")).unwrap();
    for more in [&[][..], &["--concatenate", "8"]] {
        let run = |out: &str, own: &[&str]| {
            let dump = ["dump", "--model", "embedded:induction", "--hooks", "resid_post1", "--file-size", "100kB"];
            let dump = [&dump[..], &["--prompts", "a.jsonl.gz", "b.jsonl", "c.jsonl", "--on-error", "skip"]].concat();
            done(path, &[&dump[..], &["--out", out], more, own].concat())
        };
        run("whole", &[]);
        let (whole, expected) = (packed(&path.join("whole")), manifest(&path.join("whole")));
        assert!(run("whole", &["--resume"]).contains("already complete"));
        let listed = expected["shards"].as_array().unwrap();
        let files: Vec<&str> = listed.iter().map(|file| file["file"].as_str().unwrap()).collect();
        assert!(files.len() > 3, "{files:?}");
        // Continue after each file.
        for kept in 0..files.len() {
            fs::create_dir(path.join("part")).unwrap();
            for name in files[..kept].iter().chain(&["manifest.json"]) {
                fs::copy(path.join("whole").join(name), path.join("part").join(name)).unwrap();
            }
            run("part", &["--resume"]);
            let (again, given) = (packed(&path.join("part")), manifest(&path.join("part")));
            assert_eq!(again.len(), whole.len(), "{more:?} after {kept} files");
            assert!(again.iter().zip(&whole).all(|(again, whole)| again == whole), "{more:?} after {kept} files");
            let skipped = |manifest: &Value| {
                let files = manifest["shards"].as_array().unwrap();
                files.iter().filter_map(|file| file["skipped"].as_u64()).sum::<u64>()
            };
            assert_eq!(skipped(&given), skipped(&expected), "{more:?} after {kept} files");
            fs::remove_dir_all(path.join("part")).unwrap();
        }
        fs::remove_dir_all(path.join("whole")).unwrap();
    }
}

/// Prompts that are selected by number have the values that they have in the whole corpus; shards of them have equal
/// numbers of prompts.
#[test]
fn selected_prompts_are_those_of_the_corpus() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = prompts(3000);
    write(&path.join("a.jsonl"), &rows[..700]);
    let (packed_half, rest) = (path.join("b.jsonl.gz"), &rows[700..]);
    fs::write(packed_half, gzipped(rest.iter().map(|row| format!("{row:?}\n")).collect::<String>().as_bytes()))
        .unwrap();
    let dump =
        ["dump", "--model", "embedded:induction", "--prompts", "a.jsonl", "b.jsonl.gz", "--hooks", "resid_post1"];
    let run = |out: &str, more: &[&str]| ran(path, &[&dump[..], &["--out", out], more].concat());
    let rows_of = |out: &str, more: &[&str]| {
        let (code, said) = run(out, more);
        assert_eq!(code, Some(0), "{said}");
        packed(&path.join(out))
    };
    let same = |found: &[Row], expected: &[&Row]| {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found["tokens"], expected["tokens"]);
            let (values, others) = (&found["blocks.1.hook_resid_post"].1, &expected["blocks.1.hook_resid_post"].1);
            let most = others.iter().fold(1f32, |most, value| most.max(value.abs()));
            assert!(values.iter().zip(others).all(|(a, b)| (a - b).abs() <= 1e-5 * most));
        }
    };
    let all = rows_of("all", &[]);
    let range: Vec<&Row> = all[650..770].iter().collect();
    same(&rows_of("range", &["--skip", "650", "--limit", "120"]), &range);
    for index in ["1", "2", "3", "4"] {
        let shard = format!("{index}/4");
        let (code, said) = run("s", &["--skip", "650", "--limit", "120", "--shard", &shard]);
        assert!(code == Some(0) && said.contains("30 prompts"), "{said}");
    }
    done(path, &["merge", "--out", "s"]);
    same(&packed(&path.join("s")), &range);
    let sample = ["--sample", "200", "--sample-seed", "3"];
    let drawn = rows_of("drawn", &sample);
    let chosen = hooklens::corpus::Corpus::new([path.join("a.jsonl"), path.join("b.jsonl.gz")]).sample(200, 3);
    let chosen: Vec<Vec<u32>> = chosen
        .prompts()
        .unwrap()
        .map(|prompt| match prompt.unwrap() {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => panic!("{text}"),
        })
        .collect();
    for (row, ids) in drawn.iter().zip(&chosen) {
        assert_eq!(row["tokens"].1, ids.iter().map(|id| *id as f32).collect::<Vec<_>>());
    }
    assert_eq!(drawn.len(), 200);
    // A finished dump is not continued with another selection.
    assert!(done(path, &[&dump[..], &["--out", "drawn", "--resume"], &sample].concat()).contains("already complete"));
    let (code, said) = run("drawn", &["--sample", "200", "--sample-seed", "4", "--resume"]);
    assert!(code == Some(1) && said.contains("sample"), "{said}");
    let (code, said) = run("none", &["--skip", "3000"]);
    assert!(code == Some(1) && said.contains("no prompts left"), "{said}");
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

/// Files that are missing or damaged are computed again, whichever they are.
#[test]
fn missing_files_are_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(&path.join("p.jsonl"), &prompts(3000));
    let dump = ["dump", "--model", "embedded:induction", "--prompts", "p.jsonl", "--hooks", "resid_post1"];
    let run = |out: &str, more: &[&str]| done(path, &[&dump[..], &["--file-size", "1MB", "--out", out], more].concat());
    run("whole", &[]);
    let whole = packed(&path.join("whole"));
    for (out, file, damaged) in [("a", "part-00000", false), ("b", "part-00000", true), ("c", "part-00002", true)] {
        run(out, &[]);
        let file = path.join(out).join(format!("{file}.safetensors"));
        let mut bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 1;
        if damaged { fs::write(&file, bytes) } else { fs::remove_file(&file) }.unwrap();
        run(out, &["--resume"]);
        assert_eq!(packed(&path.join(out)), whole, "{out}");
    }
}

/// A resumed dump records whether its prompts begin with BOS as a single run does, even if their first tokens are not
/// stored.
#[test]
fn resumed_dumps_know_whether_prompts_begin_with_bos() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (first, begins) in [(0, json!(true)), (7, json!(false))] {
        write(&path.join("p.jsonl"), &(0..3000).map(|n| vec![first, 9 + n % 5, 21, 4]).collect::<Vec<_>>());
        let out = format!("out{first}");
        let files = ["--prompts", "p.jsonl", "--positions", "-1", "--file-size", "100kB", "--out", &out];
        let dump = [&["dump", "--model", "embedded:ioi", "--hooks", "resid_post1"][..], &files].concat();
        done(path, &dump);
        let whole = manifest(&path.join(&out));
        assert_eq!(whole["model"]["prepend_bos"], begins);
        let parts = whole["shards"].as_array().unwrap();
        assert!(parts.len() > 2);
        fs::remove_file(path.join(&out).join(parts.last().unwrap()["file"].as_str().unwrap())).unwrap();
        done(path, &[&dump[..], &["--resume"]].concat());
        assert_eq!(manifest(&path.join(&out))["model"], whole["model"]);
    }
}

/// A dump is neither continued nor merged with prompts that were tokenized in another way.
#[test]
fn other_tokenizations_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("p.txt"), "red fox tea owl\n".repeat(1200)).unwrap();
    let dump = ["dump", "--model", "embedded:induction", "--prompts", "p.txt", "--hooks", "resid_post1"];
    let run = |more: &[&str]| ran(path, &[&dump[..], more].concat());
    for (more, words) in [
        (&["--truncate", "2"][..], "truncate: not set before, 2 now"),
        (&["--concatenate", "8"], "concatenate"),
        (&["--prepend-bos", "false"], "prepended_token: 0 before, null now"),
    ] {
        let _ = fs::remove_dir_all(path.join("d"));
        assert_eq!(run(&["--out", "d"]).0, Some(0));
        let (code, said) = run(&[more, &["--out", "d", "--resume"]].concat());
        assert!(code == Some(1) && said.contains(words), "{said}");
        let _ = fs::remove_dir_all(path.join("s"));
        assert_eq!(run(&["--shard", "1/2", "--out", "s"]).0, Some(0));
        assert_eq!(run(&[more, &["--shard", "2/2", "--out", "s"]].concat()).0, Some(0));
        let (code, said) = ran(path, &["merge", "--out", "s"]);
        assert!(
            code == Some(1) && said.contains(more[0].trim_start_matches("--").split('-').next().unwrap()),
            "{said}"
        );
    }
}

/// A training is not continued with other prompts, although their files have the same length.
#[test]
fn trainings_notice_changed_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = prompts(3000);
    write(&path.join("p.jsonl"), &rows);
    let train = ["features", "train", "--model", "embedded:induction", "--prompts", "p.jsonl", "--at", "resid_post1"];
    let train = [&train[..], &["--latents", "16", "--k", "4", "--batch-size", "100", "--out", "sae"]].concat();
    let train = [&train[..], &["--tokens", "100M", "--checkpoint-every", "1k"]].concat();
    // A training that was killed leaves its checkpoint.
    let mut child = program().current_dir(path).args(&train).env("HOOKLENS_DEVICE", "flex").spawn().unwrap();
    while !path.join("sae/checkpoint.safetensors").exists() {
        assert!(child.try_wait().unwrap().is_none(), "ended before its first checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let swapped: Vec<Vec<u32>> = rows.iter().map(|row| row.iter().rev().copied().collect()).collect();
    write(&path.join("p.jsonl"), &swapped);
    let (code, said) = ran(path, &[&train[..], &["--resume"]].concat());
    assert!(code == Some(1) && said.contains("the prompts that were read have changed"), "{said}");
}

/// Token ids of a row, and the values of each point.
#[cfg(feature = "arrow")]
type TableRow = (Vec<i32>, BTreeMap<String, Vec<f32>>);

/// Rows of the tables in a folder, with latents as vectors of 256.
#[cfg(feature = "arrow")]
fn rows_of_tables(folder: &Path) -> Vec<TableRow> {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Int32Type, Int64Type};
    let mut rows = BTreeMap::<i64, TableRow>::new();
    for entry in manifest(folder)["shards"].as_array().unwrap() {
        let file = fs::File::open(folder.join(entry["file"].as_str().unwrap())).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        for batch in reader.build().unwrap().map(Result::unwrap) {
            for token in 0..batch.num_rows() {
                let integer = |name: &str| batch[name].as_primitive::<Int32Type>().value(token);
                let row = rows.entry(batch["prompt"].as_primitive::<Int64Type>().value(token)).or_default();
                assert_eq!(row.0.len(), integer("position") as usize);
                row.0.push(integer("token"));
                for (field, column) in batch.schema().fields().iter().zip(batch.columns()).skip(3) {
                    let name = field.name();
                    let values = match name.strip_suffix(".indices") {
                        Some(name) => {
                            let lists =
                                [column, &batch[&*format!("{name}.values")]].map(|lists| lists.as_list::<i32>());
                            let [latents, values] = lists.map(|lists| lists.value(token));
                            let latents = latents.as_primitive::<Int32Type>().values().iter();
                            let mut dense = vec![0.0; 256];
                            for (latent, value) in latents.zip(values.as_primitive::<Float32Type>().values()) {
                                dense[*latent as usize] = *value;
                            }
                            dense
                        }
                        None if name.ends_with(".values") => continue,
                        None => {
                            column.as_fixed_size_list().value(token).as_primitive::<Float32Type>().values().to_vec()
                        }
                    };
                    let name = name.strip_suffix(".indices").unwrap_or(name);
                    row.1.entry(name.to_string()).or_default().extend(values);
                }
            }
        }
    }
    assert!(rows.keys().copied().eq(0..rows.len() as i64));
    rows.into_values().collect()
}

/// Tables of prompt files are streamed like tensors: the same values in files and shards of any number, and after a run
/// that was continued.
#[cfg(feature = "arrow")]
#[test]
fn tables_have_the_values_of_padded_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = prompts(1500);
    write(&path.join("prompts.jsonl"), &rows);
    let dump = ["dump", "--model", "embedded:ioi", "--prompts", "prompts.jsonl", "--dictionary", "embedded:ioi-sae"];
    let dump = [&dump[..], &["--hooks", "*attn.hook_z,blocks.2.hook_resid_post,*hook_sae_acts_post"]].concat();
    done(path, &[&dump[..], &["--out", "one.safetensors"]].concat());
    let padded = read(&path.join("one.safetensors"));
    let run = |out: &str, more: &[&str]| done(path, &[&dump[..], &["--tables", "--out", out], more].concat());
    run("whole", &[]);
    let whole = rows_of_tables(&path.join("whole"));
    assert_eq!(whole.len(), rows.len());
    for (number, ((tokens, points), own)) in whole.iter().zip(&rows).enumerate() {
        assert!(tokens.iter().map(|id| *id as u32).eq(own.iter().copied()));
        assert_eq!(points.len(), 6, "{:?}", points.keys());
        let shaped = |(name, values): (&String, &Vec<f32>)| {
            let all = &padded[name].shape()[2..];
            (name.clone(), ([&[own.len()], all].concat(), values.clone()))
        };
        assert_same(&points.iter().map(shaped).collect(), &padded, number);
    }
    run("small", &["--file-size", "1MB"]);
    assert!(manifest(&path.join("small"))["shards"].as_array().unwrap().len() > 2);
    assert_eq!(rows_of_tables(&path.join("small")), whole);
    let shards = [1, 2, 3].map(|shard| {
        run("shards", &["--shard", &format!("{shard}/3")]);
        rows_of_tables(&path.join(format!("shards/0000{shard}-of-00003")))
    });
    assert_eq!(shards.concat().len(), whole.len());
    for (own, other) in shards.concat().iter().zip(&whole) {
        assert_eq!(own.0, other.0);
        let apart = own.1.iter().zip(&other.1).flat_map(|(a, b)| a.1.iter().zip(b.1).map(|(a, b)| (a - b).abs()));
        assert!(apart.fold(0f32, f32::max) < 1e-4);
    }
    // The last file is missing, and its manifest is that of a run that was killed.
    let text = manifest(&path.join("small"));
    let files = text["shards"].as_array().unwrap();
    let log = files[..files.len() - 1].iter().map(|entry| format!("{entry}\n")).collect::<String>();
    fs::write(path.join("small/shards.jsonl"), log).unwrap();
    let mut unfinished = text.clone();
    (unfinished["complete"], unfinished["shards"], unfinished["token_texts"]) = (json!(false), json!([]), json!({}));
    fs::write(path.join("small/manifest.json"), unfinished.to_string()).unwrap();
    fs::remove_file(path.join("small").join(files[files.len() - 1]["file"].as_str().unwrap())).unwrap();
    run("small", &["--file-size", "1MB", "--resume"]);
    assert_eq!(rows_of_tables(&path.join("small")), whole);
    assert_eq!(manifest(&path.join("small"))["token_texts"], text["token_texts"]);
}
