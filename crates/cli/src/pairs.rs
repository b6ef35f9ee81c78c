//! Pairs of clean and corrupted prompts, with their answers and the metric.

use std::ops::Range;
use std::path::Path;

use clap::{Args, ValueEnum};
use xxhash_rust::xxh3::Xxh3;

use super::args::{TokenRows, token_rows};
use super::pair_file::{Line, PairFile, PairPlace, PairPrompt, PairToken, ioi_lines};
use super::share::{Share, setting_name};
use super::written::WrittenArg;
use super::{CliResult, Failure};
use hooklens_analysis::activations::TokenChoice;
use hooklens_analysis::error::PatchError;
use hooklens_analysis::patching::{Ablation, Metric, Patchable, Patching};
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::encoder::{EncoderInput, HookedEncoder};
use hooklens_model::encoder_decoder::{EncoderDecoderInput, HookedEncoderDecoder};
use hooklens_model::error::{Error, InputError, Result as LibResult, error_chain};
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::{PaddingSide, Tokens, single_token};

#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// A prompt with a known answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    clean: Vec<String>,
    /// The same prompt changed so that the answer differs, with the same number of tokens; one per --clean
    #[arg(long, value_name = "TEXT")]
    corrupted: Vec<String>,
    /// The correct next token: one for all prompts, or one per prompt
    #[arg(long, value_name = "TEXT")]
    answer: Vec<String>,
    /// A wrong next token to compare with
    #[arg(long, value_name = "TEXT")]
    wrong: Vec<String>,
    /// The clean prompts as token ids, used as they are: commas within a prompt, semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "clean")]
    tokens: Option<TokenRows>,
    /// The corrupted prompts as token ids, one per clean prompt
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "corrupted")]
    corrupted_tokens: Option<TokenRows>,
    /// The id of the correct next token: one for all prompts, or one per prompt, separated by commas
    #[arg(long, value_name = "ID,...", value_delimiter = ',', conflicts_with = "answer")]
    answer_token: Vec<u32>,
    /// The id of a wrong next token to compare with
    #[arg(long, value_name = "ID,...", value_delimiter = ',', conflicts_with = "wrong")]
    wrong_token: Vec<u32>,
    #[command(flatten)]
    written: WrittenArg,
    /// A file with one {"clean": ..., "corrupted": ..., "answer": ..., "wrong": ...} per line, with prompts and tokens
    /// given as texts or as token ids
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["clean", "corrupted", "answer", "wrong", "tokens", "corrupted_tokens", "answer_token", "wrong_token"])]
    pairs: Option<PairFile>,
    /// Use N pairs generated from the grammar that embedded:ioi was trained on, at most a million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000), conflicts_with_all = ["clean", "corrupted", "answer", "wrong", "tokens", "corrupted_tokens", "answer_token", "wrong_token", "pairs"])]
    ioi: Option<u32>,
    /// The metric
    #[arg(long, value_enum, default_value = "logit-diff")]
    metric: MetricArg,
}

impl PairArgs {
    /// The name of the metric on the command line.
    pub(super) fn metric_name(&self) -> String {
        setting_name(&self.metric)
    }

    /// Whether the metric compares the answer with a wrong token.
    pub(super) fn compares(&self) -> bool {
        self.metric == MetricArg::LogitDiff
    }

    /// Fails for options that do not apply to direct contributions to logits.
    pub(super) fn check_direct(&self) -> CliResult {
        let wrong = |message: &str| Err(Failure::Usage(message.into()));
        if self.metric == MetricArg::LogProb {
            return wrong("--metric log-prob requires --to edges: other contributions add up to logits");
        }
        if !self.corrupted.is_empty() || self.corrupted_tokens.is_some() {
            return wrong("--corrupted and --corrupted-tokens require --to edges");
        }
        Ok(())
    }

    /// Whether any prompts are given.
    pub(super) fn are_given(&self) -> bool {
        !self.clean.is_empty() || self.tokens.is_some() || self.pairs.is_some() || self.ioi.is_some()
    }

    /// The file that the pairs are read from.
    pub(super) fn file(&self) -> Option<&Path> {
        self.pairs.as_ref().map(PairFile::path)
    }
}

/// Fails if the clean and corrupted prompts of all pairs are identical.
fn check_differ(lines: &[Line]) -> CliResult {
    if !lines.iter().all(|line| line.corrupted.as_ref() == Some(&line.clean)) {
        return Ok(());
    }
    let what = if lines.len() == 1 { "prompts are" } else { "prompts of every pair are" };
    let place = lines.first().and_then(|line| line.place.as_ref()).map_or(String::new(), |at| format!("{at}: "));
    let message = format!("{place}there is nothing to measure: the clean and the corrupted {what} identical");
    Err(Failure::Usage(message))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MetricArg {
    /// Logit of the answer minus logit of the wrong token
    LogitDiff,
    /// Logit of the answer
    Logit,
    /// Log probability of the answer
    LogProb,
}

/// A metric's name in tables and pictures, and its unit, from its name on the command line.
pub(super) fn metric_and_unit(name: &str) -> (&str, &'static str) {
    match name {
        "logit-diff" => ("logit difference", "logits"),
        "log-prob" => ("log probability", "nats"),
        other => (other, "logits"),
    }
}

/// Inputs for patching, with their metric.
pub(super) struct Pairs<I> {
    clean: I,
    corrupted: Option<I>,
    metric: Metric,
    /// Clean prompts of all shards, needed for mean ablation.
    all: Option<I>,
    /// Where each pair comes from, if it was read from a file.
    places: Vec<PairPlace>,
}

impl PairArgs {
    pub(super) fn read<M: PairModel>(&self, model: &M) -> Result<Pairs<M::Input>, Failure> {
        let lines = self.lines()?;
        check_differ(&lines)?;
        self.pairs(model, lines)
    }

    /// Pairs of one shard. Mean ablation takes the mean over the clean prompts of all shards. `None` if the shard has no
    /// pairs.
    pub(super) fn read_share<M: PairModel>(
        &self,
        model: &M,
        share: &Share,
        ablate: Option<AblateArg>,
    ) -> Result<Option<Pairs<M::Input>>, Failure> {
        let count = self.count_and_hash()?.0;
        let own = share.of(count);
        if own.is_empty() {
            return Ok(None);
        }
        let is_whole = own.len() == count;
        let lines = self.lines_in(own)?;
        // Pairs of other shards may differ.
        if is_whole && ablate.is_none() {
            check_differ(&lines)?;
        }
        let pairs = self.pairs(model, lines)?;
        if ablate != Some(AblateArg::Mean) {
            return Ok(Some(pairs));
        }
        let all = self.lines()?.into_iter().map(|line| line.clean).collect();
        Ok(Some(Pairs { all: Some(model.input(all, &self.written)?), ..pairs }))
    }

    /// A description of the metric and the prompts, including a hash. Used to check that shards belong together.
    pub(super) fn described(&self) -> Result<String, Failure> {
        let (count, hash) = self.count_and_hash()?;
        let written = self.written.described().map_or(String::new(), |written| format!(", {written}"));
        Ok(format!("{} of {count} pairs ({:032x}){written}", setting_name(&self.metric), hash))
    }

    fn pairs<M: PairModel>(&self, model: &M, lines: Vec<Line>) -> Result<Pairs<M::Input>, Failure> {
        if self.metric == MetricArg::LogitDiff {
            lines.iter().try_for_each(check_answers)?;
            if let Some(place) = lines.iter().find(|line| line.wrong.is_none()).and_then(|line| line.place.as_ref()) {
                return Err(Failure::Usage(format!(
                    "{place}: --metric logit-diff requires a wrong token for each answer; add the key `wrong`"
                )));
            }
        }
        let (mut clean, mut corrupted, mut answer, mut wrong) = (vec![], vec![], vec![], vec![]);
        let mut places = Vec::new();
        for line in lines {
            places.extend(line.place);
            clean.push(line.clean);
            corrupted.extend(line.corrupted);
            answer.push(line.answer);
            wrong.extend(line.wrong);
        }
        if self.metric == MetricArg::LogitDiff && wrong.len() != answer.len() {
            return Err(Failure::Usage(
                "--metric logit-diff requires a wrong token for each answer; pass --wrong".into(),
            ));
        }
        if !corrupted.is_empty() && corrupted.len() != clean.len() {
            let (clean, corrupted) = (clean.len(), corrupted.len());
            return Err(Failure::Usage(format!(
                "{clean} clean prompts, but {corrupted} corrupted prompts; give one corrupted prompt per clean prompt"
            )));
        }
        // Tokens are checked one by one only after an error, to find the pair that caused it.
        let place_of = |error: Error| {
            let is_wrong = |token: &PairToken| {
                choice(model, std::slice::from_ref(token)).and_then(|choice| Metric::logit(model, choice)).is_err()
            };
            let line = answer.iter().position(is_wrong).or_else(|| wrong.iter().position(is_wrong));
            placed(error, line.and_then(|line| places.get(line)))
        };
        let metric = || {
            let right = choice(model, &answer)?;
            match self.metric {
                MetricArg::LogitDiff => Metric::logit_diff(model, right, choice(model, &wrong)?),
                MetricArg::Logit => Metric::logit(model, right),
                MetricArg::LogProb => Metric::log_prob(model, right),
            }
        };
        let metric = metric().map_err(place_of)?;
        // Prompts, too, are checked one by one only after an error: `input` tokenizes all of them in one call.
        let input = |prompts: Vec<PairPrompt>| {
            model.input(prompts.clone(), &self.written).map_err(|failure| {
                let mut each =
                    places.iter().zip(prompts).map(|(at, prompt)| (at, model.input(vec![prompt], &self.written)));
                match each.find_map(|(at, input)| Some((at, input.err()?))) {
                    Some((at, Failure::Failed(error))) => {
                        Failure::Failed(format!("{at}: {}", error_chain(&*error)).into())
                    }
                    _ => failure,
                }
            })
        };
        let corrupted = if corrupted.is_empty() { None } else { Some(input(corrupted)?) };
        let clean = input(clean)?;
        Ok(Pairs { clean, corrupted, metric, all: None, places })
    }

    /// The answer and wrong token of a single prompt.
    pub(super) fn answers(&self) -> Result<(PairToken, Option<PairToken>), Failure> {
        match (&tokens(&self.answer, &self.answer_token)[..], &tokens(&self.wrong, &self.wrong_token)[..]) {
            ([answer], []) => Ok((answer.clone(), None)),
            ([answer], [wrong]) if answer == wrong => Err(nothing_to_measure(answer, None)),
            ([answer], [wrong]) => Ok((answer.clone(), Some(wrong.clone()))),
            _ => Err(Failure::Usage(
                "expected one --answer or --answer-token, and at most one --wrong or --wrong-token".into(),
            )),
        }
    }

    /// The pairs, in the order given.
    pub(super) fn lines(&self) -> Result<Vec<Line>, Failure> {
        match &self.pairs {
            Some(file) => file.lines(),
            None => self.of_options(),
        }
    }

    /// A range of the pairs. The others are not kept in memory if they are read from a file.
    fn lines_in(&self, range: Range<usize>) -> Result<Vec<Line>, Failure> {
        match &self.pairs {
            Some(file) => file.lines_in(range),
            None => Ok(self.of_options()?.drain(range).collect()),
        }
    }

    /// Number of pairs, and a hash of them.
    fn count_and_hash(&self) -> Result<(usize, u128), Failure> {
        match &self.pairs {
            Some(file) => file.count_and_hash(),
            None => self.of_options().map(|lines| (lines.len(), hash_of(&lines))),
        }
    }

    /// The pairs that are not read from a file.
    fn of_options(&self) -> Result<Vec<Line>, Failure> {
        if let Some(count) = self.ioi {
            return ioi_lines(count);
        }
        let clean = prompts(&self.clean, self.tokens.as_ref());
        let count = clean.len();
        if count == 0 {
            return Err(Failure::Usage("--clean (or --tokens) with --answer, or --pairs, or --ioi is required".into()));
        }
        let each = |given: Vec<PairToken>, name: &str| match given.len() {
            len if len == count => Ok(given.into_iter().map(Some).collect()),
            1 => Ok(vec![Some(given[0].clone()); count]),
            0 => Ok(vec![None; count]),
            len => Err(Failure::Usage(format!(
                "{count} clean prompts, but {len} values of --{name}; give one value, or one per prompt"
            ))),
        };
        let (answers, wrong): (Vec<Option<PairToken>>, Vec<_>) = (
            each(tokens(&self.answer, &self.answer_token), "answer")?,
            each(tokens(&self.wrong, &self.wrong_token), "wrong")?,
        );
        let corrupted = prompts(&self.corrupted, self.corrupted_tokens.as_ref());
        let corrupted: Vec<Option<PairPrompt>> = match corrupted.len() {
            0 => vec![None; count],
            len if len == count => corrupted.into_iter().map(Some).collect(),
            len => {
                return Err(Failure::Usage(format!(
                    "{count} clean prompts, but {len} corrupted prompts; give one corrupted prompt per clean prompt"
                )));
            }
        };
        let rest = answers.into_iter().zip(wrong).zip(corrupted);
        let line = |(clean, ((answer, wrong), corrupted)): (PairPrompt, ((Option<PairToken>, _), _))| {
            let message = "--answer or --answer-token is required";
            let answer = answer.ok_or_else(|| Failure::Usage(message.into()))?;
            Ok(Line { clean, corrupted, answer, wrong, place: None })
        };
        clean.into_iter().zip(rest).map(line).collect()
    }
}

/// Prompts from the command line.
fn prompts(texts: &[String], rows: Option<&TokenRows>) -> Vec<PairPrompt> {
    match rows {
        Some(rows) => rows.0.iter().cloned().map(PairPrompt::Tokens).collect(),
        None => texts.iter().cloned().map(PairPrompt::Text).collect(),
    }
}

/// Tokens from the command line.
pub(super) fn tokens(texts: &[String], ids: &[u32]) -> Vec<PairToken> {
    texts.iter().cloned().map(PairToken::Text).chain(ids.iter().copied().map(PairToken::Id)).collect()
}

fn hash_of(lines: &[Line]) -> u128 {
    let mut hash = Xxh3::new();
    for Line { clean, corrupted, answer, wrong, .. } in lines {
        for prompt in [Some(clean), corrupted.as_ref()] {
            match prompt {
                Some(PairPrompt::Tokens(ids)) => hash_ids(&mut hash, ids),
                Some(PairPrompt::Text(text)) => hash_text(&mut hash, text),
                None => hash_text(&mut hash, ""),
            }
        }
        for token in [Some(answer), wrong.as_ref()] {
            match token {
                Some(PairToken::Id(id)) => hash_ids(&mut hash, &[*id]),
                Some(PairToken::Text(text)) => hash_text(&mut hash, text),
                None => hash_text(&mut hash, ""),
            }
        }
    }
    hash.digest128()
}

fn hash_text(hash: &mut Xxh3, text: &str) {
    hash.update(text.as_bytes());
    hash.update(&[0xff]);
}

/// Hashes token ids. A prefix and the length ensure that ids and texts hash differently.
fn hash_ids(hash: &mut Xxh3, ids: &[u32]) {
    hash.update(&[0xfe]);
    hash.update(&(ids.len() as u64).to_le_bytes());
    ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
}

impl<I: Clone> Pairs<I> {
    /// Sets up patching from clean into corrupted runs or, with `ablate`, ablation in the clean runs.
    pub(super) fn patching<M: Patchable<Input = I>>(
        self,
        model: &M,
        ablate: Option<AblateArg>,
    ) -> Result<Patching<'_, M>, Failure> {
        if let Some(ablate) = ablate {
            let ablation = match ablate {
                AblateArg::Zero => Ablation::Zero,
                AblateArg::Mean => Ablation::Mean(self.all.unwrap_or_else(|| self.clean.clone())),
            };
            return Ok(Patching::ablating(model, self.clean, ablation, self.metric)?);
        }
        let corrupted = self.corrupted.ok_or_else(|| {
            Failure::Usage("patching requires a corrupted prompt for each clean one; pass --corrupted".into())
        })?;
        Patching::new(model, self.clean, corrupted, self.metric).map_err(|error| match error.downcast_ref() {
            Some(PatchError::Lengths { example, clean, corrupted }) => {
                let place = self.places.get(*example).map_or_else(|| format!("pair {}", example + 1), PairPlace::to_string);
                let message = format!(
                    "{place}: the clean prompt has {clean} tokens but the corrupted one has {corrupted}; the prompts of \
                     a pair must have the same number of tokens"
                );
                Failure::Failed(message.into())
            }
            _ => error.into(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum AblateArg {
    /// Zero ablation
    Zero,
    /// Mean ablation, over the prompts
    Mean,
}

/// Fails if a pair's answer equals its wrong token, since their logit difference is always zero.
fn check_answers(line: &Line) -> Result<(), Failure> {
    match &line.wrong {
        Some(wrong) if *wrong == line.answer => Err(nothing_to_measure(wrong, line.place.as_ref())),
        _ => Ok(()),
    }
}

fn nothing_to_measure(token: &PairToken, place: Option<&PairPlace>) -> Failure {
    let place = place.map_or(String::new(), |place| format!("{place}: "));
    Failure::Usage(format!("{place}there is nothing to measure: the answer and the wrong token are both {token}"))
}

/// Adds the pair's position in its file to an error.
fn placed(error: Error, place: Option<&PairPlace>) -> Failure {
    match place {
        Some(place) => Failure::Failed(format!("{place}: {}", error_chain(&error)).into()),
        None => error.into(),
    }
}

/// Texts if all tokens are given as text, else ids.
fn choice<M: HookedModel>(model: &M, tokens: &[PairToken]) -> LibResult<TokenChoice> {
    let texts: Option<Vec<String>> = tokens.iter().map(PairToken::text).map(|text| text.map(str::to_string)).collect();
    if let Some(texts) = texts {
        return Ok(TokenChoice::Texts(texts));
    }
    let ids = tokens.iter().map(|token| match token {
        PairToken::Text(text) => Ok(single_token(model.tokenizer()?.target(), text)?),
        PairToken::Id(id) => Ok(*id),
    });
    Ok(TokenChoice::Rows(ids.collect::<LibResult<_>>()?))
}

/// Tokenizes prompts with `row` and pads them on the right.
fn rows_of(prompts: &[PairPrompt], row: impl Fn(&str) -> LibResult<Vec<u32>>) -> LibResult<Tokens> {
    let rows = prompts.iter().map(|prompt| prompt.row(&row));
    Ok(Tokens::padded(&rows.collect::<LibResult<Vec<_>>>()?, 0, PaddingSide::Right)?)
}

/// The prompts' texts, or `None` if any prompt is given as ids.
fn texts_of(prompts: &[PairPrompt]) -> Option<Vec<String>> {
    let text = |prompt: &PairPrompt| match prompt {
        PairPrompt::Text(text) => Some(text.clone()),
        PairPrompt::Tokens(_) => None,
    };
    prompts.iter().map(text).collect()
}

/// A model that can run prompts given on the command line.
pub(super) trait PairModel: Patchable {
    /// Converts prompts to the model's input. `written` is the decoder input, for encoder-decoders.
    fn input(&self, prompts: Vec<PairPrompt>, written: &WrittenArg) -> Result<Self::Input, Failure>;
}

impl PairModel for HookedTransformer {
    fn input(&self, prompts: Vec<PairPrompt>, written: &WrittenArg) -> Result<Input, Failure> {
        no_decoder_prompt(written, "a decoder-only model")?;
        Ok(rows_of(&prompts, |text| self.prompt_row(text, None))?.into())
    }
}

impl PairModel for HookedEncoder {
    fn input(&self, prompts: Vec<PairPrompt>, written: &WrittenArg) -> Result<EncoderInput, Failure> {
        no_decoder_prompt(written, "an encoder")?;
        if let Some(texts) = texts_of(&prompts) {
            return Ok(texts.into());
        }
        Ok(rows_of(&prompts, |text| Ok(self.to_tokens(text)?.tokens.real(0)))?.into())
    }
}

impl PairModel for HookedEncoderDecoder {
    fn input(&self, prompts: Vec<PairPrompt>, written: &WrittenArg) -> Result<EncoderDecoderInput, Failure> {
        let rows = vec![written.row(self)?; prompts.len()];
        if let Some(texts) = texts_of(&prompts) {
            return Ok((texts, rows).into());
        }
        Ok((rows_of(&prompts, |text| Ok(self.to_tokens(text)?.real(0)))?, rows).into())
    }
}

fn no_decoder_prompt(written: &WrittenArg, model: &'static str) -> LibResult<()> {
    match written.is_given() {
        false => Ok(()),
        true => Err(InputError::NoSuchOption { option: "--decoder-prompt", model }.into()),
    }
}
