//! Text and JSON output for graphs.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use super::change::{Changed, ChangedToken, ScoreQuery};
use super::node_counts;
use crate::CliResult;
use crate::out::plural;
use crate::terminal::{Stdout, stdout};
use hooklens_features::graph::{
    AttentionPairs, AttributionGraph, FeatureTokens, GraphCheck, GraphDetails, HeadEffects, NodeKind, PrunedGraph,
    Replacement,
};
use hooklens_io::numerals::grouped;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// Number of promoted and of suppressed tokens to keep per feature.
pub(super) const TOKENS: usize = 5;
/// Number of promoted tokens printed per line.
const RAISED: usize = 3;
/// Number of heads printed per line.
const HEADS: usize = 2;
/// Number of features listed by their total influence.
const INFLUENTIAL: usize = 5;
/// Maximum number of edited features printed.
const EDITS: usize = 20;

/// The results to print for a graph.
pub(super) struct GraphReport<'g> {
    pub(super) graph: &'g AttributionGraph,
    pub(super) pruned: &'g PrunedGraph,
    pub(super) words: &'g FeatureTokens,
    pub(super) groups: &'g [(String, Vec<usize>)],
    pub(super) check: Option<GraphCheck>,
    /// Effects on the first target, split by attention head.
    pub(super) heads: Option<HeadEffects>,
    pub(super) changed: Option<Changed>,
    pub(super) looks: Option<(ScoreQuery, AttentionPairs)>,
    /// Noun for the features: `latent` or `neuron`.
    pub(super) unit: &'static str,
    /// Whether directions of the residual stream are among the targets. Their values are not logits.
    pub(super) has_directions: bool,
    pub(super) top: usize,
}

/// Name of a feature group: the token that its members promote most often, or the group's number if no token occurs
/// twice.
pub(super) fn group_name(number: usize, members: &[usize], words: &FeatureTokens) -> String {
    let mut raised: BTreeMap<&str, usize> = BTreeMap::new();
    for token in members.iter().filter_map(|node| words.get(node)).flat_map(|[raised, _]| raised) {
        *raised.entry(token.trim()).or_default() += 1;
    }
    match raised.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1) {
        Some((token, _)) => format!("promote {token}"),
        None => format!("group {}", number + 1),
    }
}

/// The noun for a node of this kind, for [`node_counts`].
fn noun(kind: &NodeKind) -> &'static str {
    match kind {
        NodeKind::Neuron { .. } => "neuron",
        NodeKind::Error => "error node",
        NodeKind::Token { .. } => "token node",
        NodeKind::Position => "position node",
        NodeKind::Logit { .. } => "output",
        _ => "latent",
    }
}

/// Formats a number with four significant digits.
fn significant(value: f32) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_string();
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{value:.3e}");
    }
    let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
    format!("{value:.decimals$}")
}

impl GraphReport<'_> {
    /// Target nodes with their weights, highest weight first.
    fn targets(&self) -> Vec<(usize, f32)> {
        let nodes = self.graph.nodes().iter().enumerate();
        let mut targets: Vec<(usize, f32)> = nodes
            .filter_map(|(node, own)| match own.kind {
                NodeKind::Logit { weight, .. } => Some((node, weight)),
                _ => None,
            })
            .collect();
        targets.sort_by(|a, b| b.1.total_cmp(&a.1));
        targets
    }

    /// Splits the effects on the first target by the attention heads that carried them.
    pub(super) fn split_by_head(&mut self, model: &HookedTransformer, replacement: &Replacement) -> Result<()> {
        if let Some((target, _)) = self.targets().first() {
            self.heads = Some(self.graph.heads(model, replacement, *target)?);
        }
        Ok(())
    }

    /// The heads that carried most of a node's effect on the first target.
    fn by_heads(&self, source: usize) -> String {
        let Some(heads) = &self.heads else { return String::new() };
        let mut parts: Vec<String> = heads
            .strongest(source, HEADS)
            .into_iter()
            .map(|(layer, head, carried)| format!("L{layer}H{head} {carried:+.3}"))
            .collect();
        parts.extend(
            heads.direct(source).filter(|direct| *direct != 0.0).map(|direct| format!("directly {direct:+.3}")),
        );
        format!("  via {}", parts.join(", "))
    }

    /// Nodes with the largest effects on a node: index and effect.
    fn inputs(&self, node: usize) -> Vec<(usize, f32)> {
        let effects = self.graph.effects_on(node).unwrap_or_default();
        let mut inputs: Vec<(usize, f32)> =
            effects.iter().copied().enumerate().filter(|(_, effect)| *effect != 0.0).collect();
        inputs.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        inputs.truncate(self.top);
        inputs
    }

    /// Nodes on the strongest paths to the first target.
    pub(super) fn on_paths(&self) -> Result<Vec<usize>> {
        let Some((target, _)) = self.targets().first().copied() else { return Ok(Vec::new()) };
        Ok(self.graph.paths(self.pruned, target, self.top)?.into_iter().flat_map(|path| path.nodes).collect())
    }

    /// Contributions to a node from features, errors, token and position embeddings, constants, and features not in the
    /// graph.
    fn parts(&self, node: usize) -> [f32; 5] {
        let mut parts = [0.0; 5];
        let effects = self.graph.effects_on(node).unwrap_or_default();
        for (source, effect) in self.graph.nodes().iter().zip(effects) {
            let part = match source.kind {
                _ if source.is_feature() => 0,
                NodeKind::Error => 1,
                _ => 2,
            };
            parts[part] += effect;
        }
        parts[3] = self.graph.constant(node).unwrap_or(0.0);
        if self.graph.active() > self.features() {
            parts[4] = self.graph.value(node).unwrap_or(0.0) - parts[..4].iter().sum::<f32>();
        }
        parts
    }

    /// The features with the most influence on all targets, direct and through other nodes, each with its fraction of
    /// the influence of all nodes.
    fn influential(&self) -> Vec<(usize, f32)> {
        let own = self.graph.own_influence();
        let features = self.pruned.nodes.iter().copied().filter(|node| self.graph.nodes()[*node].is_feature());
        let mut features: Vec<(usize, f32)> = features.map(|node| (node, own[node])).collect();
        features.sort_by(|a, b| b.1.total_cmp(&a.1));
        features.truncate(INFLUENTIAL);
        features
    }

    /// Number of features in the graph.
    fn features(&self) -> usize {
        self.graph.nodes().iter().filter(|node| node.is_feature()).count()
    }

    fn raised(&self, node: usize) -> String {
        let Some([raised, _]) = self.words.get(&node) else { return String::new() };
        let raised: Vec<String> = raised.iter().take(RAISED).map(|text| format!("{text:?}")).collect();
        format!("  promotes {}", raised.join(" "))
    }

    pub(super) fn text(&self) -> CliResult {
        let (graph, mut out) = (self.graph, stdout());
        let all = self.features();
        let prompts = if graph.prompts() > 1 { format!(" of {} prompts", graph.prompts()) } else { String::new() };
        writeln!(out, "{:?}: {} tokens{prompts}", graph.prompt(), graph.tokens().len())?;
        let active = if graph.active() > all { format!(" of {}", grouped(graph.active())) } else { String::new() };
        let scores = graph.scores();
        writeln!(
            out,
            "{}{active} active features; rows sum to their values within {:.1e}; replacement {:.3}, completeness {:.3}",
            grouped(all),
            graph.deviation(),
            scores.replacement,
            scores.completeness,
        )?;
        let (nodes, edges) = (plural(self.pruned.nodes.len(), "node"), plural(self.pruned.edges.len(), "edge"));
        let kinds = node_counts(self.pruned.nodes.iter().map(|node| noun(&graph.nodes()[*node].kind)));
        writeln!(out, "kept {nodes}: {kinds}; {edges}")?;
        if let Some(check) = self.check {
            writeln!(out, "checked: {check}")?;
        }
        let targets = self.targets();
        let Some((target, weight)) = targets.first().copied() else { return Ok(()) };
        let own = &graph.nodes()[target];
        let share = match own.kind {
            NodeKind::Logit { token: Some(_), .. } if weight < 1.0 => format!(" (probability {weight:.3})"),
            _ => String::new(),
        };
        let [by_features, by_errors, by_tokens, constant, others] = self.parts(target);
        let is_logit = matches!(own.kind, NodeKind::Logit { token: Some(_), .. }) || !self.has_directions;
        let in_logits = if is_logit { ", in logits" } else { "" };
        let others = if others == 0.0 { String::new() } else { format!(", features left out {others:+.2}") };
        writeln!(
            out,
            "\ndirect effects on {:?}{share}{in_logits}: {:+.2} = features {by_features:+.2}, errors {by_errors:+.2}, \
             tokens {by_tokens:+.2}, constant {constant:+.2}{others}",
            own.label,
            graph.value(target).unwrap_or(0.0),
        )?;
        for (source, effect) in self.inputs(target) {
            writeln!(out, "  {effect:+8.3}  {}{}{}", graph.words(source), self.raised(source), self.by_heads(source))?;
        }
        let influential = self.influential();
        if !influential.is_empty() {
            writeln!(
                out,
                "\n{}s by total influence, direct and through other nodes (share of the influence of all nodes):",
                self.unit
            )?;
        }
        for (node, share) in influential {
            writeln!(out, "  {:6.2}%  {}{}", 100.0 * share, graph.words(node), self.raised(node))?;
        }
        let paths = graph.paths(self.pruned, target, self.top)?;
        if !paths.is_empty() {
            writeln!(out, "\nstrongest paths, by share of the total influence:")?;
        }
        for path in paths {
            writeln!(out, "  {:6.2}%  {path}", 100.0 * path.share)?;
        }
        let others: Vec<String> = targets[1..]
            .iter()
            .take(self.top)
            .map(|(node, weight)| format!("{:?} {weight:.3}", graph.nodes()[*node].label))
            .collect();
        if !others.is_empty() {
            writeln!(out, "\nother targets: {}", others.join(", "))?;
        }
        if let Some((ScoreQuery { head: (layer, head), positions: [query, key] }, pairs)) = &self.looks {
            let text = |pos: usize| graph.token_texts().get(pos).map_or("", String::as_str);
            writeln!(
                out,
                "\nL{layer}H{head} from {query} {:?} to {key} {:?}: attention score {:+.2}, of which:",
                text(*query),
                text(*key),
                pairs.score
            )?;
            for pair in &pairs.strongest {
                let (asks, answers) = (self.side(pair.query), self.side(pair.key));
                writeln!(out, "  {:+8.3}  query {asks}, key {answers}", pair.score)?;
            }
        }
        if let Some(changed) = &self.changed {
            self.changed_text(changed, &mut out)?;
            if let Some([before, after]) = &changed.texts {
                writeln!(out, "continuation: {before:?}\nwith changes: {after:?}")?;
            }
        }
        if !self.groups.is_empty() {
            writeln!(out, "\ngroups of features with similar effects:")?;
        }
        for (name, members) in self.groups {
            let members: Vec<String> = members.iter().map(|node| graph.words(*node)).collect();
            writeln!(out, "  {name}: {}", members.join(", "))?;
        }
        Ok(())
    }

    /// Prints the edited features, and the most likely tokens before and after the edits.
    fn changed_text(&self, changed: &Changed, out: &mut Stdout) -> CliResult {
        if !changed.edits.is_empty() {
            writeln!(out, "\nactivations before and after the changes:")?;
        }
        for edit in changed.edits.iter().take(EDITS) {
            let text = self.graph.token_texts().get(edit.position).map_or("", String::as_str);
            let (before, after) = (significant(edit.before), significant(edit.after));
            let (unit, layer, latent, position) = (self.unit, edit.layer, edit.latent, edit.position);
            writeln!(out, "  layer {layer} {unit} {latent} at {position} {text:?}: {before} -> {after}")?;
        }
        if changed.edits.len() > EDITS {
            writeln!(out, "  ... and {} more", grouped(changed.edits.len() - EDITS))?;
        }
        writeln!(out, "\nnext token before and after the changes (logits relative to the mean of all logits):")?;
        writeln!(out, "  probability before  probability after  logit before  logit after  token")?;
        for ChangedToken { text, probabilities, logits } in &changed.tokens {
            let [before, after] = probabilities.map(significant);
            let [logit_before, logit_after] = logits;
            writeln!(out, "  {before:>18}  {after:>17}  {logit_before:>+12.3}  {logit_after:>+11.3}  {text:?}")?;
        }
        Ok(())
    }

    /// Label of one side of an attention pair.
    fn side(&self, node: Option<usize>) -> String {
        node.map_or("a constant".to_string(), |node| self.graph.words(node))
    }

    /// The results as the body of a JSON result.
    pub(super) fn json(&self) -> Result<Value> {
        let (graph, scores) = (self.graph, self.graph.scores());
        let first = self.targets().first().map(|(node, _)| *node);
        let target = |(node, weight): (usize, f32)| -> Result<Value> {
            let input = |(source, effect): (usize, f32)| {
                json!({
                    "node": graph.words(source), "effect": effect,
                    "raises": self.words.get(&source).map(|[raised, _]| raised),
                    "heads": self.heads.as_ref().filter(|_| first == Some(node)).map(|heads| {
                        let carried = heads.strongest(source, HEADS).into_iter();
                        let carried = carried.map(|(layer, head, by)| json!({ "layer": layer, "head": head, "carried": by }));
                        json!({ "carried": carried.collect::<Vec<_>>(), "direct": heads.direct(source) })
                    }),
                })
            };
            let paths = graph.paths(self.pruned, node, self.top)?.into_iter();
            let paths: Vec<Value> = paths
                .map(|path| {
                    let nodes: Vec<String> = path.nodes.iter().rev().map(|node| graph.words(*node)).collect();
                    json!({ "share": path.share, "nodes": nodes })
                })
                .collect();
            let [features, errors, tokens, constant, features_left_out] = self.parts(node);
            Ok(json!({
                "target": graph.nodes()[node].label, "weight": weight, "value": graph.value(node),
                "features": features, "errors": errors, "tokens": tokens, "constant": constant,
                "features_left_out": features_left_out,
                "inputs": self.inputs(node).into_iter().map(input).collect::<Vec<_>>(), "paths": paths,
            }))
        };
        let looks = self.looks.as_ref().map(|(looks, pairs)| {
            let pair = |pair: &hooklens_features::graph::AttentionPair| {
                json!({
                    "query": self.side(pair.query), "key": self.side(pair.key), "score": pair.score,
                })
            };
            let strongest: Vec<Value> = pairs.strongest.iter().map(pair).collect();
            json!({ "head": looks.head, "positions": looks.positions, "score": pairs.score, "pairs": strongest })
        });
        let influential = self.influential().into_iter();
        let influential: Vec<Value> =
            influential.map(|(node, share)| json!({ "node": graph.words(node), "share": share })).collect();
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|(name, members)| {
                let members: Vec<String> = members.iter().map(|node| graph.words(*node)).collect();
                json!({ "name": name, "features": members })
            })
            .collect();
        Ok(json!({
            "tokens": graph.token_texts(), "prompts": graph.prompts(),
            "active": graph.active(), "left_out": graph.left_out(), "deviation": graph.deviation(),
            "replacement": scores.replacement, "completeness": scores.completeness,
            "nodes": self.pruned.nodes.len(), "edges": self.pruned.edges.len(),
            "targets": self.targets().into_iter().map(target).collect::<Result<Vec<_>>>()?,
            "most_influential": influential,
            "groups": groups, "check": self.check, "looks": looks,
            "changed": self.changed.as_ref().map(Changed::json),
        }))
    }
}
