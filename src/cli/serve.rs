//! `hooklens serve`.

use std::io::Write;
use std::net::TcpListener;

use burn::server::{RemoteServer, TokenAuthorizer, WebSocketTransport};
use clap::Args;

use super::args::devices;
use super::{CliResult, Failure};
use crate::device::{DEVICE_VARIABLE, TOKEN_VARIABLE};

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// What to offer, on this machine: flex, cuda:N; several of one kind can be chosen from with #N
    #[arg(long, value_name = "DEVICE,...", env = DEVICE_VARIABLE, value_delimiter = ',', default_value = "flex")]
    pub(super) device: Vec<String>,
    /// Where to listen; port 0 takes any that is free. Traffic is not encrypted: beyond this machine, listen on a
    /// network you trust, or behind a tunnel
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3000")]
    pub(super) listen: String,
}

pub(super) fn run(args: &ServeArgs) -> CliResult {
    if let Some(name) = args.device.iter().find(|name| name.starts_with("libtorch") || name.starts_with("remote")) {
        return Err(Failure::Usage(format!("`{name}` can't be offered to others; flex and cuda:N can")));
    }
    let mut server = RemoteServer::new(devices(&args.device)?);
    match std::env::var(TOKEN_VARIABLE) {
        Ok(token) => {
            let empty = |_| Failure::Usage(format!("{TOKEN_VARIABLE} is empty; leave it unset to ask for no token"));
            server = server.with_authorizer(TokenAuthorizer::new(token).map_err(empty)?);
        }
        Err(_) => eprintln!("whoever reaches this port may compute here; {TOKEN_VARIABLE} asks for a token"),
    }
    let taken = |e: std::io::Error| format!("can't listen on {}: {e}", args.listen);
    let listener = TcpListener::bind(&args.listen).map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let (names, mut out) = (args.device.join(", "), std::io::stdout().lock());
    writeln!(out, "serving {names}: --device remote:ws://{address}")?;
    out.flush()?;
    drop(out);
    Ok(server.serve(WebSocketTransport::from_listener(listener)).map_err(|e| e.to_string())?)
}
