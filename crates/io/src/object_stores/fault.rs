//! Converts object store errors into plain explanations.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

/// Why a request failed, with the store's or the system's error as the source.
#[derive(Debug)]
struct Fault {
    message: &'static str,
    source: Arc<StoreError>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Converts a request's error into an I/O error, with a kind and message that say what is wrong.
pub(super) fn io(error: impl Into<Arc<StoreError>>) -> io::Error {
    let error = error.into();
    use io::ErrorKind::{AlreadyExists, InvalidInput, NotConnected, NotFound, Other, PermissionDenied, TimedOut};
    let (kind, message) = match &*error {
        StoreError::NotFound { .. } => (NotFound, "there is no such object, or no such bucket"),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (PermissionDenied, "the store rejected the credentials")
        }
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
            (AlreadyExists, "it was changed by another program")
        }
        StoreError::InvalidPath { .. } => (InvalidInput, "it is not a valid object name"),
        _ if says(&error, &["NoSuchBucket", "ContainerNotFound"]) => (NotFound, "there is no such bucket"),
        _ if says(&error, &["URL scheme is not allowed"]) => {
            (InvalidInput, "the endpoint is not https; set AWS_ALLOW_HTTP=true (AZURE_..., GOOGLE_...) to allow http")
        }
        // The machine's metadata service is the last place where credentials are looked up.
        _ if says(&error, &["169.254.169.254", "metadata.google.internal"]) => (
            PermissionDenied,
            "no credentials were found, neither in the environment nor in the machine's metadata service",
        ),
        _ => match of_http(&error) {
            Some(HttpErrorKind::Timeout) => (TimedOut, "the store did not respond in time"),
            Some(HttpErrorKind::Connect) => (NotConnected, "the store can't be reached"),
            Some(HttpErrorKind::Interrupted | HttpErrorKind::Request) => {
                (NotConnected, "the connection was interrupted")
            }
            _ => (Other, "the store rejected the request"),
        },
    };
    io::Error::new(kind, Fault { message, source: error })
}

/// Kind of connection error, if that is the cause.
pub(super) fn of_http(error: &StoreError) -> Option<HttpErrorKind> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return Some(http.kind());
        }
        cause = error.source();
    }
    None
}

/// Whether an error or one of its causes contains one of these words.
fn says(error: &StoreError, words: &[&str]) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let message = error.to_string();
        if words.iter().any(|words| message.contains(words)) {
            return true;
        }
        cause = error.source();
    }
    false
}
