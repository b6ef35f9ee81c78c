//! Pairs of prompts and what is asked of them.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use super::Failure;
use super::share::Share;
use crate::activations::TokenChoice;
use crate::driver::Input;
use crate::encoder::{EncoderInput, HookedEncoder};
use crate::encoder_decoder::{EncoderDecoderInput, HookedEncoderDecoder};
use crate::error::{Error, InputError, PatchError, Result as LibResult, error_chain};
use crate::experiments::ioi_prompts;
use crate::model::HookedTransformer;
use crate::patching::{Ablation, Metric, Patchable, Patching};
use crate::regular;
use crate::tokens::{PaddingSide, Tokens};

#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// A prompt to which the answer is known; may be given several times
    #[arg(long, value_name = "TEXT")]
    clean: Vec<String>,
    /// The same prompt so changed that the answer is another, of as many tokens; one for each --clean
    #[arg(long, value_name = "TEXT")]
    corrupted: Vec<String>,
    /// The right next token: one for all, or one for each prompt
    #[arg(long, value_name = "TEXT")]
    answer: Vec<String>,
    /// A wrong next token to compare with
    #[arg(long, value_name = "TEXT")]
    wrong: Vec<String>,
    /// What the decoder of an encoder-decoder has written before the answer, after its start token
    #[arg(long, value_name = "TEXT")]
    decoder_prompt: Option<String>,
    /// A file with {"clean": ..., "corrupted": ..., "answer": ..., "wrong": ...} a line
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["clean", "corrupted", "answer", "wrong"])]
    pairs: Option<PathBuf>,
    /// What was read of it: a pipe can be read only once.
    #[arg(skip)]
    of_file: OnceLock<Vec<Line>>,
    /// So many pairs of the grammar that embedded:ioi was trained on, at most a million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000), conflicts_with_all = ["clean", "corrupted", "answer", "wrong", "pairs"])]
    ioi: Option<u32>,
    /// What to measure
    #[arg(long, value_enum, default_value = "logit-diff")]
    metric: MetricArg,
}

impl PairArgs {
    /// The file they are read from.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        self.pairs.as_ref()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MetricArg {
    /// Logit of the answer minus that of the wrong one
    LogitDiff,
    /// Logit of the answer
    Logit,
    /// Log-probability of the answer
    LogProb,
}

/// Prompts with their answers.
pub(super) struct Pairs<I> {
    clean: I,
    corrupted: Option<I>,
    metric: Metric,
    /// The clean prompts of all shares, for their mean.
    all: Option<I>,
    /// Where each is from, of a file.
    places: Vec<String>,
}

/// A prompt with its answer.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Line {
    pub(super) clean: String,
    pub(super) corrupted: Option<String>,
    pub(super) answer: String,
    pub(super) wrong: Option<String>,
    /// Where it is from, of a file.
    #[serde(skip)]
    pub(super) place: Option<String>,
}

/// Prompts of the grammar that `embedded:ioi` was trained on.
pub(super) fn ioi_lines(count: u32) -> Result<Vec<Line>, Failure> {
    if count == 0 {
        return Err(Failure::Usage("--ioi 0 asks for no pairs".into()));
    }
    let line = |prompt: crate::experiments::IoiPrompt| Line {
        clean: prompt.text,
        corrupted: Some(prompt.corrupted),
        answer: prompt.answer.into(),
        wrong: Some(prompt.wrong.into()),
        place: None,
    };
    Ok(ioi_prompts(count as usize, 0).into_iter().map(line).collect())
}

/// The longest file of pairs, in bytes: all of them are run together, and a stream may have no end.
const LONGEST: u64 = 1 << 26;

/// Prompts of a file of JSON lines.
pub(super) fn file_lines(path: &Path) -> Result<Vec<Line>, Failure> {
    let failed =
        |line: usize, reason: String| Failure::Failed(format!("{}, line {line}: {reason}", path.display()).into());
    let text = text(path).map_err(|e| Failure::Failed(format!("{}: {e}", path.display()).into()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lines = lines.map(|(number, line)| {
        let read: Line = serde_json::from_str(line).map_err(|e| failed(number + 1, e.to_string()))?;
        Ok(Line { place: Some(format!("{}, line {}", path.display(), number + 1)), ..read })
    });
    let lines = lines.collect::<Result<Vec<Line>, Failure>>()?;
    if lines.is_empty() { Err(failed(1, "no pair".into())) } else { Ok(lines) }
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = BufReader::new(regular::open_stream(path)?).take(LONGEST + 1).read_to_string(&mut text)?;
    match read as u64 > LONGEST {
        true => Err(std::io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20))),
        false => Ok(text),
    }
}

impl PairArgs {
    pub(super) fn read<M: PairModel>(&self, model: &M) -> Result<Pairs<M::Input>, Failure> {
        self.pairs(model, self.lines()?)
    }

    /// Those of a share, with the mean's prompts of all; nothing where none is left for it.
    pub(super) fn read_share<M: PairModel>(
        &self,
        model: &M,
        share: &Share,
    ) -> Result<Option<Pairs<M::Input>>, Failure> {
        let lines = self.lines()?;
        let own = lines[share.of(lines.len())].to_vec();
        if own.is_empty() {
            return Ok(None);
        }
        let all = lines.into_iter().map(|line| line.clean).collect();
        let all = Some(model.input(all, self.decoder_prompt.as_deref())?);
        Ok(Some(Pairs { all, ..self.pairs(model, own)? }))
    }

    /// What tells their prompts from others.
    pub(super) fn described(&self) -> Result<String, Failure> {
        let mut hash = Xxh3::new();
        let lines = self.lines()?;
        for Line { clean, corrupted, answer, wrong, .. } in &lines {
            for text in [Some(clean), corrupted.as_ref(), Some(answer), wrong.as_ref()] {
                hash.update(text.map_or("", String::as_str).as_bytes());
                hash.update(&[0xff]);
            }
        }
        let written = self.decoder_prompt.as_ref().map_or(String::new(), |text| format!(", {text:?} written"));
        Ok(format!("{:?} of {} pairs ({:032x}){written}", self.metric, lines.len(), hash.digest128()))
    }

    fn pairs<M: PairModel>(&self, model: &M, lines: Vec<Line>) -> Result<Pairs<M::Input>, Failure> {
        if self.metric == MetricArg::LogitDiff {
            lines.iter().try_for_each(check_answers)?;
        }
        let same = |line: &Line| line.corrupted.as_ref() == Some(&line.clean);
        if lines.iter().all(same) {
            let what = if lines.len() == 1 { "prompts are" } else { "prompts of every pair are" };
            return Err(Failure::Usage(format!(
                "there is nothing to measure: the clean and the corrupted {what} the same"
            )));
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
            return Err(Failure::Usage("a logit difference needs --wrong beside --answer".into()));
        }
        if !corrupted.is_empty() && corrupted.len() != clean.len() {
            let (clean, corrupted) = (clean.len(), corrupted.len());
            return Err(Failure::Usage(format!("{clean} clean prompts, but {corrupted} corrupted ones")));
        }
        // Only what is wrong is looked for one by one.
        let place_of = |error: Error| {
            let is_wrong = |text: &String| Metric::logit(model, choice(vec![text.clone()])).is_err();
            let line = answer.iter().position(is_wrong).or_else(|| wrong.iter().position(is_wrong));
            placed(error, line.and_then(|line| places.get(line)))
        };
        let (right, other) = (choice(answer.clone()), choice(wrong.clone()));
        let metric = match self.metric {
            MetricArg::LogitDiff => Metric::logit_diff(model, right, other),
            MetricArg::Logit => Metric::logit(model, right),
            MetricArg::LogProb => Metric::log_prob(model, right),
        };
        let metric = metric.map_err(place_of)?;
        let written = self.decoder_prompt.as_deref();
        let corrupted = if corrupted.is_empty() { None } else { Some(model.input(corrupted, written)?) };
        Ok(Pairs { clean: model.input(clean, written)?, corrupted, metric, all: None, places })
    }

    /// The one answer and wrong answer of a single prompt.
    pub(super) fn tokens(&self) -> Result<(String, Option<String>), Failure> {
        match (&self.answer[..], &self.wrong[..]) {
            ([answer], []) => Ok((answer.clone(), None)),
            ([answer], [wrong]) if answer == wrong => Err(nothing_to_measure(answer, None)),
            ([answer], [wrong]) => Ok((answer.clone(), Some(wrong.clone()))),
            _ => Err(Failure::Usage("give one --answer, and perhaps one --wrong".into())),
        }
    }

    fn lines(&self) -> Result<Vec<Line>, Failure> {
        if let Some(count) = self.ioi {
            return ioi_lines(count);
        }
        if let Some(path) = &self.pairs {
            return match self.of_file.get() {
                Some(lines) => Ok(lines.clone()),
                None => file_lines(path).map(|lines| self.of_file.get_or_init(|| lines).clone()),
            };
        }
        let count = self.clean.len();
        if count == 0 {
            return Err(Failure::Usage("give --clean and --answer, --pairs, or --ioi".into()));
        }
        let each = |given: &[String], name: &str| match given.len() {
            len if len == count => Ok(given.iter().cloned().map(Some).collect()),
            1 => Ok(vec![Some(given[0].clone()); count]),
            0 => Ok(vec![None; count]),
            len => Err(Failure::Usage(format!("{count} clean prompts, but {len} of --{name}"))),
        };
        let (answers, wrong): (Vec<Option<String>>, Vec<_>) =
            (each(&self.answer, "answer")?, each(&self.wrong, "wrong")?);
        let corrupted: Vec<Option<String>> = match self.corrupted.len() {
            0 => vec![None; count],
            len if len == count => self.corrupted.iter().cloned().map(Some).collect(),
            len => return Err(Failure::Usage(format!("{count} clean prompts, but {len} corrupted ones"))),
        };
        let rest = answers.into_iter().zip(wrong).zip(corrupted);
        let line = |(clean, ((answer, wrong), corrupted)): (&String, ((Option<String>, _), _))| {
            let answer = answer.ok_or_else(|| Failure::Usage("--answer says what the next token should be".into()))?;
            Ok(Line { clean: clean.clone(), corrupted, answer, wrong, place: None })
        };
        self.clean.iter().zip(rest).map(line).collect()
    }
}

impl<I: Clone> Pairs<I> {
    /// Patches clean into corrupted or, ablating, into the clean runs.
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
            Failure::Usage("patching needs --corrupted prompts beside the clean ones (or --ablate)".into())
        })?;
        Patching::new(model, self.clean, corrupted, self.metric).map_err(|error| match error {
            Error::Patch(PatchError::Lengths { example, .. }) => placed(error, self.places.get(example)),
            _ => error.into(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum AblateArg {
    /// Zeros
    Zero,
    /// The mean over the prompts
    Mean,
}

/// An error with the place of the pair that it is about.
/// Fails if a pair's answer is its wrong token, so that their difference is zero whatever is patched.
fn check_answers(line: &Line) -> Result<(), Failure> {
    match &line.wrong {
        Some(wrong) if *wrong == line.answer => Err(nothing_to_measure(wrong, line.place.as_deref())),
        _ => Ok(()),
    }
}

fn nothing_to_measure(token: &str, place: Option<&str>) -> Failure {
    let place = place.map_or(String::new(), |place| format!("{place}: "));
    Failure::Usage(format!("{place}there is nothing to measure: the answer and the wrong token are both {token:?}"))
}

fn placed(error: Error, place: Option<&String>) -> Failure {
    match place {
        Some(place) => Failure::Failed(format!("{place}: {}", error_chain(&error)).into()),
        None => error.into(),
    }
}

fn choice(texts: Vec<String>) -> TokenChoice {
    TokenChoice::Texts(texts)
}

/// A model that prompts of the command line can be patched in.
pub(super) trait PairModel: Patchable {
    /// Texts as the model's input; `written` is what the decoder of an encoder-decoder has written.
    fn input(&self, texts: Vec<String>, written: Option<&str>) -> LibResult<Self::Input>;
}

impl PairModel for HookedTransformer {
    fn input(&self, texts: Vec<String>, written: Option<&str>) -> LibResult<Input> {
        no_decoder_prompt(written, "a decoder alone")?;
        let rows = texts.iter().map(|text| self.prompt_row(text, None)).collect::<LibResult<Vec<_>>>()?;
        Ok(Tokens::padded(&rows, 0, PaddingSide::Right)?.into())
    }
}

impl PairModel for HookedEncoder {
    fn input(&self, texts: Vec<String>, written: Option<&str>) -> LibResult<EncoderInput> {
        no_decoder_prompt(written, "an encoder")?;
        Ok(texts.into())
    }
}

impl PairModel for HookedEncoderDecoder {
    fn input(&self, texts: Vec<String>, written: Option<&str>) -> LibResult<EncoderDecoderInput> {
        let rows = vec![self.written(written)?; texts.len()];
        Ok((texts, rows).into())
    }
}

fn no_decoder_prompt(written: Option<&str>, model: &'static str) -> LibResult<()> {
    match written {
        None => Ok(()),
        Some(_) => Err(InputError::NoSuchOption { option: "--decoder-prompt", model }.into()),
    }
}
