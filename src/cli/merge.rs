//! `hooklens merge`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::CliResult;
use crate::dump::merge;
use crate::numerals::{bytes, grouped};

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// The shards' folders, which lie within the folder they make
    #[arg(required = true, value_name = "SHARD")]
    pub(super) shards: Vec<PathBuf>,
    /// The folder of the whole dump
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: PathBuf,
}

pub(super) fn run(args: &MergeArgs) -> CliResult {
    let report = merge(&args.out, &args.shards)?;
    let (rows, files, size) = (grouped(report.rows), report.files.len(), bytes(report.bytes));
    writeln!(std::io::stdout().lock(), "{rows} prompts in {files} files, {size}: {}", args.out.display())?;
    Ok(())
}
