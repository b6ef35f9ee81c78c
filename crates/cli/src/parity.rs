//! `hooklens parity`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::any_model::note_report;
use super::args::{DtypeArg, ModelArg, ProcessArg};
use super::json_result::{ModelId, print_result};
use super::terminal::stdout;
use super::{CliResult, Failure};
use crate::parity_check::compare;

#[derive(Debug, Args)]
pub(super) struct ParityArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// A safetensors file with tokens and the activations that another implementation computed for them
    #[arg(long, value_name = "FILE")]
    pub(super) reference: PathBuf,
    /// The largest allowed difference, relative to a tensor's largest value
    #[arg(long, value_name = "TOLERANCE", default_value_t = 1e-4)]
    pub(super) tolerance: f32,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    #[command(flatten)]
    pub(super) process: ProcessArg,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &ParityArgs) -> CliResult {
    if !args.tolerance.is_finite() || args.tolerance < 0.0 {
        return Err(Failure::Usage("--tolerance must be a finite number, 0 or more".into()));
    }
    if args.reference.is_dir() || !args.reference.exists() {
        let what = if args.reference.is_dir() { "it is a folder" } else { "there is no such file" };
        let message = format!(
            "--reference {}: {what}; expected a .safetensors file with tokens and activations, as \
             scripts/reference_dump.py or `hooklens dump --out FILE.safetensors` writes",
            args.reference.display()
        );
        return Err(Failure::Usage(message));
    }
    let options = args.model.processed(args.dtype.dtype, args.process)?;
    let report = compare(&args.model.model, options, &args.reference)?;
    note_report(&report.load_report);
    let beyond = report.first_beyond(args.tolerance);
    let mut out = stdout();
    if args.json {
        let rows = report.compared.iter().map(|one| {
            json!({"name": one.name, "shape": one.shape, "largest": one.largest, "difference": one.difference,
                "relative": one.relative()})
        });
        let body = json!({"reference": args.reference, "tolerance": args.tolerance, "agrees": beyond.is_none(),
            "compared": rows.collect::<Vec<_>>()});
        print_result(Some(&ModelId::named(&args.model.model)), body)?;
    } else {
        write!(out, "{report}")?;
        if let Some(worst) = report.worst() {
            let count = report.compared.len();
            writeln!(
                out,
                "\n{count} tensors compared; the worst is `{}`, off by {:.2e}",
                worst.name,
                worst.relative()
            )?;
        }
    }
    match beyond {
        None => Ok(()),
        Some(first) => {
            let (name, off, limit) = (&first.name, first.relative(), args.tolerance);
            Err(format!(
                "`{name}` is the first tensor that exceeds the tolerance {limit:e}: relative difference {off:.2e}"
            )
            .into())
        }
    }
}
