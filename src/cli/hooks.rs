//! `hooklens hooks`.

use std::io::Write;

use clap::Args;
use hooklens_hooks::{Axis, Catalog, PointInfo};
use serde_json::json;

use super::CliResult;
use super::args::NameArg;
use super::terminal::{print_json, stdout};
use crate::config::Latent;
use crate::driver::StateAxes;
use crate::encoder::{self, OutputHeads};
use crate::encoder_decoder;
use crate::loading::{ModelConfig, inspect};
use crate::model::catalog_of;

#[derive(Debug, Args)]
pub(super) struct HooksArgs {
    #[command(flatten)]
    model: NameArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &HooksArgs) -> CliResult {
    let info = inspect(&args.model.model)?;
    let all = OutputHeads { mlm: true, pooler: true, nsp: true };
    let catalog = match &info.config {
        ModelConfig::Decoder(config) => catalog_of(config),
        ModelConfig::Encoder(config, heads) => encoder::catalog_of(config, heads.unwrap_or(all)),
        ModelConfig::EncoderDecoder(config) => encoder_decoder::catalog_of(config),
    };
    let lengths = |point: &PointInfo| Lengths::of(&info.config, point);
    let mut out = stdout();
    if args.json {
        let points: Vec<_> = (catalog.points().iter())
            .map(|point| {
                let lengths = lengths(point);
                json!({
                    "name": &*point.name,
                    "layer": point.layer,
                    "axes": point.axes.iter().map(|a| a.name()).collect::<Vec<_>>(),
                    "shape": point.axes.iter().map(|a| lengths.of_axis(*a)).collect::<Vec<_>>(),
                    "integer": point.integer,
                    "on_request": point.on_request,
                })
            })
            .collect();
        return Ok(print_json(&json!({"model": args.model.model, "points": points}))?);
    }
    print(&catalog, lengths, &mut out)?;
    Ok(())
}

fn print(catalog: &Catalog, lengths: impl Fn(&PointInfo) -> Lengths, out: &mut impl Write) -> std::io::Result<()> {
    let width = catalog.points().iter().map(|p| p.name.len()).max().unwrap_or(0);
    for point in catalog.points() {
        let lengths = lengths(point);
        let axes: Vec<String> = (point.axes.iter())
            .map(|axis| match lengths.of_axis(*axis) {
                Some(length) if *axis != Axis::One => format!("{axis} {length}"),
                _ => axis.to_string(),
            })
            .collect();
        let mark = if point.on_request { "  only when asked for by name" } else { "" };
        writeln!(out, "{:width$}  [{}]{mark}", point.name, axes.join(", "))?;
    }
    writeln!(out, "\n{} points in {} layers", catalog.points().len(), catalog.n_layers())
}

/// Lengths of the axes that the model alone decides.
struct Lengths {
    heads: usize,
    kv_heads: usize,
    d_head: usize,
    latent: Option<Latent>,
    state: Option<StateAxes>,
    d_model: usize,
    d_embed: Option<usize>,
    d_mlp: usize,
    d_shared: Option<usize>,
    d_per_layer: Option<usize>,
    experts: Option<usize>,
    choices: Option<usize>,
}

impl Lengths {
    fn of(config: &ModelConfig, point: &PointInfo) -> Self {
        let decoder = point.name.starts_with("decoder.");
        let layer = point.layer.unwrap_or(0);
        let plain = |heads, d_head, d_model, d_mlp| Self {
            heads,
            kv_heads: heads,
            d_head,
            latent: None,
            state: None,
            d_model,
            d_mlp,
            d_embed: None,
            d_shared: None,
            d_per_layer: None,
            experts: None,
            choices: None,
        };
        match config {
            ModelConfig::Decoder(c) => Self {
                kv_heads: c.n_kv_heads_of(layer),
                latent: c.latent,
                state: StateAxes::of(c, layer),
                d_shared: c.experts.and_then(|e| e.shared).map(|shared| shared.d_mlp),
                d_per_layer: c.per_layer_inputs.map(|own| own.width),
                experts: c.experts.map(|e| e.count),
                choices: c.experts.map(|e| e.per_token),
                ..plain(c.n_heads, c.d_head_of(layer), c.d_model, c.d_mlp_of(layer))
            },
            // "Follows" and "does not".
            ModelConfig::Encoder(c, _) => {
                Self { choices: Some(2), d_embed: c.d_embed, ..plain(c.n_heads, c.d_head, c.d_model, c.d_mlp) }
            }
            ModelConfig::EncoderDecoder(c) if decoder => {
                let kv_heads = c.decoder_attention.n_kv_heads;
                Self { kv_heads, ..plain(c.n_decoder_heads, c.d_decoder_head, c.d_decoder_model, c.d_decoder_mlp) }
            }
            ModelConfig::EncoderDecoder(c) => {
                Self { kv_heads: c.attention.n_kv_heads, ..plain(c.n_heads, c.d_head, c.d_model, c.d_mlp) }
            }
        }
    }

    fn latent(&self, axis: Axis) -> Option<usize> {
        let own = self.latent?;
        match axis {
            Axis::DValue => Some(own.d_value),
            Axis::QRank => own.q_rank,
            Axis::KvRank => Some(own.kv_rank),
            Axis::DRope => Some(own.d_rope),
            _ => None,
        }
    }

    fn of_axis(&self, axis: Axis) -> Option<usize> {
        match axis {
            Axis::Head => Some(self.heads),
            Axis::KvHead => Some(self.kv_heads),
            Axis::DHead => Some(self.d_head),
            Axis::DModel => Some(self.d_model),
            Axis::DEmbed => self.d_embed,
            Axis::DMlp => Some(self.d_mlp),
            Axis::DShared => self.d_shared,
            Axis::DPerLayer => self.d_per_layer,
            Axis::Expert => self.experts,
            Axis::Choice => self.choices,
            Axis::One => Some(1),
            axis => self.state.and_then(|own| own.length(axis)).or_else(|| self.latent(axis)),
        }
    }
}
