//! Dictionaries of features: opening, splicing, training and evaluating sparse autoencoders and transcoders.
//!
//! A [`Dictionary`] decomposes activations into sparse combinations of many latents. [`Dictionary::open`] reads
//! published dictionaries in all common formats.

pub use hooklens_features::{
    Architecture, DashboardOptions, Dashboards, Dictionary, DictionaryWeights, EvaluateOptions, Evaluation,
    ExcludedTokens, FeatureError, FoundLatent, HeldOut, JumpReluSparsity, Labels, Metadata, Normalization, Objective,
    Opened, SetEvaluation, SpliceDictionary, Step, Trained, Training, TrainingRun, Transcoders, Units, dashboards,
    evaluate, evaluate_transcoders, latents_by_activation, latents_by_attribution, latents_by_difference, open,
};
