//! Addresses to listen on, and addresses of clients.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Resolves `HOST:PORT` to socket addresses.
pub(super) fn resolve(listen: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(listen.to_socket_addrs()?.collect())
}

/// Whether all addresses are loopback addresses.
pub(super) fn are_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

/// Address to count a client by: IPv6 addresses are reduced to their /64 network, because one machine owns all
/// addresses in it.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_alone() {
        let here = |texts: &[&str]| are_here(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        assert!(here(&["127.0.0.1:0", "127.9.8.7:1", "[::1]:3000", "[::ffff:127.0.0.1]:1"]));
        for other in ["0.0.0.0:0", "[::]:0", "192.168.0.1:1", "[::ffff:10.0.0.1]:1", "128.0.0.1:1", "[::2]:1"] {
            assert!(!here(&[other]), "{other}");
            assert!(!here(&["127.0.0.1:0", other]), "{other}");
        }
        assert!(are_here(&resolve("localhost:0").unwrap()));
    }
}
