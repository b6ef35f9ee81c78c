//! The unpatched run, with everything needed to restart from it.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, ModelIdentity, Point, Record, Selection};

use super::example::Example;
use super::model::Patchable;
use hooklens_model::config::{Layers, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits, RunOutput, with_identity};
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::kv_cache::KeyValueCache;
use hooklens_model::model::{HookedTransformer, Identified};
use hooklens_model::tokens::Tokens;

/// The unpatched run on one prompt: the logits that the metric reads and the activations at the points to patch. For a
/// decoder, also the residual stream before each layer and the keys and values, from which other runs can resume at any
/// layer and position.
pub(super) struct BaseRun {
    /// Number of tokens.
    len: usize,
    /// The prompt's tokens, if other runs can resume from this run; otherwise empty.
    tokens: Vec<u32>,
    /// Residual stream before each layer, `[1, pos, d_model]`.
    resid_pre: Vec<Tensor<3>>,
    /// Keys and values of the run. `None` for bidirectional models (where all positions depend on each other), for
    /// models with recurrent states, and if rotations depend on the length of the text.
    kv_cache: Option<KeyValueCache>,
    pub(super) logits: Tensor<3>,
    pub(super) recorded: ActivationCache,
    /// Hook point of the stream after the last layer.
    after: Point<3>,
    /// The decoder's identity, computed once for all resumed runs; `None` if the whole model is rerun.
    identity: Option<Arc<ModelIdentity>>,
}

/// Hook point of the residual stream after the last layer.
fn after(config: &TransformerConfig) -> Point<3> {
    if config.residual() == ResidualScheme::NormalizedSums {
        hook::normalized_resid_post(-1)
    } else {
        hook::resid_post(-1)
    }
}

impl BaseRun {
    /// Runs a decoder so that other runs can resume from this run.
    pub(super) fn of_decoder(
        model: &HookedTransformer,
        tokens: &[u32],
        points: Selection,
        logits: Logits,
    ) -> Result<Self> {
        let n_layers = model.config().n_layers();
        // Recurrent states are not available at every position, and rotations that change with the length of
        // the text cannot be continued from a shorter text.
        let restarts =
            !model.config().bidirectional() && !model.config().has_states() && !model.config().outgrows(tokens.len());
        let identity = model.identity();
        let mut kv_cache = restarts.then(|| KeyValueCache::new(model.config(), 1));
        let mut options = with_identity(ForwardOptions::new(), &identity)
            .logits(logits)
            .record(Record::new(points.and("*hook_resid_pre").and(after(model.config()).name())));
        if let Some(cache) = &mut kv_cache {
            options = options.kv_cache(cache);
        }
        let output = model.run(tokens, options)?;
        let resid_pre = (0..n_layers).map(|layer| output.cache.get(hook::resid_pre(layer)));
        let resid_pre = resid_pre.collect::<Result<Vec<_>, _>>()?;
        let logits = output.logits.ok_or(hooklens_model::error::InputError::NoOutput { what: "logits" })?;
        let after = after(model.config());
        Ok(Self {
            len: tokens.len(),
            tokens: tokens.to_vec(),
            resid_pre,
            kv_cache,
            logits,
            recorded: output.cache,
            after,
            identity: Some(identity),
        })
    }

    /// Runs a model whose patched runs start from the beginning.
    pub(super) fn whole<M: Patchable>(model: &M, example: &Example<'_, M>, points: Selection) -> Result<Self> {
        let (prompt, needs) = (example.prompt, example.metric.needs());
        let options = M::making(example.options().record(Record::new(points)), needs);
        let mut output = model.run(M::copies(prompt, 1)?, options)?;
        let recorded = std::mem::take(output.cache());
        let logits = model.read(M::scored(&output)?, prompt, needs)?;
        let len = M::lengths(prompt).into_iter().sum();
        Ok(Self {
            len,
            tokens: Vec::new(),
            resid_pre: Vec::new(),
            kv_cache: None,
            logits,
            recorded,
            after: hook::resid_post(-1),
            identity: None,
        })
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The stream before a layer from position `first` on, repeated `count` times, `[count, pos, d_model]`.
    pub(super) fn stream(&self, layer: usize, first: usize, count: usize) -> Tensor<3> {
        let stream = &self.resid_pre[layer];
        let [_, len, d_model] = stream.dims();
        stream.clone().narrow(1, first, len - first).expand([count, len - first, d_model])
    }

    /// Options for resuming from [`BaseRun::stream`] and running this range of layers. Includes the tokens because
    /// parts of the model may read them.
    pub(super) fn options<'h>(&self, layers: Range<usize>, first: usize, count: usize) -> Result<ForwardOptions<'h>> {
        let tokens = Tokens::new(vec![self.tokens[first..].to_vec(); count])?;
        let options = match &self.identity {
            Some(identity) => with_identity(ForwardOptions::new(), identity),
            None => ForwardOptions::new(),
        };
        Ok(options.start_at_layer(layers.start as isize).stop_at_layer(layers.end as isize).tokens(&tokens))
    }

    /// The stream after the last layer, repeated `count` times, `[count, pos, d_model]`.
    pub(super) fn stream_after(&self, count: usize) -> Result<Tensor<3>> {
        let last = self.recorded.get(self.after.clone())?;
        let [_, len, d_model] = last.dims();
        Ok(last.expand([count, len, d_model]))
    }

    /// Keys and values of the positions before `first`, for any number of rows; `None` if there are no such positions.
    pub(super) fn before(&mut self, first: usize) -> Result<Option<KeyValueCache>> {
        let Some(cache) = self.kv_cache.as_mut().filter(|_| first > 0) else { return Ok(None) };
        let mut before = cache.fork(1)?;
        before.truncate(first)?;
        before.freeze();
        Ok(Some(before))
    }

    /// Whether positions before a patch can be reused instead of recomputed.
    pub(super) fn is_causal(&self) -> bool {
        self.kv_cache.is_some()
    }
}
