//! Text generation with an encoder-decoder, token by token, using a cache for self-attention and cross-attention.

use hooklens_hooks::{Hook, HookDetails, RecordRequest};

use super::HookedEncoderDecoder;
use crate::driver::{ForwardOptions, HookedModel, Input, Logits};
use crate::error::{InputError, Result};
use crate::generation::{Generate, GenerateOptions, Generation, Sampler};
use crate::kv_cache::CacheKind;

use crate::tokens::Tokens;

impl Generate for HookedEncoderDecoder {
    fn generate_with(&self, input: impl Into<Input>, mut options: GenerateOptions<'_>) -> Result<Generation> {
        let foreign = [
            ("kv_cache", options.kv_cache.is_some()),
            // The decoder's own cache always grows.
            ("cache_kind", options.cache_kind != CacheKind::GROWING),
        ];
        if let Some((option, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return Err(InputError::NoSuchOption { option, model: "an encoder-decoder" }.into());
        }
        let prompts = self.token_input(input.into())?;
        let [batch, _] = prompts.shape();
        let n_ctx = self.config.positions.n_ctx();
        // The start token is run, but the last generated token is not.
        if options.max_new_tokens > n_ctx {
            let (given, allowed) =
                (options.max_new_tokens.to_string(), format!("at most {n_ctx}, the number of decoder positions"));
            return Err(InputError::Setting { name: "max_new_tokens", given, allowed }.into());
        }
        let (tokenizer, d_vocab) = (self.tokenizer().ok(), self.config.d_decoder_vocab);
        let mut sampler = Sampler::new(tokenizer, d_vocab, &prompts, self.eos_tokens(), &mut options)?;
        let rules = &self.config.token_rules;
        sampler.rules(rules.first, rules.last, &rules.never);
        // Penalties count generated tokens, not the encoder's input.
        sampler.begin_with(vec![self.config.decoder_start_token]);
        options.hooks.iter().try_for_each(|hook| hook.check_reach(options.max_new_tokens))?;
        options.record.check_reach(options.max_new_tokens)?;
        let encoded = self.encode(prompts)?;
        let mut cache = self.decoder_cache(encoded);
        let mut next = Tokens::new(vec![vec![self.config.decoder_start_token]; batch])?;
        let (mut columns, mut steps, mut logits) = (vec![Vec::new(); batch], Vec::new(), Vec::new());
        while sampler.goes_on() {
            let hooks: Vec<Hook<'_>> = options.hooks.iter_mut().map(Hook::reborrow).collect();
            let run = ForwardOptions::new().logits(Logits::Last).hooks(hooks).record(options.record.clone());
            let output = self.decode_with(&mut cache, &next, run)?;
            for (row, column) in columns.iter_mut().enumerate() {
                let real = next.mask().is_none_or(|mask| mask[row]);
                column.push(Some(next.row(row)[0]).filter(|_| real));
            }
            let given = output.logits.ok_or(InputError::NoOutput { what: "logits" })?;
            let given = given.squeeze_dim::<2>(1);
            let tokens = sampler.choose(given.clone(), &options)?;
            next = sampler.following(&tokens)?;
            if !options.record.selects_nothing() {
                steps.push(output.cache);
            }
            if options.logits {
                logits.push(given.unsqueeze_dim::<3>(1));
            }
        }
        sampler.generation(columns, steps, logits, None)
    }
}
