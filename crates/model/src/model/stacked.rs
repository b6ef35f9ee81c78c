//! Weights of all layers and heads, stacked as in TransformerLens.

use burn::tensor::Tensor;

use super::named::of_rank;
use super::{Attention, Block, DenseMlp, HookedTransformer, Linear, narrowed};
use crate::config::Layers;
use crate::driver::HookedModel;
use crate::error::WeightError;

/// Names of the weights that are stacked.
const STACKED: [&str; 13] =
    ["W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "W_in", "W_gate", "W_out", "b_in", "b_out"];

/// Selects one of the weights of attention heads.
#[derive(Debug, Clone, Copy)]
pub enum HeadWeight {
    /// Query projection, `W_Q`.
    Q,
    /// Key projection, `W_K`.
    K,
    /// Value projection, `W_V`.
    V,
    /// Output projection, `W_O`.
    O,
}

/// A weight of all heads, `[layer, head, in, out]`, as returned by [`HookedTransformer::stacked`].
pub fn head_weights(model: &HookedTransformer, which: HeadWeight) -> Tensor<4> {
    match which {
        HeadWeight::Q => model.stack(|layer, block| model.columns(layer, block, 'q')),
        HeadWeight::K => model.stack(|layer, _| model.columns(layer, model.with_keys(layer), 'k')),
        HeadWeight::V => model.stack(|layer, _| model.columns(layer, model.with_keys(layer), 'v')),
        HeadWeight::O => {
            let (heads, [_, widest]) = (model.config().n_heads, model.config().widest_heads());
            let d_model = model.config().d_model;
            model.stack(|layer, block| {
                let Some(attn) = block.attn() else { return model.nothing(block, [heads, widest, d_model]) };
                let weight = attn.o.weight_in(model.compute_type());
                widened_to(weight.reshape([heads, model.config().d_value_of(layer), d_model]), 1, widest)
            })
        }
    }
}

fn ranked<const E: usize, const D: usize>(name: &str, weight: Tensor<E>) -> Result<Tensor<D>, WeightError> {
    of_rank(weight).ok_or_else(|| WeightError::Rank { name: name.into(), rank: E, asked: D })
}

impl HookedTransformer {
    /// Token embedding matrix, `[d_vocab, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!((model.w_e().dims(), model.w_u().dims()), ([61, 64], [64, 61]));
    /// assert_eq!(model.w_pos().map(|positions| positions.dims()), Some([48, 64]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn w_e(&self) -> Tensor<2> {
        narrowed(self.weights.parts.embed.matrix(), self.compute_type())
    }

    /// Position embedding matrix, `[n_ctx, d_model]`, if positions are learned.
    pub fn w_pos(&self) -> Option<Tensor<2>> {
        self.weights.parts.embed.positions.as_ref().map(|table| narrowed(table.val(), self.compute_type()))
    }

    /// Unembedding matrix, `[d_model, d_vocab_out]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let (logits, cache) = model.run_with_cache("When Mary", hook::final_normalized())?;
    /// let read = cache.get(hook::final_normalized())?;
    /// let by_hand = read.matmul(model.w_u().unsqueeze()) + model.b_u().unsqueeze();
    /// assert!((by_hand - logits).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn w_u(&self) -> Tensor<2> {
        self.weights.parts.unembed.weight_in(self.compute_type()).to_device(&self.device())
    }

    /// Unembedding bias, `[d_vocab_out]`; zeros if there is none.
    pub fn b_u(&self) -> Tensor<1> {
        self.bias(&self.weights.parts.unembed).to_device(&self.device())
    }

    /// A weight of all layers as one tensor, by its name in TransformerLens, widened to the element type that the model
    /// computes in:
    ///
    /// | name | shape |
    /// |---|---|
    /// | `W_Q`, `W_K`, `W_V` | `[layer, head, d_model, d_head]` |
    /// | `W_O` | `[layer, head, d_head, d_model]` |
    /// | `b_Q`, `b_K`, `b_V`; `b_O` | `[layer, head, d_head]`; `[layer, d_model]` |
    /// | `W_in`, `W_gate`; `W_out` | `[layer, d_model, d_mlp]`; `[layer, d_mlp, d_model]` |
    /// | `b_in`; `b_out` | `[layer, d_mlp]`; `[layer, d_model]` |
    ///
    /// Layers without attention and missing biases are zeros, and heads and MLPs narrower than the widest are padded
    /// with zeros. With grouped-query attention, the weights of shared keys and values are repeated for each head that
    /// reads them, and for later layers that reuse them. `b_O` includes the output biases of other mixers. For latent
    /// attention (DeepSeek V2), queries, keys and values are the product of the down and up projections, including the
    /// weight of the norm between them but not the division by its scale.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let (w_q, b_q): (Tensor<4>, Tensor<3>) = (model.stacked("W_Q")?, model.stacked("b_Q")?);
    /// assert_eq!((w_q.dims(), b_q.dims()), ([4, 4, 64, 16], [4, 4, 16]));
    /// let cache = model.record("When Mary", ["z0", "result0"])?;
    /// let z = cache.get(hook::z(0))?.narrow(2, 3, 1).squeeze_dim::<3>(2); // head 3
    /// let w_o = model.stacked::<4>("W_O")?.slice([0..1, 3..4]).reshape([1, 16, 64]);
    /// let gap = z.matmul(w_o) - cache.get(hook::result(0))?.narrow(2, 3, 1).squeeze_dim::<3>(2);
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// let without = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert!(without.stacked::<3>("W_in").is_err()); // attention-only model
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WeightError::NotStacked`] for any other name, [`WeightError::NotInAll`] if a layer has no dense MLP (or, for
    /// `W_gate`, no gated one), and [`WeightError::Rank`] if the stacked weight is not of rank `D`.
    pub fn stacked<const D: usize>(&self, name: &str) -> Result<Tensor<D>, WeightError> {
        let dtype = self.compute_type();
        match name {
            "W_Q" => ranked(name, head_weights(self, HeadWeight::Q)),
            "W_K" => ranked(name, head_weights(self, HeadWeight::K)),
            "W_V" => ranked(name, head_weights(self, HeadWeight::V)),
            "W_O" => ranked(name, head_weights(self, HeadWeight::O)),
            "b_Q" => ranked(name, self.stack::<2, 3>(|layer, block| self.biases(layer, block, 'q'))),
            "b_K" => ranked(name, self.stack::<2, 3>(|layer, _| self.biases(layer, self.with_keys(layer), 'k'))),
            "b_V" => ranked(name, self.stack::<2, 3>(|layer, _| self.biases(layer, self.with_keys(layer), 'v'))),
            "b_O" => ranked(name, self.stack::<1, 2>(|_, block| self.output_bias(block))),
            "W_in" => self.of_mlps::<2, 3, D>(name, |mlp| Some(mlp.input.weight_in(dtype))),
            "W_gate" => self.of_mlps::<2, 3, D>(name, |mlp| Some(mlp.gate.as_ref()?.weight_in(dtype))),
            "W_out" => self.of_mlps::<2, 3, D>(name, |mlp| Some(mlp.output.weight_in(dtype))),
            "b_in" => self.of_mlps::<1, 2, D>(name, |mlp| Some(self.bias(&mlp.input))),
            "b_out" => self.of_mlps::<1, 2, D>(name, |mlp| Some(self.bias(&mlp.output))),
            _ => Err(WeightError::NotStacked { name: name.into(), names: &STACKED }),
        }
    }

    /// One label per head: `L0H0`, `L0H1`, ...
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.head_labels()[..5], ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn head_labels(&self) -> Vec<String> {
        let heads = |layer| (0..self.config().n_heads).map(move |head| format!("L{layer}H{head}"));
        (0..self.config().n_layers()).flat_map(heads).collect()
    }

    /// The block whose keys and values layer `layer` reads.
    fn with_keys(&self, layer: usize) -> &Block {
        &self.weights.parts.blocks[self.config().reads_keys_of(layer).unwrap_or(layer)]
    }

    fn stack<const D: usize, const E: usize>(&self, of: impl Fn(usize, &Block) -> Tensor<D>) -> Tensor<E> {
        let device = self.device();
        let layers = self.weights.parts.blocks.iter().enumerate();
        Tensor::stack(layers.map(|(layer, block)| of(layer, block).to_device(&device)).collect(), 0)
    }

    fn of_mlps<const D: usize, const E: usize, const F: usize>(
        &self,
        name: &str,
        of: impl Fn(&DenseMlp) -> Option<Tensor<D>>,
    ) -> Result<Tensor<F>, WeightError> {
        let device = self.device();
        let part = |block: &Block| of(block.dense_mlp()?).map(|weight| weight.to_device(&device));
        let parts: Option<Vec<Tensor<D>>> = self.weights.parts.blocks.iter().map(part).collect();
        let parts = parts.ok_or_else(|| WeightError::NotInAll { name: name.into() })?;
        let widest: [usize; D] =
            std::array::from_fn(|axis| parts.iter().map(|part| part.dims()[axis]).max().unwrap_or(0));
        let whole = |part| (0..D).fold(part, |part, axis| widened_to(part, axis, widest[axis]));
        ranked(name, Tensor::<D>::stack::<E>(parts.into_iter().map(whole).collect(), 0))
    }

    /// Head width of queries, keys or values in this layer, and in the layer where it is largest.
    fn widths(&self, layer: usize, which: char) -> [usize; 2] {
        let (c, [keys, values]) = (self.config(), self.config().widest_heads());
        if which == 'v' { [c.d_value_of(layer), values] } else { [c.d_head_of(layer), keys] }
    }

    /// A layer's query, key or value weights by head, `[head, d_model, d_head]`, repeated within each group of heads.
    /// Zeros if the layer has no attention.
    fn columns(&self, layer: usize, block: &Block, which: char) -> Tensor<3> {
        let (n_heads, [own, widest]) = (self.config().n_heads, self.widths(layer, which));
        let Some(attn) = block.attn() else { return self.nothing(block, [n_heads, self.config().d_model, widest]) };
        let weight = self.of_stream(attn, which);
        let [d_model, width] = weight.dims();
        let by_head = weight.reshape([d_model, width / own, own]).permute([1, 0, 2]);
        widened_to(self.each_of_a_group(by_head), 2, widest)
    }

    /// The projection from the stream to queries, keys or values of all heads. For latent attention, the product of the
    /// down and up projections, including the weight of the norm between them but not the division by its scale.
    fn of_stream(&self, attn: &Attention, which: char) -> Tensor<2> {
        let dtype = self.compute_type();
        match (&attn.latent, which) {
            (None, 'q') => attn.q.weight_in(dtype),
            (None, 'k') => attn.k.weight_in(dtype),
            (None, _) => attn.v.weight_in(dtype),
            (Some(latent), 'q') => latent.whole_q(attn, dtype),
            (Some(latent), 'k') => latent.whole_k(attn, self.config(), dtype),
            (Some(latent), _) => latent.whole_v(attn, dtype),
        }
    }

    /// Key biases of all heads. For latent attention, the biases of the up projection, with zeros for the rotated part.
    fn key_bias(&self, attn: &Attention) -> Tensor<1> {
        let own = self.bias(&attn.k);
        let (Some(latent), heads) = (self.config().latent, self.config().n_heads) else { return own };
        let ([width], options) = (own.dims(), (&own.device(), own.dtype()));
        let turned = Tensor::<2>::zeros([heads, latent.d_rope], options);
        let whole = Tensor::cat(vec![own.reshape([heads, width / heads]), turned], 1);
        whole.reshape([heads * self.config().d_head()])
    }

    /// A layer's query, key or value biases by head, `[head, d_head]`; zeros if it has no attention.
    fn biases(&self, layer: usize, block: &Block, which: char) -> Tensor<2> {
        let (n_heads, [own, widest]) = (self.config().n_heads, self.widths(layer, which));
        let Some(attn) = block.attn() else { return self.nothing(block, [n_heads, widest]) };
        let bias = match which {
            'q' => self.bias(&attn.q),
            'k' => self.key_bias(attn),
            _ => self.bias(&attn.v),
        };
        let [width] = bias.dims();
        let each = self.each_of_a_group(bias.reshape([width / own, 1, own]));
        widened_to(each, 2, widest).squeeze_dim(1)
    }

    fn nothing<const D: usize>(&self, block: &Block, shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (&block.device(), self.compute_type()))
    }

    fn each_of_a_group(&self, own: Tensor<3>) -> Tensor<3> {
        let ([kv_heads, rows, columns], heads) = (own.dims(), self.config().n_heads);
        if kv_heads == heads {
            return own;
        }
        let wide = own.unsqueeze_dim::<4>(1).expand([kv_heads, heads / kv_heads, rows, columns]);
        wide.reshape([heads, rows, columns])
    }

    /// The output bias of a block's token mixer.
    fn output_bias(&self, block: &Block) -> Tensor<1> {
        let bias = block.mixer_bias(self.compute_type());
        bias.unwrap_or_else(|| self.nothing(block, [self.config().d_model]))
    }

    fn bias(&self, linear: &Linear) -> Tensor<1> {
        linear.bias_or_zeros(self.compute_type())
    }
}

/// Pads a tensor with zeros along an axis.
fn widened_to<const D: usize>(own: Tensor<D>, axis: usize, width: usize) -> Tensor<D> {
    let mut missing = own.dims();
    missing[axis] = width - missing[axis];
    if missing[axis] == 0 {
        return own;
    }
    let zeros = Tensor::zeros(missing, (&own.device(), own.dtype()));
    Tensor::cat(vec![own, zeros], axis)
}
