//! Devices on other machines.

use burn::remote::RemoteHost;
use burn::tensor::Device;

/// Environment variable with the token for servers that require one.
pub const TOKEN_VARIABLE: &str = "HOOKLENS_TOKEN";

/// Connects to `ws://HOST:PORT`, or `ws://HOST:PORT#N` for the N-th device there.
pub(super) fn connect(url: &str) -> Result<Device, String> {
    let (address, number) = url.split_once('#').unwrap_or((url, "0"));
    let number: usize = number.parse().map_err(|_| format!("expected a device number after `#`, not `{number}`"))?;
    let place = address.strip_prefix("ws://").unwrap_or_default();
    let port = place.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
    if port.and_then(|port| port.trim_end_matches('/').parse::<u16>().ok()).is_none() {
        return Err("expected the server's address, ws://HOST:PORT, after `remote:`".to_string());
    }
    let mut host = RemoteHost::websocket(address);
    if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
        host = host.with_credential(token);
    }
    Device::remote_options(&host).device_index(number).init().map_err(|error| error.to_string())
}
