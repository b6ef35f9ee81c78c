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

/// Burn reads no longer message.
const LONGEST_MESSAGE: u64 = 1 << 30;

#[derive(Debug, Clone, Args)]
pub(super) struct ServeArgs {
    /// What to offer, on this machine: flex, cuda:N; several of one kind can be chosen from with #N
    #[arg(long, value_name = "DEVICE,...", env = DEVICE_VARIABLE, value_delimiter = ',', default_value = "flex")]
    device: Vec<String>,
    /// Where to listen; port 0 takes any that is free. Beyond this machine HOOKLENS_TOKEN must be set. Traffic is not
    /// encrypted: listen on a network you trust, or behind a tunnel
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3000")]
    listen: String,
    /// The most sessions at a time; a client has one for each device it uses
    #[arg(long, value_name = "N", default_value = "8", value_parser = count)]
    max_sessions: usize,
    /// The longest message of a client, and so the largest tensor that it can send; at most 1GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = message)]
    max_message: u64,
    /// The most main memory of a session's process, as 8GB; 0.8 of the machine's or of its container's unless given.
    /// Linux only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_memory: Option<u64>,
    /// Be the process of a session
    #[arg(long, hide = true)]
    session: bool,
    #[command(flatten)]
    bounds: Bounds,
}

/// Bounds on connections that have not opened a session yet. Tests shorten them.
#[derive(Debug, Clone, Args)]
struct Bounds {
    /// How long the head of a request may take
    #[arg(long, hide = true, default_value = "5000")]
    head_ms: u64,
    /// How long the first message may take
    #[arg(long, hide = true, default_value = "10000")]
    first_ms: u64,
    /// The most connections without a session
    #[arg(long, hide = true, default_value = "16")]
    max_pending: usize,
    /// The most of them that an address has
    #[arg(long, hide = true, default_value = "8")]
    max_pending_of_address: usize,
    /// The most failures of an address
    #[arg(long, hide = true, default_value = "5")]
    max_failures: u32,
    /// The time in which they count, and for which the address is then refused
    #[arg(long, hide = true, default_value = "60000")]
    failures_ms: u64,
}

impl ServeArgs {
    /// The most memory of a session's process.
    fn memory(&self) -> Option<u64> {
        self.max_memory.or_else(memory::default_limit)
    }
}

pub(super) fn run(args: &ServeArgs) -> CliResult {
    if args.session {
        return session::run(args);
    }
    if let Some(name) = args.device.iter().find(|name| name.starts_with("libtorch") || name.starts_with("remote")) {
        return Err(Failure::Usage(format!("`{name}` can't be offered to others; flex and cuda:N can")));
    }
    devices(&args.device)?;
    let token = token::from_environment()?;
    let taken = |e: std::io::Error| format!("can't listen on {}: {e}", args.listen);
    let addresses = address::resolve(&args.listen).map_err(taken)?;
    if token.is_none() && !address::are_here(&addresses) {
        let reason = format!("others could compute here: beyond this machine, {TOKEN_VARIABLE} must be set to a token");
        return Err(Failure::Usage(reason));
    }
    if token.is_none() {
        say(format_args!("every program of this machine may compute here; {TOKEN_VARIABLE} asks for a token"));
    }
    if args.max_memory.is_some() && !cfg!(target_os = "linux") {
        say("the memory of sessions is not limited: that is possible on Linux only");
    }
    let listener = TcpListener::bind(addresses.as_slice()).map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    // What keeps sessions from starting is better known now than at the first.
    child::Child::try_out(args)?;
    let (names, mut out) = (args.device.join(", "), std::io::stdout().lock());
    writeln!(out, "serving {names}: --device remote:ws://{address}")?;
    out.flush()?;
    drop(out);
    guard::Guard::new(args, host::Hosts::of(&args.listen, &addresses)).serve(&listener);
    Ok(())
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number from 1 up".to_string())
}

fn message(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes > LONGEST_MESSAGE { Err("messages have 1 GiB at most".to_string()) } else { Ok(bytes) }
}
