//! `hooklens circuit --nodes`: circuits of heads, MLPs, neurons or latents.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::method::NodeMethod;
use super::proof::Curve;
use super::report::{bounds, curve_json, curve_text, no_curve, picture, within};
use super::{CircuitArgs, SelectArg, affordable, bar, patching, save};
use crate::json_result::{ModelId, with_header};
use crate::out::{Finding, plural};
use crate::pairs::metric_and_unit;
use crate::terminal::{Stdout, note};
use crate::{CliResult, Failure};
use hooklens_analysis::circuits::{CircuitRuns, KindOfNodes, MIB_SHARES, MissedEffect, NodeCircuit, Stability};
use hooklens_analysis::patching::{Backward, Patching, PatchingResult};
use hooklens_analysis::statistics::{EffectStatistics, Interval, Statistics};
use hooklens_io::csv_text::CsvTable;
use hooklens_model::error::Error;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::read_json;

/// Minimum number of random subsets for computing a bound on missed effects.
const LEAST_SUBSETS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum NodesArg {
    /// Attention heads
    Heads,
    /// Outputs of MLPs
    Mlps,
    /// Neurons of MLPs
    Neurons,
    /// Latents of the dictionaries given with --dictionary
    Latents,
}

impl NodesArg {
    fn kind(self) -> KindOfNodes {
        match self {
            NodesArg::Heads => KindOfNodes::Heads,
            NodesArg::Mlps => KindOfNodes::Mlps,
            NodesArg::Neurons => KindOfNodes::Neurons,
            NodesArg::Latents => KindOfNodes::Latents,
        }
    }
}

/// Measurements of a circuit of nodes.
struct Found {
    circuit: NodeCircuit,
    faithfulness: f64,
    interval: Option<Interval>,
    /// Mean metric in the whole model, in the circuit, and with all nodes ablated.
    metrics: [f64; 3],
    scores: Option<PatchingResult>,
    curve: Option<Curve<NodeCircuit>>,
    statistics: Option<EffectStatistics>,
    stability: Option<Stability<Vec<usize>>>,
    missed: Option<MissedEffect>,
}

pub(super) fn run(args: &CircuitArgs, nodes: NodesArg, model: &HookedTransformer) -> CliResult {
    let kind = nodes.kind();
    if kind == KindOfNodes::Latents && args.model.dictionary.is_empty() {
        return Err(Failure::Usage("--nodes latents requires --dictionary".into()));
    }
    let (sites, method) = (kind.sites(args.by_position), args.method.of_nodes()?);
    let magnitudes = matches!(method, NodeMethod::Gradients(Backward::GradDrop));
    match args.select {
        SelectArg::Greedy | SelectArg::GreedyHelpful => {
            let message = "--nodes requires --select top or most-helpful: nodes have no edges along which to grow";
            return Err(Failure::Usage(message.into()));
        }
        SelectArg::MostHelpful if magnitudes => {
            let message = "--method grad-drop gives magnitudes, which don't show which nodes help; use --select top";
            return Err(Failure::Usage(message.into()));
        }
        SelectArg::Top | SelectArg::MostHelpful => {}
    }
    let bar = bar();
    let mut patching = patching(args, model, &bar)?;
    if let NodeMethod::Gradients(backward) = method {
        patching = patching.backward(backward)?;
    }
    let (all, examples) = (patching.nodes(&sites)?, patching.examples());
    let passes = passes(args, &method, all.len(), examples);
    if !affordable(args, passes, (all.len(), "nodes"), examples)? {
        return Ok(());
    }
    bar.set_message("discovering");
    let given = args.circuit.as_deref().map(|path| read(path, &all)).transpose()?;
    let (scores, circuit) = match given {
        Some(given) => (None, given),
        None => {
            let scores = match method {
                NodeMethod::Exact => patching.sweep(&sites)?,
                NodeMethod::Gradients(_) => patching.attribution(kind.points())?.sweep(&sites)?,
            };
            // A nonzero share keeps at least one node.
            let least = usize::from(args.share > 0.0);
            let count = args.keep.unwrap_or(((all.len() as f64 * args.share) as usize).max(least));
            if count > all.len() {
                note(format!("the model has only {} nodes of this kind, fewer than --keep {count}", all.len()));
            }
            if scores.effect().values().iter().all(|effect| *effect == 0.0) {
                note(
                    "no node has an effect by this method; gradients do not pass through the error term of a spliced \
                     dictionary, so use --method exact for nodes whose output the dictionary replaces",
                );
            }
            let circuit = all.best(&scores, args.select.selection(), count).map_err(Error::from)?;
            (Some(scores), circuit)
        }
    };
    bar.set_message("proving");
    let mut found = prove(args, &patching, &all, circuit, scores)?;
    if magnitudes {
        // Magnitudes are never negative, so intervals around zero and tests against zero are meaningless.
        found.statistics = None;
    }
    bar.finish_and_clear();
    save(args, &found.circuit.to_json())?;
    report(args, model, examples, &found)
}

/// About how many passes over a prompt the run needs.
fn passes(args: &CircuitArgs, method: &NodeMethod, nodes: usize, examples: usize) -> usize {
    let discovery = match (args.circuit.is_some(), method) {
        (true, _) => 0,
        (false, NodeMethod::Exact) => nodes + 2,
        (false, NodeMethod::Gradients(_)) => 5,
    };
    let curve = if args.circuit.is_some() { 0 } else { MIB_SHARES.len() + 3 };
    (discovery + curve + 4 + 3).saturating_add(args.proof.subsets).saturating_mul(examples)
}

fn prove(
    args: &CircuitArgs,
    patching: &Patching<'_>,
    all: &NodeCircuit,
    circuit: NodeCircuit,
    scores: Option<PatchingResult>,
) -> Result<Found, Failure> {
    let statistics = Statistics::new().resamples(1000).seed(args.proof.seed);
    let several = (patching.examples() > 1).then_some(&statistics);
    let runs: CircuitRuns = patching.run_nodes(std::slice::from_ref(&circuit))?;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let own: Vec<f64> = runs.metric.values().iter().copied().collect();
    let intervals = several.map(|own| runs.intervals(own)).transpose().map_err(Error::from)?;
    let curve = |scores: &PatchingResult| {
        let curve = patching.node_faithfulness(all, scores, args.select.selection(), &MIB_SHARES)?;
        Curve::of(curve, several)
    };
    let stability = |scores: &PatchingResult| all.stability(scores, &statistics, circuit.len());
    let outside = circuit.len() < all.len() && args.proof.subsets >= LEAST_SUBSETS;
    if args.proof.subsets > 0 && args.proof.subsets < LEAST_SUBSETS {
        note(format!("no bound on missed effects: it requires --subsets of at least {LEAST_SUBSETS}"));
    }
    let missed = outside.then(|| patching.missed_effect(&circuit, args.proof.subsets, &statistics)).transpose()?;
    Ok(Found {
        faithfulness: runs.faithfulness().map_err(Error::from)?[0],
        interval: intervals.and_then(|intervals| intervals.first().copied()),
        metrics: [mean(&runs.clean), mean(&own), mean(&runs.ablated)],
        curve: scores.as_ref().map(curve).transpose()?,
        stability: scores.as_ref().filter(|_| several.is_some() && !circuit.is_empty()).map(stability).transpose()?,
        statistics: scores
            .as_ref()
            .zip(several)
            .map(|(scores, own)| scores.statistics(own))
            .transpose()
            .map_err(Error::from)?,
        missed,
        circuit,
        scores,
    })
}

/// A node of the circuit, with what is known about it.
struct Node {
    name: String,
    /// One index per axis: layer or point, position, and the index of the head, neuron or latent.
    index: Vec<usize>,
    score: Option<f64>,
    interval: Option<[f64; 2]>,
    adjusted_p_value: Option<f64>,
    /// Fraction of the resampled circuits that contain the node.
    inclusion: Option<f64>,
}

/// The nodes of the circuit, by magnitude of their scores.
fn nodes(found: &Found) -> Vec<Node> {
    let effect = found.scores.as_ref().map(PatchingResult::effect);
    let of = |(node, name): (Vec<usize>, String)| {
        let place = ndarray::IxDyn(&node);
        let included = |own: &Stability<Vec<usize>>| {
            own.inclusion.iter().find(|(own, _)| *own == node).map_or(0.0, |(_, share)| *share)
        };
        Node {
            score: effect.as_ref().map(|effect| effect.values()[&place]),
            interval: found.statistics.as_ref().map(|own| [own.low.values()[&place], own.high.values()[&place]]),
            adjusted_p_value: found.statistics.as_ref().map(|own| own.adjusted_p_value.values()[&place]),
            inclusion: found.stability.as_ref().map(included),
            name,
            index: node,
        }
    };
    let mut nodes: Vec<Node> = found.circuit.nodes().zip(found.circuit.names()).map(of).collect();
    nodes.sort_by(|a, b| b.score.unwrap_or(0.0).abs().total_cmp(&a.score.unwrap_or(0.0).abs()));
    nodes
}

fn report(args: &CircuitArgs, model: &HookedTransformer, examples: usize, found: &Found) -> CliResult {
    let name = args.pairs.metric_name();
    let (metric, unit) = metric_and_unit(&name);
    let nodes = nodes(found);
    if examples == 1 {
        note("intervals and stability require several pairs; give them with --pairs or --ioi");
    }
    Finding {
        json: || {
            let body = json!({
                "prompts": examples, "metric": metric, "unit": unit, "nodes_of_model": found.circuit.total(),
                "clean": found.metrics[0], "circuit": found.metrics[1], "ablated": found.metrics[2],
                "faithfulness": found.faithfulness, "faithfulness_interval": bounds(found.interval.as_ref()),
                "curve": found.curve.as_ref().map(|own| curve_json(own, "nodes", NodeCircuit::len)),
                "stability": found.stability.as_ref().map(|own| json!({
                    "jaccard": own.jaccard, "rank_correlation": own.rank_correlation,
                })),
                "missed": found.missed.as_ref().map(|own| json!({
                    "bound": own.bound, "largest": found.circuit.complement().name(&own.largest.0),
                    "effect": own.largest.1,
                })),
                "nodes": nodes.iter().map(|node| json!({
                    "node": node.name, "index": node.index, "score": node.score, "interval": node.interval,
                    "adjusted_p_value": node.adjusted_p_value, "inclusion": node.inclusion,
                })).collect::<Vec<Value>>(),
            });
            Ok(with_header(Some(&ModelId::of(&args.model.model, model)?), body))
        },
        csv: || {
            let columns = ["node", "score", "low", "high", "adjusted_p_value", "inclusion"];
            let mut table = CsvTable::new(columns, args.csv.labels());
            for node in &nodes {
                let [low, high] = node.interval.map_or([None; 2], |own| own.map(Some));
                let numbers = [node.score, low, high, node.adjusted_p_value, node.inclusion];
                let numbers = numbers.map(|number| number.map_or(String::new(), |number| number.to_string()));
                table.row([node.name.as_str()], numbers);
            }
            table.finish()
        },
        picture: |path: &Path| {
            let Some(curve) = &found.curve else {
                return Err(no_curve());
            };
            let plot = picture(curve, "nodes")?.title(format!("faithfulness, {metric}, n = {examples}"));
            args.picture.save(&plot, path, |path| plot.save(path))
        },
        text: |to: &mut Stdout| text(to, args, examples, found, &nodes),
    }
    .report(args.out.as_ref(), args.json)
}

fn text(to: &mut Stdout, args: &CircuitArgs, examples: usize, found: &Found, nodes: &[Node]) -> CliResult {
    let name = args.pairs.metric_name();
    let (metric, unit) = metric_and_unit(&name);
    let [clean, own, ablated] = found.metrics;
    let prompts = plural(examples, "prompt");
    writeln!(to, "{prompts}; {metric} {clean:+.3} in the model, {ablated:+.3} with all nodes ablated ({unit})")?;
    if let Some(curve) = &found.curve {
        curve_text(to, curve, "nodes", NodeCircuit::len)?;
    }
    let source = match args.circuit {
        Some(_) => "read from a file".to_string(),
        None => args.method.of_nodes()?.to_string(),
    };
    writeln!(to, "\n{} ({source}): {metric} {own:+.3}", found.circuit)?;
    writeln!(to, "  faithfulness  {:.3}{}", found.faithfulness, within(found.interval.as_ref()))?;
    if let Some(stability) = &found.stability {
        writeln!(
            to,
            "  stability     Jaccard {:.3}, rank correlation {:.3} over resampled prompts",
            stability.jaccard, stability.rank_correlation
        )?;
    }
    if let Some(missed) = &found.missed {
        let subsets = plural(missed.changes.len(), "random subset");
        writeln!(
            to,
            "  missed        with 95 % confidence, no node outside has an effect above {:.3} ({subsets}; the bound is \
             largest for {})",
            missed.bound,
            found.circuit.complement().name(&missed.largest.0)
        )?;
    }
    let width = nodes.iter().take(args.top).map(|node| node.name.chars().count()).max().unwrap_or(0).max(4);
    if !nodes.is_empty() {
        writeln!(to, "\n{:<width$}      score  95 % interval       adjusted p  inclusion", "node")?;
    }
    for node in nodes.iter().take(args.top) {
        let number = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.3}"));
        let score = node.score.map_or("-".to_string(), |score| format!("{score:+.3}"));
        let interval = node.interval.map_or("-".to_string(), |[low, high]| format!("[{low:+.3}, {high:+.3}]"));
        let (p, inclusion) = (number(node.adjusted_p_value), number(node.inclusion));
        writeln!(to, "{:<width$}  {score:>9}  {interval:<18}  {p:>10}  {inclusion:>9}", node.name)?;
    }
    Ok(())
}

fn read(path: &Path, all: &NodeCircuit) -> Result<NodeCircuit, Failure> {
    let value = read_json(path.into()).map_err(Error::from)?;
    let hint = match value.get("edges") {
        Some(_) => "; leave out --nodes to prove it",
        None => "; use the options it was found with (--nodes, --by-position, --dictionary)",
    };
    NodeCircuit::from_json(all, &value.to_string())
        .map_err(|error| Failure::Failed(format!("can't read {}: {error}{hint}", path.display()).into()))
}
