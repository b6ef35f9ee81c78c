//! Folds a norm's weights into the linear maps that read its output.
//!
//! `norm(x) = x̂ * w + b`, so `norm(x) · W = x̂ · (w * W) + b · W`. If the norm centers, `x̂` has mean zero over
//! `d_model`, so `W` may be centered over it too.

use std::sync::Arc;

use burn::tensor::DType;

use super::matrix::change_matrix;
use super::{add_bias, folded, times};
use crate::config::NormDetails;
use crate::model::{HookedTransformer, Linear, Mlp, Norm, points_of};

pub(super) fn apply(model: &mut HookedTransformer) {
    let dtype = model.compute_type();
    for block in &mut model.weights.parts.blocks {
        if let Some(mixer) = &mut block.mixer {
            fold(&mut block.ln1, &mut mixer.of_kind_mut().readers_mut(), dtype);
        }
        let Some(ln2) = &mut block.ln2 else { continue };
        if let Some(Mlp::Dense(mlp)) = &mut block.mlp {
            // A gated MLP reads the norm twice; TransformerLens 2.16 omits the gate's bias.
            match &mut mlp.gate {
                Some(gate) => fold(ln2, &mut [&mut mlp.input, gate], dtype),
                None => fold(ln2, &mut [&mut mlp.input], dtype),
            }
            if let Some(norm) = &mut mlp.norm {
                fold(norm, &mut [&mut mlp.output], dtype);
            }
        }
        if let Some(Mlp::Experts(moe)) = &mut block.mlp {
            let mut readers = Vec::new();
            // Router and experts may have their own norms, which keep their weights.
            if moe.norms.is_none() {
                readers.push(&mut moe.router);
                for expert in &mut moe.experts {
                    readers.extend(expert.gate.iter_mut().chain([&mut expert.input]));
                }
            }
            if let Some(shared) = &mut moe.shared {
                readers.extend(shared.gate.iter_mut().chain([&mut shared.input]).chain(&mut shared.share));
            }
            fold(ln2, &mut readers, dtype);
        }
    }
    let weights = &mut model.weights.parts;
    fold(&mut weights.ln_final, &mut [&mut weights.unembed], dtype);
    let config = folded(&model.config);
    model.points = Arc::new(points_of(&config));
    model.config = Arc::new(config);
}

fn fold(norm: &mut Norm, readers: &mut [&mut Linear], dtype: DType) {
    let (w, b) = (norm.w.take().map(|w| w.val()), norm.b.take().map(|b| b.val()));
    for reader in readers {
        if let Some(b) = &b {
            let extra = times(b.clone(), reader);
            add_bias(reader, extra, dtype);
        }
        if w.is_none() && !norm.kind.centers() {
            continue;
        }
        change_matrix(&mut reader.weight, dtype, |matrix| {
            if let Some(w) = &w {
                matrix.scale_inputs(w.clone());
            }
            if norm.kind.centers() {
                matrix.center_inputs();
            }
        });
    }
    norm.kind = norm.kind.folded();
}
