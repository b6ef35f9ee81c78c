//! The name a client calls the server by. A page can make a browser connect here under a name of the page's own, which
//! stands for this machine (DNS rebinding).

use std::net::{IpAddr, SocketAddr};

/// Which names are let through.
#[derive(Debug, Clone)]
pub(super) enum Hosts {
    /// Only this machine reaches the server, and a token may not be required: names of this machine, and the one that was
    /// given to listen on.
    Here { given: String },
    /// Others reach it by whatever name; they need a token.
    Any,
}

impl Hosts {
    /// Those of a server that listens on `listen`, which stands for these addresses.
    pub(super) fn of(listen: &str, addresses: &[SocketAddr]) -> Self {
        match super::address::are_here(addresses) {
            true => Self::Here { given: name(listen).to_ascii_lowercase() },
            false => Self::Any,
        }
    }

    /// Whether the value of a header `Host` is let through.
    pub(super) fn lets_through(&self, host: &str) -> bool {
        let Self::Here { given } = self else { return true };
        let name = name(host).to_ascii_lowercase();
        let is_here = |address: IpAddr| address.to_canonical().is_loopback();
        name == "localhost" || name == *given || name.parse().is_ok_and(is_here)
    }
}

/// A host without its port, and without the brackets of an address of IPv6.
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
