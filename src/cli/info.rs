//! `hooklens info`.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;

use super::CliResult;
use super::args::InfoArgs;
use super::print::{bytes, grouped};
use crate::config::{Positional, RopeScaling, Window};
use crate::loading::inspect;
use crate::processing::Processing;

pub(super) fn run(args: &InfoArgs) -> CliResult {
    let info = inspect(&args.model.model)?;
    let c = &info.config;
    let stored = info.weights.as_ref();
    let mut by_dtype: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, tensor) in stored.iter().flat_map(|stored| stored.files.tensors()) {
        *by_dtype.entry(tensor.dtype.as_str()).or_default() += tensor.shape.iter().product::<usize>();
    }
    let tensors = stored.map(|stored| stored.files.tensors().count());
    let left_out = Processing::standard().left_out(c);
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = json!({
            "model": args.model.model, "family": info.family, "architecture": info.architecture,
            "config": c, "parameters": stored.map(|s| s.parameters), "tensors": tensors, "elements": by_dtype,
            "stored_bytes": stored.map(|s| s.files.stored_bytes()), "missing": stored.map(|s| &s.missing),
            "unused": stored.map(|s| &s.unused), "tokenizer": info.has_tokenizer,
            "processing_left_out": left_out.iter().map(|(step, why)| json!({"step": step, "reason": why})).collect::<Vec<_>>(),
        });
        writeln!(out, "{value:#}")?;
        return Ok(());
    }
    let mut line = |name: &str, value: String| writeln!(out, "{name:14} {value}");
    line("model", args.model.model.clone())?;
    line("family", format!("{} ({})", info.family, info.architecture))?;
    if let Some(stored) = stored {
        line("parameters", grouped(stored.parameters))?;
    }
    line("layers", format!("{} of width {}", c.n_layers, c.d_model))?;
    let shared =
        if c.n_kv_heads == c.n_heads { String::new() } else { format!(", {} for keys and values", c.n_kv_heads) };
    line("heads", format!("{} of width {}{shared}", c.n_heads, c.d_head))?;
    if !c.attn_only {
        let gated = if c.gated_mlp { "gated " } else { "" };
        let experts = c.experts.map_or(String::new(), |e| format!(", {} of {} experts a token", e.per_token, e.count));
        line("mlp", format!("{} neurons, {gated}{}{experts}", grouped(c.d_mlp), c.activation.name()))?;
    }
    line("norm", format!("{:?}, eps {:e}", c.norm, c.eps))?;
    line("positions", positions(&c.positional))?;
    if let Some(window) = c.windows.iter().flatten().next() {
        let layers = c.windows.iter().flatten().count();
        let kind = if matches!(window, Window::Chunked(_)) { "chunks of " } else { "" };
        line("windows", format!("{kind}{} positions in {layers} of {} layers", window.width(), c.n_layers))?;
    }
    line("context", format!("{} tokens", grouped(c.n_ctx)))?;
    line("vocabulary", format!("{} tokens", grouped(c.d_vocab)))?;
    match stored {
        None => line("weights", "not downloaded".into())?,
        Some(stored) => {
            let types: Vec<_> = by_dtype.iter().map(|(dtype, count)| format!("{} {dtype}", grouped(*count))).collect();
            let size = bytes(stored.files.stored_bytes() as u64);
            line("weights", format!("{} tensors, {size} ({})", tensors.unwrap_or(0), types.join(", ")))?;
            for name in &stored.missing {
                line("missing", name.clone())?;
            }
            for name in &stored.unused {
                line("not used", name.clone())?;
            }
        }
    }
    line("tokenizer", if info.has_tokenizer { "yes".into() } else { "no; pass token ids".into() })?;
    for (step, why) in left_out {
        line("not processed", format!("{step}: {why}"))?;
    }
    Ok(())
}

fn positions(positional: &Positional) -> String {
    match positional {
        Positional::Learned => "learned".into(),
        Positional::Alibi => "ALiBi".into(),
        Positional::Shortformer => "learned, read by queries and keys only (shortformer)".into(),
        Positional::None => "none".into(),
        Positional::Rotary(rotary) => {
            let pairs = if rotary.adjacent_pairs { "adjacent pairs" } else { "halves" };
            let scaling = match &rotary.scaling {
                RopeScaling::None => String::new(),
                other => format!(", {other:?}"),
            };
            format!("rotary over {} coordinates by {pairs}, base {}{scaling}", rotary.dim, rotary.base)
        }
    }
}
