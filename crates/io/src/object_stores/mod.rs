//! Objects in S3, Google Cloud Storage and Azure, given by URLs instead of paths: `s3://bucket/key`, `gs://bucket/key`,
//! `az://container/key`.
//!
//! The interface is blocking. Requests run on separate threads and are retried for a limited time before they fail with
//! an [`std::io::Error`] that explains the problem. Credentials and endpoints come from the usual environment
//! variables.

#[cfg(not(feature = "object-stores"))]
mod absent;
#[cfg(feature = "object-stores")]
mod fault;
#[cfg(feature = "object-stores")]
mod list;
#[cfg(feature = "object-stores")]
mod object;
#[cfg(feature = "object-stores")]
mod opened;
#[cfg(feature = "object-stores")]
mod parts;
#[cfg(feature = "object-stores")]
mod ranges;
#[cfg(feature = "object-stores")]
mod read;
#[cfg(feature = "object-stores")]
mod stores;
#[cfg(all(feature = "arrow", feature = "object-stores"))]
mod table;
#[cfg(feature = "object-stores")]
mod write;

use std::path::Path;

#[cfg(not(feature = "object-stores"))]
pub use absent::{Object, Ranges, Version};
#[cfg(feature = "object-stores")]
pub use object::{Object, Version};
#[cfg(feature = "object-stores")]
pub use ranges::Ranges;
#[cfg(all(feature = "arrow", feature = "object-stores"))]
pub(crate) use read::Reader;
// Other platforms do not handle signals.
#[cfg(all(feature = "object-stores", unix))]
pub use write::abandon_uploads;

/// URL schemes of the stores.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "az://"];

/// Whether a path is the URL of an object or of a folder of objects.
pub fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}
