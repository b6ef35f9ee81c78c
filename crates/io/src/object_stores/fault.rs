//! What a store says no with, in plain words.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

/// Why a request failed; what the store or the system said is its source.
#[derive(Debug)]
struct Fault {
    told: &'static str,
    source: Arc<StoreError>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.told)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The error of a request, of a kind that says what is wrong.
pub(super) fn io(error: impl Into<Arc<StoreError>>) -> io::Error {
    let error = error.into();
    use io::ErrorKind::{AlreadyExists, InvalidInput, NotConnected, NotFound, Other, PermissionDenied, TimedOut};
    let (kind, told) = match &*error {
        StoreError::NotFound { .. } => (NotFound, "there is no such object, or no such bucket"),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (PermissionDenied, "the store refuses the credentials")
        }
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
            (AlreadyExists, "it was changed by another program")
        }
        StoreError::InvalidPath { .. } => (InvalidInput, "no object can be called so"),
        _ if says(&error, &["NoSuchBucket", "ContainerNotFound"]) => (NotFound, "there is no such bucket"),
        _ if says(&error, &["URL scheme is not allowed"]) => {
            (InvalidInput, "its endpoint is not of https, which AWS_ALLOW_HTTP=true (AZURE_, GOOGLE_) allows")
        }
        // The last place where credentials are looked for is a service of the machine.
        _ if says(&error, &["169.254.169.254", "metadata.google.internal"]) => {
            (PermissionDenied, "there are no credentials: none in the environment, and the machine has none of its own")
        }
        _ => match of_http(&error) {
            Some(HttpErrorKind::Timeout) => (TimedOut, "the store does not answer in time"),
            Some(HttpErrorKind::Connect) => (NotConnected, "the store can't be reached"),
            Some(HttpErrorKind::Interrupted | HttpErrorKind::Request) => (NotConnected, "the connection broke"),
            _ => (Other, "the store says no"),
        },
    };
    io::Error::new(kind, Fault { told, source: error })
}

/// What went wrong with the connection, if that is it.
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

/// Whether an error or one of its causes has one of these words.
fn says(error: &StoreError, words: &[&str]) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let told = error.to_string();
        if words.iter().any(|words| told.contains(words)) {
            return true;
        }
        cause = error.source();
    }
    false
}
