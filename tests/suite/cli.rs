//! Files, output and exit codes of the command-line program.

use std::fs;
use std::path::Path;
use std::process::Output;

use hooklens::prelude::*;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{fixtures, program};

fn hooklens(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns exit code, standard output and standard error.
fn ran(arguments: &[&str]) -> (i32, String, String) {
    let output = hooklens(arguments);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn dump(folder: &Path, out: &str, more: &[&str]) -> (i32, String, String) {
    let out = folder.join(out);
    let mut arguments = vec!["dump", "--model", "embedded:induction", "--out", out.to_str().unwrap()];
    arguments.extend(more);
    ran(&arguments)
}

fn shapes(path: &Path) -> Vec<(String, Vec<usize>)> {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = tensors.iter().map(|(name, view)| (name.to_string(), view.shape().to_vec())).collect();
    all.sort();
    all
}

#[test]
fn hooks_lists_the_points() {
    let (code, out, _) = ran(&["hooks", "--model", "embedded:induction"]);
    assert_eq!(code, 0);
    assert!(out.contains("blocks.1.attn.hook_pattern") && out.contains("[batch, head 4, query, key]"), "{out}");
    let (code, out, _) = ran(&["hooks", "--model", "embedded:induction", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    let points = json["points"].as_array().unwrap();
    let result = points.iter().find(|p| p["name"] == "blocks.0.attn.hook_result").unwrap();
    assert_eq!((&result["on_request"], &result["axes"][3]), (&Value::Bool(true), &"d_model".into()));
}

#[test]
fn info_says_what_a_folder_is() {
    let folder = fixtures().join("llama3");
    let (code, out, _) = ran(&["info", "--model", folder.to_str().unwrap()]);
    assert!(code == 0 && out.contains("llama (LlamaForCausalLM)") && out.contains("Llama3"), "{out}");
    let (_, out, _) = ran(&["info", "--model", folder.to_str().unwrap(), "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["family"], "llama");
    assert_eq!(json["config"]["n_layers"], 2);
}

#[test]
fn a_dump_file_holds_what_a_run_records() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = dump(
        folder.path(),
        "out.safetensors",
        &["--prompt", "red fox blue red", "king drum", "--hooks", "*hook_pattern, resid_post1", "--logits", "last"],
    );
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("2 prompts, 8 tokens"), "{out}");
    let path = folder.path().join("out.safetensors");
    let expected = [
        ("attention_mask", vec![2, 5]),
        ("blocks.0.attn.hook_pattern", vec![2, 4, 5, 5]),
        ("blocks.1.attn.hook_pattern", vec![2, 4, 5, 5]),
        ("blocks.1.hook_resid_post", vec![2, 5, 64]),
        ("logits", vec![2, 1, 63]),
        ("tokens", vec![2, 5]),
    ];
    assert_eq!(shapes(&path), expected.map(|(name, shape)| (name.to_string(), shape)));

    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let tokens = model.to_tokens(["red fox blue red", "king drum"]).unwrap();
    let cache = model.record(&tokens, hook::resid_post(1)).unwrap();
    let bytes = fs::read(&path).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let given = stored.tensor("blocks.1.hook_resid_post").unwrap();
    // Two of the second prompt's five positions are padding, and contain zeros.
    let (real, padding) = given.data().split_at(8 * 64 * 4);
    assert!(*real == cache.activation("resid_post1").unwrap().to_data().unwrap().as_bytes()[..8 * 64 * 4]);
    assert!(padding.iter().all(|byte| *byte == 0));
    let mask = stored.tensor("attention_mask").unwrap();
    let ones = mask.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect::<Vec<_>>();
    assert_eq!(ones, [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
}

/// Batch sizes of one, two and all give files with identical contents.
#[test]
fn batching_does_not_show_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, size: &str| {
        let (code, _, err) = dump(
            folder.path(),
            name,
            &[
                "--tokens",
                "0,1,2,3;0,4,5;0,6,7,8,9;0,1;0,2,2",
                "--batch-size",
                size,
                "--dtype",
                "bf16",
                "--logits",
                "all",
                "--positions",
                "1..4",
            ],
        );
        assert_eq!(code, 0, "{err}");
        shapes(&folder.path().join(name))
    };
    let whole = run("whole.safetensors", "8");
    assert_eq!(run("one.safetensors", "1"), whole);
    assert_eq!(run("two.safetensors", "2"), whole);
    assert!(whole.contains(&("blocks.0.attn.hook_z".to_string(), vec![5, 3, 4, 16])));
    let values = |name: &str| {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let view = tensors.tensor("blocks.1.hook_resid_post").unwrap();
        view.data().as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect::<Vec<_>>()
    };
    let worst = values("one.safetensors")
        .iter()
        .zip(values("whole.safetensors"))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst < 0.05, "{worst}");
}

/// Long prompts are truncated and short ones joined on request, with a note on what is lost.
#[test]
fn prompts_are_cut_and_joined() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.jsonl");
    fs::write(&prompts, "\"king drum sun star moon\"\n[1, 9]\n{\"text\": \"tea owl\"}\n").unwrap();
    let of_file = ["--hooks", "resid_post1", "--prompts", prompts.to_str().unwrap()];
    let rows = |out: &str, more: &[&str]| {
        let (code, _, err) = dump(folder.path(), out, &[&of_file[..], more].concat());
        assert_eq!(code, 0, "{err}");
        let bytes = fs::read(folder.path().join(out)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tokens = file.tensor("tokens").unwrap();
        let ids: Vec<i64> = tokens.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
        (tokens.shape().to_vec(), ids, err)
    };
    let (whole, ids, _) = rows("whole.safetensors", &[]);
    assert_eq!(whole, [3, 6]);
    let (cut, first, said) = rows("cut.safetensors", &["--truncate", "3"]);
    assert!(cut == [3, 3] && first[..3] == ids[..3] && said.contains("truncated 1 of 3 prompts to 3 tokens"), "{said}");
    // 5 + 2 + 2 tokens and a separator after the first two make 11: rows of three plus a BOS token, with two tokens
    // left over.
    let (joined, all, said) = rows("joined.safetensors", &["--concatenate", "4"]);
    assert!(joined == [3, 4] && said.contains("dropped the last 2 tokens, which do not fill a row of 4"), "{said}");
    assert_eq!(all[..4], ids[..4]);
    assert_eq!(all[4..], [0, ids[4], ids[5], 0, 0, 1, 9, 0]);
}

/// A prefix is run but not dumped: the dump equals the part of the whole run after the prefix.
#[test]
fn a_prefix_is_context_only() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = ["--hooks", "resid_post1"];
    let (code, _, err) = dump(folder.path(), "whole.safetensors", &[&hooks[..], &["--tokens", "0,5,6,7,5,6"]].concat());
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = dump(
        folder.path(),
        "tail.safetensors",
        &[&hooks[..], &["--prefix-tokens", "0,5,6", "--tokens", "7,5,6"]].concat(),
    );
    assert_eq!(code, 0, "{err}");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let (whole, tail) = (read("whole.safetensors"), read("tail.safetensors"));
    let of = |bytes: &[u8]| {
        SafeTensors::deserialize(bytes).unwrap().tensor("blocks.1.hook_resid_post").unwrap().data().to_vec()
    };
    let floats = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>();
    let (whole, tail) = (floats(&of(&whole)[3 * 64 * 4..]), floats(&of(&tail)));
    let worst = whole.iter().zip(&tail).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(whole.len() == tail.len() && worst < 1e-4, "{worst}");
}

#[test]
fn a_folder_is_sharded_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let with = |prompts: [&'static str; 5], hooks: &'static str| {
        let prompts = prompts.into_iter().flat_map(|prompt| ["--prompt", prompt]);
        prompts.chain(["--hooks", hooks, "--batch-size", "2"]).collect::<Vec<_>>()
    };
    let prompts = ["red fox", "king drum sun", "fox tea", "sun", "tea"];
    let arguments = with(prompts, "*hook_z");
    let (code, out, err) = dump(folder.path(), "out", &arguments);
    assert!(code == 0 && out.contains("5 prompts") && out.contains("3 files"), "{out}{err}");
    let out_folder = folder.path().join("out");
    let manifest =
        || -> Value { serde_json::from_slice(&fs::read(out_folder.join("manifest.json")).unwrap()).unwrap() };
    assert_eq!((&manifest()["complete"], manifest()["shards"].as_array().unwrap().len()), (&Value::Bool(true), 3));
    assert_eq!(shapes(&out_folder.join("shard-00001.safetensors"))[1].1, [2, 3, 4, 16]);

    // Restarting without --resume is rejected, and nothing is lost.
    let (code, _, err) = dump(folder.path(), "out", &arguments);
    assert!(code == 1 && err.contains("--resume"), "{err}");

    // Simulate an interruption: the last shard is missing, and the manifest lists two.
    let finished = fs::metadata(out_folder.join("shard-00000.safetensors")).unwrap().modified().unwrap();
    fs::remove_file(out_folder.join("shard-00002.safetensors")).unwrap();
    let left = out_folder.join(".hooklens-unfinished-abc");
    fs::write(&left, "half a shard").unwrap();
    let (code, out, err) = dump(folder.path(), "out", &[&arguments[..], &["--resume"]].concat());
    assert!(code == 0 && out.contains("2 files were already complete"), "{out}{err}");
    assert_eq!(fs::metadata(out_folder.join("shard-00000.safetensors")).unwrap().modified().unwrap(), finished);
    assert_eq!(manifest()["complete"], true);
    assert!(out_folder.join("shard-00002.safetensors").is_file());
    assert!(!left.exists(), "what was left unfinished is still there");

    // With other settings or prompts, there is nothing to resume.
    let resumed = |prompts, hooks| {
        let (code, _, err) = dump(folder.path(), "out", &[&with(prompts, hooks)[..], &["--resume"]].concat());
        (code, err)
    };
    let (code, err) = resumed(prompts, "*hook_q");
    assert!(code == 1 && err.contains("different settings (hooks: "), "{err}");
    let (code, err) = resumed(["red", "king", "tea", "sun", "fox"], "*hook_z");
    assert!(code == 1 && err.contains("set of prompts"), "{err}");
}

#[test]
fn the_first_command_prints_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "king drum sun star moon tea king drum sun star moon tea";
    let (code, out, _) = dump(folder.path(), "patterns.safetensors", &["--prompt", prompt, "--hooks", "*hook_pattern"]);
    assert!(code == 0 && out.contains("L1H") && out.contains("induction head"), "{out}");
}

#[test]
fn wrong_usage_is_two_and_failure_is_one() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [
        &["--tokens", "1,x"][..],
        &["--tokens", "1", "--prompt", "red"],
        &["--prompt", "red", "--positions", "1...2"],
        &["--prompt", "red", "--dtype", "f8"],
        &["--prompt", "red", "--batch-size", "0"],
        &["--prompt", "red", "--device", "abacus"],
        &["--prompt", "red", "--logits", "some"],
        &["--prompt", "red", "--hooks", ""],
        &["--prompt", "red", "--resume"],
        &["--prompt", "red", "--truncate", "0"],
        &["--tokens", "1,2", "--concatenate", "2"],
        &["--prompt", "red", "--concatenate", "2", "--truncate", "2"],
        &[],
    ] {
        let (code, _, err) = dump(folder.path(), "x.safetensors", wrong);
        assert!(code == 2 && !err.is_empty(), "{wrong:?}: {code} {err}");
    }
    for (failing, says) in [
        (&["--prompt", "red", "--hooks", "blocks.0.attn.hook_patern"][..], "did you mean `blocks.0.attn.hook_pattern`"),
        (&["--prompt", "red", "--hooks", "*hook_mlp_out"], "this layer has no MLP"),
        (&["--tokens", "0,1;0,63"], "prompt 2: token 63 at row 0, position 1 is outside the vocabulary of 63"),
        (&["--prompt", ""], "empty"),
        (&["--prompt", "quux"], "the vocabulary of 63 tokens lacks `quux`"),
        (&["--prompt", "red", "--positions", "7"], "2 positions"),
        (&["--tokens", "0,1,2,3;0,1", "--positions", "2"], "prompt 2: position 2 is not within the 2 positions"),
        (&["--prompts", "/no/such/file"], "/no/such/file"),
        (&["--prompt", "red fox", "--concatenate", "4"], "`len` is 4; expected at most 3"),
        (&["--prompt", "red fox", "--concatenate", "1"], "`len` is 1; expected 2 or more"),
    ] {
        let (code, _, err) = dump(folder.path(), "x.safetensors", failing);
        assert!(code == 1 && err.contains(says), "{failing:?}: {code} {err}");
        assert!(!folder.path().join("x.safetensors").exists(), "{failing:?} left a file");
    }
    let (code, _, err) = ran(&["info", "--model", "./nothing"]);
    assert!(code == 1 && err.contains("no such folder"), "{err}");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (code, _, err) = dump(folder.path(), "file/x.safetensors", &["--prompt", "red"]);
    assert!(code == 1 && err.contains("file/x.safetensors"), "{err}");
    assert_eq!(ran(&["frobnicate"]).0, 2);
    assert_eq!(ran(&["--help"]).0, 0);
}

/// When the disk fills up, the error names the file, and no incomplete file is left.
#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error() {
    let (code, _, err) = dump(Path::new("/proc"), "x.safetensors", &["--prompt", "red"]);
    assert!(code == 1 && err.contains("/proc/x.safetensors"), "{err}");
    let (code, _, err) = dump(Path::new("/proc"), "folder", &["--prompt", "red"]);
    assert!(code == 1 && err.contains("/proc/folder"), "{err}");
}

/// The program generates the same text as the library.
#[test]
fn generate_goes_on_from_prompts() {
    let prompt = "king drum sun star king drum";
    let base = ["generate", "--model", "embedded:induction", "--max-new-tokens", "2"];
    let (code, out, err) = ran(&[&base[..], &["--prompt", prompt]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.ends_with("king drum sun star king drum sun star\n"), "{out}");
    let (code, out, _) = ran(&[&base[..], &["--prompt", prompt, "red fox red", "--json", "--kv", "8bit"]].concat());
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, json["rows"].as_array().unwrap().len()), (0, 2));
    assert_eq!((&json["rows"][0]["text"], &json["rows"][0]["stop"]), (&"sun star".into(), &"length".into()));
    let drawn = |seed: &str| {
        ran(&[&base[..], &["--prompt", prompt, "--temperature", "2", "--seed", seed, "--max-new-tokens", "8"][..6]]
            .concat())
        .1
    };
    assert_eq!(drawn("3"), drawn("3"));
    let (code, out, _) =
        ran(&[&base[..], &["--tokens", "0,5,6,7,5;0,9", "--stop", "zebra", "--kv", "preallocated"]].concat());
    assert!(code == 0 && out.lines().count() == 2, "{out}");
    for (wrong, exit, says) in [
        (&["--prompt", "red", "--top-p", "1.5"][..], 1, "top_p"),
        (&["--prompt", "red", "--greedy", "--temperature", "1"], 2, "cannot be used with"),
        (&["--prompt", "red", "--stop", ""], 1, "stop_strings"),
        (&["--prompt", "red", "--kv", "tiny"], 2, "tiny"),
        (&[], 2, "required"),
    ] {
        let (code, _, err) = ran(&[&base[..], wrong].concat());
        assert!(code == exit && err.contains(says), "{wrong:?}: {code} {err}");
    }
}

const CLEAN: &str = "When Mary and John went to the store, John gave a drink to";
const CORRUPTED: &str = "When Mary and John went to the store, Mary gave a drink to";

#[test]
fn patch_finds_where_the_answer_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let pair = ["--clean", CLEAN, "--corrupted", CORRUPTED, "--answer", "Mary", "--wrong", "John"];
    for ending in ["json", "csv", "svg", "png"] {
        let out = folder.path().join(format!("patch.{ending}"));
        let (code, said, error) =
            ran(&[&["patch", "--model", "embedded:ioi", "--out", out.to_str().unwrap()], &pair[..]].concat());
        assert_eq!(code, 0, "{error}");
        assert!(said.contains("10 Mary"), "{said}");
        assert!(fs::metadata(&out).unwrap().len() > 500);
    }
    let json: Value = serde_json::from_slice(&fs::read(folder.path().join("patch.json")).unwrap()).unwrap();
    assert!(json["normalized"]["values"][0][10].as_f64().unwrap() > 0.99, "{json}");
    let csv = fs::read_to_string(folder.path().join("patch.csv")).unwrap();
    assert!(
        csv.starts_with(
            "layer,pos,mean,standard_error,effect,normalized,low,high,p_value,adjusted_p_value\n0,0 <bos>,"
        ),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 1 + 4 * 15);
    let svg = fs::read_to_string(folder.path().join("patch.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("14 to"));
    assert!(fs::read(folder.path().join("patch.png")).unwrap().starts_with(b"\x89PNG"));

    let heads = ["patch", "--model", "embedded:ioi", "--ioi", "5", "--at", "*hook_z", "--per", "head", "--top", "1"];
    for more in [&["--estimate"][..], &["--estimate=relp"], &["--estimate=grad-drop"], &["--reverse"], &[]] {
        let (code, said, error) = ran(&[&heads[..], more].concat());
        assert!(code == 0 && said.contains("5 prompts") && said.contains("share of the gap"), "{said}{error}");
    }
    let null = |seed| ran(&[&heads[..], &["--shuffled", seed]].concat());
    let (code, said, error) = null("0");
    assert!(code == 0 && said.starts_with("shuffled pairs: 5 prompts"), "{said}{error}");
    assert!(!said.contains("in the source runs") && null("0").1 == said && null("1").1 != said, "{said}");
    for (more, expected) in [("--ablate=zero", "cannot be used with"), ("--shard=1/2", "cannot be used with")] {
        let (code, _, error) = ran(&[&heads[..], &["--shuffled", "0", more]].concat());
        assert!(code == 2 && error.contains(expected), "{more}: {error}");
    }
    let (code, _, error) = ran(&["patch", "--model", "embedded:ioi", "--ioi", "1", "--shuffled", "0"]);
    assert!(code == 1 && error.contains("example 0 is the only one with"), "{error}");
    let (code, said, _) = ran(&[
        "patch",
        "--model",
        "embedded:ioi",
        "--ioi",
        "5",
        "--at",
        "*hook_z",
        "--per",
        "head",
        "--ablate",
        "mean",
    ]);
    assert!(
        code == 0 && !said.contains("no source run to patch from") && !said.contains("in the source runs"),
        "{said}"
    );
    let file = folder.path().join("pairs.jsonl");
    let line = format!(
        "{{\"clean\": \"{CLEAN}\", \"corrupted\": \"{CORRUPTED}\", \"answer\": \"Mary\", \"wrong\": \"John\"}}\n"
    );
    fs::write(&file, &line).unwrap();
    let (code, ..) = ran(&["patch", "--model", "embedded:ioi", "--pairs", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    // Each of the four texts.
    let others = [(CLEAN, "gave xyzzy to"), (CORRUPTED, "gave xyzzy to"), ("Mary\"", "xyzzy\""), ("John\"", "xyzzy\"")];
    let changed = others.map(|(text, other)| line.replacen(&format!("\"{text}"), &format!("\"{other}"), 1));
    assert!(changed.iter().all(|changed| *changed != line));
    for second in [&changed[..], &["{}\n".to_string()]].concat() {
        fs::write(&file, format!("{line}{second}")).unwrap();
        let (code, _, error) = ran(&["patch", "--model", "embedded:ioi", "--pairs", file.to_str().unwrap()]);
        assert!(code == 1 && error.contains("pairs.jsonl, line 2"), "{second}: {error}");
    }
}

#[test]
fn patch_says_what_it_lacks() {
    let model = ["patch", "--model", "embedded:ioi"];
    for (arguments, code, said) in [
        (&["--clean", CLEAN][..], 2, "--answer"),
        (&["--clean", CLEAN, "--answer", "Mary"], 2, "--wrong"),
        (&["--clean", CLEAN, "--answer", "Mary", "--wrong", "John"], 2, "--corrupted"),
        (
            &["--clean", CLEAN, "--corrupted", "When Mary", "--answer", "Mary", "--wrong", "John"],
            1,
            "the clean prompt has 15 tokens but the corrupted one has 3",
        ),
        (
            &["--clean", CLEAN, "--corrupted", CORRUPTED, "--answer", "Mary and", "--wrong", "John"],
            1,
            "2 tokens, not one",
        ),
        (&["--ioi", "2", "--per", "head"], 2, "--per head does not apply"),
        (&["--ioi", "2", "--at", "*hook_resid_per"], 1, "did you mean"),
        (&["--ioi", "2", "--out", "map.gif"], 2, ".svg, .png or .html"),
        (&["--ioi", "0"], 2, "at least 1"),
        (&[], 2, "--pairs"),
    ] {
        let (given, _, error) = ran(&[&model[..], arguments].concat());
        assert_eq!(given, code, "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn lens_attribute_and_heads_print_and_write() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (code, said, error) =
        ran(&["lens", "--model", "embedded:ioi", "--prompt", CLEAN, "--answer", "Mary", "--out", &out("lens.json")]);
    assert!(code == 0 && said.contains("final_post  rank 0"), "{said}{error}");
    let json: Value = serde_json::from_slice(&fs::read(out("lens.json")).unwrap()).unwrap();
    assert_eq!(json["places"].as_array().unwrap().len(), 5 * 15);
    for name in ["lens.svg", "lens.csv"] {
        let (code, _, error) =
            ran(&["lens", "--model", "embedded:ioi", "--prompt", CLEAN, "--positions", "-2..", "--out", &out(name)]);
        assert_eq!(code, 0, "{error}");
    }
    for to in ["layers", "heads", "neurons"] {
        let (code, said, error) = ran(&[
            "attribute",
            "--model",
            "embedded:ioi",
            "--to",
            to,
            "--prompt",
            CLEAN,
            "--answer",
            "Mary",
            "--wrong",
            "John",
            "--out",
            &out("attribute.svg"),
        ]);
        assert!(code == 0 && said.contains("Mary - John"), "{said}{error}");
    }
    let (code, said, error) = ran(&[
        "attribute",
        "--model",
        "embedded:ioi",
        "--to",
        "edges",
        "--ioi",
        "3",
        "--integrated",
        "3",
        "--out",
        &out("edges.csv"),
    ]);
    assert!(code == 0 && said.contains(" -> "), "{said}{error}");
    assert!(
        fs::read_to_string(out("edges.csv")).unwrap().starts_with("sender,receiver,value,standard_error,low,high,")
    );
    let (code, said, _) = ran(&["heads", "--model", "embedded:induction", "--out", &out("heads.png")]);
    assert!(code == 0 && said.contains("induction       L1H"), "{said}");
    let (code, _, error) = ran(&["attribute", "--model", "embedded:ioi", "--answer", "Mary"]);
    assert!(code == 2 && error.contains("--prompt"), "{error}");
    let (code, ..) = ran(&["lens", "--model", "embedded:ioi", "--prompt", CLEAN, "--positions", "99"]);
    assert_eq!(code, 1);
}

/// An unknown word is named with suggestions, and the vocabulary can be listed.
#[test]
fn unknown_words_and_the_vocabulary() {
    for arguments in [
        &["--prompt", "Alice gave Bob a book"][..],
        &["--prompt", CLEAN, "--answer", "Bob"],
        &["--prompt", "Bob <bos> Bob, Mary"],
    ] {
        let (code, _, error) = ran(&[&["lens", "--model", "embedded:ioi"], arguments].concat());
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("the vocabulary of 61 tokens lacks `Bob`;"), "{error}");
        assert!(error.contains("`hooklens vocabulary --model MODEL`"), "{error}");
    }
    let (_, _, error) = ran(&["lens", "--model", "embedded:ioi", "--prompt", "Marry xyzzy John"]);
    assert!(error.contains("lacks `Marry`, `xyzzy`; did you mean `Mary`, `Mark`"), "{error}");

    let listed = ["vocabulary", "--model", "embedded:ioi"];
    let (code, out, error) = ran(&listed);
    assert_eq!((code, error.as_str(), out.lines().count()), (0, "", 61));
    assert!(out.starts_with(" 0  <bos>\n 1  Mary\n") && out.ends_with("60  .\n"), "{out}");
    let (_, out, _) = ran(&[&listed[..], &["--contains", "Mar"]].concat());
    assert_eq!(out, " 1  Mary\n 9  Mark\n");
    let (code, out, _) = ran(&[&listed[..], &["--contains", "Mary", "--json"]].concat());
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["size"], &json["tokens"][0]["text"]), (0, &61.into(), &"Mary".into()));
    let (code, _, error) = ran(&[&listed[..], &["--contains", "Bob"]].concat());
    assert!(code == 1 && error.contains("none of the 61 tokens contains \"Bob\""), "{error}");
    let encoder = fixtures().join("gpt2");
    let (code, _, error) = ran(&["vocabulary", "--model", encoder.to_str().unwrap()]);
    assert!(code == 1 && error.contains("no tokenizer"), "{error}");
}

/// A head has the same score in every command; TransformerLens's measure is only used on request.
#[test]
fn commands_agree_on_what_a_head_does() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "king drum sun star moon king drum sun star moon";
    let (_, dumped, _) = dump(folder.path(), "x.safetensors", &["--prompt", prompt, "--hooks", "*hook_pattern"]);
    let (_, shown, _) = ran(&["attention", "--model", "embedded:induction", "--prompt", prompt, "--top", "8"]);
    let heads = ["heads", "--model", "embedded:induction", "--prompt", prompt, "--top", "8"];
    let (code, found, error) = ran(&heads);
    assert_eq!(code, 0, "{error}");
    let induction: Vec<&str> = found.lines().find(|line| line.starts_with("induction")).unwrap().split("   ").collect();
    let dumped: Vec<&str> = dumped.lines().filter(|line| line.contains("induction head")).collect();
    assert!(!dumped.is_empty());
    for line in dumped {
        let [head, score] = [0, 1].map(|place| line.split_whitespace().nth(place).unwrap());
        assert!(induction.iter().any(|message| message.ends_with(&format!("{head} {score}"))), "{line}: {found}");
        let row = shown.lines().find(|row| row.starts_with(head)).unwrap();
        assert_eq!(row.split_whitespace().nth(3), Some(score), "{line}: {shown}");
    }
    let (_, of_all, _) = ran(&[&heads[..], &["--measure", "mul"]].concat());
    assert_ne!(found, of_all);
    let (code, _, error) = ran(&[&heads[..], &["--exclude-bos"]].concat());
    assert!(code == 2 && error.contains("--measure"), "{error}");
}

#[test]
fn bench_measures_every_kind_of_work() {
    let (code, out, error) = ran(&["bench", "--model", "embedded:induction", "--rounds", "1", "--json"]);
    assert_eq!(code, 0, "{error}");
    let said: Value = serde_json::from_str(&out).unwrap();
    let names: Vec<&str> = said["timings"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    for work in ["forward, ", "recording every point", "gradients of every", "decoding ", " shared", "patching 2 x"] {
        assert!(names.iter().any(|name| name.contains(work)), "{work}: {names:?}");
    }
    assert!(said["timings"].as_array().unwrap().iter().all(|t| t["median_ms"].as_f64().unwrap() > 0.0));
    let (code, out, _) = ran(&["bench", "--model", "embedded:ioi", "--work", "forward", "--rounds", "1"]);
    assert_eq!(code, 0);
    assert!(out.contains("tokens/s") && out.lines().count() >= 2, "{out}");
    let (code, _, error) = ran(&["bench", "--model", "embedded:ioi", "--work", "sleep"]);
    assert!(code == 2 && error.contains("forward, cache, gradients, decode, prefix, patch"), "{error}");
    assert_eq!(ran(&["bench", "--model", "embedded:ioi", "--rounds", "0"]).0, 2);
}

/// `doctor` reports information about the machine and a model's requirements, in text and JSON.
#[test]
fn doctor_says_what_there_is_and_what_to_do() {
    let (code, out, error) = ran(&["doctor", "--model", "embedded:ioi"]);
    assert_eq!(code, 0, "{error}");
    for words in ["processor", "instructions", "flex", "embedded:ioi fits"] {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    let message: serde_json::Value = serde_json::from_str(&ran(&["doctor", "--json"]).1).unwrap();
    assert!(message["cores"].as_u64() >= Some(1) && message["needs"].is_null());
    assert_eq!(message["devices"][0]["name"], "flex");
    assert!(message["features"].as_array().unwrap().contains(&"plot".into()));
    let (code, _, error) = ran(&["doctor", "--model", "no/such-folder/here"]);
    assert!(code == 1 && error.contains("no/such-folder/here"), "{error}");
}

#[test]
fn shards_are_dumped_apart_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let part = |index: usize| folder.path().join(format!("0000{index}-of-00002")).to_str().unwrap().to_string();
    for index in 1..=2 {
        let shard = format!("{index}/2");
        let (code, out, error) =
            dump(folder.path(), "", &["--tokens", "1,2;3,4;5,6", "--batch-size", "1", "--shard", &shard]);
        assert_eq!(code, 0, "{error}");
        assert!(out.starts_with(&format!("{index} prompt")), "{out}");
    }
    let (code, out, error) = ran(&["merge", "--out", folder.path().to_str().unwrap(), &part(2), &part(1)]);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with("3 prompts in 3 files"), "{out}");
    let (code, _, error) = dump(folder.path(), "x.safetensors", &["--tokens", "1,2", "--shard", "1/2"]);
    assert!(code == 2 && error.contains("merge"), "{error}");
    let (code, _, error) = dump(folder.path(), "x", &["--tokens", "1,2", "--shard", "3/2"]);
    assert!(code == 2 && error.contains("2/2"), "{error}");
}
