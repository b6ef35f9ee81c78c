//! Hooks, recorded activations and gradients at named points of any Burn model. hooklens's own models are built on this
//! crate.
//!
//! A model describes the points that it can fire as a [`Catalog`]. Users select points by name, glob, shorthand, or
//! typed [`Point`] (all convert to a [`Selection`]), either to change them (a [`Hook`]) or to record them (a
//! [`Record`]). Before anything runs, hooks and records are compiled into a [`Run`], a table of what to do at each
//! point. During the run, the model calls [`Run::fire`] at each point; an unused point costs one table look-up.
//!
//! Nothing fails silently: a name that no point has, a pattern that matches nothing, and a hook that returns a
//! different shape are all errors that name the point and, where helpful, the nearest names.
//!
//! # Hooks for your own model
//!
//! A model lists its points in a catalog and fires each one in its forward pass:
//!
//! ```
//! use std::sync::Arc;
//!
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::activation::relu;
//! use burn::tensor::{Device, Tensor};
//! use hooklens_hooks::{Axis, Catalog, Halt, Point, PointInfo, Record, Rows, Run, at};
//!
//! /// A multilayer perceptron.
//! #[derive(Module, Debug)]
//! struct Mlp {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Mlp {
//!     fn new(widths: &[usize], device: &Device) -> Self {
//!         Self { layers: widths.windows(2).map(|w| LinearConfig::new(w[0], w[1]).init(device)).collect() }
//!     }
//!
//!     /// The points that `forward` fires, in that order.
//!     fn points(&self) -> Arc<Catalog> {
//!         let mut points = Catalog::builder(self.layers.len());
//!         for layer in 0..self.layers.len() {
//!             for name in ["hook_pre", "hook_post"] {
//!                 let axes = &[Axis::Batch, Axis::DMlp];
//!                 points.add(PointInfo::new(format!("layers.{layer}.{name}"), Some(layer), axes));
//!             }
//!         }
//!         Arc::new(points.build())
//!     }
//!
//!     fn forward(&self, mut x: Tensor<2>, run: &mut Run<'_, '_>) -> Result<Tensor<2>, Halt> {
//!         for (layer, linear) in self.layers.iter().enumerate() {
//!             let pre = run.fire_named(&format!("layers.{layer}.hook_pre"), linear.forward(x))?;
//!             x = run.fire_named(&format!("layers.{layer}.hook_post"), relu(pre))?;
//!         }
//!         Ok(x)
//!     }
//! }
//!
//! let device = Device::flex();
//! let model = Mlp::new(&[3, 8, 8, 2], &device);
//! let points = model.points();
//! let x = Tensor::<2>::ones([2, 3], &device);
//! let rows = Rows::new(2, 1); // two rows of one position, since an MLP has no sequence
//!
//! // Recordings: names, globs, negative layers.
//! let (output, recorded) = points.run(rows, [], "layers.*.hook_post", |run| model.forward(x.clone(), run))?;
//! assert_eq!(recorded.names().collect::<Vec<_>>()[2], "layers.2.hook_post");
//! let last: Tensor<2> = recorded.get("layers.-1.hook_post")?;
//! assert_eq!(last.into_data(), output.into_data());
//!
//! // Hooks: ablate a neuron.
//! let ablation = Point::<2>::new("layers.0.hook_post").unit(3).zero();
//! let (ablated, _) = points.run(rows, [ablation], Record::default(), |run| model.forward(x.clone(), run))?;
//! # assert_eq!(ablated.dims(), [2, 2]);
//!
//! // Gradients of a scalar, at the recorded points.
//! let first = |output: &Tensor<2>| output.clone().narrow(1, 0, 1).sum();
//! let (_, recorded) = points.run_with_gradients(rows, [], "*hook_pre", |run| model.forward(x.clone(), run), first)?;
//! let gradient = recorded.grad::<2>("layers.0.hook_pre")?;
//! assert_eq!(gradient.dims(), [2, 8]);
//! # Ok::<(), hooklens_hooks::HookError>(())
//! ```
//!
//! [`Catalog::run`] makes a [`Run`] for one forward pass. A model that fires many points, or stops early, uses `Run`
//! directly, with the ids that [`CatalogBuilder::add`] returns:
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
//! let mut run = Run::new(&catalog, &mut hooks, Record::all(), Rows::new(1, 3), &|_| None)?;
//! let stream = run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex()));
//! assert_eq!(stream.map(|x| x.max().into_scalar::<f32>()).ok(), Some(2.0));
//! assert_eq!(run.finish()?.activation("resid_post0")?.shape(), [1, 3, 4]);
//! # Ok::<(), hooklens_hooks::HookError>(())
//! ```
//!
//! Axes have names ([`Axis`]), so that hooks can select heads, positions or units. TransformerLens's shorthands (`q0`,
//! `resid_post1`) find points that have its names, `blocks.N...`.

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
mod forward;
mod gradients;
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

pub use activation::{Activation, AutodiffLeaf, BlockAccess, Detach};
pub use cache::{ActivationCache, Lookup, Origin, Provenance, Stackable, TextHashes, truncated};
pub use catalog::{Catalog, CatalogBuilder, PointId};
pub use convert::{file_bytes, file_dtype, write_safetensors, write_safetensors_to, write_views, write_views_to};
#[doc(hidden)]
pub use device_label::device_label;
pub use dtype::{DType, device_supports};
pub use error::HookError;
#[doc(hidden)]
pub use folder_lock::{FolderLock, FolderLockError};
#[doc(hidden)]
pub use gradients::{Runner, with_gradients};
pub use hook::{At, Hook, HookDetails, IntoEdit, IntoRead, SomeHeads, Target, at, panicked_in_hook};
#[doc(hidden)]
pub use leftovers::append;
pub use model_identity::ModelIdentity;
pub use ordinal::Ordinal;
pub use part_point::PartPoint;
pub use point::{Axis, Filler, Point, PointInfo, Segment};
pub use positions::{Positions, ResolvePositions};
pub use queue::{ActivationQueue, QueueError, Rejected, Stored, WhenFull};
#[doc(hidden)]
pub use read_all::read_all;
pub use record::{Record, RecordRequest};
pub use recorded_rows::RecordedRows;
pub use rows::Rows;
pub use run::{Halt, Inside, Part, Run, Shift, Splices};
#[doc(hidden)]
pub use safetensors_header::SafetensorsHeader;
pub use selection::{ResolveOne, Selection, SelectionText, Silent};
pub use shorthand::expand_shorthand;
pub use slice::Slice;
#[doc(hidden)]
pub use suggest::nearest;
#[doc(hidden)]
pub use together::Together;
pub use transfer::{Transfers, read, upload};
#[doc(hidden)]
pub use unfinished::{Unfinished, check_output, check_own_file, remove_unfinished, write_file};
