//! The forward pass: validates the input, then runs embedding, blocks, and unembedding.

use burn::tensor::Tensor;
use hooklens_hooks::{Halt, HookError, PointInfo, RecordRequest, Rows, Run, Segment};

use super::checks::DecoderChecks;
use super::embedding::position_vectors;
use super::identity::Identified;
use super::input::DecoderInput;
use super::loss;
use super::norm::NormPoints;
use super::output::Output;
use super::pass::Pass;
use super::sequence::{Sequence, at_columns};
use super::soft_cap::soft_capped;
use super::transformer::HookedTransformer;
use crate::config::{Layers as _, Positional, ResidualScheme, Threshold};
use crate::driver::{ForwardOptions, HookedModel, Input, Logits, Plan, execute};
use crate::error::{CacheError, InputError, Result};
use crate::kv_cache::{Entry, KeyValueCache, MadeBy, Transaction};
use crate::points::{Outer, Site};
use crate::tokens::{Tokens, flat_mask};

/// The input of a forward pass.
#[allow(clippy::large_enum_variant, reason = "there is one per run; with LibTorch built in, a tensor is larger")]
enum Start {
    Tokens(Tokens),
    Residual(Tensor<3>),
}

/// Range of layers to run, `start..stop`. Without `stop`, the run continues to the logits.
#[derive(Clone, Copy)]
struct Layers {
    start: Option<usize>,
    stop: Option<usize>,
}

/// Layers to run and outputs to compute.
#[derive(Clone, Copy)]
struct StopAt {
    layers: Layers,
    logits: Logits,
    loss: bool,
}

/// Result of a forward pass: the logits, or the residual stream where it stopped.
#[derive(Default)]
struct ForwardResult {
    logits: Option<Tensor<3>>,
    residual: Option<Tensor<3>>,
}

impl HookedTransformer {
    /// Validates the input and options, then runs.
    pub(super) fn checked_run(&self, input: Input, mut options: ForwardOptions<'_>) -> Result<Output> {
        let layers = self.layers(&options)?;
        let (start, mut tokens) = self.start(input, &mut options, layers)?;
        self.check_earlier_layers(&start, tokens.as_ref(), layers)?;
        let kv_cache = options.kv_cache.take();
        let sequence = self.sequence(&start, tokens.as_ref(), options.attention_mask.take(), kv_cache.as_deref())?;
        let query_mask = sequence.query_mask();
        if let (Some(tokens), Some(mask)) = (&mut tokens, &query_mask) {
            tokens.set_mask(mask);
        }
        let wants_loss = options.loss || options.loss_per_token;
        let headless = self.config.d_vocab_out == 0;
        let logits = if headless { Logits::None } else { options.logits };
        if wants_loss {
            self.check_head()?;
            self.check_loss(logits, tokens.as_ref(), layers)?;
        }
        // A run must append to every layer of a growing cache.
        let growing = kv_cache.as_ref().is_some_and(|cache| !cache.is_frozen());
        if growing && (layers.start.is_some() || layers.stop.is_some_and(|stop| stop < self.config.n_layers())) {
            return Err(CacheError::Partial.into());
        }

        let in_stream = self.config.positional == Positional::Learned;
        let first_held: Vec<usize> = kv_cache.as_deref().into_iter().flatten().map(Entry::first).collect();
        let held_by = |layer: usize| self.config.reads_keys_of(layer).unwrap_or(layer);
        let told = tokens.as_ref().and(self.points.outer(Outer::Tokens)).map(|id| &self.catalog().info(id).name);
        let silent = |point: &PointInfo| match point.layer {
            None if told == Some(&point.name) => None,
            Some(layer) if point.with_past && first_held.get(held_by(layer)).is_some_and(|first| *first > 0) => {
                Some("the cache has dropped keys that are outside the layer's window")
            }
            _ => why_silent(point, layers, in_stream),
        };
        let known = options.identity.take();
        let identity = kv_cache.as_ref().map(|_| known.clone().unwrap_or_else(|| self.identity())).or(known);
        if let (Some(cache), Some(identity)) = (&kv_cache, &identity) {
            cache.check_model(identity)?;
        }
        // Text hashes require that the tokens determine the activations. They don't for a residual stream given instead
        // of tokens, or after a cached prefix that was edited, quantized, or hidden.
        let held = match kv_cache.as_ref().filter(|cache| !cache.is_empty()) {
            _ if options.record.selects_nothing() || layers.start.is_some() => None,
            Some(cache) => cache.exact_tokens(),
            None => Some(Vec::new()),
        };
        let given = held.is_some().then(|| tokens.clone()).flatten();
        let texts = || Some(given.as_ref()?.text_hashes(held.as_deref()));
        let plan = Plan {
            points: &self.points,
            device: self.device(),
            dtype: self.compute_type(),
            rows: Rows { open: growing, copies: options.copies, ..sequence.rows() },
            silent: &silent,
            model: &|| identity.clone().unwrap_or_else(|| self.identity()),
            texts: &texts,
            at_once: self.at_once(&sequence, logits),
            shape: &self.config,
            stop_when_done: logits == Logits::None && layers.stop.is_none() && !growing,
        };
        let mut transaction = kv_cache.map(KeyValueCache::begin);
        let (reached, cache) = execute(plan, &mut options.hooks, options.record, |run| {
            self.check_conflicts(run)?;
            if run.ends_here() {
                return Err(Halt::Done);
            }
            let (device, dtype) = (self.device(), self.compute_type());
            let borrowed = transaction.as_mut().map(Transaction::cache);
            let pass = Pass::new(&self.config, self.points.stack(0), &sequence, borrowed, &device, dtype);
            self.pass(start, pass, StopAt { layers, logits, loss: wants_loss }, &mut tokens, run)
        })?;
        if let Some(transaction) = transaction {
            let shape = [sequence.batch, sequence.len];
            let model = identity.unwrap_or_else(|| self.identity());
            let by_length = !self.config.rotation_thresholds().is_empty();
            let made = MadeBy { model, hooks: &options.hooks, parts: self.points.named_parts(), by_length };
            transaction.commit(shape, query_mask.as_deref(), tokens.as_ref(), made)?;
        }

        let reached = reached.unwrap_or_default();
        let (mut mean, mut each) = (None, None);
        if let (true, Some(logits), Some(tokens)) = (wants_loss, &reached.logits, &tokens) {
            let (per_token, count) = loss::per_token(logits.clone(), tokens);
            mean = options.loss.then(|| per_token.clone().sum() / count as f64);
            each = options.loss_per_token.then_some(per_token);
        }
        let (logits, residual) = (reached.logits, reached.residual);
        Ok(Output { logits, loss: mean, loss_per_token: each, residual, cache, headless })
    }

    fn layers(&self, options: &ForwardOptions<'_>) -> Result<Layers, InputError> {
        let n_layers = self.config.n_layers();
        let place = |layer: isize, last: usize| {
            let placed = if layer < 0 { layer + n_layers as isize } else { layer };
            let fits = (0..=last as isize).contains(&placed);
            if fits { Ok(placed as usize) } else { Err(InputError::Layer { layer, n_layers }) }
        };
        let start = options.start_at_layer.map(|l| place(l, n_layers - 1)).transpose()?;
        let stop = options.stop_at_layer.map(|l| place(l, n_layers)).transpose()?;
        if let (Some(start), Some(stop)) = (start, stop)
            && stop < start
        {
            return Err(InputError::StopBeforeStart { start, stop });
        }
        Ok(Layers { start, stop })
    }

    /// Validates the input, and returns the tokens if they are known.
    fn start(&self, input: Input, options: &mut ForwardOptions<'_>, layers: Layers) -> Result<(Start, Option<Tokens>)> {
        let tokens = match input {
            Input::Residual(residual) => {
                if layers.start.is_none() {
                    let needs = "the option `start_at_layer`";
                    return Err(InputError::Needs { what: "a residual stream as input", needs }.into());
                }
                self.check_stream(&residual)?;
                let (shape @ [batch, len, _], d_model) = (residual.dims(), self.config.d_model);
                let tokens = options.tokens.take();
                if let Some(tokens) = &tokens {
                    self.check_tokens(tokens)?;
                    if tokens.shape() != [batch, len] {
                        let given = shape.to_vec();
                        return Err(InputError::Residual { given, d_model }.into());
                    }
                }
                return Ok((Start::Residual(residual), tokens));
            }
            tokens => {
                if options.tokens.is_some() {
                    let needs = "a residual stream as input, not tokens";
                    return Err(InputError::Needs { what: "the option `tokens`", needs }.into());
                }
                let held = options.kv_cache.as_deref().map_or(Vec::new(), KeyValueCache::lengths);
                self.token_input_after(tokens, &held)?
            }
        };
        if layers.start.is_some() {
            let needs = "a residual stream as input, not tokens";
            return Err(InputError::Needs { what: "the option `start_at_layer`", needs }.into());
        }
        Ok((Start::Tokens(tokens.clone()), Some(tokens)))
    }

    /// Checks that a run that starts from a residual stream has everything else that its layers read.
    fn check_earlier_layers(&self, start: &Start, tokens: Option<&Tokens>, layers: Layers) -> Result<(), InputError> {
        if matches!(start, Start::Tokens(_)) {
            return Ok(());
        }
        let first = layers.start.unwrap_or(0);
        let reader = |layer: &usize| self.config.reads_keys_of(*layer).is_some_and(|from| from < first);
        let mut run = first..layers.stop.unwrap_or(self.config.n_layers());
        if let Some(layer) = run.find(reader) {
            let from = self.config.reads_keys_of(layer).unwrap_or(layer);
            return Err(InputError::KeysOfEarlierLayer { layer, from });
        }
        if self.config.per_layer_inputs.is_some() && tokens.is_none() {
            let what = "a residual stream as input to a model with per-layer inputs";
            return Err(InputError::Needs {
                what,
                needs: "the tokens it was computed from; pass them as the option `tokens`",
            });
        }
        Ok(())
    }

    /// Number of elements in the largest activation of a run: the logits, or an MLP's neurons.
    fn at_once(&self, sequence: &Sequence, logits: Logits) -> usize {
        let tokens = sequence.batch.saturating_mul(sequence.len);
        let rows = if logits == Logits::All { tokens } else { sequence.batch };
        let widest = self.config.layers.iter().map(|layer| layer.mlp.d_mlp()).max().unwrap_or(0);
        let (logits, mlp) = (rows.saturating_mul(self.config.d_vocab_out), tokens.saturating_mul(widest));
        logits.max(mlp)
    }

    /// Checks that a residual stream has the model's width and is on one of the model's devices.
    fn check_stream(&self, stream: &Tensor<3>) -> Result<(), InputError> {
        let (shape @ [batch, len, width], d_model) = (stream.dims(), self.config.d_model);
        if batch == 0 || len == 0 || width != d_model {
            return Err(InputError::Residual { given: shape.to_vec(), d_model });
        }
        let devices = self.devices();
        if !devices.contains(&stream.device()) {
            let (given, model) = (format!("{:?}", stream.device()), format!("{devices:?}"));
            return Err(InputError::Device { given, model });
        }
        Ok(())
    }

    fn sequence(
        &self,
        start: &Start,
        tokens: Option<&Tokens>,
        mask: Option<Vec<Vec<bool>>>,
        kv_cache: Option<&KeyValueCache>,
    ) -> Result<Sequence> {
        let [batch, len] = match start {
            Start::Tokens(tokens) => tokens.shape(),
            Start::Residual(residual) => [residual.dims()[0], residual.dims()[1]],
        };
        let mask = match mask {
            Some(rows) => {
                let rows = new_columns(rows, [batch, len], kv_cache)?;
                let past = kv_cache.map_or(0, KeyValueCache::len);
                Some(flat_mask(&rows, [batch, len]).map_err(|error| behind(error, past))?)
            }
            None => tokens.and_then(|tokens| tokens.mask().map(<[bool]>::to_vec)),
        };
        let Some(cache) = kv_cache else {
            let sequence = Sequence::new(batch, 0, len, mask);
            self.check_length(sequence.positions_needed())?;
            return Ok(sequence);
        };
        if self.config.bidirectional {
            return Err(CacheError::Bidirectional.into());
        }
        cache.check(&self.config, [batch, len], self.compute_type(), |layer| {
            self.weights.parts.blocks[layer].device()
        })?;
        let sequence = Sequence::behind(cache, [batch, len], mask.as_deref());
        let needed = sequence.positions_needed();
        self.check_length(needed)?;
        self.check_outgrown(&sequence, cache)?;
        Ok(sequence)
    }

    /// Fails if a row's text has grown so long that it requires different rotary frequencies than its cached keys were
    /// rotated with.
    fn check_outgrown(&self, sequence: &Sequence, cache: &KeyValueCache) -> Result<(), CacheError> {
        let thresholds = self.config.rotation_thresholds();
        if thresholds.is_empty() || cache.is_empty() {
            return Ok(());
        }
        let (held, rotated_for) = (cache.lengths(), cache.rotated_for());
        let positions = sequence.query_positions();
        for (row, positions) in positions.chunks(sequence.len).enumerate() {
            let before = held.get(row).or(held.first()).copied().unwrap_or(0);
            let len = positions.iter().max().map_or(0, |last| *last as usize + 1);
            if before == 0 || len <= before {
                continue;
            }
            // A truncated cache may hold keys rotated for a longer text.
            let keys = rotated_for.get(row).or(rotated_for.first()).copied().unwrap_or(0).max(before);
            let other = |threshold: &&Threshold| {
                let [long, longer] = [keys > threshold.context, len > threshold.context];
                long != longer || (long && !threshold.once && keys != len)
            };
            if let Some(threshold) = thresholds.iter().find(other) {
                let original_context = threshold.context;
                let longer = keys > before;
                return Err(if longer {
                    CacheError::RotatedForLonger { keys, len }
                } else {
                    CacheError::Outgrown { original_context, len }
                });
            }
        }
        Ok(())
    }

    /// Rejects runs that edit both a head's input and the norm. An edited head input is normalized separately, so the
    /// edit of the stream's norm would not apply to it.
    fn check_conflicts(&self, run: &Run<'_, '_>) -> Result<(), HookError> {
        let layers = if self.config.residual == ResidualScheme::NormalizedSums { 0 } else { self.config.n_layers() };
        for layer in 0..layers {
            let edited = |sites: &[Site]| {
                let ids = sites.iter().map(|site| self.points.stack(0).at(layer, *site));
                ids.flatten().find(|id| run.edits(Some(*id)))
            };
            let norm = edited(&[Site::Ln1Scale, Site::Ln1Normalized]);
            let input = edited(&[Site::AttnIn, Site::QInput, Site::KInput, Site::VInput]);
            if let (Some(norm), Some(input)) = (norm, input) {
                let name = |id| self.points.catalog.info(id).name.to_string();
                return Err(HookError::Conflict {
                    point: name(norm),
                    other: name(input),
                    reason: "inputs edited per head are normalized separately, which bypasses this point",
                });
            }
        }
        Ok(())
    }

    /// Checks that the loss can be computed.
    fn check_loss(&self, logits: Logits, tokens: Option<&Tokens>, layers: Layers) -> Result<(), InputError> {
        let Some(tokens) = tokens else {
            let needs = "the tokens it was computed from; pass them as the option `tokens`";
            return Err(InputError::Needs { what: "the loss of a residual stream", needs });
        };
        if layers.stop.is_some() {
            let reason = "a run that stops before the logits has no loss";
            return Err(InputError::Conflict { option: "loss", with: "stop_at_layer", reason });
        }
        if logits != Logits::All {
            return Err(InputError::Needs { what: "the loss", needs: "all logits (`Logits::All`)" });
        }
        loss::check_targets(tokens, self.config.d_vocab_out)
    }

    /// Runs embedding, blocks, and unembedding.
    fn pass(
        &self,
        start: Start,
        mut pass: Pass<'_>,
        StopAt { layers, logits, loss }: StopAt,
        tokens: &mut Option<Tokens>,
        run: &mut Run<'_, '_>,
    ) -> Result<ForwardResult, Halt> {
        let sequence = pass.sequence;
        let mut resid = match start {
            Start::Tokens(given) => {
                let given = self.hooked_tokens(given, loss, run)?;
                let embedded = self.embed(&given, sequence, run)?;
                pass.per_layer_inputs = self.per_layer_inputs(&given, &embedded);
                *tokens = Some(given);
                embedded
            }
            Start::Residual(residual) => {
                // Parts in later layers and the loss also read the tokens.
                if let Some(given) = tokens.take() {
                    *tokens = Some(self.hooked_tokens(given, loss, run)?);
                }
                if let (Some(given), true) = (&tokens, self.config.per_layer_inputs.is_some()) {
                    // The skipped layers ran elsewhere; assume that no hook edited their embedding.
                    pass.per_layer_inputs = self.per_layer_inputs(given, &self.embedded(given));
                }
                residual.cast(self.compute_type())
            }
        };
        match self.config.positional {
            Positional::Learned if layers.start.is_none() => resid = resid + self.positions(sequence, run)?,
            Positional::Shortformer => pass.shortformer = Some(self.positions(sequence, run)?),
            _ => {}
        }

        let blocks = layers.start.unwrap_or(0)..layers.stop.unwrap_or(self.config.n_layers());
        for layer in blocks {
            let block = &self.weights.parts.blocks[layer];
            resid = pass.enter(&block.device(), resid);
            resid = block.forward(layer, resid, &mut pass, run)?;
            self.paging().inspect(|paging| paging.after(layer));
        }
        if layers.stop.is_some() {
            return Ok(ForwardResult { residual: Some(resid), ..ForwardResult::default() });
        }
        let points = NormPoints {
            scale: self.points.outer(Outer::FinalScale),
            normalized: self.points.outer(Outer::FinalNormalized),
        };
        let watched = run.wants(points.scale) || run.wants(points.normalized);
        resid = pass.enter(&self.weights.parts.unembed.device(), resid);
        // Drop unused rows before the norm, unless a hook observes the norm.
        if logits == Logits::Last && !watched {
            resid = last_rows(resid, sequence);
        }
        let mut normalized = self.weights.parts.ln_final.forward(resid, points, run)?;
        if logits == Logits::None {
            return Ok(ForwardResult::default());
        }
        if logits == Logits::Last && watched {
            normalized = last_rows(normalized, sequence);
        }
        Ok(ForwardResult { logits: Some(self.logits(normalized)), ..ForwardResult::default() })
    }

    /// Logits for a residual stream that the final norm has been applied to.
    fn logits(&self, normalized: Tensor<3>) -> Tensor<3> {
        soft_capped(self.weights.parts.unembed.forward(normalized), self.config.output_logits_soft_cap)
    }

    /// Implements [`HookedModel::unembed`].
    pub(super) fn logits_of_stream(&self, stream: Tensor<3>) -> Result<Tensor<3>> {
        self.check_head()?;
        self.check_stream(&stream)?;
        let stream = stream.to_device(&self.weights.parts.unembed.device());
        Ok(self.logits(self.weights.parts.ln_final.without_hooks(stream)))
    }

    /// Fires `hook_tokens` and validates the result.
    fn hooked_tokens(&self, tokens: Tokens, loss: bool, run: &mut Run<'_, '_>) -> Result<Tokens, Halt> {
        let point = self.points.outer(Outer::Tokens);
        if !run.wants(point) {
            return Ok(tokens);
        }
        let edited = run.edits(point);
        let seen = run.fire_int(point, tokens.to_tensor(&self.device()))?;
        if !edited {
            return Ok(tokens);
        }
        let mut changed = Tokens::try_from(seen)?;
        self.check_tokens(&changed)?;
        if let Some(mask) = tokens.mask() {
            changed.set_mask(mask);
        }
        if loss {
            loss::check_targets(&changed, self.config.d_vocab_out)?;
        }
        Ok(changed)
    }

    /// Scaled token embeddings, `[batch, pos, d_model]`.
    fn embedded(&self, tokens: &Tokens) -> Tensor<3> {
        let vectors = self.weights.parts.embed.rows(tokens.ids(), self.compute_type());
        let ([batch, len], d_model) = (tokens.shape(), self.config.d_model);
        let embedded = vectors.reshape([batch, len, d_model]);
        match self.config.embed_scale {
            Some(scale) => embedded * scale,
            None => embedded,
        }
    }

    /// Per-layer inputs, `[batch, pos, layer, width]`, if the model has them.
    fn per_layer_inputs(&self, tokens: &Tokens, embedded: &Tensor<3>) -> Option<Tensor<4>> {
        let (weights, own) = (self.weights.parts.per_layer_embed.as_ref()?, self.config.per_layer_inputs?);
        Some(weights.inputs(tokens, embedded.clone(), own))
    }

    /// Token embeddings, `[batch, pos, d_model]`, plus position embeddings if both are normalized together.
    fn embed(&self, tokens: &Tokens, sequence: &Sequence, run: &mut Run<'_, '_>) -> Result<Tensor<3>, Halt> {
        let mut embedded = self.embedded(tokens);
        if let (Positional::LearnedNormalized, Some(table)) =
            (&self.config.positional, &self.weights.parts.embed.positions)
        {
            embedded = embedded + position_vectors(table.val(), sequence, self.compute_type());
        }
        if let Some(norm) = &self.weights.parts.embed.norm {
            let points = NormPoints {
                scale: self.points.outer(Outer::EmbedLnScale),
                normalized: self.points.outer(Outer::EmbedLnNormalized),
            };
            embedded = norm.forward(embedded, points, run)?;
        }
        run.fire(self.points.outer(Outer::Embed), embedded)
    }

    /// Position embeddings, zero at padding, `[batch, pos, d_model]`.
    fn positions(&self, sequence: &Sequence, run: &mut Run<'_, '_>) -> Result<Tensor<3>, Halt> {
        let Some(table) = &self.weights.parts.embed.positions else {
            return Ok(Tensor::zeros([1, 1, self.config.d_model], &self.device()));
        };
        let vectors = position_vectors(table.val(), sequence, self.compute_type());
        let point = self.points.outer(Outer::PosEmbed);
        if run.wants(point) {
            return run.fire(point, vectors.expand([sequence.batch, sequence.len, self.config.d_model]));
        }
        Ok(vectors)
    }
}

/// Mask columns of the run's own tokens. If the mask also covers the cached tokens, as in Hugging Face, their columns
/// are removed.
fn new_columns(
    rows: Vec<Vec<bool>>,
    [batch, len]: [usize; 2],
    kv_cache: Option<&KeyValueCache>,
) -> Result<Vec<Vec<bool>>, CacheError> {
    let Some(cache) = kv_cache.filter(|cache| !cache.is_empty()) else { return Ok(rows) };
    let past = cache.len();
    if rows.len() != batch || rows.iter().any(|row| row.len() != past + len) {
        return Ok(rows);
    }
    let held = cache.past_mask(batch);
    for (row, mask) in rows.iter().enumerate() {
        let held = |column: usize| held.as_ref().is_none_or(|held| held[row][column]);
        if let Some(column) = (0..past).find(|column| mask[*column] != held(*column)) {
            return Err(CacheError::PastMask { row, column, given: mask[column] });
        }
    }
    Ok(rows.into_iter().map(|row| row[past..].to_vec()).collect())
}

/// Adjusts a mask shape error for a run after a cache, where masks of two lengths are valid.
fn behind(error: InputError, past: usize) -> InputError {
    match error {
        InputError::MaskShape { expected, given } if past > 0 => InputError::MaskBehind { expected, given, past },
        other => other,
    }
}

/// The reason why a point does not fire when only these layers run. `in_stream` states whether position embeddings are
/// part of the residual stream.
fn why_silent(point: &PointInfo, layers: Layers, in_stream: bool) -> Option<&'static str> {
    let start = layers.start.unwrap_or(0);
    match (point.layer, point.segment) {
        (Some(layer), _) if layer < start => Some("the run starts at a later layer"),
        (Some(layer), _) if layers.stop.is_some_and(|stop| layer >= stop) => Some("the run stops before its layer"),
        (Some(_), _) => None,
        (None, Segment::Head) => layers.stop.map(|_| "the run stops before the last norm"),
        (None, Segment::Positions) if !in_stream => None,
        (None, _) => layers.start.map(|_| "the run starts from a residual stream"),
    }
}

/// Each row's last unmasked token, `[batch, 1, d]`.
pub(crate) fn last_rows(x: Tensor<3>, sequence: &Sequence) -> Tensor<3> {
    if sequence.is_plain() {
        return x.narrow(1, sequence.len - 1, 1);
    }
    at_columns(x, &sequence.last_columns()).unsqueeze_dim(1)
}
