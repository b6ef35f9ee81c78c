//! `hooklens._native`: models, hooks and results for Python.
//!
//! The module binds few types: models, recordings, caches, and arrays that share memory with them. Users import the
//! Python package that wraps it, `py_src/hooklens`.

mod analysis;
mod array;
mod cache;
mod circuits;
mod dictionary;
mod dlpack;
mod enter;
mod error;
mod generate;
mod gradients;
mod graph;
mod hooks;
mod input;
mod kv_cache;
mod labeled;
mod model;
mod nodes;
mod patching;
mod run;
mod show;
mod tokens;
mod weights;

/// The native module.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::circuits::{Circuit, EdgeScores};
    #[pymodule_export]
    use super::dictionary::Dictionary;
    #[pymodule_export]
    use super::enter::after_fork_in_child;
    #[pymodule_export]
    use super::graph::AttributionGraph;
    #[pymodule_export]
    use super::kv_cache::KvCache;
    #[pymodule_export]
    use super::labeled::Labeled;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::nodes::{NodeCircuit, NodeScores};
    #[pymodule_export]
    use super::patching::PatchingTask;
    #[pymodule_export]
    use super::run::RunOutput;
}
