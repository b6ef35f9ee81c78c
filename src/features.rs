//! Dictionaries of features: sparse autoencoders and transcoders, read, put into a model, trained and measured.
//!
//! A [`Dictionary`] takes activations apart into a few of many latents. [`Dictionary::open`] reads what others published,
//! in whichever format.

#[cfg(feature = "plot")]
pub use hooklens_features::UnitView;
pub use hooklens_features::{
    Architecture, DashboardOptions, Dashboards, Dictionary, DictionaryWeights, EvaluateOptions, Evaluation,
    EvaluationShare, ExcludedTokens, FeatureError, FoundLatent, HeldOut, JumpReluSparsity, Labels, Metadata,
    Normalization, Objective, Opened, Progress, SetEvaluation, SpliceDictionary, Splicing, Step, Trained, Training,
    TrainingRun, Transcoders, Units, dashboards, evaluate, evaluate_transcoders, latents_by_activation,
    latents_by_attribution, latents_by_difference, open, promoted_tokens,
};
