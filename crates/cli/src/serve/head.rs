//! The head of the HTTP request that opens a WebSocket connection.

use httparse::{EMPTY_HEADER, Request, Status};

use super::host::Hosts;

/// Maximum length of a request head, in bytes.
pub(super) const LONGEST: usize = 16 << 10;

/// Maximum number of headers.
const MOST_HEADERS: usize = 100;

/// Why a request is refused, as an HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request can't be parsed, or is not a WebSocket upgrade.
    Malformed,
    /// The request comes from a web page.
    Origin,
    /// The `Host` header does not name this machine.
    Host,
    /// The request is not for the session route.
    Route,
    /// The head did not arrive in time.
    Slow,
    /// The head is longer than [`LONGEST`], or has more than [`MOST_HEADERS`] headers.
    Overlong,
    /// Too many failed attempts came from the client's address.
    Failures,
    /// The maximum number of sessions is open.
    Full,
    /// The session process did not start.
    NoProcess,
}

impl Refusal {
    /// HTTP status code and reason phrase.
    pub(super) fn status(self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::Origin => "403 Forbidden",
            Refusal::Host => "421 Misdirected Request",
            Refusal::Route => "404 Not Found",
            Refusal::Slow => "408 Request Timeout",
            Refusal::Overlong => "431 Request Header Fields Too Large",
            Refusal::Failures => "429 Too Many Requests",
            Refusal::Full => "503 Service Unavailable",
            Refusal::NoProcess => "500 Internal Server Error",
        }
    }
}

/// Length of the head, including the empty line that ends it, if it is complete.
pub(super) fn end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// Validates a request to open a session and returns its WebSocket key. `head` must include the empty line at its end.
///
/// Only what a WebSocket client sends is accepted: no body, no `Origin`, and no repeated headers among those checked.
pub(super) fn key<'h>(head: &'h [u8], hosts: &Hosts) -> Result<&'h str, Refusal> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(length)) if length == head.len() && request.version == Some(1) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::Overlong),
        _ => return Err(Refusal::Malformed),
    }
    let headers = &*request.headers;
    let all = |name: &'static str| headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value);
    // Browsers always send `Origin`; other clients do not.
    if all("Origin").next().is_some() {
        return Err(Refusal::Origin);
    }
    let one = |name| match (all(name).next(), all(name).nth(1)) {
        (Some(value), None) => std::str::from_utf8(value).map_err(|_| Refusal::Malformed),
        _ => Err(Refusal::Malformed),
    };
    if !hosts.lets_through(one("Host")?) {
        return Err(Refusal::Host);
    }
    if (request.method, request.path) != (Some("GET"), Some("/session")) {
        return Err(Refusal::Route);
    }
    let asks = one("Upgrade")?.eq_ignore_ascii_case("websocket")
        && one("Connection")?.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
        && one("Sec-WebSocket-Version")? == "13";
    let has_body = all("Content-Length").next().or_else(|| all("Transfer-Encoding").next()).is_some();
    let key = one("Sec-WebSocket-Key")?;
    if !asks || has_body || !is_key(key) {
        return Err(Refusal::Malformed);
    }
    Ok(key)
}

/// A request to open a session with this key.
pub(super) fn request(key: &str) -> String {
    format!(
        "GET /session HTTP/1.1\r\nHost: session\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
}

/// Whether `text` is the base64 encoding of 16 bytes.
fn is_key(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    text.len() == 24 && text.strip_suffix("==").is_some_and(|digits| digits.bytes().all(digit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOUND: &str = "GET /session HTTP/1.1\r\nHost: 127.0.0.1:3000\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    fn said(head: &str) -> Result<&str, Refusal> {
        key(head.as_bytes(), &Hosts::Any)
    }

    #[test]
    fn a_client_of_burn_is_let_through() {
        assert_eq!(said(SOUND), Ok("dGhlIHNhbXBsZSBub25jZQ=="));
        assert_eq!(said(&request("dGhlIHNhbXBsZSBub25jZQ==")), Ok("dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(said(&SOUND.replace("Connection: Upgrade", "connection:keep-alive, upgrade")).is_ok());
    }

    #[test]
    fn a_head_ends_at_the_first_empty_line() {
        let with_frames = [SOUND.as_bytes(), b"\x82\x80\r\n\r\n"].concat();
        for length in 0..=with_frames.len() {
            assert_eq!(end(&with_frames[..length]), (length >= SOUND.len()).then_some(SOUND.len()), "{length}");
        }
        // A truncated head is not a valid request.
        for length in 0..SOUND.len() {
            assert!(key(&SOUND.as_bytes()[..length], &Hosts::Any).is_err(), "{length}");
        }
    }

    #[test]
    fn what_is_refused_and_as_what() {
        let with = |line: &str| SOUND.replace("\r\n\r\n", &format!("\r\n{line}\r\n\r\n"));
        assert_eq!(said(&with("Origin: null")), Err(Refusal::Origin));
        assert_eq!(said(&with("oRIGIN:")), Err(Refusal::Origin));
        // Lines may also end in a line feed alone.
        assert_eq!(said(&with("A: b\nOrigin: null")), Err(Refusal::Origin));
        for target in ["/data", "/", "/session/", "/session?a", "http://a/session", "*"] {
            assert_eq!(said(&SOUND.replace("/session", target)), Err(Refusal::Route), "{target}");
        }
        assert_eq!(said(&SOUND.replace("GET", "POST")), Err(Refusal::Route));
        let malformed = [
            with("Content-Length: 4"),
            with("Transfer-Encoding: chunked"),
            with("Upgrade: websocket"),
            with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
            with(" folded"),
            with("Origin : null"),
            with("A: b\n\nC: d"),
            with("A: b\rc"),
            with("A: \0"),
            with("no colon"),
            SOUND.replace("HTTP/1.1", "HTTP/1.0"),
            SOUND.replace("GET ", "GET  "),
            SOUND.replace("Version: 13", "Version: 8"),
            SOUND.replace("websocket\r", "h2c\r"),
            SOUND.replace("ZQ==", "ZQ=\""),
            SOUND.replace("Connection: Upgrade\r\n", ""),
            SOUND.replace("Host: 127.0.0.1:3000\r\n", ""),
            with("Host: 127.0.0.1"),
        ];
        for head in &malformed {
            assert_eq!(said(head), Err(Refusal::Malformed), "{head}");
        }
        let more = |count| with(&vec!["A: b"; count].join("\r\n"));
        assert!(said(&more(MOST_HEADERS - 5)).is_ok());
        assert_eq!(said(&more(MOST_HEADERS - 4)), Err(Refusal::Overlong));
        let here = Hosts::of("127.0.0.1:3000", &["127.0.0.1:3000".parse().unwrap()]);
        let rebound = SOUND.replace("127.0.0.1:3000", "evil.example:3000");
        assert_eq!(key(rebound.as_bytes(), &here), Err(Refusal::Host));
        assert!(key(SOUND.as_bytes(), &here).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = end(&bytes);
            let _ = key(&bytes, &Hosts::Any);
        }

        #[test]
        fn damage_is_read_or_refused(at in 0..SOUND.len(), byte in any::<u8>()) {
            let mut bytes = SOUND.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = end(&bytes);
            let _ = key(&bytes, &Hosts::Any);
        }
    }
}
