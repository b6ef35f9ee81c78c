//! `hooklens serve`.

mod address;
mod child;
mod connection;
mod failures;
mod frames;
mod guard;
mod head;
mod host;
mod memory;
mod places;
mod report;
mod session;
mod token;

use std::io::Write;
use std::net::TcpListener;

use clap::Args;

use super::args::devices;
use super::size;
use super::terminal::say;
use super::{CliResult, Failure};
use hooklens_model::device::{DEVICE_VARIABLE, TOKEN_VARIABLE};

/// Burn's server rejects longer messages.
const LONGEST_MESSAGE: u64 = 1 << 30;

#[derive(Debug, Clone, Args)]
pub(super) struct ServeArgs {
    /// Local devices to serve: flex, cuda:N; clients choose among several of one kind with #N
    #[arg(long, value_name = "DEVICE,...", env = DEVICE_VARIABLE, value_delimiter = ',', default_value = "flex")]
    device: Vec<String>,
    /// Address to listen on; port 0 picks a free port. Listening beyond this machine requires HOOKLENS_TOKEN. Traffic
    /// is not encrypted, so use a trusted network or a tunnel
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3000")]
    listen: String,
    /// Maximum number of concurrent sessions; a client has one per device it uses
    #[arg(long, value_name = "N", default_value = "8", value_parser = count)]
    max_sessions: usize,
    /// Maximum size of a message from a client, and so of a tensor that it sends; at most 1GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = message)]
    max_message: u64,
    /// Memory limit of a session's process, e.g. 8GB (default: 80% of the machine's or container's memory). Linux only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_memory: Option<u64>,
    /// Run as a session process
    #[arg(long, hide = true)]
    session: bool,
    #[command(flatten)]
    bounds: Bounds,
}

/// Limits on connections that have not opened a session yet. These are options so that tests can shorten the limits.
#[derive(Debug, Clone, Args)]
struct Bounds {
    /// Time limit for a request's head, in milliseconds
    #[arg(long, hide = true, default_value = "5000")]
    head_ms: u64,
    /// Time limit for the first message, in milliseconds
    #[arg(long, hide = true, default_value = "10000")]
    first_ms: u64,
    /// Maximum number of connections without a session
    #[arg(long, hide = true, default_value = "16")]
    max_pending: usize,
    /// Maximum number of connections without a session per address
    #[arg(long, hide = true, default_value = "8")]
    max_pending_of_address: usize,
    /// Maximum number of failures per address
    #[arg(long, hide = true, default_value = "5")]
    max_failures: u32,
    /// Period in which failures are counted, and for which an address with too many is refused, in milliseconds
    #[arg(long, hide = true, default_value = "60000")]
    failures_ms: u64,
}

impl ServeArgs {
    /// Memory limit of a session process.
    fn memory(&self) -> Option<u64> {
        self.max_memory.or_else(memory::default_limit)
    }
}

pub(super) fn run(args: &ServeArgs) -> CliResult {
    if args.session {
        return session::run(args);
    }
    if let Some(name) = args.device.iter().find(|name| name.starts_with("libtorch") || name.starts_with("remote")) {
        return Err(Failure::Usage(format!("`{name}` cannot be served; use flex or cuda:N")));
    }
    devices(&args.device)?;
    let token = token::from_environment()?;
    let taken = |e: std::io::Error| format!("can't listen on {}: {e}", args.listen);
    let addresses = address::resolve(&args.listen).map_err(taken)?;
    if token.is_none() && !address::are_here(&addresses) {
        let reason = format!("to listen beyond this machine, {TOKEN_VARIABLE} must be set to a token");
        return Err(Failure::Usage(reason));
    }
    if token.is_none() {
        say(format_args!("any program on this machine can connect; set {TOKEN_VARIABLE} to require a token"));
    }
    if args.max_memory.is_some() && !cfg!(target_os = "linux") {
        say("--max-memory has no effect: the memory of sessions can be limited on Linux only");
    }
    let listener = TcpListener::bind(addresses.as_slice()).map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    // Find out now whether session processes can start, instead of when the first client connects.
    child::Child::try_out(args)?;
    let (names, mut out) = (args.device.join(", "), std::io::stdout().lock());
    writeln!(out, "serving {names}: --device remote:ws://{address}")?;
    out.flush()?;
    drop(out);
    guard::Guard::new(args, host::Hosts::of(&args.listen, &addresses)).serve(&listener);
    Ok(())
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected a whole number, 1 or more".to_string())
}

fn message(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > LONGEST_MESSAGE { Err("the maximum is 1GiB".to_string()) } else { Ok(bytes) }
}
