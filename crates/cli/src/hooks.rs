//! `hooklens hooks`.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use hooklens_hooks::{Axis, Catalog, PointInfo, Selection};
use serde_json::json;

use super::CliResult;
use super::args::NameArg;
use super::completions;
use super::dump::split_globs;
use super::json_result::{ModelId, print_result};
use super::out::plural;
use super::terminal::stdout;
use hooklens_loading::loading::{ModelConfig, inspect};
use hooklens_model::driver::length;
use hooklens_model::encoder::{self, OutputHeads};
use hooklens_model::encoder_decoder;
use hooklens_model::model::catalog_of;

#[derive(Debug, Args)]
pub(super) struct HooksArgs {
    #[command(flatten)]
    model: NameArg,
    /// Points to list: names, globs and shorthands, separated by commas (default: all)
    #[arg(long, value_name = "GLOB,...", num_args = 1.., add = completions::globs())]
    hooks: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &HooksArgs) -> CliResult {
    let info = inspect(&args.model.model)?;
    let catalog = catalog(&info.config);
    let points: Vec<&PointInfo> = match &args.hooks[..] {
        [] => catalog.points().iter().collect(),
        globs => {
            let globs: Vec<&str> = globs.iter().flat_map(|globs| split_globs(globs)).collect();
            let ids = Selection::from(globs).resolve(&catalog)?;
            ids.into_iter().map(|id| catalog.info(id)).collect()
        }
    };
    let mut out = stdout();
    if args.json {
        let points: Vec<_> = (points.iter())
            .map(|point| {
                json!({
                    "name": &*point.name,
                    "layer": point.layer,
                    "axes": point.axes.iter().map(|a| a.name()).collect::<Vec<_>>(),
                    "shape": point.axes.iter().map(|a| length_of(&info.config, point, *a)).collect::<Vec<_>>(),
                    "integer": point.integer,
                    "on_request": point.on_request,
                })
            })
            .collect();
        return print_result(Some(&ModelId::named(&args.model.model)), json!({"points": points}));
    }
    print(&points, catalog.n_layers(), &info.config, &mut out)?;
    Ok(())
}

/// The hook points of a model, including points of output heads that the configuration does not mention.
pub(super) fn catalog(config: &ModelConfig) -> Arc<Catalog> {
    let all = OutputHeads { mlm: true, pooler: true, nsp: true };
    match config {
        ModelConfig::Decoder(config) => catalog_of(config),
        ModelConfig::Encoder(config, heads) => encoder::catalog_of(config, heads.unwrap_or(all)),
        ModelConfig::EncoderDecoder(config) => encoder_decoder::catalog_of(config),
    }
}

fn print(points: &[&PointInfo], layers: usize, config: &ModelConfig, out: &mut impl Write) -> std::io::Result<()> {
    let width = points.iter().map(|p| p.name.len()).max().unwrap_or(0);
    for point in points {
        let axes: Vec<String> = (point.axes.iter())
            .map(|axis| match length_of(config, point, *axis) {
                Some(length) if *axis != Axis::One => format!("{axis} {length}"),
                _ => axis.to_string(),
            })
            .collect();
        let mark = if point.on_request { "  only when requested by name" } else { "" };
        writeln!(out, "{:width$}  [{}]{mark}", point.name, axes.join(", "))?;
    }
    writeln!(out, "\n{} in {}", plural(points.len(), "point"), plural(layers, "layer"))
}

/// Length of an axis, if it depends only on the model.
fn length_of(config: &ModelConfig, point: &PointInfo, axis: Axis) -> Option<usize> {
    let stack = |heads, kv_heads, d_head, d_model, d_mlp| match axis {
        Axis::Head => Some(heads),
        Axis::KvHead => Some(kv_heads),
        Axis::DHead => Some(d_head),
        Axis::DModel => Some(d_model),
        Axis::DMlp => Some(d_mlp),
        _ => None,
    };
    match (config, axis) {
        (_, Axis::One) => Some(1),
        (ModelConfig::Decoder(c), _) => Some(length(c, point.layer, axis)).filter(|length| *length > 0),
        (ModelConfig::Encoder(c, _), Axis::DEmbed) => c.d_embed,
        // Next-sentence prediction has two classes: "follows" and "does not".
        (ModelConfig::Encoder(..), Axis::Choice) => Some(2),
        (ModelConfig::Encoder(c, _), _) => stack(c.n_heads, c.n_heads, c.d_head, c.d_model, c.d_mlp),
        (ModelConfig::EncoderDecoder(c), _) if point.name.starts_with("decoder.") => {
            let kv_heads = c.decoder_attention.n_kv_heads;
            stack(c.n_decoder_heads, kv_heads, c.d_decoder_head, c.d_decoder_model, c.d_decoder_mlp)
        }
        (ModelConfig::EncoderDecoder(c), _) => stack(c.n_heads, c.attention.n_kv_heads, c.d_head, c.d_model, c.d_mlp),
    }
}
