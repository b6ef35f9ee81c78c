//! `hooklens notebook`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use hooklens_hooks::FolderLock;
use serde_json::{Value, json};

use super::out::{Names, prepare, said, write};
use super::terminal::stdout;
use super::{CliResult, Failure};
use hooklens_loading::loading::sources;

#[derive(Debug, Args)]
pub(super) struct NotebookArgs {
    /// The notebook to write
    #[arg(value_name = "FILE.ipynb")]
    file: PathBuf,
    /// The model to open: `embedded:NAME`, a folder, or a hub id such as gpt2
    #[arg(long, default_value = "embedded:induction", add = crate::completions::model())]
    model: String,
    /// The text to show attention patterns for
    #[arg(long, default_value = "king drum sun star moon tea king drum sun star moon tea")]
    prompt: String,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &NotebookArgs) -> CliResult {
    if args.file.extension().is_none_or(|ending| ending != "ipynb") {
        return Err(Failure::Usage(format!("{}: the file name must end in .ipynb", args.file.display())));
    }
    let is_there = || match args.file.exists() && !args.force {
        true => {
            Err(Failure::Failed(format!("{} already exists; pass --force to overwrite it", args.file.display()).into()))
        }
        false => Ok(()),
    };
    is_there()?;
    prepare(Some(&args.file), Names::File, sources(&args.model))?;
    let _lock = FolderLock::take_for(&args.file).map_err(|e| Failure::Failed(e.into()))?;
    // Another process may have written the file before this process took the lock.
    is_there()?;
    write(&args.file, format!("{:#}\n", notebook(args)).as_bytes())?;
    said(&args.file)?;
    let mut out = stdout();
    writeln!(
        out,
        "To run it, install the Rust kernel: cargo install --locked evcxr_jupyter@0.22.0 && evcxr_jupyter --install"
    )?;
    Ok(())
}

/// The notebook as JSON, in Jupyter's format 4.5.
fn notebook(args: &NotebookArgs) -> Value {
    let (model, prompt) = (&args.model, &args.prompt);
    let cells = [
        ("markdown", "The first cell compiles hooklens, which takes a few minutes the first time.".to_string()),
        ("code", format!("{}\nuse hooklens::prelude::*;", dependency(model))),
        ("code", format!("let model = HookedTransformer::from_pretrained({model:?})?;\nmodel")),
        (
            "code",
            format!(
                "let tokens = model.to_tokens({prompt:?})?;\nlet (logits, cache) = model.run_with_cache(&tokens, \"*hook_pattern\")?;\ncache"
            ),
        ),
        (
            "code",
            "use hooklens::plot::AttentionPatterns;\n\nAttentionPatterns::of(&model, &cache, &tokens, 0)?".to_string(),
        ),
    ];
    let cells: Vec<Value> =
        cells.into_iter().enumerate().map(|(place, (kind, text))| cell(place, kind, &text)).collect();
    json!({
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Rust", "language": "rust", "name": "rust"},
            "language_info": {"file_extension": ".rs", "mimetype": "text/rust", "name": "Rust"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    })
}

fn cell(place: usize, kind: &str, text: &str) -> Value {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let id = format!("cell-{place}");
    match kind {
        "code" => {
            json!({"cell_type": kind, "id": id, "metadata": {}, "source": lines, "execution_count": null, "outputs": []})
        }
        _ => json!({"cell_type": kind, "id": id, "metadata": {}, "source": lines}),
    }
}

/// The `:dep` line for evcxr: the source tree that this program was built from if it still exists, else the published
/// version, with the features needed to open the model.
fn dependency(model: &str) -> String {
    // This crate is in `crates/cli` of the source tree.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let place = match source.filter(|source| source.join("Cargo.toml").is_file()) {
        Some(source) => format!("path = {:?}", source.display().to_string()),
        None => format!("version = {:?}", env!("CARGO_PKG_VERSION")),
    };
    let of_hub = !model.starts_with("embedded:") && !Path::new(model).exists();
    let asked = [("hub", of_hub), ("libtorch", cfg!(feature = "libtorch")), ("cuda", cfg!(feature = "cuda"))];
    let asked = asked.into_iter().filter_map(|(name, wanted)| wanted.then_some(name));
    // Everything a notebook may use except the CLI; `plot` renders values.
    let features: Vec<&str> = ["chat", "decompositions", "plot"].into_iter().chain(asked).collect();
    format!(":dep hooklens = {{ {place}, default-features = false, features = {features:?} }}")
}
