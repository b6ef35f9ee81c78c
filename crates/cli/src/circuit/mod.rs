//! `hooklens circuit`.

mod method;
mod nodes;
mod proof;
mod report;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::args::{DtypeArg, ModelArg, ProcessArg};
use super::out::{CsvArg, Kind, Names, OutFile, prepare, said, write};
use super::pairs::{AblateArg, PairArgs, metric_and_unit};
use super::picture_args::PngArg;
use super::progress::progress;
use super::terminal::note;
use super::{CliResult, Failure, load};
use hooklens_analysis::attribution::{EdgeGraph, EdgeScores};
use hooklens_analysis::circuits::{Circuit, Selection, best_edges};
use hooklens_analysis::patching::Patching;
use hooklens_analysis::statistics::Statistics;
use hooklens_model::error::Error;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::read_json;
use hooklens_plot::CircuitDiagram;

use method::{Found, MethodArgs};
use nodes::NodesArg;
use proof::ProofArgs;

#[derive(Debug, Args)]
pub(super) struct CircuitArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    /// What ablated edges carry in the clean runs (default: the activations of the run on the corrupted prompt)
    #[arg(long, value_enum)]
    pub(super) ablate: Option<AblateArg>,
    /// Find a circuit of nodes instead of edges
    #[arg(long, value_enum, conflicts_with_all = ["save_mib", "diagram", "adversary_steps", "minimality"])]
    nodes: Option<NodesArg>,
    /// With --nodes, one node per position
    #[arg(long)]
    by_position: bool,
    #[command(flatten)]
    method: MethodArgs,
    /// Number of edges or nodes to keep
    #[arg(long, value_name = "N", conflicts_with = "share")]
    pub(super) keep: Option<usize>,
    /// Fraction of the model's edges or nodes to keep
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub(super) share: f64,
    /// How edges or nodes are chosen from their scores
    #[arg(long, value_enum, default_value = "top")]
    pub(super) select: SelectArg,
    /// Prove the circuit in this file, written with --save or in MIB's format, instead of discovering one
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["keep", "share", "select"])]
    pub(super) circuit: Option<PathBuf>,
    /// Write the circuit to this file, to be read with --circuit
    #[arg(long, value_name = "FILE.json")]
    pub(super) save: Option<PathBuf>,
    /// Write the scores and the circuit to this file in MIB's format
    #[arg(long, value_name = "FILE.json", conflicts_with = "circuit")]
    pub(super) save_mib: Option<PathBuf>,
    /// Draw the circuit as a graph: .svg, .png or .html
    #[arg(long, value_name = "FILE")]
    pub(super) diagram: Option<OutFile>,
    #[command(flatten)]
    proof: ProofArgs,
    /// Stop before a run that needs more passes than this (a forward pass over one prompt counts 1, a backward pass 2)
    #[arg(long, value_name = "PASSES")]
    pub(super) budget: Option<usize>,
    /// Print the number of passes and stop
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Number of edges or nodes to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) picture: PngArg,
    /// Write the result to a file: .json; .csv (the edges or nodes); .svg, .png or .html (the faithfulness curve)
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<OutFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SelectArg {
    /// The largest scores by magnitude
    Top,
    /// Those with the lowest scores: their ablation lowers the metric most
    MostHelpful,
    /// Grown backward from the logits by the magnitudes of the scores
    Greedy,
    /// Grown backward from the logits by the lowest scores
    GreedyHelpful,
}

impl SelectArg {
    fn selection(self) -> Selection {
        match self {
            SelectArg::Top => Selection::Top,
            SelectArg::MostHelpful => Selection::MostHelpful,
            SelectArg::Greedy => Selection::Greedy,
            SelectArg::GreedyHelpful => Selection::GreedyHelpful,
        }
    }
}

/// Hint for the error about a file that is not a circuit of the requested kind.
const HINT: &str = "; --circuit reads files written with --save";

pub(super) fn run(args: &CircuitArgs) -> CliResult {
    let inputs =
        || args.model.inputs().into_iter().chain(args.pairs.file().map(Into::into)).chain(args.circuit.clone());
    let outputs = [args.out.as_ref(), args.diagram.as_ref()].map(|out| out.map(|out| &out.path));
    let outputs: Vec<&PathBuf> =
        outputs.into_iter().chain([args.save.as_ref(), args.save_mib.as_ref()]).flatten().collect();
    for out in &outputs {
        prepare(Some(out), Names::File, inputs())?;
    }
    if let Some(twice) = outputs.iter().enumerate().find_map(|(at, path)| outputs[..at].contains(path).then_some(path))
    {
        return Err(Failure::Usage(format!(
            "two results would be written to {}; choose different files",
            twice.display()
        )));
    }
    if let Some(OutFile { path, kind: Kind::Json | Kind::Csv }) = &args.diagram {
        return Err(Failure::Usage(format!("--diagram {} must end in .svg, .png or .html", path.display())));
    }
    if args.by_position && args.nodes.is_none() {
        return Err(Failure::Usage("--by-position requires --nodes".into()));
    }
    match args.nodes {
        Some(_) => args.method.of_nodes().map(|_| ())?,
        None => args.method.check()?,
    }
    if args.save_mib.is_some() && !args.method.gives_scores() {
        return Err(Failure::Usage("--save-mib needs scores, which --method acdc does not give".into()));
    }
    let is_picture = matches!(args.out, Some(OutFile { kind: Kind::Picture | Kind::Page, .. }));
    if is_picture && (args.circuit.is_some() || args.nodes.is_none() && !args.method.gives_scores()) {
        return Err(report::no_curve());
    }
    if !(0.0..=1.0).contains(&args.share) {
        return Err(Failure::Usage(format!("--share is {}, but must be at least 0 and at most 1", args.share)));
    }
    let model = load("circuit", &args.model, &args.dtype, args.process)?;
    if let Some(nodes) = args.nodes {
        return nodes::run(args, nodes, &model);
    }
    let graph = EdgeGraph::of(&model)?;
    let given = args.circuit.as_deref().map(|path| read(path, &graph)).transpose()?;
    let bar = bar();
    let patching = patching(args, &model, &bar)?;
    let examples = patching.examples();
    let discovery = if given.is_some() { 0 } else { args.method.passes(&graph, examples, args.share) };
    let edges = match &given {
        Some(given) => given.len(),
        None if args.method.gives_scores() => args.count(graph.len()),
        None => graph.len(),
    };
    let passes = args.proof.passes(edges, examples).saturating_add(discovery);
    if !affordable(args, passes, (graph.len(), "edges"), examples)? {
        return Ok(());
    }
    bar.set_message("discovering");
    let (scores, circuit, count) = match given {
        Some(given) => (None, given, None),
        None => match args.method.discover(&patching, args.share)? {
            Found::Circuit(circuit) => (None, circuit, None),
            Found::Scores(scores) => {
                let (circuit, count) = chosen(args, &scores)?;
                (Some(scores), circuit, Some(count))
            }
        },
    };
    // A mask is trained on all prompts at once, so there are no scores per prompt to resample.
    let resampled = count.filter(|_| !args.method.is_learned());
    bar.set_message("proving");
    let statistics = Statistics::new().resamples(1000).seed(args.proof.seed);
    let selection = args.select.selection();
    let proof = args.proof.prove(&patching, scores.as_ref(), resampled, &circuit, selection, &statistics)?;
    bar.finish_and_clear();
    save(args, &circuit.to_json())?;
    if let (Some(path), Some(scores)) = (&args.save_mib, &scores) {
        write(path, scores.to_mib(&model, &circuit)?.as_bytes())?;
        if !args.json {
            said(path)?;
        }
    }
    report::report(args, &model, examples, scores.as_ref(), &circuit, &proof)?;
    if let Some(OutFile { path, .. }) = &args.diagram {
        let name = args.pairs.metric_name();
        let title = format!("{circuit}, {}, n = {examples}", metric_and_unit(&name).0);
        let diagram = CircuitDiagram::new(&circuit, scores.as_ref())?.title(title);
        args.picture.save(&diagram, path, |path| diagram.save(path))?;
        if !args.json {
            said(path)?;
        }
    }
    Ok(())
}

/// The progress bar of all phases.
fn bar() -> ProgressBar {
    progress(1, "{msg:14} {bar:30} {percent} % {eta}")
}

/// The prompts, with edges or nodes ablated in the clean runs.
fn patching<'m>(
    args: &CircuitArgs,
    model: &'m HookedTransformer,
    bar: &'m ProgressBar,
) -> Result<Patching<'m>, Failure> {
    let mut patching = args.pairs.read(model)?.patching(model, args.ablate)?;
    if args.ablate.is_none() {
        patching = patching.reversed();
    }
    Ok(patching.on_progress(|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    }))
}

/// Whether to continue. With --dry-run, prints the number of passes and returns false. Fails if the number exceeds
/// --budget.
fn affordable(
    args: &CircuitArgs,
    passes: usize,
    (count, parts): (usize, &str),
    examples: usize,
) -> Result<bool, Failure> {
    if args.dry_run {
        note(format!("about {passes} passes over a prompt ({count} {parts}, {examples} prompts)"));
        return Ok(false);
    }
    let Some(budget) = args.budget.filter(|budget| passes > *budget) else { return Ok(true) };
    let fewer = if args.nodes.is_some() { "fewer --subsets" } else { "fewer --steps" };
    Err(Failure::Usage(format!(
        "this run needs about {passes} passes over a prompt, more than --budget {budget}; use fewer prompts, {fewer} or \
         another --method, or a larger budget"
    )))
}

/// Writes the circuit to the file given with --save.
fn save(args: &CircuitArgs, circuit: &str) -> CliResult {
    let Some(path) = &args.save else { return Ok(()) };
    write(path, format!("{circuit}\n").as_bytes())?;
    if args.json { Ok(()) } else { said(path) }
}

impl CircuitArgs {
    /// Number of a model's edges that are chosen by scores.
    fn count(&self, edges: usize) -> usize {
        self.keep.unwrap_or((edges as f64 * self.share) as usize).min(edges)
    }
}

/// The circuit of the edges with the best scores, without edges that are on no path from the embedding to the logits,
/// and the number of edges before the removal.
fn chosen(args: &CircuitArgs, scores: &EdgeScores) -> Result<(Circuit, usize), Failure> {
    let edges = scores.graph().len();
    let count = args.count(edges);
    if let Some(keep) = args.keep.filter(|keep| *keep > edges) {
        note(format!("the model has only {edges} edges, fewer than --keep {keep}"));
    }
    let circuit = best_edges(scores, args.select.selection(), count).map_err(Error::from)?;
    let pruned = circuit.pruned();
    if pruned.len() < circuit.len() {
        note(format!(
            "{} of {count} edges are on no path from the embedding to the logits and were removed",
            circuit.len() - pruned.len()
        ));
    }
    Ok((pruned, count))
}

fn read(path: &Path, graph: &EdgeGraph) -> Result<Circuit, Failure> {
    let value = read_json(path.into()).map_err(Error::from)?;
    let hint = if value.get("points").is_some() { "; use --nodes with the options it was found with" } else { HINT };
    Circuit::from_json(graph, &value.to_string())
        .map_err(|error| Failure::Failed(format!("can't read {}: {error}{hint}", path.display()).into()))
}
