//! Internal crate of hooklens: no stability promise. Hooks and recorded activations, with no knowledge of any model.
//!
//! A model describes the points it can fire as a [`Catalog`]. A user asks for points by
//! name, glob, shorthand or typed [`Point`] (all are a [`Selection`]), either to change them
//! (a [`Hook`]) or to keep them (a [`Record`]). Before anything runs, the two become a
//! [`Run`]: a table that says, point by point, what to do. During the run the model calls
//! [`Run::fire`] at each point; a point nobody asked for costs one table look-up.
//!
//! Nothing is silent: a name no point has, a pattern that matches nothing and a hook that
//! returns another shape are all errors that name the point and, where it helps, the
//! nearest names.
//!
//! What a model does, in short:
//!
//! ```
//! use std::sync::Arc;
//! use burn::tensor::{Device, Tensor};
//! use hooklens_hooks::{Axis, Catalog, PointInfo, Record, Rows, Run, at};
//! let mut points = Catalog::builder(1);
//! let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
//! let id = points.add(PointInfo::new("blocks.0.hook_resid_post", Some(0), axes));
//! let catalog = Arc::new(points.build());
//! // What a user asks for, and the run over one row of three positions.
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
mod error;
#[doc(hidden)]
pub mod example;
mod folder_lock;
mod hook;
mod leftovers;
mod model_identity;
mod numpy;
mod ordinal;
mod part;
mod point;
mod positions;
mod queue;
mod record;
mod recorded_rows;
mod run;
mod safetensors_header;
mod selection;
mod shorthand;
mod slice;
mod splice;
mod suggest;
mod together;
mod transfer;
mod unfinished;

pub use activation::Activation;
pub use cache::{ActivationCache, Lookup, Origin, Stackable, TextHashes};
pub use catalog::{Catalog, CatalogBuilder, PointId};
pub use convert::{DType, write_safetensors, write_safetensors_to, write_views, write_views_to};
pub use error::HookError;
pub use folder_lock::{FolderLock, FolderLockError};
pub use hook::{At, Hook, IntoEdit, IntoRead, Target, at, panicked_in_hook};
pub use leftovers::append;
pub use model_identity::ModelIdentity;
pub use ordinal::Ordinal;
pub use part::{Inside, Part, PartPoint};
pub use point::{Axis, Filler, Point, PointInfo, Segment};
pub use positions::Positions;
pub use queue::{ActivationQueue, QueueError, Rejected, Stored, WhenFull};
pub use record::Record;
pub use recorded_rows::RecordedRows;
pub use run::{Halt, Rows, Run};
pub use safetensors_header::SafetensorsHeader;
pub use selection::{Selection, Silent};
pub use shorthand::expand_shorthand;
pub use slice::Slice;
pub use splice::{Shift, Splices};
pub use suggest::nearest;
pub use together::Together;
pub use transfer::{Transfers, read, read_all, upload};
pub use unfinished::{Unfinished, check_output, check_own_file, remove_unfinished, write_file};

/// Result of anything that can go wrong with a hook or a recording.
pub type Result<T, E = HookError> = std::result::Result<T, E>;
