//! The `hooklens` command-line program.

use std::process::ExitCode;

fn main() -> ExitCode {
    hooklens_cli::main()
}
