//! `hooklens merge`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::CliResult;
use super::terminal::stdout;
use crate::dump::{merge, merge_unverified};
use crate::numerals::{bytes, grouped};

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// The shards' folders, which lie within the folder they make
    #[arg(required = true, value_name = "SHARD")]
    pub(super) shards: Vec<PathBuf>,
    /// The folder of the whole dump
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: PathBuf,
    /// Compare the lengths of the shards' files only, not their bytes
    #[arg(long)]
    pub(super) no_verify: bool,
}

pub(super) fn run(args: &MergeArgs) -> CliResult {
    let merged = if args.no_verify { merge_unverified } else { merge };
    let report = merged(&args.out, &args.shards)?;
    let (rows, files, size) = (grouped(report.rows), report.files.len(), bytes(report.bytes));
    writeln!(stdout(), "{rows} prompts in {files} files, {size}: {}", args.out.display())?;
    Ok(())
}
