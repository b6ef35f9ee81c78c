//! `hooklens graph view`.

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::node_counts;
use crate::out::{Names, plural, prepare, said, unwritten};
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
    let nouns: Vec<Cow<'_, str>> = list("nodes").iter().map(|node| noun(node["feature_type"].as_str())).collect();
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
    let (nodes, links) = (plural(nouns.len(), "node"), plural(list("links").len(), "link"));
    writeln!(to, "{nodes}: {}; {links}", node_counts(nouns.iter().map(|noun| &**noun)))?;
    let groups = json["qParams"]["supernodes"].as_array().map_or(0, Vec::len);
    if groups > 0 {
        writeln!(to, "{}", plural(groups, "group"))?;
    }
    drop(to);
    said(&out)
}

/// The noun for a node, from its type in Neuronpedia's schema. Latents of all kinds of transcoders have the type
/// `cross layer transcoder` there.
fn noun(feature_type: Option<&str>) -> Cow<'static, str> {
    Cow::Borrowed(match feature_type {
        Some("cross layer transcoder" | "latent") => "latent",
        Some("neuron") => "neuron",
        Some("mlp reconstruction error") => "error node",
        Some("embedding") => "token node",
        Some("position") => "position node",
        Some("logit") => "output",
        Some(other) => return Cow::Owned(format!("of type {other:?}")),
        None => "of unknown type",
    })
}

/// The first few ids, as a list.
fn named<'i>(ids: impl Iterator<Item = &'i str>) -> String {
    let all: Vec<&str> = ids.collect();
    let more = if all.len() > NAMED { ", ..." } else { "" };
    format!("{}{more}", all[..all.len().min(NAMED)].join(", "))
}
