//! Dumps: contents of the files, and recovery from interruptions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hooklens::PaddingSide;
use hooklens::dump::{Dump, Shard};
use hooklens::experiments::SteeringVector;
use hooklens::prelude::*;
use hooklens::{ActivationFn, DumpError, Error, HookError, Positional};
use hooklens_model::config::{Experts, Layers, Settings};
use ndarray::{ArrayD, IxDyn};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};

use crate::support::{any_config, any_row, cases, distance, failure, random_model};

/// All tensors of a file, as floats.
pub(crate) fn read(path: &Path) -> BTreeMap<String, ArrayD<f32>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let one = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let data = view.data();
        assert!(
            (data.as_ptr() as usize - bytes.as_ptr() as usize).is_multiple_of(view.dtype().bitsize() / 8),
            "{name}"
        );
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => data.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::I32 => data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
            _ => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
        };
        (name, ArrayD::from_shape_vec(IxDyn(view.shape()), values).unwrap())
    };
    file.tensors().into_iter().map(one).collect()
}

fn any_positions() -> impl Strategy<Value = Positions> {
    prop_oneof![
        Just(Positions::All),
        Just(Positions::At(-1)),
        Just(Positions::At(0)),
        Just(Positions::Range(Some(1), None)),
        Just(Positions::Range(Some(-2), None)),
        Just(Positions::Range(None, Some(-1))),
        Just(Positions::Range(Some(0), Some(3))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(120) })]

    /// For any batching and padding and any selection of positions, a file contains for each prompt what running it
    /// alone records, also after a prefix.
    #[test]
    fn a_file_holds_what_each_prompt_gives_alone(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(2..6), 1..7),
        batch in 1..5usize, left: bool, positions in any_positions(), prefix in prop::collection::vec(0..20u32, 0..3),
        alike in prop::option::of(any_row(20..24)),
    ) {
        // Prompts with a common prefix are computed together.
        let start = alike.unwrap_or_default();
        let rows: Vec<Vec<u32>> = rows.into_iter().map(|row| [&start[..], &row].concat()).collect();
        let bidirectional = config.bidirectional() && prefix.is_empty();
        let config = config.with_bidirectional(bidirectional);
        let model = random_model(config, seed);
        let folder = tempfile::tempdir().unwrap();
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let points = Selection::matching(|p| p.axes[0] != hook::Axis::Routed && !p.on_request);
        let path = folder.path().join("out.safetensors");
        Dump::new(points.clone()).positions(positions.clone()).logits(Logits::All).padding_side(side)
            .batch_size(batch).prefix(prefix.clone()).run(&model, &rows, &path).unwrap();
        let all = read(&path);
        let longest = rows.iter().map(Vec::len).max().unwrap();
        for (number, row) in rows.iter().enumerate() {
            let alone = folder.path().join("alone.safetensors");
            Dump::new(points.clone()).positions(positions.clone()).logits(Logits::All).prefix(prefix.clone())
                .run(&model, std::slice::from_ref(row), &alone).unwrap();
            let alone = read(&alone);
            for (name, expected) in &alone {
                let given = &all[name];
                // Positions of this prompt's rows in the whole: on a padded axis, they are at one end.
                let each = given.shape()[0] / rows.len();
                let mut part = given.slice_axis(ndarray::Axis(0), ndarray::Slice::from(number * each..(number + 1) * each)).to_owned();
                let filler = if name.ends_with("hook_attn_scores") { f32::NEG_INFINITY } else { 0.0 };
                for axis in 0..part.ndim() {
                    let (have, want) = (part.shape()[axis], expected.shape()[axis]);
                    if have == want {
                        continue;
                    }
                    let keys = ["hook_pattern", "hook_attn_scores", "hook_rot_k"].iter().any(|end| name.ends_with(end));
                    let past = if keys && have > longest { prefix.len() } else { 0 };
                    let begin = if left { have - want + past } else { want };
                    let fill = if left { past..past + have - want } else { begin..have };
                    let padding = part.slice_axis(ndarray::Axis(axis), ndarray::Slice::from(fill.clone()));
                    if name != "tokens" {
                        prop_assert!(padding.iter().all(|x| *x == filler), "{name}: padding is not blank");
                    }
                    let keep: Vec<usize> = (0..have).filter(|at| !fill.contains(at)).collect();
                    part = part.select(ndarray::Axis(axis), &keep);
                }
                let worst = distance(&part, expected);
                prop_assert!(worst <= 1e-4, "{name} of prompt {number}: {worst:e}");
            }
        }
    }
}

fn mixture() -> TransformerConfig {
    TransformerConfig::new(1, 16, 2, 20, 16)
        .with_gated_mlp(true)
        .with_mixture(Experts::new(4, 2))
        .with_positional(Positional::None)
        .with_activation(ActivationFn::Silu)
}

/// An expert has as many rows as tokens were routed to it. One file can't store that, but a folder can.
#[test]
fn experts_go_to_a_folder() {
    let model = random_model(mixture(), 1);
    let folder = tempfile::tempdir().unwrap();
    let rows = [vec![1, 2, 3], vec![4, 5]];
    let error = Dump::new("*").run(&model, &rows, folder.path().join("x.safetensors")).unwrap_err();
    assert!(
        matches!(error.downcast_ref(), Some(DumpError::NotRectangular { point }) if point.contains("experts.0")),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    Dump::new("*").run(&model, &rows, folder.path().join("shards")).unwrap();
    let shard = read(&folder.path().join("shards/shard-00000.safetensors"));
    let routed: usize =
        (0..4).filter_map(|e| shard.get(&format!("blocks.0.mlp.experts.{e}.hook_post"))).map(|x| x.shape()[0]).sum();
    // Padding is routed, too: what is dumped for an expert is what was routed to it.
    assert_eq!(routed, 2 * 6);
}

fn model() -> HookedTransformer {
    random_model(TransformerConfig::new(1, 16, 2, 20, 16), 3)
}

/// Handles an interrupted start, a second writer, a log out of order, and a file left by a killed run.
#[test]
fn folders_are_kept_in_order() {
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<u32>> = (0..6).map(|i| vec![i, i + 1, i + 2]).collect();
    let dump = Dump::new("*hook_z").batch_size(2);
    let names = |out: &std::path::Path| {
        let mut names: Vec<_> = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let fresh = folder.path().join("fresh");
    dump.run(&model, &rows, &fresh).unwrap();
    for resume in [false, true] {
        let stuck = folder.path().join(format!("stuck-{resume}"));
        fs::create_dir(&stuck).unwrap();
        fs::write(stuck.join("shards.jsonl"), "").unwrap();
        dump.clone().resume(resume).run(&model, &rows, &stuck).unwrap();
        assert_eq!(names(&stuck), names(&fresh));
    }

    let held = fs::File::create(fresh.join(".hooklens-lock")).unwrap();
    held.try_lock().unwrap();
    let error = dump.clone().resume(true).run(&model, &rows, &fresh).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(DumpError::Locked { .. })), "{error}");
    drop(held);

    let manifest = fs::read_to_string(fresh.join("manifest.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let line = |number: usize| json["shards"][number].to_string();
    let elsewhere = line(1).replace("shard-00001", "../fresh/shard-00001");
    for (log, kept) in [
        (vec![line(0), line(1), line(2)], 3),
        (vec![line(0), line(0), line(1)], 1),
        (vec![line(1), line(0)], 0),
        (vec![line(0), elsewhere], 1),
    ] {
        fs::write(fresh.join("shards.jsonl"), format!("{}\n", log.join("\n"))).unwrap();
        fs::write(fresh.join("manifest.json"), manifest.replace("\"complete\": true", "\"complete\": false")).unwrap();
        fs::write(fresh.join(".tmpAbc123"), "left").unwrap();
        let resumed = dump.clone().resume(true).run(&model, &rows, &fresh).unwrap();
        assert_eq!((resumed.resumed, resumed.files.len()), (kept, 3), "{log:?}");
        assert!(!fresh.join(".tmpAbc123").exists());
    }
}

/// Leftovers of killed runs next to a single file are removed by the next run, and files of live runs are kept.
#[test]
fn files_that_killed_runs_left_are_removed() {
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(120);
    let made = |name: &str| {
        let file = fs::File::create(folder.path().join(format!(".hooklens-unfinished-{name}"))).unwrap();
        file.set_modified(old).unwrap();
        file
    };
    drop(made("left"));
    let live = made("live");
    live.try_lock().unwrap();
    Dump::new("z0").run(&model, &[vec![1, 2, 3]], folder.path().join("out.safetensors")).unwrap();
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".hooklens-unfinished-live", "out.safetensors"]);
}

/// Common prefixes are computed once, and the output is the same.
#[test]
fn sharing_a_prefix_does_not_show() {
    let model = random_model(TransformerConfig::new(2, 16, 2, 20, 128), 3);
    let folder = tempfile::tempdir().unwrap();
    let start: Vec<u32> = (0..70).map(|i| i * 7 % 20).collect();
    // Prompts form a tree: a common prefix, two branches with their own prefixes, and endings of unequal length. Then
    // an unrelated prompt.
    let mut rows: Vec<Vec<u32>> =
        (0..9).map(|i| [&start[..], &[i / 5; 9], &vec![i; 1 + i as usize % 3]].concat()).collect();
    rows.push(vec![1, 2, 3]);
    for (batch, side) in [(3, PaddingSide::Right), (4, PaddingSide::Left), (1, PaddingSide::Right)] {
        let dump = Dump::new(["*hook_pattern", "*hook_attn_scores", "*resid_post"])
            .logits(Logits::All)
            .batch_size(batch)
            .padding_side(side);
        let run = |share: bool, name: &str| {
            let path = folder.path().join(name);
            let report = dump.clone().share_prefix(share).run(&model, &rows, &path).unwrap();
            (report.shared, read(&path))
        };
        let ((shared, given), (none, expected)) = (run(true, "a.safetensors"), run(false, "b.safetensors"));
        assert!(shared > 300 && none == 0, "{shared} shared in batches of {batch}");
        assert_eq!(given.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, expected) in &expected {
            assert!(distance(&given[name], expected) <= 1e-5, "{name} in batches of {batch}");
        }
    }
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    for resume in [false, true] {
        let error = Dump::new("*").resume(resume).run(&model(), &[vec![1, 2]], folder.path()).unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A problem with any prompt is reported before the first one is run.
#[test]
fn a_bad_prompt_is_named_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let good = vec![1, 2, 3];
    for (bad, says) in [
        (vec![], "prompt 3: it is empty"),
        (vec![1, 99], "prompt 3: token 99"),
        (vec![1; 17], "prompt 3: the input has 17 positions"),
        (vec![1], "prompt 3: position 1 is not within the 1"),
    ] {
        let rows = [good.clone(), good.clone(), bad];
        let error = Dump::new("*").positions(1).batch_size(1).run(&model(), &rows, &out).unwrap_err();
        let error = hooklens::error_chain(&error);
        assert!(error.contains(says), "{error}");
        assert!(!out.exists());
    }
}

/// Prompts are distributed individually: the size of a shard does not depend on the batch size.
#[test]
fn shards_have_equally_many_prompts() {
    use hooklens::dump::merge;
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let rows: Vec<Vec<u32>> = (0..20).map(|row| vec![0, row, 7]).collect();
    for batch_size in [1, 2, 3, 8, 32] {
        let folder = tempfile::tempdir().unwrap();
        let dump = || Dump::new("z0").batch_size(batch_size);
        let shards: Vec<_> = (1..=4).map(|index| folder.path().join(format!("{index}"))).collect();
        for (index, out) in shards.iter().enumerate() {
            let shard = Shard::new(index + 1, 4).unwrap();
            let report = dump().shard(shard).run(&model, &rows, out).unwrap();
            assert_eq!((report.rows, report.files.len()), (5, 5usize.div_ceil(batch_size)));
            // It resumes as the same shard.
            std::fs::remove_file(report.files.last().unwrap()).unwrap();
            let report = dump().shard(shard).resume(true).run(&model, &rows, out).unwrap();
            assert_eq!((report.rows, report.resumed), (5, 5usize.div_ceil(batch_size) - 1));
        }
        assert_eq!(merge(folder.path(), &shards).unwrap().rows, 20);
        let tokens = |file: &std::path::Path| {
            let bytes = std::fs::read(file).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let ids = tensors.tensor("tokens").unwrap().data().to_vec();
            ids.chunks_exact(ids.len() / tensors.tensor("tokens").unwrap().shape()[0]).map(<[u8]>::to_vec).collect()
        };
        let manifest: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("manifest.json")).unwrap()).unwrap();
        let files = manifest["shards"].as_array().unwrap();
        let all: Vec<Vec<u8>> = files
            .iter()
            .flat_map(|file| -> Vec<Vec<u8>> { tokens(&folder.path().join(file["file"].as_str().unwrap())) })
            .collect();
        let ids = |row: &[u8]| row[row.len() / 3] as u32;
        assert_eq!(all.iter().map(|row| ids(row)).collect::<Vec<_>>(), (0..20).collect::<Vec<u32>>());
    }
}

/// If a watcher panics, the dump ends: its folder is unlocked, and finished batches are kept.
#[test]
fn a_watchers_panic_leaves_the_folder_free() {
    use hooklens::dump::Seen;
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let rows: Vec<Vec<u32>> = (0..6).map(|row| vec![0, row]).collect();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut batches = 0;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Dump::new("z0").batch_size(1).run_watched(&model, &rows, &out, &mut |seen| {
            batches += usize::from(matches!(seen, Seen::Batch(..)));
            assert!(batches < 4, "the watcher's own");
        })
    }));
    assert!(panicked.is_err());
    let report = Dump::new("z0").batch_size(1).resume(true).run(&model, &rows, &out).unwrap();
    assert_eq!((report.rows, report.resumed), (6, 3));
    // An incomplete file gets no name.
    let file = folder.path().join("out.safetensors");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Dump::new("z0").batch_size(1).run_watched(&model, &rows, &file, &mut |_| panic!("the watcher's own"))
    }));
    assert!(panicked.is_err() && !file.exists());
}

/// The merged shards of several jobs equal the dump of a single job.
#[test]
fn shards_merged_are_the_whole() {
    use hooklens::dump::merge;
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let rows: Vec<Vec<u32>> = (0..11).map(|row| (0..3 + row % 4).map(|i| (i * 7 + row) % 20).collect()).collect();
    // Use one prompt per file, because with larger batches, files of a shard could start at other prompts than those of
    // the whole dump.
    let dump = || Dump::new(["*hook_z", "*hook_pattern"]).batch_size(1).logits(Logits::Last);
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let all = dump().run(&model, &rows, &whole).unwrap();
    for of in [1, 2, 3, 8] {
        let merged = folder.path().join(format!("in-{of}"));
        let shards: Vec<_> = (1..=of).map(|index| merged.join(format!("part-{index}"))).collect();
        let mut made = 0;
        for (index, shard) in shards.iter().enumerate() {
            made += dump().shard(Shard::new(index + 1, of).unwrap()).run(&model, &rows, shard).unwrap().rows;
        }
        assert_eq!(made, rows.len());
        let report = merge(&merged, &shards).unwrap();
        assert_eq!((report.rows, report.bytes, report.files.len()), (rows.len(), all.bytes, all.files.len()));
        for (one, other) in report.files.iter().zip(&all.files) {
            assert_eq!(fs::read(one).unwrap(), fs::read(other).unwrap(), "{}", one.display());
        }
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(merged.join("manifest.json")).unwrap()).unwrap();
        assert_eq!((manifest["complete"].as_bool(), manifest["rows"].as_u64()), (Some(true), Some(11)));
        assert!(manifest.get("part").is_none());
    }

    let shards = folder.path().join("in-3");
    let of = |index: usize| shards.join(format!("part-{index}"));
    fs::remove_file(shards.join("manifest.json")).unwrap();
    let error = |given: &[usize]| {
        merge(&shards, &given.iter().map(|index| of(*index)).collect::<Vec<_>>()).unwrap_err().to_string()
    };
    assert!(error(&[1, 3]).contains("no shard contains prompt"), "{}", error(&[1, 3]));
    assert!(error(&[1, 2, 2, 3]).contains("two shards contain prompt"), "{}", error(&[1, 2, 2, 3]));
    assert!(error(&[]).contains("no shards"), "{}", error(&[]));
    let outside = merge(of(1), &[of(2)]).unwrap_err().to_string();
    assert!(outside.contains("must be in a folder inside"), "{outside}");
    let not_a_shard = merge(folder.path(), std::slice::from_ref(&whole)).unwrap_err().to_string();
    assert!(not_a_shard.contains("a complete dump"), "{not_a_shard}");
    // A shard resumes where it stopped, and only as the shard it was.
    let third = || dump().resume(true).shard(Shard::new(3, 3).unwrap());
    assert_eq!(third().run(&model, &rows, of(3)).unwrap().resumed, 4);
    let other = dump().resume(true).shard(Shard::new(2, 3).unwrap()).run(&model, &rows, of(3)).unwrap_err().to_string();
    assert!(other.contains("different settings (shard: 3/3 before, 2/3 now)"), "{other}");
    let file = dump().shard(Shard::new(1, 2).unwrap()).run(&model, &rows, folder.path().join("x.safetensors"));
    assert!(file.unwrap_err().to_string().contains("a shard must be written to a folder"));
    let lost =
        fs::read_dir(of(2)).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().unwrap() == "safetensors");
    fs::remove_file(lost.unwrap()).unwrap();
    assert!(error(&[1, 2, 3]).contains("missing or was modified"), "{}", error(&[1, 2, 3]));
}

/// A folder's lock and log are not trusted: links and foreign files are left alone, and the log must match the prompts.
#[test]
fn locks_and_logs_of_strangers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let rows: Vec<Vec<u32>> = (0..5).map(|row| vec![row, 2, 3]).collect();
    let dump = Dump::new("*hook_z").batch_size(2).resume(true);
    dump.run(&model(), &rows, &out).unwrap();
    let whole = fs::read(out.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        let mut manifest = manifest.clone();
        change(manifest["shards"].as_array_mut().unwrap());
        fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();
        dump.run(&model(), &rows, &out).unwrap();
        assert_eq!(fs::read(out.join("manifest.json")).unwrap(), whole);
    };
    damaged(&|files| files[2] = files[0].clone());
    damaged(&|files| files.push(files[0].clone()));
    damaged(&|files| files[1]["rows"] = 4.into());
    damaged(&|files| files[1]["rows"] = 0.into());
    damaged(&|files| files.swap(0, 1));
    damaged(&|files| files[0]["file"] = "../out/shard-00000.safetensors".into());

    let lock = out.join(".hooklens-lock");
    let thesis = folder.path().join("thesis.tex");
    fs::write(&thesis, "years of work").unwrap();
    fs::hard_link(&thesis, &lock).unwrap();
    let error = dump.run(&model(), &rows, &out).unwrap_err().to_string();
    assert!(error.contains("was not created by hooklens"), "{error}");
    fs::remove_file(&lock).unwrap();
    #[cfg(unix)]
    for target in [&thesis, &folder.path().join("nowhere")] {
        std::os::unix::fs::symlink(target, &lock).unwrap();
        assert!(dump.run(&model(), &rows, &out).is_err());
        fs::remove_file(&lock).unwrap();
    }
    // A damaged file is recomputed, but not through a link.
    #[cfg(unix)]
    for file in ["shard-00001.safetensors", "manifest.json"] {
        let before = fs::read(out.join(file)).unwrap();
        fs::rename(out.join(file), out.join("moved")).unwrap();
        let target = if file == "manifest.json" { &out.join("moved") } else { &thesis };
        std::os::unix::fs::symlink(target, out.join(file)).unwrap();
        let error = hooklens::error_chain(&dump.run(&model(), &rows, &out).unwrap_err());
        assert!(error.contains("symbolic link"), "{error}");
        fs::remove_file(out.join(file)).unwrap();
        fs::write(out.join(file), before).unwrap();
        fs::remove_file(out.join("moved")).unwrap();
    }
    assert_eq!(fs::read(&thesis).unwrap(), b"years of work");
    assert!(!folder.path().join("nowhere").exists());
    dump.run(&model(), &rows, &out).unwrap();
}

/// Two edits of one point are different edits if they differ in operation, position, value or tensor.
#[test]
fn a_dump_under_other_edits_is_not_continued() {
    let (model, rows) = (
        HookedTransformer::from_pretrained("embedded:induction").unwrap(),
        vec![vec![1, 2, 3], vec![4, 5, 6], vec![7, 8, 9]],
    );
    let dump = Dump::new("*hook_resid_post").batch_size(1);
    let vector = |value: f32| Tensor::<1>::full([model.config().d_head()], value, &model.device());
    let wide = |value: f32| Tensor::<1>::full([model.config().d_model()], value, &model.device());
    let recorded = |row: Vec<u32>| model.record(vec![row], hook::z(0)).unwrap();
    let (one, same, other) = (recorded(vec![1, 2, 3]), recorded(vec![1, 2, 3]), recorded(vec![3, 2, 1]));
    let steering = |value: f32| SteeringVector::new("resid_post0", wide(value));
    let z = || hook::z(0);
    let hooks: Vec<(&str, hook::Hook<'_>)> = vec![
        ("zero", z().zero()),
        ("zero, head 0", z().head(0).zero()),
        ("zero, head 1", z().head(1).zero()),
        ("zero, heads", z().heads([0, 1]).zero()),
        ("zero, position", z().head(1).positions(0).zero()),
        ("zero, new position", z().head(1).new_positions(0).zero()),
        ("zero, positions", z().head(1).positions(..2).zero()),
        ("zero, unit", z().unit(1).zero()),
        ("zero, of another point", hook::z(1).zero()),
        ("zero, by name", hook::at("q0").edit(|q: Tensor<4>, _| q.zeros_like()).named("zero")),
        ("scale", z().scale(2.0)),
        ("scale, a little more", z().scale(2.000_000_000_000_001)),
        ("add", z().add(vector(0.5))),
        ("add, other", z().add(vector(0.25))),
        ("mean", z().mean(&one)),
        ("mean, other", z().mean(&other)),
        ("named", z().edit(|z, _| z * 2.0).named("double")),
        ("named, other", z().edit(|z, _| z * 2.0).named("twice")),
        ("named, sliced", z().head(1).edit(|z, _| z * 2.0).named("double")),
        (
            "predicate",
            hook::at(Selection::matching(|point| point.name.contains("hook_z")))
                .edit(|z: Tensor<4>, _| z * 2.0)
                .named("double"),
        ),
        (
            "predicate, other",
            hook::at(Selection::matching(|point| point.name.contains("hook_q")))
                .edit(|z: Tensor<4>, _| z * 2.0)
                .named("double"),
        ),
        ("steering", steering(0.5).hook(2.0)),
        ("steering, stronger", steering(0.5).hook(3.0)),
        ("steering, other", steering(0.25).hook(2.0)),
        ("ablation", steering(0.5).ablation().unwrap()),
    ];
    let hooks: Vec<(&str, RefCell<hook::Hook<'_>>)> =
        hooks.into_iter().map(|(name, hook)| (name, hook.into())).collect();
    for (made_by, hook) in &hooks {
        let folder = tempfile::tempdir().unwrap();
        dump.run(&model.hooks([hook.borrow_mut().reborrow()]), &rows, folder.path()).unwrap();
        let again = dump.clone().resume(true).run(&model.hooks([hook.borrow_mut().reborrow()]), &rows, folder.path());
        assert_eq!(again.unwrap().resumed, 3, "{made_by}");
        let plain = dump.clone().resume(true).run(&model, &rows, folder.path()).unwrap_err();
        assert!(
            matches!(plain.downcast_ref(), Some(DumpError::Mismatch { what, .. }) if what == "edits"),
            "{made_by}: {plain}"
        );
        for (now, hook) in hooks.iter().filter(|(now, _)| now != made_by) {
            let error =
                dump.clone().resume(true).run(&model.hooks([hook.borrow_mut().reborrow()]), &rows, folder.path());
            assert!(
                matches!(error.as_ref().err().and_then(Error::downcast_ref), Some(DumpError::Mismatch { what, .. }) if what == "edits"),
                "{made_by}, then {now}: {error:?}"
            );
        }
    }
    // Equal recordings count as the same in another process, too.
    let one_row = vec![vec![1, 2, 3]];
    let out = tempfile::tempdir().unwrap();
    let dump = dump.clone().resume(true);
    dump.run(&model.hooks([z().replace(&one)]), &one_row, out.path()).unwrap();
    assert_eq!(dump.run(&model.hooks([z().replace(&same)]), &one_row, out.path()).unwrap().resumed, 1);
    assert!(dump.run(&model.hooks([z().replace(&other)]), &one_row, out.path()).is_err());
}

/// Closures are only distinguished by their names.
#[test]
fn closures_without_a_name_are_not_continued() {
    let (model, rows) = (model(), vec![vec![1, 2, 3], vec![4, 5, 6]]);
    let double = || hook::z(0).edit(|z, _| z * 2.0);
    let dump = Dump::new("*hook_resid_post").batch_size(1);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    dump.run(&model.hooks([double()]), &rows, out.join("whole")).unwrap();
    let shard = dump.clone().shard(Shard::new(1, 2).unwrap());
    for (dump, place) in [(&dump.clone().resume(true), "whole"), (&dump.clone().resume(true), "new"), (&shard, "shard")]
    {
        let error = dump.run(&model.hooks([double()]), &rows, out.join(place)).unwrap_err();
        assert!(matches!(&error, Error::Hook(HookError::Unnamed { .. })), "{error}");
        assert!(error.to_string().contains("Hook(edit [\"blocks.0.attn.hook_z\"]) has a closure"), "{error}");
        assert!(place == "whole" || !out.join(place).exists());
    }
    // A dump written without a name is not resumed with one.
    let error = dump.clone().resume(true).run(&model.hooks([double().named("double")]), &rows, out.join("whole"));
    assert!(matches!(failure(error), Some(DumpError::Mismatch { what, .. }) if what == "edits"));
    // Hooks that only read change nothing.
    let read = dump.clone().resume(true).run(&model.hooks([hook::z(0).read(|_, _| ())]), &rows, out.join("read"));
    assert!(read.is_ok());
}

/// A predicate is recorded as the names that it selects.
#[test]
fn points_chosen_by_a_predicate_are_compared() {
    let (model, rows) = (HookedTransformer::from_pretrained("embedded:induction").unwrap(), vec![vec![1, 2, 3]]);
    let dump = |layer| Dump::new(Selection::matching(move |point| point.layer == Some(layer))).resume(true);
    let folder = tempfile::tempdir().unwrap();
    dump(0).run(&model, &rows, folder.path()).unwrap();
    assert_eq!(dump(0).run(&model, &rows, folder.path()).unwrap().resumed, 1);
    let error = dump(1).run(&model, &rows, folder.path());
    assert!(matches!(failure(error), Some(DumpError::Mismatch { what, .. }) if what == "hooks"));
}

mod once {
    use super::*;

    /// A file counts as finished only if its contents on disk are what was written.
    #[test]
    fn a_damaged_shard_is_made_again() {
        let model = model();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let rows: Vec<Vec<u32>> = (0..6).map(|i| vec![i, i + 1, i + 2]).collect();
        let dump = Dump::new("*hook_z").batch_size(2);
        dump.run(&model, &rows, &out).unwrap();
        let shard = |number: usize| out.join(format!("shard-{number:05}.safetensors"));
        let before = fs::read(shard(1)).unwrap();
        assert!(!out.join("shards.jsonl").exists());

        fs::write(shard(1), vec![0; before.len()]).unwrap();
        let resumed = dump.clone().resume(true).run(&model, &rows, &out).unwrap();
        assert_eq!((resumed.resumed, resumed.tokens), (1, 12));
        assert_eq!(fs::read(shard(1)).unwrap(), before);

        // Interrupted while writing the log: the truncated line does not count.
        let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        let line = |number: usize| json["shards"][number].to_string();
        let half = &line(1)[..20];
        fs::write(out.join("shards.jsonl"), format!("{}\n{half}", line(0))).unwrap();
        fs::write(out.join("manifest.json"), manifest.replace("\"complete\": true", "\"complete\": false")).unwrap();
        let resumed = dump.clone().resume(true).run(&model, &rows, &out).unwrap();
        assert_eq!(resumed.resumed, 1);

        // Other weights under the same name are a different model.
        let other = random_model(TransformerConfig::new(1, 16, 2, 20, 16), 4);
        let error = dump.clone().resume(true).run(&other, &rows, &out).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(DumpError::Mismatch { what, .. }) if what == "weights"), "{error}");
    }

    /// A finished file with any byte changed is recomputed, and is not merged.
    #[test]
    fn damaged_files_are_seen() {
        use hooklens::dump::{Shard, merge};
        use hooklens_data::dump::merge_unverified;
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<Vec<u32>> = (0..6).map(|row| vec![row, 2, 3]).collect();
        let dump = |index| Dump::new("*hook_z").batch_size(1).resume(true).shard(Shard::new(index, 2).unwrap());
        let shards = [1, 2].map(|index| folder.path().join(index.to_string()));
        let mut whole = Vec::new();
        for (index, out) in shards.iter().enumerate() {
            whole.extend(dump(index + 1).run(&model(), &rows, out).unwrap().files);
        }
        for (number, file) in whole.iter().enumerate() {
            let before = fs::read(file).unwrap();
            for at in [8, before.len() / 2, before.len() - 1] {
                let mut damaged = before.clone();
                damaged[at] ^= 1;
                fs::write(file, damaged).unwrap();
                let error = merge(folder.path(), &shards).unwrap_err().to_string();
                assert!(error.contains("missing or was modified") && error.contains("shard-0"), "{error}");
                let (index, done) = (1 + number / 3, number % 3);
                let out = &shards[index - 1];
                assert_eq!(dump(index).verify(false).run(&model(), &rows, out).unwrap().resumed, 3);
                assert_eq!(dump(index).run(&model(), &rows, out).unwrap().resumed, done);
                assert_eq!(fs::read(file).unwrap(), before);
            }
        }
        let last = whole.last().unwrap();
        let mut damaged = fs::read(last).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(last, damaged).unwrap();
        assert_eq!(merge_unverified(folder.path(), &shards).unwrap().rows, 6);
        // A merged dump can be resumed like one that was written as a whole.
        let all = Dump::new("*hook_z").batch_size(1).resume(true);
        assert_eq!(all.clone().verify(false).run(&model(), &rows, folder.path()).unwrap().resumed, 6);
        assert_eq!(all.run(&model(), &rows, folder.path()).unwrap().resumed, 5);
    }

    /// The same command on a small model writes the same bytes, for any number of threads.
    #[test]
    fn threads_do_not_show() {
        let folder = tempfile::tempdir().unwrap();
        let text = "When Mary and John went to the store, John gave a drink to";
        let run = |threads: Option<&str>, arguments: &[&str], out: &str| {
            let mut command = crate::support::program();
            command.args(arguments).current_dir(folder.path()).env("HOOKLENS_DEVICE", "flex");
            command.env_remove("RAYON_NUM_THREADS");
            if let Some(threads) = threads {
                command.env("RAYON_NUM_THREADS", threads);
            }
            let done = command.output().unwrap();
            assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
            if out.is_empty() { done.stdout } else { fs::read(folder.path().join(out)).unwrap() }
        };
        let sampled = ["generate", "--model", "embedded:ioi", "--prompt", text, "--temperature", "0.9", "--seed", "3"];
        let commands: [(Vec<&str>, &str); 5] = [
            (
                vec![
                    "dump",
                    "--model",
                    "embedded:ioi",
                    "--prompt",
                    text,
                    "--logits",
                    "all",
                    "--hooks",
                    "*",
                    "--out",
                    "o.safetensors",
                ],
                "o.safetensors",
            ),
            ([&sampled[..], &["--max-new-tokens", "20", "--json"]].concat(), ""),
            (vec!["patch", "--model", "embedded:ioi", "--ioi", "4", "--out", "p.json"], "p.json"),
            (vec!["attribute", "--model", "embedded:ioi", "--to", "edges", "--ioi", "4", "--out", "e.csv"], "e.csv"),
            (vec!["lens", "--model", "embedded:ioi", "--prompt", text, "--out", "l.svg"], "l.svg"),
        ];
        for (arguments, out) in &commands {
            let expected = run(None, arguments, out);
            for threads in ["1", "2", "3", "8"] {
                assert!(run(Some(threads), arguments, out) == expected, "{arguments:?} with {threads} threads");
            }
        }
    }
}
