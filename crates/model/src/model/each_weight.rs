//! Every weight of a model under its TransformerLens name, for fingerprints and for saving.

use burn::module::Param;
use burn::tensor::{DType, Tensor};

use super::{Attention, Embed, GatedDeltaNet, HookedTransformer, Linear, Mamba2, Norm, ShortConvolution};

impl HookedTransformer {
    /// Calls `see` with every weight and its name in a `WeightTable`.
    pub fn each_weight(&self, see: &mut dyn FnMut(String, Weight<'_>)) {
        let (w, dtype) = (&self.weights, self.compute_type());
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
            if let Some(attn) = &block.attn {
                each_of_attention(&name("attn"), attn, dtype, see);
            }
            if let Some(net) = &block.delta {
                each_of_gated_delta(&name("linear_attn"), net, dtype, see);
            }
            if let Some(ssm) = &block.ssm {
                each_of_mamba2(&name("ssm"), ssm, dtype, see);
            }
            if let Some(conv) = &block.conv {
                each_of_convolution(&name("conv"), conv, dtype, see);
            }
            if let Some(mlp) = &block.mlp {
                linear(&name("mlp"), "in", &mlp.input, dtype, see);
                linear(&name("mlp"), "out", &mlp.output, dtype, see);
                if let Some(gate) = &mlp.gate {
                    linear(&name("mlp"), "gate", gate, dtype, see);
                    let none = Tensor::zeros([mlp.output.shape()[0]], (&self.device(), dtype));
                    see(name("mlp.b_after_product"), Weight::Vector(none));
                }
                if let Some(slopes) = &mlp.slopes {
                    see(name("mlp.alpha_p"), Weight::Vector(slopes.alpha_p.val()));
                    see(name("mlp.alpha_n"), Weight::Vector(slopes.alpha_n.val()));
                }
                norm(&name("mlp.ln"), mlp.norm.as_ref(), see);
            }
            if let Some(moe) = &block.moe {
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
        if self.config.d_vocab_out > 0 {
            linear("unembed", "U", &w.unembed, dtype, see);
        }
    }
}

fn each_of_attention(name: &str, attn: &Attention, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    for (letter, which) in [("Q", &attn.q), ("K", &attn.k), ("V", &attn.v), ("O", &attn.o)] {
        // A layer that reuses an earlier layer's keys and values has no K and V.
        if which.shape()[1] > 0 {
            linear(name, letter, which, dtype, see);
        }
    }
    attn.gate.iter().for_each(|gate| linear(name, "gate", gate, dtype, see));
    attn.router.iter().for_each(|router| linear(name, "router", router, dtype, see));
    norm(&format!("{name}.q_norm"), attn.q_norm.as_ref(), see);
    norm(&format!("{name}.k_norm"), attn.k_norm.as_ref(), see);
    if let Some(latent) = &attn.latent {
        linear(name, "KV_down", &latent.kv_down, dtype, see);
        linear(name, "K_rope", &latent.k_rope, dtype, see);
        latent.q_down.iter().for_each(|down| linear(name, "Q_down", down, dtype, see));
        norm(&format!("{name}.q_latent_norm"), latent.q_norm.as_ref(), see);
        norm(&format!("{name}.kv_latent_norm"), Some(&latent.kv_norm), see);
    }
    if let Some(sinks) = &attn.sinks {
        see(format!("{name}.sinks"), Weight::Vector(sinks.val()));
    }
}

fn each_of_gated_delta(name: &str, net: &GatedDeltaNet, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    let maps = [("Q", &net.q), ("K", &net.k), ("V", &net.v), ("gate", &net.gate), ("beta", &net.beta)];
    for (letter, which) in maps.into_iter().chain([("decay", &net.decay), ("O", &net.o)]) {
        linear(name, letter, which, dtype, see);
    }
    see(format!("{name}.conv"), Weight::Matrix(net.conv.val()));
    see(format!("{name}.A_log"), Weight::Vector(net.a_log.val()));
    see(format!("{name}.dt_bias"), Weight::Vector(net.dt_bias.val()));
    norm(&format!("{name}.norm"), Some(&net.norm), see);
}

fn each_of_mamba2(name: &str, ssm: &Mamba2, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    let maps = [("x", &ssm.x), ("B", &ssm.b), ("C", &ssm.c), ("gate", &ssm.gate), ("dt", &ssm.dt), ("O", &ssm.o)];
    for (letter, which) in maps {
        linear(name, letter, which, dtype, see);
    }
    filters(name, &ssm.conv, ssm.conv_bias.as_ref(), dtype, see);
    for (part, own) in [("A_log", &ssm.a_log), ("dt_bias", &ssm.dt_bias), ("D", &ssm.d)] {
        see(format!("{name}.{part}"), Weight::Vector(own.val()));
    }
    norm(&format!("{name}.norm"), Some(&ssm.norm), see);
}

fn each_of_convolution(name: &str, own: &ShortConvolution, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    for (letter, which) in [("B", &own.b), ("C", &own.c), ("x", &own.x), ("O", &own.o)] {
        linear(name, letter, which, dtype, see);
    }
    filters(name, &own.conv, own.conv_bias.as_ref(), dtype, see);
}

/// Visits a convolution's filters and bias.
fn filters(
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

/// A weight in the form that the model stores it.
#[derive(Debug)]
pub enum Weight<'w> {
    /// A matrix, copied or widened.
    Matrix(Tensor<2>),
    /// Linear map, or the token embedding, which may be block-quantized.
    Map(&'w Linear),
    /// An embedding table.
    Tokens(&'w Embed),
    /// A vector.
    Vector(Tensor<1>),
}

fn linear(name: &str, letter: &str, linear: &Linear, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
    let options = (&linear.device(), dtype);
    let none = || Tensor::zeros([linear.shape()[1]], options);
    let bias = linear.bias.as_ref().map_or_else(none, |bias| bias.val());
    see(format!("{name}.W_{letter}"), Weight::Map(linear));
    see(format!("{name}.b_{letter}"), Weight::Vector(bias));
}

fn norm(name: &str, norm: Option<&Norm>, see: &mut dyn FnMut(String, Weight<'_>)) {
    let Some(norm) = norm else { return };
    if let Some(w) = &norm.w {
        see(format!("{name}.w"), Weight::Vector(w.val()));
    }
    if let Some(b) = &norm.b {
        see(format!("{name}.b"), Weight::Vector(b.val()));
    }
}
