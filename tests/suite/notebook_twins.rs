//! Compiles and runs the code of every notebook without a kernel.
//!
//! Each notebook has a twin under `notebooks/twins`: its cells concatenated in one function, with the last expression
//! of each cell displayed. `HOOKLENS_BLESS=1 cargo test --release --test suite notebook_twins` regenerates them.

use std::fmt::{Debug, Write};
use std::fs;
use std::path::PathBuf;

use hooklens::plot::Show;

#[path = "../../notebooks/twins/mod.rs"]
mod twins;

/// Displays a cell's last value as a notebook does, or prints it if it has no display method.
pub(crate) trait Displayed {
    fn displayed(&self);
}

impl<T: Show> Displayed for T {
    fn displayed(&self) {
        let shown = self.shown().unwrap();
        assert!(shown.iter().all(|form| !form.content.is_empty()), "{shown:?}");
    }
}

/// Fallback for [`Displayed`], one autoref level further away.
pub(crate) trait Printed {
    fn displayed(&self);
}

impl<T: Debug> Printed for &T {
    fn displayed(&self) {
        assert!(!format!("{self:?}").is_empty());
    }
}

fn folder() -> PathBuf {
    crate::support::root().join("notebooks")
}

/// Name, text and cells of each notebook.
fn notebooks() -> Vec<(String, String, Vec<serde_json::Value>)> {
    let mut found = Vec::new();
    for folder in [folder(), folder().join("checks")] {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_none_or(|ending| ending != "ipynb") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let notebook: serde_json::Value = serde_json::from_str(&text).unwrap();
            // The Python notebook is run by the tests of the Python package.
            if notebook["metadata"]["kernelspec"]["language"] == "python" {
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            found.push((name, text, notebook["cells"].as_array().unwrap().clone()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Sources of the code cells.
fn code(cells: &[serde_json::Value]) -> Vec<String> {
    let lines = |cell: &serde_json::Value| -> String {
        cell["source"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
    };
    cells.iter().filter(|cell| cell["cell_type"] == "code").map(lines).collect()
}

/// The cells as one function. A cell's last expression follows the last line that ends a statement or an item.
fn twin(name: &str, cells: &[String]) -> String {
    let mut code = String::new();
    for cell in cells {
        let lines: Vec<&str> = cell.lines().filter(|line| !line.starts_with(':')).collect();
        let ends = |line: &&str| {
            let code = line.split(" //").next().unwrap_or_default();
            code.ends_with(';') || line.starts_with("//") || (!line.starts_with(' ') && code.ends_with('}'))
        };
        let from = lines.iter().rposition(ends).map_or(0, |last| last + 1);
        code.extend(lines[..from].iter().map(|line| format!("{line}\n")));
        let last = lines[from..].join("\n");
        if !last.trim().is_empty() {
            writeln!(code, "(&({})).displayed();", last.trim()).unwrap();
        }
    }
    format!(
        "//! `{name}.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.\n\n\
         use crate::notebook_twins::{{Displayed, Printed}};\n\n\
         pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {{\n{code}Ok(())\n}}\n"
    )
}

#[test]
fn twins_are_those_of_the_notebooks() {
    let notebooks = notebooks();
    assert!(notebooks.len() >= 6, "{}", notebooks.len());
    let bless = std::env::var_os("HOOKLENS_BLESS").is_some();
    let twins = folder().join("twins");
    for (name, _, cells) in &notebooks {
        let (path, wanted) = (twins.join(format!("{name}.rs")), twin(name, &code(cells)));
        if bless {
            fs::write(&path, wanted).unwrap();
        } else {
            let held = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(held, wanted, "{name}.ipynb has changed; regenerate its twin with HOOKLENS_BLESS=1");
        }
    }
    let names: Vec<&str> = notebooks.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(twins::NAMES, &names[..], "name every notebook in notebooks/twins/mod.rs");
}

#[test]
fn notebooks_keep_small_outputs_without_errors() {
    for (name, text, cells) in notebooks() {
        assert!(text.len() < 400_000, "{name}: {} bytes", text.len());
        let outputs: Vec<&serde_json::Value> =
            cells.iter().filter_map(|cell| cell["outputs"].as_array()).flatten().collect();
        assert!(!outputs.is_empty(), "{name} was not run");
        assert!(outputs.iter().all(|output| output["output_type"] != "error"), "{name}");
        // evcxr prints panics and errors that `?` returned.
        assert!(outputs.iter().all(|output| output["name"] != "stderr"), "{name}");
    }
}
