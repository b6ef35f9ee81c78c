//! What the process of a session tells the server, a line each on its standard output.
//!
//! Burn's log is written there too and may quote a client, so that each line begins with a secret.

use std::fmt;
use std::net::SocketAddr;

/// What is told. The address is the session's listener's, or the one a connection came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Connections are taken at this address.
    Listens(SocketAddr),
    /// A connection from this address will be let through to the check of its token.
    Expects(SocketAddr),
    /// The connection from this address may compute.
    Opens(SocketAddr),
    /// It may not.
    Refuses(SocketAddr),
}

impl Report {
    /// The report in a line, if it begins with the secret and is one.
    pub(super) fn read(line: &str, secret: &str) -> Option<Self> {
        let (word, address) = line.strip_prefix(secret)?.trim().split_once(' ')?;
        let address = address.parse().ok()?;
        Some(match word {
            "listens" => Report::Listens(address),
            "expects" => Report::Expects(address),
            "opens" => Report::Opens(address),
            "refuses" => Report::Refuses(address),
            _ => return None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Listens(address) => write!(f, "listens {address}"),
            Report::Expects(address) => write!(f, "expects {address}"),
            Report::Opens(address) => write!(f, "opens {address}"),
            Report::Refuses(address) => write!(f, "refuses {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_by_who_knows_the_secret() {
        let address = "127.0.0.1:3000".parse().unwrap();
        for report in [Report::Listens, Report::Expects, Report::Opens, Report::Refuses].map(|kind| kind(address)) {
            assert_eq!(Report::read(&format!("5ec7e7 {report}"), "5ec7e7"), Some(report));
            assert_eq!(Report::read(&format!("guess {report}"), "5ec7e7"), None);
            assert_eq!(Report::read(&report.to_string(), "5ec7e7"), None);
        }
        assert_eq!(Report::read("5ec7e7 opens nobody", "5ec7e7"), None);
    }
}
