//! Graph files: Neuronpedia's JSON format, and an HTML page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::attribution_graph::{AttributionGraph, GraphDetails, NodeKind, PrunedGraph};
use super::outline;
use super::saved_view;
use super::words::{FeatureTokens, feature_tokens};
use crate::error::GraphError;
use hooklens_io::regular;
use hooklens_io::script_json::script_json;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// The HTML page.
const PAGE: &str = include_str!("page.html");
/// Text in the page that is replaced by the graph.
const PLACE: &str = "__HOOKLENS_GRAPH__";
/// Default fraction of the node influence that pruning keeps.
const NODES: f64 = 0.8;
/// Default fraction of the edge influence that pruning keeps.
const EDGES: f64 = 0.98;
/// Number of promoted and of suppressed tokens listed per feature.
const TOKENS: usize = 5;
/// Number of paths whose nodes are pinned.
const PATHS: usize = 8;

/// A pruned graph in Neuronpedia's schema, written by hooklens or by another tool.
///
/// In circuit-tracer, the error node of layer `l` has the same id as latent `l` of layer 0. hooklens keeps ids unique
/// by naming errors `error_{layer}_{position}`.
///
/// ```
/// use hooklens::attribution::graph::{AttributionGraph, GraphFile, GraphOptions, Replacement};
/// use hooklens::features::Transcoders;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let graph = AttributionGraph::new(&model, "When Mary and John went", &replacement, &GraphOptions::new())?;
/// let file = GraphFile::new(&graph, &graph.prune(0.8, 0.98)?)?.named("went", "embedded:ioi");
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("graph.json");
/// file.save(&path)?;
/// let again = GraphFile::open(&path)?;
/// assert_eq!(again.json()["metadata"]["slug"], "went");
/// again.save(path.with_extension("html"))?; // a page for the browser
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GraphFile {
    json: Value,
}

impl GraphFile {
    /// Builds a file from the nodes and edges of a graph that pruning kept.
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a pruned graph of another graph.
    pub fn new(graph: &AttributionGraph, pruned: &PrunedGraph) -> Result<Self> {
        graph.check_pruned(pruned)?;
        let ids = ids(graph);
        let linked: BTreeSet<usize> = pruned.edges.iter().flat_map(|edge| [edge.source, edge.target]).collect();
        let always = |node: usize| !graph.nodes()[node].is_feature() && graph.nodes()[node].kind != NodeKind::Error;
        let shown = pruned.nodes.iter().copied().filter(|node| linked.contains(node) || always(*node));
        let shown: Vec<usize> = shown.collect();
        let first_target =
            shown.iter().copied().find(|node| matches!(graph.nodes()[*node].kind, NodeKind::Logit { .. }));
        let nodes: Vec<Value> =
            shown.iter().map(|node| node_json(graph, *node, &ids[*node], first_target == Some(*node))).collect();
        let link = |edge: &super::GraphEdge| json!({ "source": ids[edge.source], "target": ids[edge.target], "weight": edge.weight });
        let links: Vec<Value> = pruned.edges.iter().map(link).collect();
        let scores = graph.scores();
        let bias: Map<String, Value> =
            shown.iter().filter_map(|node| Some((ids[*node].clone(), json!(graph.constant(*node)?)))).collect();
        let value: Map<String, Value> =
            shown.iter().filter_map(|node| Some((ids[*node].clone(), json!(graph.value(*node)?)))).collect();
        let own = graph.own_influence();
        let own: Map<String, Value> = shown.iter().map(|node| (ids[*node].clone(), json!(own[*node]))).collect();
        let targets = graph.nodes()[graph.first_logit()..].iter().map(|node| node.label.as_str());
        let targets: Vec<&str> = targets.collect();
        let dictionaries = dictionaries(graph);
        let source = neuronpedia_source(graph);
        let mut json = json!({
            "metadata": {
                "slug": "graph",
                "scan": source.as_ref().map_or("", |(model, _)| model),
                "transcoder_list": dictionaries,
                "prompt_tokens": graph.token_texts(),
                "prompt": graph.prompt(),
                "schema_version": 1,
                "info": { "generator": { "name": "hooklens", "version": env!("CARGO_PKG_VERSION") } },
                "scores": { "replacement": scores.replacement, "completeness": scores.completeness },
                "hooklens": {
                    "targets": targets,
                    "deviation": graph.deviation(),
                    "active": graph.active(),
                    "left_out": graph.left_out(),
                    "bias": bias,
                    "value": value,
                    "own_influence": own,
                },
            },
            "qParams": { "pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": "" },
            "nodes": nodes,
            "links": links,
        });
        if let Some((_, set)) = source {
            json["metadata"]["feature_details"] = json!({ "neuronpedia_source_set": set });
        }
        if let Some(options) = &graph.options {
            json["metadata"]["generation_settings"] = json!({
                "max_n_logits": options.likely.0,
                "desired_logit_prob": options.likely.1,
                "max_feature_nodes": options.max_nodes,
            });
            // The batch size is omitted unless it is set: the schema does not allow null, and by default batches are as
            // large as fits the CPU cache.
            if let Some(batch) = options.batch {
                json["metadata"]["generation_settings"]["batch_size"] = batch.into();
            }
        }
        Ok(Self { json })
    }

    /// Builds a file as `hooklens graph` writes it: pruned to 0.8 of the node influence and 0.98 of the edge influence,
    /// with the tokens that features promote and suppress, and with the strongest paths to the first target pinned.
    ///
    /// ```
    /// use hooklens::attribution::graph::{AttributionGraph, GraphFile, GraphOptions, Replacement};
    /// use hooklens::features::Transcoders;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new())?;
    /// let file = GraphFile::with_defaults(&graph, &model)?; // as the last line of a notebook cell, shows the page
    /// assert!(!file.json()["qParams"]["pinnedIds"].as_array().unwrap().is_empty());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a model that the graph was not made with; also fails if the features' decoders cannot
    /// be read.
    pub fn with_defaults(graph: &AttributionGraph, model: &HookedTransformer) -> Result<Self> {
        let pruned = graph.prune(NODES, EDGES)?;
        let words = feature_tokens(graph, model, &pruned.nodes, TOKENS)?;
        let on_paths = graph.paths(&pruned, graph.first_logit(), PATHS)?.into_iter().flat_map(|path| path.nodes);
        let on_paths: Vec<usize> = on_paths.collect();
        Ok(Self::new(graph, &pruned)?.pruned_at(NODES, EDGES).with_tokens(graph, &words).with_pinned(graph, on_paths))
    }

    /// Sets the graph's slug and model name. If `model` is a folder path, only its last component is used. The
    /// schema's `scan` field is set to the model name only if it is empty: if the dictionaries' files give
    /// Neuronpedia's name for the model, `scan` keeps that name.
    #[must_use]
    pub fn named(mut self, slug: impl Into<String>, model: impl Into<String>) -> Self {
        let (slug, model) = (slug.into(), last_part(&model.into()));
        self.json["metadata"]["slug"] = slug.into();
        if self.json["metadata"]["scan"] == "" {
            self.json["metadata"]["scan"] = model.clone().into();
        }
        self.json["metadata"]["hooklens"]["model"] = model.into();
        self
    }

    /// Reads a graph in Neuronpedia's schema. Pinned nodes, groups and labels may also be encoded as text, as in
    /// Neuronpedia URLs; they are converted to lists.
    ///
    /// # Errors
    /// [`GraphError::Io`] if the file cannot be read; [`GraphError::File`] if it is not a graph, lacks `nodes` or
    /// `links`, has a link to an unknown node, or has pinned nodes, groups or labels that cannot be parsed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |reason: String| GraphError::File { path: path.into(), reason };
        let bytes = regular::read(path).map_err(|source| io(path, "read the graph", source))?;
        if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") {
            let message = "it is a PyTorch file, like the ones circuit-tracer saves; convert it to JSON with \
                        circuit-tracer's `create_graph_files`";
            return Err(wrong(message.into()).into());
        }
        outline::check(&bytes).map_err(wrong)?;
        let mut json = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        saved_view::read_lists(&mut json).map_err(wrong)?;
        for path in ["/metadata", "/metadata/info", "/metadata/hooklens"] {
            if json.pointer(path).is_some_and(|value| !value.is_null() && !value.is_object()) {
                return Err(wrong(format!("`{}` is not an object", path[1..].replace('/', "."))).into());
            }
        }
        Ok(Self { json })
    }

    /// The content of the file.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Writes the graph atomically: as a self-contained HTML page if the path ends in `.html` or `.htm`, otherwise as
    /// JSON.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("html" | "htm") => written(path, self.page().as_bytes()),
            _ => written(path, format!("{}\n", self.json).as_bytes()),
        }
    }
}

/// Neuronpedia's names of the model and the dictionary set, parsed from ids such as `model/12-set` in the dictionaries'
/// files.
fn neuronpedia_source(graph: &AttributionGraph) -> Option<(String, String)> {
    let id = graph.units().iter().find_map(|units| units.dictionary()?.metadata().neuronpedia.clone())?;
    let (model, set) = id.split_once('/')?;
    let of_layer = set.split_once('-').filter(|(layer, _)| layer.parse::<u32>().is_ok());
    Some((model.into(), of_layer.map_or(set, |(_, set)| set).into()))
}

/// The names of the dictionaries that features come from.
fn dictionaries(graph: &AttributionGraph) -> Vec<String> {
    let all = graph.units().iter().filter_map(|units| {
        let dictionary = units.dictionary()?;
        Some(dictionary.metadata().neuronpedia.clone().unwrap_or_else(|| last_part(dictionary.name())))
    });
    all.collect()
}

/// The last component of a folder path; other names are returned unchanged.
fn last_part(name: &str) -> String {
    let path = Path::new(name);
    let last = path.file_name().filter(|_| path.is_absolute() || name.starts_with('.') || path.exists());
    last.map_or_else(|| name.to_string(), |last| last.to_string_lossy().into_owned())
}

fn written(path: &Path, bytes: &[u8]) -> Result<()> {
    hooklens_hooks::write_file(path, bytes).map_err(|source| io(path, "write the graph", source).into())
}

fn io(path: &Path, doing: &'static str, source: std::io::Error) -> GraphError {
    GraphError::Io { path: path.into(), doing, source }
}

/// A unique id for each node.
pub(super) fn ids(graph: &AttributionGraph) -> Vec<String> {
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let vocabulary = graph.nodes().iter().filter_map(|node| match node.kind {
        NodeKind::Token { id } => Some(id),
        NodeKind::Logit { token, .. } => token,
        _ => None,
    });
    let vocabulary = vocabulary.max().map_or(0, |id| id as usize + 1);
    let mut target = 0;
    let id = |node: &super::GraphNode| {
        let (layer, pos) = (node.layer.unwrap_or(0), node.position);
        let id = match node.kind {
            NodeKind::Error => format!("error_{layer}_{pos}"),
            NodeKind::Token { id } => format!("E_{id}_{pos}"),
            NodeKind::Position => format!("P_{pos}_{pos}"),
            NodeKind::Logit { token, .. } => {
                target += 1;
                let number = token.map_or(vocabulary + target, |id| id as usize);
                format!("{}_{number}_{pos}", layer + 1)
            }
            _ => format!("{layer}_{}_{pos}", node.unit().unwrap_or(0)),
        };
        // Two dictionaries of the same layer may have a latent with the same index.
        let times = taken.entry(id.clone()).or_insert(0);
        *times += 1;
        if *times == 1 { id } else { format!("{id}_{times}") }
    };
    graph.nodes().iter().map(id).collect()
}

fn node_json(graph: &AttributionGraph, number: usize, id: &str, first_target: bool) -> Value {
    let node = &graph.nodes()[number];
    let (layer, pos) = (node.layer.unwrap_or(0), node.position);
    let kind = match node.kind {
        NodeKind::Feature { .. } => "cross layer transcoder",
        NodeKind::Latent { .. } => "latent",
        NodeKind::Neuron { .. } => "neuron",
        NodeKind::Error => "mlp reconstruction error",
        NodeKind::Token { .. } => "embedding",
        NodeKind::Position => "position",
        NodeKind::Logit { .. } => "logit",
    };
    let row = match node.kind {
        NodeKind::Token { .. } | NodeKind::Position => "E".to_string(),
        NodeKind::Logit { .. } => (layer + 1).to_string(),
        _ => layer.to_string(),
    };
    let number_of = id.split('_').nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    // The Cantor pairing of layer and latent, which Neuronpedia uses to look up features.
    let cantor = |layer: u64, latent: u64| (layer + latent) * (layer + latent + 1) / 2 + latent;
    let (feature, js): (i64, String) = match node.kind {
        NodeKind::Error => (-1, format!("{layer}_{pos}-0")),
        NodeKind::Token { id } => (pos as i64, format!("E_{id}-{pos}")),
        NodeKind::Position => (pos as i64, format!("P_{pos}-{pos}")),
        NodeKind::Logit { .. } => (number_of as i64, format!("L_{number_of}-{pos}")),
        _ => (cantor(layer as u64, number_of) as i64, format!("{layer}_{number_of}-0")),
    };
    let clerp = match node.kind {
        NodeKind::Logit { token: Some(_), weight } => format!("Output \"{}\" (p={weight:.3})", node.label),
        NodeKind::Logit { .. } => format!("Output {}", node.label),
        NodeKind::Position => format!("position {pos}"),
        _ => node.label.clone(),
    };
    let probability = match node.kind {
        NodeKind::Logit { weight, .. } => weight,
        _ => 0.0,
    };
    json!({
        "node_id": id,
        "feature": feature,
        "layer": row,
        "ctx_idx": pos,
        "feature_type": kind,
        "token_prob": probability,
        "is_target_logit": first_target,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": js,
        "clerp": clerp,
        "unit": node.unit(),
        "influence": (!matches!(node.kind, NodeKind::Logit { .. })).then_some(node.influence),
        "activation": node.activation,
    })
}

/// Parts of a graph file that `hooklens graph` writes and checks.
pub trait GraphFileParts: Sized {
    /// Records the thresholds passed to [`AttributionGraph::prune`].
    #[must_use]
    fn pruned_at(self, node_share: f64, edge_share: f64) -> Self;

    /// Sets the creation time, in milliseconds since 1970.
    #[must_use]
    fn dated(self, milliseconds: u64) -> Self;

    /// Adds the tokens that features promote and suppress, from [`feature_tokens`].
    #[must_use]
    fn with_tokens(self, graph: &AttributionGraph, tokens: &FeatureTokens) -> Self;

    /// Adds named groups of nodes (supernodes) and pins their members.
    #[must_use]
    fn with_groups(self, graph: &AttributionGraph, groups: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self;

    /// Pins nodes. The page opens with the subgraph of pinned nodes.
    #[must_use]
    fn with_pinned(self, graph: &AttributionGraph, nodes: impl IntoIterator<Item = usize>) -> Self;

    /// Ids that are pinned, grouped or labeled but belong to no node. The page ignores them.
    ///
    /// ```
    /// use hooklens::attribution::graph::GraphFile;
    /// use hooklens_features::graph::GraphFileParts;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("graph.json");
    /// let node = r#"{"node_id": "0_1_2", "layer": "0", "ctx_idx": 2}"#;
    /// let pinned = r#"{"pinnedIds": "0_1_2,0_7_2"}"#; // as in a URL
    /// std::fs::write(&path, format!(r#"{{"nodes": [{node}], "links": [], "qParams": {pinned}}}"#))?;
    /// assert_eq!(GraphFile::open(&path)?.ids_without_node(), ["0_7_2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn ids_without_node(&self) -> Vec<&str>;

    /// Ids used by several nodes, with the number of nodes. The page shows only the first node with such an id.
    /// circuit-tracer gives the error node of layer `l` and latent `l` of layer 0 the same id.
    ///
    /// ```
    /// use hooklens::attribution::graph::GraphFile;
    /// use hooklens_features::graph::GraphFileParts;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("graph.json");
    /// let node = r#"{"node_id": "0_1_2", "layer": "0", "ctx_idx": 2}"#;
    /// std::fs::write(&path, format!(r#"{{"nodes": [{node}, {node}], "links": []}}"#))?;
    /// assert_eq!(GraphFile::open(&path)?.repeated_ids(), [("0_1_2", 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn repeated_ids(&self) -> Vec<(&str, usize)>;

    /// The graph as a self-contained HTML page.
    fn page(&self) -> String;
}

impl GraphFileParts for GraphFile {
    fn pruned_at(mut self, node_share: f64, edge_share: f64) -> Self {
        self.json["metadata"]["node_threshold"] = node_share.into();
        self.json["metadata"]["pruning_settings"] =
            json!({ "node_threshold": node_share, "edge_threshold": edge_share });
        self
    }

    fn dated(mut self, milliseconds: u64) -> Self {
        self.json["metadata"]["info"]["create_time_ms"] = milliseconds.into();
        self
    }

    fn with_tokens(mut self, graph: &AttributionGraph, tokens: &FeatureTokens) -> Self {
        let ids = ids(graph);
        let by_id: BTreeMap<&str, &[Vec<String>; 2]> =
            tokens.iter().filter_map(|(node, words)| Some((ids.get(*node)?.as_str(), words))).collect();
        for node in self.json["nodes"].as_array_mut().into_iter().flatten() {
            if let Some([promoted, suppressed]) = node["node_id"].as_str().and_then(|id| by_id.get(id)) {
                node["top"] = json!({ "promoted": promoted, "suppressed": suppressed });
            }
        }
        self
    }

    fn with_groups(mut self, graph: &AttributionGraph, groups: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let (ids, mut all) = (ids(graph), Vec::new());
        let supernodes: Vec<Vec<String>> = groups
            .into_iter()
            .map(|(label, members)| {
                let own = members.iter().filter_map(|node| ids.get(*node).cloned());
                let group = std::iter::once(label).chain(own).collect();
                all.extend(members);
                group
            })
            .collect();
        self.json["qParams"]["supernodes"] = json!(supernodes);
        self.with_pinned(graph, all)
    }

    fn with_pinned(mut self, graph: &AttributionGraph, nodes: impl IntoIterator<Item = usize>) -> Self {
        let ids = ids(graph);
        let shown = self.json["nodes"].as_array().into_iter().flatten().filter_map(|node| node["node_id"].as_str());
        let shown: BTreeSet<&str> = shown.collect();
        let before = self.json["qParams"]["pinnedIds"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut pinned: BTreeSet<&str> = before.collect();
        pinned.extend(nodes.into_iter().filter_map(|node| ids.get(node)).map(String::as_str));
        let pinned: Vec<&str> = pinned.into_iter().filter(|id| shown.contains(id)).collect();
        self.json["qParams"]["pinnedIds"] = json!(pinned);
        self
    }

    fn ids_without_node(&self) -> Vec<&str> {
        saved_view::ids_without_node(&self.json)
    }

    fn repeated_ids(&self) -> Vec<(&str, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for id in self.json["nodes"].as_array().into_iter().flatten().filter_map(|node| node["node_id"].as_str()) {
            *counts.entry(id).or_default() += 1;
        }
        counts.into_iter().filter(|(_, count)| *count > 1).collect()
    }

    fn page(&self) -> String {
        PAGE.replacen(PLACE, &script_json(&self.json), 1)
    }
}
