//! `hooklens merge`.

use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use super::terminal::{note, stdout};
use super::{CliResult, Failure};
use crate::dump::{Shards, merge, merge_unverified, shards_in};
use crate::numerals::{bytes, grouped};

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_secs(2);
/// Missing shards that are named.
const NAMED: usize = 12;

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// The shards' folders, which lie within the folder they make (default: all that lie there)
    #[arg(value_name = "SHARD")]
    pub(super) shards: Vec<PathBuf>,
    /// The folder of the whole dump
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: PathBuf,
    /// Wait until all shards are there and complete
    #[arg(long, conflicts_with = "shards")]
    pub(super) wait: bool,
    /// Compare the lengths of the shards' files only, not their bytes
    #[arg(long)]
    pub(super) no_verify: bool,
}

pub(super) fn run(args: &MergeArgs) -> CliResult {
    let shards = if args.shards.is_empty() { found(args)? } else { args.shards.clone() };
    let merged = if args.no_verify { merge_unverified } else { merge };
    let report = merged(&args.out, &shards)?;
    let (rows, files, size) = (grouped(report.rows), report.files.len(), bytes(report.bytes));
    writeln!(stdout(), "{rows} prompts in {files} files, {size}: {}", args.out.display())?;
    Ok(())
}

/// The folder's shards, when they are all there.
fn found(args: &MergeArgs) -> Result<Vec<PathBuf>, Failure> {
    let there = args.out.join("manifest.json");
    if there.exists() {
        return Err(crate::error::Error::from(crate::error::DumpError::Exists { path: there }).into());
    }
    let mut told = String::new();
    loop {
        // The first job may not have made the folder yet.
        let found = match args.wait && !args.out.exists() {
            true => Shards::default(),
            false => shards_in(&args.out).map_err(crate::error::Error::from)?,
        };
        if found.are_whole() {
            return Ok(found.complete);
        }
        let what = problems(&found);
        if !args.wait || !found.foreign.is_empty() {
            return Err(Failure::Failed(format!("{}: {what}", args.out.display()).into()));
        }
        if what != told {
            note(format!("waiting: {what}"));
            told = what;
        }
        sleep(PAUSE);
    }
}

/// What keeps shards from being one dump.
fn problems(found: &Shards) -> String {
    if found.of == 0 && found.foreign.is_empty() {
        return "no folder in it holds a shard".into();
    }
    let mut parts = Vec::new();
    if !found.missing.is_empty() {
        let named: Vec<String> = found.missing.iter().take(NAMED).map(ToString::to_string).collect();
        let more = found.missing.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        parts.push(format!("missing: {}{more}", named.join(", ")));
    }
    for one in &found.unfinished {
        let (done, rows) = (grouped(one.done), grouped(one.rows));
        parts.push(format!("not complete: {} ({}), {done} of {rows} prompts", one.shard, one.folder.display()));
    }
    for one in &found.foreign {
        parts.push(format!("foreign: {}: {}", one.folder.display(), one.reason));
    }
    format!("{} of {} shards are complete; {}", found.complete.len(), found.of, parts.join("; "))
}
