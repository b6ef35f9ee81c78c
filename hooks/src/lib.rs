//! Internal crate of hooklens, without a stability promise: hooks and recorded activations, independent of any model.
//!
//! A model describes the points that it can fire as a [`Catalog`]. Users select points by name, glob, shorthand, or
//! typed [`Point`] (all convert to a [`Selection`]), either to change them (a [`Hook`]) or to record them (a
//! [`Record`]). Before anything runs, these are compiled into a [`Run`], a table of what to do at each point. During
//! the run, the model calls [`Run::fire`] at each point; an unused point costs one table look-up.
//!
//! Nothing fails silently: a name that no point has, a pattern that matches nothing, and a hook that returns a
//! different shape are all errors that name the point and, where helpful, the nearest names.
//!
//! A minimal model:
//!
//! ```
//! use std::sync::Arc;
//! use burn::tensor::{Device, Tensor};
//! use hooklens_hooks::{Axis, Catalog, PointInfo, Record, Rows, Run, at};
//! let mut points = Catalog::builder(1);
//! let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
//! let id = points.add(PointInfo::new("blocks.0.hook_resid_post", Some(0), axes));
//! let catalog = Arc::new(points.build());
//! // A user's hook, and a run over one row of three positions.
//! let mut hooks = [at("resid_post0").edit(|x: Tensor<3>, _| x * 2.0)];
//! let rows = Rows::new(1, 3);
//! let mut run = Run::new(&catalog, &mut hooks, Record::all(), rows, &|_| None)?;
//! let stream = run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex()));
//! assert_eq!(stream.map(|x| x.max().into_scalar::<f32>()).ok(), Some(2.0));
//! assert_eq!(run.finish()?.activation("resid_post0")?.shape(), [1, 3, 4]);
//! # Ok::<(), hooklens_hooks::HookError>(())
//! ```

#![deny(missing_docs)]

mod activation;
mod cache;
mod catalog;
mod convert;
mod destination;
mod device_label;
mod dtype;
mod error;
#[doc(hidden)]
pub mod example;
mod folder_lock;
mod hook;
mod leftovers;
mod model_identity;
mod numpy;
mod ordinal;
mod part_point;
mod point;
mod positions;
mod queue;
mod read_all;
mod record;
mod recorded_rows;
mod rows;
mod run;
mod safetensors_header;
mod selection;
mod shorthand;
mod slice;
mod suggest;
mod tensor_hash;
mod together;
mod transfer;
mod unfinished;

pub use activation::Activation;
pub use cache::{ActivationCache, Lookup, Origin, Stackable, TextHashes};
pub use catalog::{Catalog, CatalogBuilder, PointId};
pub use convert::{write_safetensors, write_safetensors_to, write_views, write_views_to};
pub use dtype::DType;
pub use error::HookError;
pub use folder_lock::{FolderLock, FolderLockError};
pub use hook::{At, Hook, IntoEdit, IntoRead, Target, at, panicked_in_hook};
pub use leftovers::append;
pub use model_identity::ModelIdentity;
pub use ordinal::Ordinal;
pub use part_point::PartPoint;
pub use point::{Axis, Filler, Point, PointInfo, Segment};
pub use positions::Positions;
pub use queue::{ActivationQueue, QueueError, Rejected, Stored, WhenFull};
pub use read_all::read_all;
pub use record::Record;
pub use recorded_rows::RecordedRows;
pub use rows::Rows;
pub use run::{Halt, Inside, Part, Run, Shift, Splices};
pub use safetensors_header::SafetensorsHeader;
pub use selection::{Selection, Silent};
pub use shorthand::expand_shorthand;
pub use slice::Slice;
pub use suggest::nearest;
pub use together::Together;
pub use transfer::{Transfers, read, upload};
pub use unfinished::{Unfinished, check_output, check_own_file, remove_unfinished, write_file};

/// Result of an operation on hooks or recordings.
pub type Result<T, E = HookError> = std::result::Result<T, E>;
