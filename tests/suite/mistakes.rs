//! Mistakes that people make on the command line. Each message names the thing, what was given, what was expected and,
//! where there is one, the next step.

use crate::support::program;

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";
const LONG: &str = "When Mary and John went to the store, John gave a drink to Mary When Mary and John went to the store, \
                    John gave a drink to Mary When Mary and John went to the store, John gave a drink to Mary When Mary \
                    and John went";

/// A command without `hooklens` and `--model embedded:ioi`, and the parts of its message.
type Mistake = (&'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    // Names.
    ("hooks --model embedded:ioy", &["embedded:ioy", "induction, ioi"]),
    ("dump --model embedded:ioy --prompt P --out a", &["embedded:ioy", "induction, ioi"]),
    ("hooks --model ./nothere", &["./nothere", "no such folder"]),
    ("patch --model ./nothere --ioi 2", &["./nothere", "no such folder"]),
    ("dump --prompt P --hooks *hook_zz --out a", &["*hook_zz", "did you mean", "blocks.0.attn.hook_z"]),
    ("patch --ioi 2 --at *hook_zz", &["*hook_zz", "did you mean", "blocks.0.attn.hook_z"]),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pree --latents 8 --k 4 --out s",
        &["hook_resid_pree", "did you mean", "blocks.2.hook_resid_pre"],
    ),
    ("features find --dictionary embedded:ioi-sea --prompt P", &["embedded:ioi-sea", "ioi-sae"]),
    ("features eval --dictionary embedded:ioi-sea --prompts prompts.txt", &["embedded:ioi-sea", "ioi-sae"]),
    ("attribute --prompt P --answer Marry", &["Marry", "did you mean `Mary`", "hooklens vocabulary"]),
    ("graph --prompt P --answer Marry", &["Marry", "did you mean `Mary`", "hooklens vocabulary"]),
    ("heads --measure median", &["median", "--measure", "mean"]),
    ("patch --ioi 2 --per posn", &["posn", "--per", "pos"]),
    ("dump --prompt P --device cudda --out a", &["cudda", "cuda:N"]),
    ("heads --device cudda", &["cudda", "cuda:N"]),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 18446744073709551615 --k 4 --out s",
        &["--latents 18446744073709551615", "is more than"],
    ),
    ("prompts oi", &["oi", "ioi", "greater-than"]),
    ("prompts ioi --count 0", &["--count", "0", "1..=100000"]),
    ("prompts ioi --count 100001", &["--count", "100001"]),
    ("prompts ioi --model embedded:induction", &["`io`, `s`", "at least 2", "0 of 48", "`Mary`"]),
    ("prompts gender-bias", &["only 0 of 36 are single tokens", "`nurse/man/she/he`"]),
    // Options that have no effect, and numbers that are only found wrong after a long run.
    ("attribute --prompt P --answer Mary --metric log-prob", &["--metric log-prob", "--to edges"]),
    ("attribute --clean P --corrupted P --answer Mary", &["--corrupted", "--to edges"]),
    ("attribute --prompt P --answer Mary --integrated 5", &["--integrated", "--to edges"]),
    ("circuit --ioi 2 --method acdc --threshold 0.1 --out x.svg", &["need", "scores", "--out FILE.csv"]),
    ("circuit --ioi 2 --circuit none.json --out x.svg", &["needs scores", "--out FILE.csv"]),
    ("circuit --ioi 2 --method acdc --threshold 0.1 --save-mib x.json", &["--save-mib needs scores"]),
    ("circuit --ioi 2 --adversary-steps 18446744073709551615 --budget 9", &["18446744073709551615 passes"]),
    ("circuit --ioi 2 --subsets 18446744073709551615 --budget 9", &["18446744073709551615 passes"]),
    ("circuit --ioi 2 --method eap-ig --steps 18446744073709551615 --budget 9", &["18446744073709551615 passes"]),
    ("circuit --ioi 2 --nodes heads --subsets 18446744073709551615 --budget 9", &["18446744073709551615 passes"]),
    ("dump --prompts prompts.txt --on-error skip --out a.safetensors", &["--on-error skip", "a folder as --out"]),
    ("dump --prompt P --on-error skip --out a", &["--on-error skip", "prompts in files"]),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 8 --k 4 --batch-size 0 --out s",
        &["--batch-size is 0", "at least 1"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 8 --architecture topk --k 3.9 --out s",
        &["--k 3.9", "whole number"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 8 --k 4 --coefficient 7 --out s",
        &["--coefficient", "jumprelu, gated or l1"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 8 --k 4 --widths 4 --out s",
        &["--widths", "matryoshka"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 8 --k 4 --tanh --out s",
        &["--tanh", "jumprelu"],
    ),
    (
        "features train --dump d --limit 3 --at blocks.2.hook_resid_pre --latents 8 --k 4 --out s",
        &["--dump", "--limit"],
    ),
    ("generate --prompt P --max-new-tokens 18446744073709551615", &["15 tokens"]),
    ("generate --prompt P --temperature 1 --samples 4294967295", &["4294967295 rows", "maximum of 1048576"]),
    // Layers, heads, positions and latents.
    ("dump --prompt P --hooks blocks.9.hook_resid_pre --out a", &["blocks.9.hook_resid_pre", "0 to 3"]),
    ("patch --ioi 2 --at blocks.9.hook_resid_pre", &["blocks.9.hook_resid_pre", "0 to 3"]),
    ("attention --prompt P --layers 7", &["--layers 7", "0 to 3"]),
    ("attention --prompt P --heads 4", &["--heads 4", "0 to 3"]),
    ("features find --dictionary embedded:ioi-transcoders --layer 9 --prompt P", &["layer 9", "0 to 3"]),
    (
        "features show --dictionary embedded:ioi-transcoders --prompts prompts.txt --out x.html",
        &["4 layers", "--layer N"],
    ),
    ("features find --dictionary embedded:ioi-transcoders --prompt P", &["4 layers", "--layer N"]),
    ("lens --prompt P --positions 3..99", &["3..99", "15 positions"]),
    ("features find --dictionary embedded:ioi-sae --prompt P --position 99", &["99", "15 positions"]),
    (
        "features show --dictionary embedded:ioi-sae --prompts prompts.txt --latents 999 --out x.html",
        &["999", "0 to 255"],
    ),
    ("graph --prompt P --set 9:14:12=0", &["layer 9", "0, 1, 2, 3"]),
    ("graph --prompt P --set 3:99:12=0", &["position 99", "0 to 14"]),
    ("generate --prompt P --set 3:14:999=0", &["latent 999", "0 to 255"]),
    ("lens --prompt P --answer-token 999", &["--answer-token 999", "0 to 60"]),
    ("dump --tokens 1,2,999 --out a", &["999", "vocabulary of 61"]),
    ("heads --tokens 1,2,999", &["999", "vocabulary of 61"]),
    // Axes and shapes.
    ("patch --ioi 2 --at *attn.hook_z --per neuron", &["--per neuron", "hook_z", "head"]),
    ("patch --ioi 2 --per head", &["--per head", "hook_resid_pre", "pos"]),
    (
        "features train --prompts prompts.txt --at blocks.2.attn.hook_pattern --latents 8 --k 4 --out s",
        &["blocks.2.attn.hook_pattern", "query, key"],
    ),
    // Lengths.
    ("dump --prompt LONG --out a", &["51", "48", "--truncate 48"]),
    ("generate --prompt LONG", &["48"]),
    ("patch --clean P --corrupted When --answer Mary --wrong John", &["pair 1", "15 tokens", "2", "same number"]),
    ("patch --pairs short.jsonl", &["short.jsonl, line 1", "15 tokens", "2", "same number"]),
    // Keys, endings and files.
    ("patch --pairs misspelled.jsonl", &["misspelled.jsonl, line 1", "corupted", "did you mean `corrupted`"]),
    ("graph --pairs misspelled.jsonl", &["misspelled.jsonl, line 1", "corupted", "did you mean `corrupted`"]),
    ("patch --ioi 2 --out x.pdf", &["--out", "x.pdf", ".svg"]),
    ("heads --out x.pdf", &["--out", "x.pdf", ".svg"]),
    ("features show --dictionary embedded:ioi-sae --prompts prompts.txt --out x.htlm", &["--out", ".html"]),
    ("graph --prompt P --out x.pdf", &["--out", ".html"]),
    ("dump --prompts nofile.txt --out a", &["--prompts nofile.txt", "No such file"]),
    ("generate --prompts nofile.txt", &["--prompts nofile.txt", "No such file"]),
    ("merge --out nothere", &["--out nothere", "no such folder"]),
    (
        "parity --reference nothere.safetensors",
        &["--reference nothere.safetensors", "no such file", "tokens and activations"],
    ),
    // Units and forms of values.
    ("dump --prompt P --dtype f8 --out a", &["f8", "--dtype", "bf16"]),
    ("heads --dtype f8", &["f8", "--dtype", "bf16"]),
    ("dump --prompt P --max-memory 6GG --out a", &["6GG", "--max-memory", "GB"]),
    ("graph --prompt P --memory 6GG", &["6GG", "--memory", "GB"]),
    ("dump --tokens 1.5 --out a", &["1.5", "--tokens", "1,2,3"]),
    ("heads --tokens a", &["`a`", "--tokens", "1,2,3"]),
    ("graph --prompt P --set 3-14-12=0", &["3-14-12=0", "--set", "3:14:12=0"]),
    ("generate --prompt P --set 3-14-12=0", &["3-14-12=0", "--set", "3:14:12=0"]),
    ("dump --prompt P --shard 4/3 --out a", &["4/3", "1/3 to 3/3"]),
    ("patch --ioi 4 --shard 4/3 --out a", &["4/3", "1/3 to 3/3"]),
    ("graph --prompt P --node-share 80", &["80", "--node-share", "0 to 1"]),
    ("graph --prompt P --likely-share 2", &["2", "--likely-share", "0 to 1"]),
    // Options that belong together.
    ("patch --clean P --corrupted P --answer Mary --wrong John", &["nothing to measure", "identical"]),
    ("patch --clean P --corrupted LONG --answer Mary", &["--wrong", "logit-diff"]),
    ("attribute --prompt P", &["--answer"]),
    ("attribute --answer Mary", &["--prompt", "--pairs"]),
    ("generate --prompt P --samples 3", &["--samples", "--temperature"]),
    ("dump --prompt P --resume --out a.safetensors", &["--resume", "folder"]),
    ("patch --ioi 2 --json --shard 1/2 --out a", &["--json", "--shard"]),
    ("info embedded:ioi", &["embedded:ioi", "--model embedded:ioi"]),
    ("info --model ioi", &["`ioi`", "embedded:ioi"]),
    ("features info ioi-sae", &["ioi-sae", "embedded:ioi-sae"]),
    ("patch --prompt P --answer Mary", &["--prompt", "--clean"]),
    ("patch --model embedded:induction --ioi 2", &["--ioi", "pair 1", "Emma", "hooklens vocabulary"]),
    ("generate --prompt P --max-new-tokens 1000", &["--max-new-tokens 1000", "15 tokens", "48", "34"]),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_post --latents 8 --k 4 --tokens 1X --out s",
        &["1X", "--tokens", "1M"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_post --latents 8 --k 4 --tokens 1k --out s",
        &["--tokens 1000", "--batch-size 2048", "smaller"],
    ),
    (
        "features train --prompts prompts.txt --at blocks.2.hook_resid_post --latents 8 --out s",
        &["--k 32", "--latents 8"],
    ),
    ("dump --prompt P --positions last --out a", &["last", "--positions", "-1"]),
    ("dump --prompts empty.txt --out a", &["empty.txt", "no prompts"]),
    ("dump --prompts json.txt --out a", &["json.txt", "json.txt.jsonl"]),
    ("parity --reference .", &["--reference", "folder", ".safetensors"]),
    ("attention --prompt P P --out a.svg", &["one prompt", "2 were given", ".html"]),
    ("info --model embedded:ioi --devices", &["--model", "--devices"]),
];

#[test]
fn messages_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("empty.txt", "");
    write("json.txt", "{\"text\": \"red fox\"}\n");
    write("prompts.txt", &format!("{PROMPT}\n"));
    write("misspelled.jsonl", &format!("{{\"clean\": {PROMPT:?}, \"corupted\": {PROMPT:?}, \"answer\": \"Mary\"}}\n"));
    let short =
        format!("{{\"clean\": {PROMPT:?}, \"corrupted\": \"When\", \"answer\": \"Mary\", \"wrong\": \"John\"}}\n");
    write("short.jsonl", &short);
    let mut poor = Vec::new();
    for (command, parts) in MISTAKES {
        let words = command.split(' ').map(|word| match word {
            "P" => PROMPT,
            "LONG" => LONG,
            word => word,
        });
        let mut program = program();
        program.current_dir(folder.path()).args(words);
        let takes_no_model = ["info", "merge", "features info"].iter().any(|name| command.starts_with(name));
        if !takes_no_model && !command.contains("--model") {
            program.args(["--model", "embedded:ioi"]);
        }
        let output = program.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_error = matches!(output.status.code(), Some(1 | 2)) && message.contains("error: ");
        // Never more than what a person reads, and no words of the program's source.
        let is_short = message.lines().filter(|line| !line.starts_with("note: ")).count() <= 12;
        let is_plain = !["unwrap", "Err(", ".at(", "d_mlp", "panicked"].iter().any(|word| message.contains(word));
        let lacking: Vec<&&str> = parts.iter().filter(|part| !message.contains(**part)).collect();
        if !(is_error && is_short && is_plain && lacking.is_empty() && output.stdout.is_empty()) {
            poor.push(format!("hooklens {command}\n  lacks {lacking:?}: {message}"));
        }
    }
    assert!(poor.is_empty(), "{} of {}:\n{}", poor.len(), MISTAKES.len(), poor.join("\n"));
}
