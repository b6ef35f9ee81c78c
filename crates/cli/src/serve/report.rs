//! Reports from a session process to the server, one per line on the process's standard output.
//!
//! Burn also logs to standard output, and its log may quote a client. Reports therefore start with a secret.

use std::fmt;
use std::net::SocketAddr;

/// A report. The address is the session's listener for `Listens`, and a connection's source otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The process accepts connections at this address.
    Listens(SocketAddr),
    /// The process will check the token of a connection from this address.
    Expects(SocketAddr),
    /// The connection from this address was authorized.
    Opens(SocketAddr),
    /// The connection from this address was refused.
    Refuses(SocketAddr),
}

impl Report {
    /// Parses a report, if the line starts with the secret.
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
