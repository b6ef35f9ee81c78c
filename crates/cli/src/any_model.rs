//! Loading a model of any kind.

use hooklens_loading::loading::FromPretrained;
use std::path::Path;

use super::Failure;
use super::args::ModelArg;
use super::terminal::note;
use hooklens_features::{Dictionary, Opened, SpliceDictionary, open};
use hooklens_loading::loading::LoadOptions;
use hooklens_model::config::ConfigError;
use hooklens_model::driver::HookedModel;
use hooklens_model::encoder::HookedEncoder;
use hooklens_model::encoder_decoder::HookedEncoderDecoder;
use hooklens_model::error::Error;
use hooklens_model::model::{HookedTransformer, LoadReport};
use hooklens_model::tokens::{Tokenizer, token_text};

/// A model of any kind.
#[allow(clippy::large_enum_variant, reason = "there is one a command")]
pub(super) enum AnyModel {
    Decoder(HookedTransformer),
    Encoder(HookedEncoder),
    EncoderDecoder(HookedEncoderDecoder),
}

impl AnyModel {
    /// Loads a model and says which tensors of its files are not used.
    pub(super) fn load(model: &ModelArg, options: LoadOptions) -> Result<Self, Failure> {
        Self::load_for(model, options, None)
    }

    /// Loads a model whose prompts get a token of their beginning, or get none, instead of by its habit.
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
        told(match &any {
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

    /// The tokenizer.
    pub(super) fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        match self {
            AnyModel::Decoder(model) => model.tokenizer(),
            AnyModel::Encoder(model) => model.tokenizer(),
            AnyModel::EncoderDecoder(model) => model.tokenizer(),
        }
    }

    /// Token ids of a text, with the model's special tokens.
    pub(super) fn prompt_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>, Error> {
        match self {
            AnyModel::Decoder(model) => model.prompt_row(text, prepend_bos),
            AnyModel::Encoder(model) => Ok(model.to_tokens(text)?.tokens.real(0)),
            AnyModel::EncoderDecoder(model) => Ok(model.to_tokens(text)?.real(0)),
        }
    }
}

/// Loads a decoder, with the dictionaries that were asked for.
pub(super) fn decoder(command: &str, arg: &ModelArg, options: LoadOptions) -> Result<HookedTransformer, Failure> {
    spliced(plain_decoder(command, arg, options)?, arg, None)
}

/// Loads a decoder without dictionaries. A command that needs the logits of next tokens says so of a model of another kind.
pub(super) fn plain_decoder(command: &str, arg: &ModelArg, options: LoadOptions) -> Result<HookedTransformer, Failure> {
    let model = HookedTransformer::from_pretrained_with(&arg.model, options).map_err(|error| match error {
        Error::Config(ConfigError::OtherKind { family, kind, .. }) => other_kind(command, family, kind),
        error => error.into(),
    })?;
    told(model.load_report());
    Ok(model)
}

/// A decoder with the dictionaries that were asked for, and notes on where they don't agree and are not used.
fn spliced(model: HookedTransformer, arg: &ModelArg, prepend_bos: Option<bool>) -> Result<HookedTransformer, Failure> {
    for path in &arg.dictionary {
        let opened = dictionary(path, arg)?;
        let one = match &opened {
            Opened::Dictionary(one) => Some(one),
            Opened::Transcoders(all) => all.layers().first(),
        };
        let Some(one) = one else { continue };
        one.concerns_on(&model, prepend_bos).iter().for_each(note);
        without_tokens(one, &model)?;
    }
    with_dictionaries(model, arg)
}

/// The dictionary or transcoders at a path.
pub(super) fn dictionary(path: &Path, arg: &ModelArg) -> Result<Opened, Failure> {
    let opened = open(path)?;
    Ok(if arg.all_tokens { opened.excluding(&[]) } else { opened })
}

/// Says at which tokens a dictionary is not used.
pub(super) fn without_tokens(one: &Dictionary, model: &HookedTransformer) -> Result<(), Failure> {
    let ids = one.metadata().exclude_special_tokens.ids(model)?;
    if !ids.is_empty() {
        let named: Vec<String> =
            ids.iter().map(|id| format!("{:?}", token_text(model.tokenizer().ok(), *id))).collect();
        let (name, tokens) = (one.name(), named.join(", "));
        note(format!("{name} was trained without tokens {tokens}, and is not used there; --all-tokens does"));
    }
    Ok(())
}

/// A model with the dictionaries that were asked for.
fn with_dictionaries<M: SpliceDictionary>(mut model: M, arg: &ModelArg) -> Result<M, Failure> {
    for path in &arg.dictionary {
        model = match dictionary(path, arg)? {
            Opened::Dictionary(one) => model.splice_dictionary(&one)?,
            Opened::Transcoders(all) => model.splice_transcoders(&all)?,
        };
    }
    Ok(model)
}

/// Why a command can't work on a kind of model.
pub(super) fn other_kind(command: &str, family: &str, kind: &str) -> Failure {
    let takes = match kind {
        "an encoder" => "info, hooks, dump, patch, lens, bench, attention and parity",
        _ => "info, hooks, dump, patch, lens, bench, attention, generate and parity",
    };
    let told = format!(
        "a {family} model is {kind}, and `hooklens {command}` works on decoders: models that predict the next token of \
         their input; {takes} take this one"
    );
    Failure::Failed(told.into())
}

/// Notes on what of the files and their configuration has no effect.
fn told(report: &LoadReport) {
    const SHOWN: usize = 5;
    for setting in &report.ignored {
        note(format!("ignored: {setting}"));
    }
    report.rounding.iter().for_each(note);
    if !report.widened.is_empty() {
        note(format!("{} quantized tensors are widened, which takes more memory than the file", report.widened.len()));
    }
    if report.read_each_time > 0 {
        note(format!("{} blocks do not fit into memory, and are read from the file each time", report.read_each_time));
    }
    if !report.unused.is_empty() {
        let more = if report.unused.len() > SHOWN { ", ..." } else { "" };
        let some = &report.unused[..report.unused.len().min(SHOWN)];
        note(format!("{} tensors of the model's files are not used: {}{more}", report.unused.len(), some.join(", ")));
    }
}

/// A note on positions that a model was not trained for. (One with a table of positions refuses them.)
pub(super) fn past_context(model: &HookedTransformer, positions: usize) {
    let n_ctx = model.config().n_ctx;
    if positions > n_ctx && model.check_length(positions).is_ok() {
        note(format!(
            "up to {positions} positions, and the model was made for {n_ctx}: what lies behind may be of no use"
        ));
    }
}
