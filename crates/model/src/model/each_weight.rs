//! Every weight of a model under its TransformerLens name, for fingerprints and for saving.

use burn::module::Param;
use burn::tensor::{DType, Tensor};

use super::{Embed, HookedTransformer, Linear, Norm};
use crate::driver::HookedModel;

/// Calls `see` with every weight of a model and the name that the loader's `WeightTable` uses for it.
pub fn each_weight(model: &HookedTransformer, see: &mut dyn FnMut(String, Weight<'_>)) {
    let (w, dtype) = (&model.weights.parts, model.compute_type());
    see("embed.W_E".into(), Weight::Tokens(&w.embed));
    if let Some(positions) = &w.embed.positions {
        see("pos_embed.W_pos".into(), Weight::Matrix(positions.val()));
    }
    norm("embed.ln", w.embed.norm.as_ref(), see);
    if let Some(own) = &w.per_layer_embed {
        see("per_layer_embed.W_E".into(), Weight::Tokens(&own.vectors));
        linear("per_layer_embed", "proj", &own.projection, dtype, see);
        norm("per_layer_embed.norm", Some(&own.norm), see);
    }
    for (layer, block) in w.blocks.iter().enumerate() {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        for (part, which) in [
            ("ln1", Some(&block.ln1)),
            ("ln1_post", block.ln1_post.as_ref()),
            ("ln2", block.ln2.as_ref()),
            ("ln2_post", block.ln2_post.as_ref()),
        ] {
            norm(&name(part), which, see);
        }
        block.mixer.iter().for_each(|mixer| mixer.of_kind().each_weight(&format!("blocks.{layer}"), dtype, see));
        if let Some(mlp) = block.dense_mlp() {
            linear(&name("mlp"), "in", &mlp.input, dtype, see);
            linear(&name("mlp"), "out", &mlp.output, dtype, see);
            if let Some(gate) = &mlp.gate {
                linear(&name("mlp"), "gate", gate, dtype, see);
                let none = Tensor::zeros([mlp.output.shape()[0]], (&model.device(), dtype));
                see(name("mlp.b_after_product"), Weight::Vector(none));
            }
            if let Some(slopes) = &mlp.slopes {
                see(name("mlp.alpha_p"), Weight::Vector(slopes.alpha_p.val()));
                see(name("mlp.alpha_n"), Weight::Vector(slopes.alpha_n.val()));
            }
            norm(&name("mlp.ln"), mlp.norm.as_ref(), see);
        }
        if let Some(moe) = block.moe() {
            linear(&name("mlp"), "gate", &moe.router, dtype, see);
            for (number, expert) in moe.experts.iter().enumerate() {
                let name = name(&format!("mlp.experts.{number}"));
                linear(&name, "in", &expert.input, dtype, see);
                expert.gate.iter().for_each(|gate| linear(&name, "gate", gate, dtype, see));
                linear(&name, "out", &expert.output, dtype, see);
            }
            if let Some(bias) = &moe.choice_bias {
                see(name("mlp.choice_bias"), Weight::Vector(bias.val()));
            }
            if let Some(shared) = &moe.shared {
                let name = name("mlp.shared");
                linear(&name, "in", &shared.input, dtype, see);
                shared.gate.iter().for_each(|gate| linear(&name, "gate", gate, dtype, see));
                linear(&name, "out", &shared.output, dtype, see);
                shared.share.iter().for_each(|share| linear(&name, "share", share, dtype, see));
            }
            if let Some(scales) = &moe.scales {
                see(name("mlp.expert_scales"), Weight::Vector(scales.val()));
            }
            if let Some(norms) = &moe.norms {
                for (part, which) in [
                    ("router_ln", &norms.router),
                    ("experts_ln", &norms.experts),
                    ("shared_ln_post", &norms.shared_post),
                    ("experts_ln_post", &norms.experts_post),
                ] {
                    norm(&name(&format!("mlp.{part}")), Some(which), see);
                }
            }
        }
        if let Some(own) = &block.per_layer {
            linear(&name("per_layer"), "gate", &own.gate, dtype, see);
            linear(&name("per_layer"), "out", &own.output, dtype, see);
            norm(&name("per_layer_post"), Some(&own.post), see);
        }
        if let Some(scalar) = &block.scalar {
            see(name("scalar"), Weight::Vector(scalar.val()));
        }
    }
    norm("ln_final", Some(&w.ln_final), see);
    if model.config.d_vocab_out > 0 {
        linear("unembed", "U", &w.unembed, dtype, see);
    }
}

/// Visits a convolution's filters and bias.
pub(super) fn filters(
    name: &str,
    conv: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
    dtype: DType,
    see: &mut dyn FnMut(String, Weight<'_>),
) {
    let conv = conv.val();
    let [_, channels] = conv.dims();
    let device = conv.device();
    see(format!("{name}.conv"), Weight::Matrix(conv));
    let none = || Tensor::zeros([channels], (&device, dtype));
    see(format!("{name}.conv_bias"), Weight::Vector(bias.map_or_else(none, |bias| bias.val())));
}

/// A weight in the form in which the model stores it.
#[derive(Debug)]
pub enum Weight<'w> {
    /// A matrix, or a copy of one in a wider type.
    Matrix(Tensor<2>),
    /// A linear map, which may be block-quantized.
    Map(&'w Linear),
    /// A token embedding table, which may be block-quantized.
    Tokens(&'w Embed),
    /// A vector.
    Vector(Tensor<1>),
}

pub(super) fn linear(name: &str, letter: &str, linear: &Linear, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    let options = (&linear.device(), dtype);
    let none = || Tensor::zeros([linear.shape()[1]], options);
    let bias = linear.bias.as_ref().map_or_else(none, |bias| bias.val());
    see(format!("{name}.W_{letter}"), Weight::Map(linear));
    see(format!("{name}.b_{letter}"), Weight::Vector(bias));
}

pub(super) fn norm(name: &str, norm: Option<&Norm>, see: &mut dyn FnMut(String, Weight<'_>)) {
    let Some(norm) = norm else { return };
    if let Some(w) = &norm.w {
        see(format!("{name}.w"), Weight::Vector(w.val()));
    }
    if let Some(b) = &norm.b {
        see(format!("{name}.b"), Weight::Vector(b.val()));
    }
}
