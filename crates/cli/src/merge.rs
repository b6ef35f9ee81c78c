//! `hooklens merge`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::json_result::print_result;
use super::out::{CsvArg, Names, OutFile, plural, prepare};
use super::picture_args::PictureArgs;
use super::share::{Found, Kind, Part, shares_in};
use super::share_report::ShareReport;
use super::terminal::{note, stdout};
use super::{CliResult, Failure, attribute, features, patch};
use hooklens_data::dump::{Shard, Shards, is_whole, merge, merge_unverified, shards_in};
use hooklens_io::numerals::{bytes, grouped};
use hooklens_io::object_stores::is_url;
use hooklens_model::error::Error;

/// Time between checks of a folder.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between checks of an object store, where each check costs requests.
const PAUSE_OF_STORES: Duration = Duration::from_secs(5);
/// Maximum number of missing shards to name.
const NAMED: usize = 12;

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// Folders of the shards, inside the output folder (default: all of them)
    #[arg(value_name = "SHARD")]
    pub(super) shards: Vec<PathBuf>,
    /// Folder or object-store URL of the merged dump, or the folder with the shards of a patching sweep, edge scores or
    /// an evaluation
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: PathBuf,
    /// For shards of a patching sweep, edge scores or an evaluation: write the results to a file: .json, .csv, .svg,
    /// .png or .html
    #[arg(long, value_name = "FILE", conflicts_with = "shards")]
    pub(super) results: Option<OutFile>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) csv: CsvArg,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
    /// Wait until all shards exist and are complete
    #[arg(long, conflicts_with = "shards")]
    pub(super) wait: bool,
    /// Compare only the lengths of the shards' files, not their contents
    #[arg(long)]
    pub(super) no_verify: bool,
}

pub(super) fn run(args: &MergeArgs) -> CliResult {
    if !is_url(&args.out) && !args.out.exists() && !args.wait {
        let message = format!(
            "--out {}: there is no such folder; expected the --out of the commands with --shard",
            args.out.display()
        );
        return Err(Failure::Usage(message));
    }
    if let Some(parts) = parts(args)? {
        prepare(
            args.results.as_ref().map(|results| &*results.path),
            Names::File,
            parts.iter().map(|part| part.path.clone()),
        )?;
        let merged = match parts[0].kind {
            Kind::Patch => patch::merged,
            Kind::FeaturesEval => features::merged_evaluation,
            Kind::AttributeEdges => attribute::merged,
        };
        let to = ShareReport {
            model: &|| Ok(parts[0].model()),
            shards: Some(&parts),
            json: args.json,
            csv: args.csv,
            picture: args.picture,
            out: args.results.clone(),
        };
        return merged(&parts, &to);
    }
    if args.results.is_some() {
        return Err(Failure::Usage(format!(
            "--results requires shards of results, but {} contains none",
            args.out.display()
        )));
    }
    let Some(shards) = (if args.shards.is_empty() { found(args)? } else { Some(args.shards.clone()) }) else {
        note(format!("{} is already merged", args.out.display()));
        return Ok(());
    };
    let merged = if args.no_verify { merge_unverified } else { merge };
    let report = merged(&args.out, &shards)?;
    if args.json {
        let body = json!({"out": args.out, "prompts": report.rows, "files": report.files, "bytes": report.bytes});
        return print_result(None, body);
    }
    let (prompts, files) = (plural(report.rows, "prompt"), plural(report.files.len(), "file"));
    writeln!(stdout(), "{prompts} in {files}, {}: {}", bytes(report.bytes), args.out.display())?;
    Ok(())
}

/// Whether a folder is empty or missing.
fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// Waits for shards that other jobs are still writing, and prints what it waits for.
struct Waiting {
    last_message: String,
    pause: Duration,
}

impl Waiting {
    fn new(folder: &Path) -> Self {
        Self { last_message: String::new(), pause: if is_url(folder) { PAUSE_OF_STORES } else { PAUSE } }
    }

    /// Prints a note on what is missing, if that has changed, and sleeps for one interval.
    fn wait(&mut self, what: String) {
        if what != self.last_message {
            note(format!("waiting: {what}"));
            self.last_message = what;
        }
        sleep(self.pause);
    }
}

/// Waits for all result shards in the folder. `None` if the folder does not belong to sharded results.
fn parts(args: &MergeArgs) -> Result<Option<Vec<Part>>, Failure> {
    let mut waiting = Waiting::new(&args.out);
    loop {
        let what = match shares_in(&args.out)? {
            Some(Found::Whole(parts)) => return Ok(Some(parts)),
            // The first job may not have written anything yet.
            None if args.wait && !is_url(&args.out) && is_empty(&args.out) => {
                "no shards have been written yet".to_string()
            }
            None => return Ok(None),
            Some(Found::Missing { of, missing }) => {
                format!("{} of {of} shards are complete; {}", of - missing.len(), named(&missing))
            }
        };
        if !args.wait {
            return Err(Failure::Failed(format!("{}: {what}", args.out.display()).into()));
        }
        waiting.wait(what);
    }
}

/// Waits for all shards of a dump. `None` if the dump is already merged, as when a job is run again.
fn found(args: &MergeArgs) -> Result<Option<Vec<PathBuf>>, Failure> {
    match is_whole(&args.out).map_err(Error::from)? {
        Some(true) => return Ok(None),
        Some(false) => {
            let message = format!("{} contains an incomplete dump and no shards to merge", args.out.display());
            return Err(Failure::Failed(message.into()));
        }
        None => {}
    }
    let mut waiting = Waiting::new(&args.out);
    loop {
        // The first job may not have created the folder yet.
        let found = match args.wait && !is_url(&args.out) && !args.out.exists() {
            true => Shards::default(),
            false => shards_in(&args.out).map_err(Error::from)?,
        };
        if found.are_whole() {
            return Ok(Some(found.complete));
        }
        let what = problems(&found);
        if !args.wait || !found.foreign.is_empty() {
            return Err(Failure::Failed(format!("{}: {what}", args.out.display()).into()));
        }
        waiting.wait(what);
    }
}

/// Lists missing shards, up to [`NAMED`] of them by name.
fn named(missing: &[Shard]) -> String {
    let named: Vec<String> = missing.iter().take(NAMED).map(ToString::to_string).collect();
    let more = missing.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("missing: {}{more}", named.join(", "))
}

/// Describes why shards can't be merged yet.
fn problems(found: &Shards) -> String {
    if found.of == 0 && found.foreign.is_empty() {
        return "no folders of shards found".into();
    }
    let mut parts = Vec::new();
    if !found.missing.is_empty() {
        parts.push(named(&found.missing));
    }
    for one in &found.unfinished {
        let (done, rows) = (grouped(one.done), grouped(one.rows));
        // For prompts that are read from files during the dump, the total is unknown until the shard is complete.
        let done =
            if one.done == one.rows { format!("{done} prompts so far") } else { format!("{done} of {rows} prompts") };
        parts.push(format!("incomplete: {} ({}), {done}", one.shard, one.folder.display()));
    }
    for one in &found.foreign {
        parts.push(format!("not part of this dump: {}: {}", one.folder.display(), one.reason));
    }
    format!("{} of {} shards are complete; {}", found.complete.len(), found.of, parts.join("; "))
}
