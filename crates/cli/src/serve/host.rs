//! Validation of the `Host` header, against DNS rebinding: a web page can make a browser connect here under the page's
//! own domain name, if that name resolves to this machine.

use std::net::{IpAddr, SocketAddr};

/// Which `Host` names are accepted.
#[derive(Debug, Clone)]
pub(super) enum Hosts {
    /// For a server on a loopback address, which may not require a token: only local names and the name given with
    /// `--listen`.
    Here { given: String },
    /// For a server that other machines can reach: any name, since clients need a token.
    Any,
}

impl Hosts {
    /// Names accepted by a server that listens on `listen`, which resolves to these addresses.
    pub(super) fn of(listen: &str, addresses: &[SocketAddr]) -> Self {
        match super::address::are_here(addresses) {
            true => Self::Here { given: name(listen).to_ascii_lowercase() },
            false => Self::Any,
        }
    }

    /// Whether the value of a `Host` header is accepted.
    pub(super) fn lets_through(&self, host: &str) -> bool {
        let Self::Here { given } = self else { return true };
        let name = name(host).to_ascii_lowercase();
        let is_here = |address: IpAddr| address.to_canonical().is_loopback();
        name == "localhost" || name == *given || name.parse().is_ok_and(is_here)
    }
}

/// The host without its port and without IPv6 brackets.
fn name(host: &str) -> &str {
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match (bracketed, host.rsplit_once(':')) {
        (Some((address, _)), _) => address,
        (None, Some((name, _))) => name,
        (None, None) => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_alone() {
        let hosts = Hosts::of("gpu:3000", &["127.0.0.1:3000".parse().unwrap()]);
        for host in
            ["localhost", "LOCALHOST:3001", "127.0.0.1", "127.0.0.1:3000", "[::1]:3000", "[::1]", "gpu:1", "GPU"]
        {
            assert!(hosts.lets_through(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:3000",
            "10.0.0.1:3000",
            "localhost.evil.example",
            "[::2]:1",
            "127.0.0.1.evil",
        ] {
            assert!(!hosts.lets_through(host), "{host}");
        }
        assert!(Hosts::of("0.0.0.0:3000", &["0.0.0.0:3000".parse().unwrap()]).lets_through("gpu.example:3000"));
    }
}
