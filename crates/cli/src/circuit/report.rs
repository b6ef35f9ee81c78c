//! The report on a circuit.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::CircuitArgs;
use super::proof::{Curve, Proof};
use crate::json_result::{ModelId, with_header};
use crate::out::{Finding, plural};
use crate::pairs::metric_and_unit;
use crate::terminal::{Stdout, note};
use crate::{CliResult, Failure};
use hooklens_analysis::attribution::{EdgeScores, Sender};
use hooklens_analysis::circuits::Circuit;
use hooklens_analysis::patching::Receiver;
use hooklens_analysis::statistics::Interval;
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::error::Error;
use hooklens_model::model::HookedTransformer;
use hooklens_plot::{Line, LinePlot};

/// The error for a picture of a circuit that was not chosen by scores.
pub(super) fn no_curve() -> Failure {
    let message = "pictures show the faithfulness curve, which needs scores: use another --method without --circuit, \
                   or --out FILE.csv";
    Failure::Usage(message.into())
}

pub(super) fn report(
    args: &CircuitArgs,
    model: &HookedTransformer,
    examples: usize,
    scores: Option<&EdgeScores>,
    circuit: &Circuit,
    proof: &Proof,
) -> CliResult {
    let name = args.pairs.metric_name();
    let (metric, unit) = metric_and_unit(&name);
    let edges = edges(scores, circuit, proof);
    if examples == 1 {
        note("intervals and stability require several pairs; give them with --pairs or --ioi");
    }
    Finding {
        json: || {
            let edges: Vec<Value> = edges.iter().map(Edge::json).collect();
            let body = json!({
                "prompts": examples, "metric": metric, "unit": unit, "edges_of_model": circuit.graph().len(),
                "clean": proof.metrics[0], "circuit": proof.metrics[1], "ablated": proof.metrics[2],
                "faithfulness": proof.faithfulness, "faithfulness_interval": bounds(proof.interval.as_ref()),
                "curve": proof.curve.as_ref().map(|own| curve_json(own, "edges", Circuit::len)),
                "stability": proof.stability.as_ref().map(|own| json!({
                    "jaccard": own.jaccard, "rank_correlation": own.rank_correlation,
                })),
                "completeness": {"circuit": proof.completeness.circuit, "model": proof.completeness.model,
                    "incompleteness": proof.completeness.incompleteness()},
                "adversary": {"random": proof.adversary.random, "worst": proof.adversary.worst,
                    "ablated": proof.adversary.ablated.edges().map(|(from, to)| [from.to_string(), to.to_string()])
                        .collect::<Vec<_>>()},
                "edges": edges,
            });
            Ok(with_header(Some(&ModelId::of(&args.model.model, model)?), body))
        },
        csv: || csv(&edges, args.csv.labels()),
        picture: |path: &Path| {
            let Some(curve) = &proof.curve else {
                return Err(no_curve());
            };
            let title = format!("faithfulness, {metric}, n = {examples}");
            let plot = picture(curve, "edges")?.title(title);
            args.picture.save(&plot, path, |path| plot.save(path))
        },
        text: |to: &mut Stdout| text(to, args, examples, circuit, proof, &edges),
    }
    .report(args.out.as_ref(), args.json)
}

/// An edge of the circuit, with what is known about it.
struct Edge {
    sender: Sender,
    receiver: Receiver,
    score: Option<f64>,
    /// Fraction of the resampled circuits that contain the edge.
    inclusion: Option<f64>,
    /// Faithfulness that the circuit loses without the edge.
    loss: Option<f64>,
}

impl Edge {
    fn json(&self) -> Value {
        json!({
            "sender": self.sender.to_string(), "receiver": self.receiver.to_string(), "score": self.score,
            "inclusion": self.inclusion, "loss": self.loss,
        })
    }
}

/// The edges of the circuit, by magnitude of their scores.
fn edges(scores: Option<&EdgeScores>, circuit: &Circuit, proof: &Proof) -> Vec<Edge> {
    let find = |list: &[(Sender, Receiver, f64)], edge: (Sender, Receiver)| {
        list.iter().find(|(from, to, _)| (*from, *to) == edge).map(|(_, _, value)| *value)
    };
    let of = |edge: (Sender, Receiver)| Edge {
        sender: edge.0,
        receiver: edge.1,
        score: scores.and_then(|scores| scores.score(edge.0, edge.1)),
        inclusion: proof
            .stability
            .as_ref()
            .map(|own| own.inclusion.iter().find(|(own, _)| *own == edge).map_or(0.0, |(_, share)| *share)),
        loss: proof.minimality.as_ref().and_then(|losses| find(losses, edge)),
    };
    let mut edges: Vec<Edge> = circuit.edges().map(of).collect();
    let size = |edge: &Edge| edge.score.or(edge.loss).unwrap_or(0.0).abs();
    edges.sort_by(|a, b| size(b).total_cmp(&size(a)));
    edges
}

pub(super) fn bounds(interval: Option<&Interval>) -> Option<[f64; 2]> {
    interval.map(|own| [own.low, own.high])
}

/// The curve as JSON. `len` counts the `parts` (edges or nodes) of a circuit.
pub(super) fn curve_json<C>(own: &Curve<C>, parts: &str, len: fn(&C) -> usize) -> Value {
    let counts: Vec<usize> = own.curve.circuits.iter().map(len).collect();
    let intervals = own.intervals.as_ref().map(|all| all.iter().map(|one| [one.low, one.high]).collect::<Vec<_>>());
    json!({
        "shares": own.curve.shares, parts: counts, "faithfulness": own.faithfulness, "intervals": intervals,
        "cpr": own.cpr, "cpr_interval": bounds(own.cpr_interval.as_ref()),
        "cmd": own.cmd, "cmd_interval": bounds(own.cmd_interval.as_ref()),
    })
}

fn csv(edges: &[Edge], labels: CsvLabels) -> String {
    let mut table = CsvTable::new(["sender", "receiver", "score", "inclusion", "loss"], labels);
    for edge in edges {
        let numbers = [edge.score, edge.inclusion, edge.loss];
        let numbers = numbers.map(|number| number.map_or(String::new(), |number| number.to_string()));
        let ends = [edge.sender.to_string(), edge.receiver.to_string()];
        table.row(ends.iter().map(String::as_str), numbers);
    }
    table.finish()
}

/// Plot of faithfulness over the fraction of edges or nodes that is kept, on a logarithmic axis.
pub(super) fn picture<C>(own: &Curve<C>, parts: &str) -> Result<LinePlot, Error> {
    let points = own.curve.shares.iter().zip(&own.faithfulness).enumerate().map(|(at, (share, value))| {
        let [low, high] = bounds(own.intervals.as_ref().map(|all| &all[at])).unwrap_or([f64::NAN; 2]);
        (share.log10(), *value, low, high)
    });
    let line = Line::banded("faithfulness", points);
    Ok(LinePlot::new(format!("share of the {parts} (log 10)"), "share of the metric recovered", [line])?)
}

/// The range of an interval, or nothing without one.
pub(super) fn within(interval: Option<&Interval>) -> String {
    interval.map_or(String::new(), |own| format!(" [{:.3}, {:.3}]", own.low, own.high))
}

pub(super) fn curve_text<C>(to: &mut Stdout, own: &Curve<C>, parts: &str, len: fn(&C) -> usize) -> CliResult {
    writeln!(to, "\n  share    {parts}  faithfulness")?;
    for (at, (share, value)) in own.curve.shares.iter().zip(&own.faithfulness).enumerate() {
        let interval = within(own.intervals.as_ref().map(|all| &all[at]));
        writeln!(to, "{:>6.1} %  {:>6}  {value:>12.3}{interval}", share * 100.0, len(&own.curve.circuits[at]))?;
    }
    writeln!(
        to,
        "CPR {:.3}{} (area under the curve; higher is better)\nCMD {:.3}{} (distance from the model; lower is better)",
        own.cpr,
        within(own.cpr_interval.as_ref()),
        own.cmd,
        within(own.cmd_interval.as_ref())
    )?;
    Ok(())
}

fn text(
    to: &mut Stdout,
    args: &CircuitArgs,
    examples: usize,
    circuit: &Circuit,
    proof: &Proof,
    edges: &[Edge],
) -> CliResult {
    let name = args.pairs.metric_name();
    let (metric, unit) = metric_and_unit(&name);
    let [clean, own, ablated] = proof.metrics;
    let source = if args.circuit.is_some() { "read from a file".to_string() } else { args.method.name() };
    writeln!(
        to,
        "{}; {metric} {clean:+.3} in the model, {ablated:+.3} with all edges ablated ({unit})",
        plural(examples, "prompt")
    )?;
    if let Some(curve) = &proof.curve {
        curve_text(to, curve, "edges", Circuit::len)?;
    }
    writeln!(to, "\n{circuit} ({source}): {metric} {own:+.3}")?;
    writeln!(to, "  faithfulness         {:.3}{}", proof.faithfulness, within(proof.interval.as_ref()))?;
    if let Some(stability) = &proof.stability {
        let stable = edges.iter().filter(|edge| edge.inclusion.is_some_and(|share| share >= 0.95)).count();
        writeln!(
            to,
            "  stability            Jaccard {:.3}, rank correlation {:.3} over resampled prompts; {stable} of {} edges in 95 % of them",
            stability.jaccard,
            stability.rank_correlation,
            edges.len()
        )?;
    }
    let adversary = &proof.adversary;
    if let Some(least) = adversary.random.iter().copied().reduce(f64::min) {
        writeln!(
            to,
            "  random ablation      {least:.3} in the worst of {} of the edges outside",
            plural(adversary.random.len(), "random half").replace("halfs", "halves")
        )?;
    }
    writeln!(
        to,
        "  adversarial ablation {:.3} with {} of {} edges outside ablated",
        adversary.worst,
        adversary.ablated.len(),
        circuit.graph().len() - circuit.len()
    )?;
    if !proof.completeness.circuit.is_empty() {
        writeln!(
            to,
            "  incompleteness       {:.3} (largest difference from the model without the same edges)",
            proof.completeness.incompleteness()
        )?;
    }
    if let Some((sender, receiver, loss)) = proof.minimality.as_ref().and_then(|losses| losses.last()) {
        writeln!(to, "  minimality           the least needed edge is {sender} -> {receiver}: {loss:+.3}")?;
    }
    if edges.is_empty() {
        return Ok(());
    }
    writeln!(to, "\nsender    receiver      score  inclusion")?;
    for edge in edges.iter().take(args.top) {
        let number = |value: Option<f64>, signed: bool| match value {
            Some(value) if signed => format!("{value:+.3}"),
            Some(value) => format!("{value:.3}"),
            None => "-".into(),
        };
        let (sender, receiver) = (edge.sender.to_string(), edge.receiver.to_string());
        writeln!(
            to,
            "{sender:<8}  {receiver:<8}  {:>9}  {:>9}",
            number(edge.score, true),
            number(edge.inclusion, false)
        )?;
    }
    Ok(())
}
