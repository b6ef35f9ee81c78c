//! `hooklens hooks`.

use std::io::Write;

use hooklens_hooks::{Axis, Catalog};
use serde_json::json;

use super::CliResult;
use super::args::HooksArgs;
use crate::config::TransformerConfig;
use crate::loading::inspect;
use crate::model::catalog_of;

pub(super) fn run(args: &HooksArgs) -> CliResult {
    let info = inspect(&args.model.model)?;
    let catalog = catalog_of(&info.config);
    let mut out = std::io::stdout().lock();
    if args.json {
        let points: Vec<_> = (catalog.points().iter())
            .map(|point| {
                json!({
                    "name": &*point.name,
                    "layer": point.layer,
                    "axes": point.axes.iter().map(|a| a.name()).collect::<Vec<_>>(),
                    "shape": point.axes.iter().map(|a| length(*a, &info.config)).collect::<Vec<_>>(),
                    "integer": point.integer,
                    "on_request": point.on_request,
                })
            })
            .collect();
        writeln!(out, "{:#}", json!({"model": args.model.model, "points": points}))?;
        return Ok(());
    }
    print(&catalog, &info.config, &mut out)?;
    Ok(())
}

fn print(catalog: &Catalog, config: &TransformerConfig, out: &mut impl Write) -> std::io::Result<()> {
    let width = catalog.points().iter().map(|p| p.name.len()).max().unwrap_or(0);
    for point in catalog.points() {
        let axes: Vec<String> = (point.axes.iter())
            .map(|axis| match length(*axis, config) {
                Some(length) if *axis != Axis::One => format!("{axis} {length}"),
                _ => axis.to_string(),
            })
            .collect();
        let mark = if point.on_request { "  only when asked for by name" } else { "" };
        writeln!(out, "{:width$}  [{}]{mark}", point.name, axes.join(", "))?;
    }
    writeln!(out, "\n{} points in {} layers", catalog.points().len(), catalog.n_layers())
}

/// The length of an axis, where the model alone decides it.
fn length(axis: Axis, config: &TransformerConfig) -> Option<usize> {
    match axis {
        Axis::Head => Some(config.n_heads),
        Axis::KvHead => Some(config.n_kv_heads),
        Axis::DHead => Some(config.d_head),
        Axis::DModel => Some(config.d_model),
        Axis::DMlp => Some(config.d_mlp),
        Axis::Expert => config.experts.map(|e| e.count),
        Axis::Choice => config.experts.map(|e| e.per_token),
        Axis::One => Some(1),
        _ => None,
    }
}
