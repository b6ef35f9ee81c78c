//! `hooklens graph view`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::out::{Names, prepare, said, unwritten};
use crate::terminal::{note, stdout};
use crate::{CliResult, Failure};
use hooklens_hooks::write_file;

use hooklens_features::graph::{GraphFile, GraphFileParts};

/// Maximum number of ids listed in a note.
const NAMED: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// A graph in Neuronpedia's JSON, from hooklens, circuit-tracer or another tool
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
    /// The page to write (default: the file's name, with extension .html)
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &ViewArgs) -> CliResult {
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension("html"));
    if !matches!(out.extension().and_then(|ending| ending.to_str()), Some("html" | "htm")) {
        return Err(Failure::Usage("--out must end in .html".into()));
    }
    prepare(Some(&out), Names::File, [args.file.clone()])?;
    let graph = GraphFile::open(&args.file)?;
    let json = graph.json();
    let list = |key: &str| json[key].as_array().map_or(&[][..], Vec::as_slice);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for node in list("nodes") {
        *kinds.entry(node["feature_type"].as_str().unwrap_or("of unknown type")).or_default() += 1;
    }
    let repeated = graph.repeated_ids();
    if !repeated.is_empty() {
        let left_out: usize = repeated.iter().map(|(_, count)| count - 1).sum();
        let nodes = if left_out == 1 { "1 node is".into() } else { format!("{left_out} nodes are") };
        let some = named(repeated.iter().map(|(id, _)| *id));
        note(format!("{nodes} not shown: an earlier node has the same `node_id` ({some}) and receives the links"));
    }
    let unknown = graph.ids_without_node();
    if !unknown.is_empty() {
        let ids = if unknown.len() == 1 { "1 id is".into() } else { format!("{} ids are", unknown.len()) };
        let some = named(unknown.iter().copied());
        note(format!("{ids} pinned, grouped or labeled, but no node has that `node_id`; left out: {some}"));
    }
    write_file(&out, graph.page().as_bytes()).map_err(|e| unwritten(&out, &e))?;
    let mut to = stdout();
    if let Some(prompt) = json["metadata"]["prompt"].as_str() {
        writeln!(to, "{prompt:?}")?;
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    writeln!(to, "{} nodes ({}), {} links", list("nodes").len(), kinds.join(", "), list("links").len())?;
    let groups = json["qParams"]["supernodes"].as_array().map_or(0, Vec::len);
    if groups > 0 {
        writeln!(to, "{groups} groups")?;
    }
    drop(to);
    said(&out)
}

/// The first few ids, as a list.
fn named<'i>(ids: impl Iterator<Item = &'i str>) -> String {
    let all: Vec<&str> = ids.collect();
    let more = if all.len() > NAMED { ", ..." } else { "" };
    format!("{}{more}", all[..all.len().min(NAMED)].join(", "))
}
