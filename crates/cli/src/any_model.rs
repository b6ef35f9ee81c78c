//! Loading a model of any kind.

use hooklens_loading::loading::FromPretrained;
use std::path::Path;

use super::Failure;
use super::args::ModelArg;
use super::json_result::ModelId;
use super::terminal::note;
use hooklens_features::{Opened, SpliceDictionary, open};
use hooklens_loading::loading::LoadOptions;
use hooklens_model::config::ConfigError;
use hooklens_model::driver::HookedModel;
use hooklens_model::encoder::HookedEncoder;
use hooklens_model::encoder_decoder::HookedEncoderDecoder;
use hooklens_model::error::Error;
use hooklens_model::model::{DecoderInput, HookedTransformer, LoadReport, ModelWeights};
use hooklens_model::tokens::{Tokenizer, token_text};

/// A model of any kind.
#[allow(clippy::large_enum_variant, reason = "each command loads only one")]
pub(super) enum AnyModel {
    Decoder(HookedTransformer),
    Encoder(HookedEncoder),
    EncoderDecoder(HookedEncoderDecoder),
}

impl AnyModel {
    /// Loads a model and prints notes from the load report, for example about unused tensors.
    pub(super) fn load(model: &ModelArg, options: LoadOptions) -> Result<Self, Failure> {
        Self::load_for(model, options, None)
    }

    /// Like [`AnyModel::load`], with `prepend_bos` overriding the model's default when spliced dictionaries are
    /// checked.
    pub(super) fn load_for(model: &ModelArg, options: LoadOptions, prepend_bos: Option<bool>) -> Result<Self, Failure> {
        let name = &model.model;
        let any = match HookedTransformer::from_pretrained_with(name, options.clone()) {
            Ok(decoder) => AnyModel::Decoder(decoder),
            Err(Error::Config(ConfigError::OtherKind { kind: "an encoder", .. })) => {
                AnyModel::Encoder(HookedEncoder::from_pretrained_with(name, options)?)
            }
            Err(Error::Config(ConfigError::OtherKind { .. })) => {
                AnyModel::EncoderDecoder(HookedEncoderDecoder::from_pretrained_with(name, options)?)
            }
            Err(error) => return Err(error.into()),
        };
        note_report(match &any {
            AnyModel::Decoder(model) => model.load_report(),
            AnyModel::Encoder(model) => model.load_report(),
            AnyModel::EncoderDecoder(model) => model.load_report(),
        });
        Ok(match any {
            AnyModel::Decoder(own) => AnyModel::Decoder(spliced(own, model, prepend_bos)?),
            AnyModel::Encoder(own) => AnyModel::Encoder(with_dictionaries(own, model)?),
            AnyModel::EncoderDecoder(own) => AnyModel::EncoderDecoder(with_dictionaries(own, model)?),
        })
    }

    /// Name and fingerprint of the model, for results.
    pub(super) fn id(&self, name: &str) -> Result<ModelId, Error> {
        match self {
            AnyModel::Decoder(model) => ModelId::of(name, model),
            AnyModel::Encoder(model) => ModelId::of(name, model),
            AnyModel::EncoderDecoder(model) => ModelId::of(name, model),
        }
    }

    /// The model's tokenizer.
    pub(super) fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        match self {
            AnyModel::Decoder(model) => model.tokenizer(),
            AnyModel::Encoder(model) => model.tokenizer(),
            AnyModel::EncoderDecoder(model) => model.tokenizer(),
        }
    }

    /// Tokenizes a prompt, adding the model's special tokens.
    pub(super) fn prompt_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>, Error> {
        match self {
            AnyModel::Decoder(model) => model.prompt_row(text, prepend_bos),
            AnyModel::Encoder(model) => Ok(model.to_tokens(text)?.tokens.real(0)),
            AnyModel::EncoderDecoder(model) => Ok(model.to_tokens(text)?.real(0)),
        }
    }
}

/// Loads a decoder and splices in the dictionaries given with `--dictionary`.
pub(super) fn decoder(command: &str, arg: &ModelArg, options: LoadOptions) -> Result<HookedTransformer, Failure> {
    spliced(plain_decoder(command, arg, options)?, arg, None)
}

/// Loads a decoder without dictionaries. Fails for encoders and encoder-decoders, naming the commands that take them.
pub(super) fn plain_decoder(command: &str, arg: &ModelArg, options: LoadOptions) -> Result<HookedTransformer, Failure> {
    let model = HookedTransformer::from_pretrained_with(&arg.model, options).map_err(|error| match error {
        Error::Config(ConfigError::OtherKind { family, kind, .. }) => other_kind(command, family, kind),
        error => error.into(),
    })?;
    note_report(model.load_report());
    Ok(model)
}

/// Splices the `--dictionary` dictionaries into a decoder. Prints notes about mismatches with the model, and about
/// tokens that the dictionaries are not applied to.
fn spliced(model: HookedTransformer, arg: &ModelArg, prepend_bos: Option<bool>) -> Result<HookedTransformer, Failure> {
    let mut excluded = Vec::new();
    for path in &arg.dictionary {
        let opened = dictionary(path, arg)?;
        let one = match &opened {
            Opened::Dictionary(one) => Some(one),
            Opened::Transcoders(all) => all.layers().first(),
        };
        let Some(one) = one else { continue };
        one.compatibility_warnings(&model, prepend_bos).iter().for_each(note);
        excluded.push((opened_name(&opened).to_string(), one.metadata().exclude_special_tokens.ids(&model)?));
    }
    note_excluded_tokens(&excluded, &model);
    with_dictionaries(model, arg)
}

/// Opens the dictionary or transcoders at `path`; with `--all-tokens`, they apply at every token.
pub(super) fn dictionary(path: &Path, arg: &ModelArg) -> Result<Opened, Failure> {
    Ok(everywhere(open(path)?, arg))
}

/// Applies a dictionary or transcoders at every token if `--all-tokens` is given.
pub(super) fn everywhere(opened: Opened, arg: &ModelArg) -> Opened {
    match opened {
        Opened::Dictionary(one) if arg.all_tokens => Opened::Dictionary(one.exclude_tokens([])),
        Opened::Transcoders(all) if arg.all_tokens => Opened::Transcoders(all.exclude_tokens([])),
        opened => opened,
    }
}

/// The name of a dictionary, or of transcoders of all layers.
pub(super) fn opened_name(opened: &Opened) -> &str {
    match opened {
        Opened::Dictionary(one) => one.name(),
        Opened::Transcoders(all) => all.name(),
    }
}

/// Prints notes that name the tokens dictionaries are not applied to. Dictionaries with the same tokens share a note.
pub(super) fn note_excluded_tokens(dictionaries: &[(String, Vec<u32>)], model: &HookedTransformer) {
    let mut by_tokens: Vec<(&[u32], Vec<&str>)> = Vec::new();
    for (name, ids) in dictionaries.iter().filter(|(_, ids)| !ids.is_empty()) {
        match by_tokens.iter_mut().find(|(own, _)| **own == ids[..]) {
            Some((_, names)) => names.push(name),
            None => by_tokens.push((&ids[..], vec![name.as_str()])),
        }
    }
    for (ids, mut names) in by_tokens {
        if let Some(set) = shared_set(&names) {
            names = vec![set];
        }
        let texts: Vec<String> =
            ids.iter().map(|id| format!("{:?}", token_text(model.tokenizer().ok(), *id))).collect();
        let (was, is, it) = if names.len() == 1 { ("was", "is", "it") } else { ("were", "are", "them") };
        let (names, tokens) = (names.join(", "), texts.join(", "));
        note(format!(
            "{names} {was} trained without the tokens {tokens} and {is} not applied to them; pass --all-tokens to \
             apply {it} there too"
        ));
    }
}

/// The folder of several dictionaries whose names differ only in numbers, such as layers: `set` for `set/layer_0` and
/// `set/layer_1`.
fn shared_set<'n>(names: &[&'n str]) -> Option<&'n str> {
    let without_digits = |name: &str| name.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>();
    let (first, others) = names.split_first().filter(|(_, others)| !others.is_empty())?;
    let (folder, file) = first.rsplit_once('/')?;
    let is_similar = |name: &&str| {
        name.rsplit_once('/').is_some_and(|(own, other)| own == folder && without_digits(other) == without_digits(file))
    };
    others.iter().all(is_similar).then_some(folder)
}

/// Splices the `--dictionary` dictionaries into a model.
fn with_dictionaries<M: SpliceDictionary>(mut model: M, arg: &ModelArg) -> Result<M, Failure> {
    for path in &arg.dictionary {
        model = match dictionary(path, arg)? {
            Opened::Dictionary(one) => model.splice_dictionary(&one)?,
            Opened::Transcoders(all) => model.splice_transcoders(&all)?,
        };
    }
    Ok(model)
}

/// Error for a command that does not support this kind of model.
pub(super) fn other_kind(command: &str, family: &str, kind: &str) -> Failure {
    let takes = match kind {
        "an encoder" => "info, hooks, dump, patch, lens, bench, attention and parity",
        _ => "info, hooks, dump, patch, lens, bench, attention, generate and parity",
    };
    let message = format!(
        "a {family} model is {kind}, but `hooklens {command}` requires a decoder (a model that predicts the next token \
         of its input); the commands {takes} accept this model"
    );
    Failure::Failed(message.into())
}

/// Prints the parts of the load report that a user should know about: ignored settings, tensors widened to a larger
/// dtype, and unused tensors.
pub(super) fn note_report(report: &LoadReport) {
    const SHOWN: usize = 5;
    for setting in &report.ignored {
        note(format!("ignored: {setting}"));
    }
    report.rounding.iter().for_each(note);
    if !report.widened.is_empty() {
        note(format!(
            "{} quantized tensors were dequantized and take more memory than in the file",
            report.widened.len()
        ));
    }
    if report.read_each_time > 0 {
        note(format!(
            "{} blocks do not fit into memory and are read from the file on every run",
            report.read_each_time
        ));
    }
    if !report.unused.is_empty() {
        let more = if report.unused.len() > SHOWN { ", ..." } else { "" };
        let some = &report.unused[..report.unused.len().min(SHOWN)];
        note(format!("{} tensors in the model's files are not used: {}{more}", report.unused.len(), some.join(", ")));
    }
}

/// Prints a note if prompts are longer than the model's context. Models with learned position embeddings reject them
/// with an error instead.
pub(super) fn past_context(model: &HookedTransformer, positions: usize) {
    let n_ctx = model.config().n_ctx();
    if positions > n_ctx && model.check_length(positions).is_ok() {
        note(format!(
            "this run has up to {positions} positions, but the model's context is {n_ctx}; results beyond it may be \
             unreliable"
        ));
    }
}
