//! The output shown in the README is what its commands print.

use std::fs;

use crate::support::program;

/// Fenced code blocks of a text: language and contents.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let fenced = text.split("```").skip(1).step_by(2);
    fenced.filter_map(|block| block.split_once('\n')).collect()
}

/// The words of a command, split as in a shell.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in command.replace("\\\n", " ").chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, _) if letter.is_whitespace() => words.extend(Some(std::mem::take(&mut word))),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// A line with its time replaced: `(0.0 s)` for any number of seconds.
fn timeless(line: &str) -> String {
    let mut parts = line.split('(').map(String::from).collect::<Vec<_>>();
    for part in &mut parts[1..] {
        if let Some((seconds, rest)) = part.split_once(" s)")
            && seconds.parse::<f64>().is_ok()
        {
            *part = format!("0.0 s){rest}");
        }
    }
    parts.join("(")
}

/// Whether lines match the shown ones, where a line of `...` stands for any number of lines, and a time for any time.
fn shown_as(printed: &[&str], shown: &[&str]) -> bool {
    match (printed, shown) {
        (_, [first, rest @ ..]) if first.trim() == "..." => {
            (0..=printed.len()).any(|more| shown_as(&printed[more..], rest))
        }
        ([line, printed @ ..], [first, shown @ ..]) => timeless(line) == timeless(first) && shown_as(printed, shown),
        (printed, shown) => printed.is_empty() && shown.is_empty(),
    }
}

#[test]
fn the_output_shown_is_the_output() {
    let readme = fs::read_to_string(crate::support::root().join("README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for pair in blocks(&readme).windows(2) {
        let [("sh", commands), ("text", shown)] = pair else { continue };
        let mut printed = String::new();
        for command in commands.replace("\\\n", " ").lines() {
            let (_, arguments) = command.split_once("cargo run --release -- ").expect(command);
            let output = program().args(words(arguments)).current_dir(&folder).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            printed += &String::from_utf8(output.stdout).unwrap();
        }
        let (given, wanted): (Vec<&str>, Vec<&str>) = (printed.lines().collect(), shown.lines().collect());
        assert!(shown_as(&given, &wanted), "README shows\n{shown}\nand this is printed:\n{printed}");
        compared += 1;
    }
    assert!(compared >= 1, "README shows no output");
}

#[test]
fn what_differs_is_seen() {
    let printed = ["1 prompts -> a, 4.0 kB (0.3 s)", "  L1H0  0.81", "  L1H2  0.78"];
    assert!(shown_as(&printed, &["1 prompts -> a, 4.0 kB (0.0 s)", "  L1H0  0.81", "  ..."]));
    assert!(shown_as(&printed, &["...", "  L1H2  0.78"]));
    assert!(!shown_as(&printed, &["1 prompts -> a, 8.0 kB (0.0 s)", "  ..."]));
    assert!(!shown_as(&printed, &["1 prompts -> a, 4.0 kB (0.0 s)", "  L1H0  0.76", "  ..."]));
    assert!(!shown_as(&printed, &["...", "  L1H0  0.81"]));
    assert_eq!(words("dump --prompt \"red fox\" --out 'a b'"), ["dump", "--prompt", "red fox", "--out", "a b"]);
}
