//! Summaries of models for `{:?}`.

use std::fmt;

use burn::tensor::{DType, Device};
use hooklens_hooks::device_label;

use super::report::LoadReport;
use crate::config::TransformerConfig;

/// One line that identifies a model: where it was loaded from, family, widths, element type and devices.
pub(crate) struct Summary<'m> {
    pub(crate) kind: &'static str,
    pub(crate) report: &'m LoadReport,
    /// The stacks of layers, with their names if there are several.
    pub(crate) stacks: &'m [(&'static str, &'m TransformerConfig)],
    pub(crate) dtype: DType,
    pub(crate) devices: Vec<Device>,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, report, stacks, dtype, devices } = self;
        write!(f, "{kind}(")?;
        if !report.name.is_empty() {
            write!(f, "{}, ", report.name)?;
        }
        if !report.family.is_empty() {
            write!(f, "{}, ", report.family)?;
        }
        for (name, config) in *stacks {
            let (layers, heads, d_model) = (config.n_layers(), config.n_heads(), config.d_model());
            let (d_mlp, d_vocab, n_ctx) = (config.d_mlp(), config.d_vocab(), config.n_ctx());
            write!(f, "{name}{layers} layers, {heads} heads, d_model {d_model}, d_mlp {d_mlp}, ")?;
            write!(f, "d_vocab {d_vocab}, n_ctx {n_ctx}, ")?;
        }
        let devices: Vec<String> = devices.iter().map(device_label).collect();
        write!(f, "{} on {})", format!("{dtype:?}").to_lowercase(), devices.join(", "))
    }
}
