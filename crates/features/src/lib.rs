//! Dictionaries of features: opening, splicing, training and evaluating sparse autoencoders and transcoders.
#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

mod architecture;
mod compatibility_warnings;
mod dictionary;
pub mod error;
mod evaluation;
mod find;
mod fingerprint;
mod fold;
pub mod graph;
mod host;
mod label_file;
mod labels;
mod linear_view;
mod matrix;
mod metadata;
mod normalization;
#[cfg(feature = "plot")]
mod notebook;
mod open;
mod opened;
mod save;
mod show;
mod splice;
mod training;
mod transcoders;

pub use crate::error::FeatureError;
pub use architecture::Architecture;
pub(crate) use compatibility_warnings::check_processing;
pub use dictionary::{Dictionary, DictionarySummary, DictionaryWeights, summary};
pub use evaluation::{EvaluateOptions, Evaluation, EvaluationShard, SetEvaluation, evaluate, evaluate_transcoders};
pub(crate) use find::most_moved;
pub use find::{FoundLatent, latents_by_activation, latents_by_attribution, latents_by_difference, promoted_tokens};
pub use fold::fold_scale;
pub use labels::Labels;
pub use metadata::{ExcludedTokens, Metadata, excluded_json};
pub use normalization::Normalization;
#[cfg(feature = "plot")]
pub use notebook::UnitView;
pub use opened::{Opened, open};
pub use save::DictionaryFiles;
pub use show::{DashboardCounts, DashboardOptions, Dashboards, Units, dashboards, dashboards_of};
pub use splice::SpliceDictionary;
pub use training::{
    Difference, HeldOut, JumpReluSparsity, Objective, Step, Trained, Training, TrainingIdentity, TrainingJob,
    TrainingRecord, TrainingRun, check_point,
};
pub use transcoders::{Transcoders, decoder_across, is_cross_layer};
