//! `hooklens features show`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::directions::DirectionArgs;
use super::one::{LayerArg, tell};
use crate::args::{DtypeArg, ModelArg, ProcessArg, given_twice};
use crate::corpus::CorpusArg;
use crate::out::{Names, prepare, said};
use crate::progress::of_pieces;
use crate::terminal::stdout;
use crate::{CliResult, Failure, any_model};
use hooklens_features::{DashboardCounts, DashboardOptions, Labels, Units, dashboards_of};

/// Number of units shown if `--latents` is not given.
const SHOWN: usize = 50;

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    #[command(flatten)]
    layer: LayerArg,
    #[command(flatten)]
    corpus: CorpusArg,
    /// Show the neurons of this layer's MLP instead of a dictionary's latents
    #[arg(long, value_name = "LAYER", conflicts_with_all = ["dictionary", "heads"], add = crate::completions::layers())]
    neurons: Option<usize>,
    /// Show the heads of this layer, with the norm of their output as the activation
    #[arg(long, value_name = "LAYER", conflicts_with = "dictionary", add = crate::completions::layers())]
    heads: Option<usize>,
    #[command(flatten)]
    direction: DirectionArgs,
    /// The latents to show, separated by commas (default: the 50 with the highest density, or with the
    /// largest activation in the --query)
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    latents: Vec<usize>,
    /// Also show the activations on this text; the list can be sorted by them
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Labels of latents: a .csv of `latent,label`, or a .json object
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Include activations of neurons and heads at the BOS token (for latents: --all-tokens)
    #[arg(long, conflicts_with = "dictionary")]
    with_bos: bool,
    /// Number of prompts computed together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Output: a self-contained .html page, or a .jsonl file with Neuronpedia's JSON, one latent per line
    #[arg(long, value_name = "FILE.html|FILE.jsonl")]
    out: PathBuf,
}

pub(super) fn run(args: &ShowArgs) -> CliResult {
    if !matches!(args.out.extension().and_then(|ending| ending.to_str()), Some("html" | "htm" | "jsonl")) {
        return Err(Failure::Usage(format!("--out: `{}` must end in .html or .jsonl", args.out.display())));
    }
    if let Some(latent) = given_twice(&args.latents) {
        return Err(Failure::Usage(format!("--latents names {latent} twice")));
    }
    let inputs = args.model.inputs().into_iter().chain(args.corpus.files()).chain(args.labels.clone());
    let inputs = inputs.chain(args.direction.files());
    prepare(Some(&args.out), Names::File, inputs)?;
    let opened = match &args.model.dictionary[..] {
        [path] => {
            let dictionary = args.layer.one(path, &args.model)?;
            Some(args.direction.at.iter().fold(dictionary, |dictionary, point| dictionary.at(point)))
        }
        _ => None,
    };
    if args.neurons.is_none() && args.heads.is_none() && opened.is_none() && !args.direction.is_asked() {
        let message = "exactly one --dictionary, or --neurons, --heads, --direction or --more, is required";
        return Err(Failure::Usage(message.into()));
    }
    let model =
        any_model::plain_decoder("features show", &args.model, args.model.processed(args.dtype.dtype, args.process)?)?;
    let (units, dictionary) = match (args.neurons, args.heads, args.direction.units(&model)?, opened) {
        (Some(layer), ..) => (Units::neurons(layer), None),
        (_, Some(layer), ..) => (Units::heads(layer), None),
        (_, _, Some(directions), _) => (directions, None),
        (.., Some(dictionary)) => (Units::latents(&dictionary)?, Some(dictionary)),
        (.., None) => return Err(Failure::Usage("--at requires --direction or --more".into())),
    };
    let units = match &args.labels {
        Some(path) => units.with_labels(Labels::read(path)?),
        None => units,
    };
    let prepend_bos = dictionary.as_ref().and_then(|dictionary| dictionary.metadata().prepend_bos);
    let left_out = match &dictionary {
        Some(dictionary) => {
            tell(dictionary, &model)?;
            dictionary.metadata().exclude_special_tokens.ids(&model)?
        }
        None => model.bos_token().filter(|_| !args.with_bos).into_iter().collect(),
    };
    let prompts = args.corpus.source(&model, prepend_bos)?;
    let options = DashboardOptions::new().batch_size(args.batch_size as usize).exclude_tokens(left_out);
    let options = options
        .dataset(args.corpus.files().iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" "));
    let options = args.query.iter().fold(options, |options, text| options.query(text));
    let bar = of_pieces(prompts.pieces());
    let all = dashboards_of(&model, units, prompts, options, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let all = all?;
    let shown: Vec<usize> = match args.latents.is_empty() {
        true => all.by_query().into_iter().take(SHOWN).collect(),
        false => args.latents.clone(),
    };
    all.save(shown.iter().copied(), &args.out)?;
    let active = all.by_density().len();
    writeln!(stdout(), "{} tokens, {active} of {} active, {} shown", all.tokens(), all.density().len(), shown.len())?;
    said(&args.out)
}
