//! The session process: Burn's server on an address that only the public-facing server knows.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use burn::server::{AuthorizationRequest, ClientId, PeerAuthorizer, RemoteServer, TokenAuthorizer, WebSocketTransport};
use rand::TryRngCore;
use rand::rngs::OsRng;

use super::super::args::devices;
use super::super::{CliResult, Failure};
use super::report::Report;
use super::{ServeArgs, memory, token};

/// Serves until standard input ends, which happens when the public-facing server ends for any reason.
pub(super) fn run(args: &ServeArgs) -> CliResult {
    memory::limit(args.max_memory)?;
    let mut asked = BufReader::new(std::io::stdin()).lines().map_while(Result::ok);
    let secret =
        asked.next().ok_or_else(|| Failure::Usage("--session is used by `hooklens serve` internally".to_string()))?;
    let token = token::from_environment()?.map(TokenAuthorizer::new).transpose()?;
    let server = RemoteServer::new(devices(&args.device)?);
    let listener = listen()?;
    let reports = Arc::new(Reports { secret });
    let address = listener.local_addr()?;
    let expected = Arc::new(Mutex::new(HashSet::new()));
    let door = Endpoint { token, expected: expected.clone(), reports: reports.clone() };
    reports.tell(Report::Listens(address));
    std::thread::Builder::new().spawn(move || {
        for address in asked.filter_map(|line| line.parse().ok()) {
            expected.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
            reports.tell(Report::Expects(address));
        }
        std::process::exit(0);
    })?;
    let transport = WebSocketTransport::from_listener(listener);
    Ok(server.with_authorizer(door).serve(transport).map_err(|e| e.to_string())?)
}

/// A listener for this machine only. On Linux the address is random, one of sixteen million, so that a web page can't
/// find it by trying.
fn listen() -> Result<TcpListener, Failure> {
    let random = OsRng.try_next_u32()?.to_le_bytes();
    let address = Ipv4Addr::new(127, random[0], random[1], random[2].clamp(1, 254));
    match cfg!(target_os = "linux").then(|| TcpListener::bind((address, 0))) {
        Some(Ok(listener)) => Ok(listener),
        _ => Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?),
    }
}

/// Sends reports to the public-facing server.
struct Reports {
    secret: String,
}

impl Reports {
    fn tell(&self, report: Report) {
        let mut out = std::io::stdout().lock();
        // If this fails, the reader is gone, and standard input has ended.
        let _ = writeln!(out, "{} {report}", self.secret).and_then(|()| out.flush());
    }
}

/// Authorizes connections that the public-facing server announced and that present the token.
struct Endpoint {
    token: Option<TokenAuthorizer>,
    expected: Arc<Mutex<HashSet<SocketAddr>>>,
    reports: Arc<Reports>,
}

impl PeerAuthorizer for Endpoint {
    fn authorize(&self, request: AuthorizationRequest<'_>) -> Result<(), String> {
        let address = match request.client {
            ClientId::WebSocket(address) => address,
            #[allow(unreachable_patterns, reason = "Burn's features decide whether there are others")]
            other => return Err(format!("{other} did not connect over WebSocket")),
        };
        if !self.expected.lock().unwrap_or_else(PoisonError::into_inner).remove(&address) {
            return Err(format!("{address} was not announced by the public-facing server"));
        }
        let allowed = self.token.as_ref().map_or(Ok(()), |token| token.authorize(request));
        self.reports.tell(if allowed.is_ok() { Report::Opens(address) } else { Report::Refuses(address) });
        allowed
    }
}

#[cfg(test)]
mod tests {
    use burn::server::Credential;

    use super::*;

    #[test]
    fn only_who_was_announced_comes_in_and_once() {
        let token = TokenAuthorizer::new("0123456789abcdef").unwrap();
        let expected = Arc::new(Mutex::new(HashSet::new()));
        let reports = Arc::new(Reports { secret: "of the test".to_string() });
        let door = Endpoint { token: Some(token), expected: expected.clone(), reports };
        let from: SocketAddr = "127.0.0.1:4000".parse().unwrap();
        let ask = |token: &str| {
            let credential = Credential::from(token);
            let client = ClientId::WebSocket(from);
            door.authorize(AuthorizationRequest { client, device_index: 0, credential: &credential })
        };
        assert!(ask("0123456789abcdef").is_err());
        expected.lock().unwrap().insert(from);
        assert!(ask("0123456789abcdef").is_ok());
        assert!(ask("0123456789abcdef").is_err());
        expected.lock().unwrap().insert(from);
        assert!(ask("0123456789abcdeg").is_err());
    }

    #[test]
    fn only_this_machine_reaches_a_session() {
        assert!(listen().unwrap().local_addr().unwrap().ip().is_loopback());
    }
}
