//! Device names in messages.

use std::error::Error;
use std::fmt;

use burn::tensor::Device;

use crate::error::{BoxError, HookError};

/// A remote server that no longer responds.
#[derive(Debug)]
struct ServerGone(BoxError);

impl fmt::Display for ServerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server no longer responds: it has exited, or the connection was lost")
    }
}

impl Error for ServerGone {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// The error for a tensor that could not be read from a device.
pub(crate) fn unread(what: &str, device: &Device, source: BoxError) -> HookError {
    let address = remote_address(&format!("{device:?}"));
    // Burn's error when the connection closes while it waits for a reply.
    let gone = address.is_some() && format!("{source:?} {source}").contains("RecvError");
    let name = format!("{what} on {}", address.unwrap_or_else(|| format!("{device:?}")));
    HookError::Io { name, source: if gone { ServerGone(source).into() } else { source } }
}

/// Short name of a device: `Flex(Cpu)`, or the address of a remote device.
pub fn device_label(device: &Device) -> String {
    let described = format!("{device:?}");
    let inner = described.strip_prefix("Device<").and_then(|inner| inner.strip_suffix('>'));
    remote_address(&described).unwrap_or_else(|| inner.unwrap_or(&described).to_string())
}

/// Address of a remote device. Burn exposes it only through the `Debug` output.
fn remote_address(described: &str) -> Option<String> {
    let after = |start: &str| described.split_once(start).map(|(_, rest)| rest);
    let quoted = |start: &str| after(start)?.split('"').next();
    let (scheme, host) = (quoted("scheme: \"")?, quoted("host: \"")?);
    let port = after("port: Some(").and_then(|rest| rest.split(')').next());
    Some(format!("remote:{scheme}://{host}{}", port.map_or(String::new(), |port| format!(":{port}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_remote_devices() {
        let described = "Device<Remote(RemoteDevice { endpoint: WebSocket { address: Address { scheme: \"ws\", host: \
                         \"127.0.0.1\", port: Some(3056) }, .. }, device_index: 0, id: 0 })>";
        assert_eq!(remote_address(described).as_deref(), Some("remote:ws://127.0.0.1:3056"));
        assert_eq!(remote_address(&format!("{:?}", Device::flex())), None);
        let gone = unread("2 activations", &Device::flex(), "RecvError(())".into()).to_string();
        assert!(gone.starts_with("`2 activations on ") && !gone.contains("server"), "{gone}");
    }
}
