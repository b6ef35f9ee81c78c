//! Chat templates and special tokens declared in a tokenizer's other files, compared with transformers
//! (`tokenizer_files.py`).

use std::fs;
use std::path::Path;

use hooklens::{Message, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::support::fixtures;

fn golden<T: for<'j> Deserialize<'j>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(fixtures().join("tokenizer_files").join(name)).unwrap()).unwrap()
}

/// A folder with the tokenizer and other files.
fn folder(files: &Map<String, Value>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join("tokenizer_files/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = content.as_str().map_or_else(|| content.to_string(), String::from);
        fs::write(path, text).unwrap();
    }
    folder
}

fn tokenizer(folder: &Path) -> Tokenizer {
    Tokenizer::from_folder(folder).unwrap().unwrap()
}

#[derive(Deserialize)]
struct Templates {
    messages: Vec<Map<String, Value>>,
    cases: Vec<TemplateCase>,
}

#[derive(Deserialize)]
struct TemplateCase {
    name: String,
    files: Map<String, Value>,
    template: Option<String>,
    answer: bool,
    text: String,
}

#[test]
fn conversations_are_the_text_of_apply_chat_template() {
    let Templates { messages, cases } = golden("templates.json");
    let messages: Vec<Message> = (messages.iter())
        .map(|message| Message::new(message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
        .collect();
    let mut wrong = Vec::new();
    for TemplateCase { name, files, template, answer, text } in cases {
        let tokenizer = tokenizer(folder(&files).path());
        let given = match &template {
            Some(template) => tokenizer.chat_by(template, &messages, answer),
            None => tokenizer.chat(&messages, answer),
        };
        match given {
            Ok(given) if given == text => {}
            other => wrong.push(format!("{name}: {other:?}, not {text:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_that_is_not_there_is_named() {
    let chat = |config: Value, template: &str| {
        let files = json!({"tokenizer_config.json": config});
        let tokenizer = tokenizer(folder(files.as_object().unwrap()).path());
        tokenizer.chat_by(template, &[Message::new("user", "Hi")], true).unwrap_err().to_string()
    };
    let named = json!({"chat_template": [{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}]});
    let reported = chat(named.clone(), "default");
    assert!(reported.contains("there is no chat template `default`; the tokenizer has rag, tool_use"), "{reported}");
    assert!(chat(json!({}), "default").contains("has no chat template"));
    let reported = chat(json!({"chat_template": "{{ strftime_now('%Q') }}"}), "default");
    assert!(reported.contains("can't be rendered"), "{reported}");
}

/// `{% generation %}` is a scope, but only text within `{% raw %}`.
#[test]
fn generation_blocks_in_raw_text_are_text() {
    let template =
        "{% generation %}a{% endgeneration %}{% raw %}{% generation %}{% endraw %}{% generation %}b{% endgeneration %}";
    let files = json!({"tokenizer_config.json": {"chat_template": template}});
    let tokenizer = tokenizer(folder(files.as_object().unwrap()).path());
    assert_eq!(tokenizer.chat(&[Message::new("user", "Hi")], true).unwrap(), "a{% generation %}b");
}

/// Templates are untrusted.
#[test]
fn a_template_does_not_run_or_write_forever() {
    let chat = |template: &str| {
        let files = json!({"tokenizer_config.json": {"chat_template": template}});
        let tokenizer = tokenizer(folder(files.as_object().unwrap()).path());
        tokenizer.chat(&[Message::new("user", "Hi")], true).map_err(|error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    };
    let many = "{% for a in range(100000) %}";
    for (template, words) in [
        (format!("{many}{many}{{% endfor %}}{{% endfor %}}"), "the template takes more than 10000000 steps"),
        (format!("{many}{{{{ 'x' * 100000 }}}}{{% endfor %}}"), "the template's output is longer than 67108864 bytes"),
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".into(), "a value is nested more than 100 levels deep"),
        (
            "{% set ns = namespace(a=1) %}{% set ns.a = [ns] %}{{ ns|tojson }}".into(),
            "a value is nested more than 100 levels deep",
        ),
        (
            "{{ 'a'|indent(10000000000000000) }}".into(),
            "the filter `indent` was given 10000000000000000, but the maximum is 1000",
        ),
        ("{{ 'a'|indent(width=1001) }}".into(), "the filter `indent` was given 1001, but the maximum is 1000"),
        (
            "{{ [1]|batch(1000000000000) }}".into(),
            "the filter `batch` was given 1000000000000, but the maximum is 1000",
        ),
        (
            "{{ [1]|slice(1000000000000) }}".into(),
            "the filter `slice` was given 1000000000000, but the maximum is 1000",
        ),
        (
            "{{ '%999999999999d'|format(1) }}".into(),
            "the filter `format` was given 999999999999, but the maximum is 1000",
        ),
        ("{{ 'a' * 10000000000 }}".into(), "too large"),
    ] {
        let message = chat(&template).unwrap_err();
        assert!(message.contains(words), "{template}: {message}");
    }
    assert_eq!(chat("{{ 'a\nb'|indent(2, true) }}").unwrap(), "  a\n  b");
    // Jinja reads every line ending as a newline.
    assert_eq!(chat("a\r\nb\rc").unwrap(), "a\nb\nc");
}

#[test]
fn the_time_is_that_of_now() {
    let config = json!({"tokenizer_config.json": {"chat_template": "{{ strftime_now('%Y-%m-%d %B') }}"}});
    let tokenizer = tokenizer(folder(config.as_object().unwrap()).path());
    let text = tokenizer.chat(&[], true).unwrap();
    let (date, month) = text.split_once(' ').unwrap();
    assert_eq!((date.len(), date.split('-').count(), month.chars().all(char::is_alphabetic)), (10, 3, true), "{text}");
}

#[derive(Deserialize)]
struct Declared {
    texts: Vec<String>,
    cases: Vec<DeclaredCase>,
}

#[derive(Deserialize)]
struct DeclaredCase {
    name: String,
    files: Map<String, Value>,
    ids: Vec<Vec<u32>>,
    without_special: Vec<String>,
    eos: Option<u32>,
    size: usize,
}

#[test]
fn declared_tokens_are_those_of_transformers() {
    let Declared { texts, cases } = golden("declared.json");
    for case in cases {
        let (name, folder) = (&case.name, folder(&case.files));
        let tokenizer = tokenizer(folder.path());
        assert_eq!((tokenizer.eos(), tokenizer.vocab_size()), (case.eos, case.size), "{name}");
        for ((text, ids), plain) in texts.iter().zip(&case.ids).zip(&case.without_special) {
            assert_eq!(&tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(&tokenizer.decode(ids, true).unwrap(), plain, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_declaration_of_no_token_is_refused() {
    for config in [
        json!({"added_tokens_decoder": {"x": {"content": "<a>"}}}),
        json!({"added_tokens_decoder": {"257": 3}}),
        json!({"eos_token": 7}),
        json!({"additional_special_tokens": [null]}),
    ] {
        let files = json!({"tokenizer_config.json": config});
        let reported = Tokenizer::from_folder(folder(files.as_object().unwrap()).path()).unwrap_err();
        let reported = std::error::Error::source(&reported).map_or(reported.to_string(), ToString::to_string);
        assert!(reported.contains("which does not describe a token"), "{reported}");
    }
}
