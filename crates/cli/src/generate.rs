//! `hooklens generate`.

use hooklens_model::model::DecoderInput;
use std::io::Write;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;

use super::any_model::{AnyModel, past_context, plain_decoder};
use super::args::{DtypeArg, ModelArg, ProcessArg, TokenRows, token_rows};
use super::feature_edit::{FeatureEditArg, feature_edit};
use super::given::{Given, row_of};
use super::json_result::{ModelId, print_result};
use super::out::plural;
use super::prompt_files::PromptFiles;
use super::replacement::replacement;
use super::terminal::{is_unread, stdout};
use super::{CliResult, Failure};
use hooklens_features::graph::{FeatureEdit, generate_edited};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::InputError;
use hooklens_model::generation::{Generate, GenerateOptions, GeneratedRow, Sampling, Stop};
use hooklens_model::kv_cache::{Bits, CacheKind, Offload};
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::{PaddingSide, Tokens, decode_generated};

/// Maximum number of rows: prompts times samples.
const MOST_ROWS: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompts", "tokens"])))]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    dtype: DtypeArg,
    #[command(flatten)]
    process: ProcessArg,
    /// A prompt; may be given several times. For a prompt that starts with a dash: --prompt='- so'
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    prompt: Vec<String>,
    #[command(flatten)]
    files: PromptFiles,
    /// Token ids, separated by commas within a prompt and semicolons between prompts
    #[arg(long, value_name = "IDS", value_parser = token_rows)]
    tokens: Option<TokenRows>,
    /// Maximum number of tokens to generate for each prompt
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_new_tokens: usize,
    /// Pick the most likely token at each step (the default)
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    greedy: bool,
    /// Number of texts to sample for each prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Sample with this temperature; 0 is greedy
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the smallest set of most likely tokens with total probability P (nucleus sampling)
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Sample from tokens with at least P times the probability of the most likely one
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Subtract this from a token's logit for each earlier occurrence
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    frequency_penalty: f64,
    /// Divide the logits of tokens that have already occurred by this
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Random seed; the same seed gives the same tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop generating for a prompt once its text contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Source language of the prompts, as the tokenizer spells it (e.g. eng_Latn), for models that need it in their
    /// input (NLLB, mBART)
    #[arg(long, value_name = "TOKEN", conflicts_with = "tokens")]
    source_language: Option<String>,
    /// Force the first generated token, given as its text or id: for NLLB and mBART the target language, such as
    /// fra_Latn
    #[arg(long, value_name = "TOKEN")]
    first_token: Option<String>,
    /// Kind of KV cache; several kinds can be combined, as in `sliding,8bit`
    #[arg(long, value_enum, value_delimiter = ',', default_value = "growing")]
    kv: Vec<KvArg>,
    /// Change a feature of the dictionary while generating, without splicing the dictionary in: 3:14+:12=0 (layer 3,
    /// from position 14 on, latent 12); x2 doubles its activation, and without + only that position of the prompt
    /// changes; may be given several times
    #[arg(long, value_name = "LAYER:POS:LATENT=VALUE", value_parser = feature_edit)]
    set: Vec<FeatureEditArg>,
    /// Whether prompts get a beginning-of-sequence token (default: as the model was trained)
    #[arg(long, value_name = "true|false", num_args = 1)]
    prepend_bos: Option<bool>,
    /// Print JSON: tokens, text, log probabilities, and why each prompt stopped
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KvArg {
    /// Memory that grows as needed
    Growing,
    /// Memory allocated up front
    Preallocated,
    /// Only the positions that the layers' attention windows can see
    Sliding,
    /// Quantized to 8 bits per element
    #[value(name = "8bit")]
    EightBit,
    /// Quantized to 4 bits per element
    #[value(name = "4bit")]
    FourBit,
    /// Offloaded to main memory
    Memory,
    /// In a temporary file
    Disk,
}

impl KvArg {
    /// Combines the chosen kinds; a preallocated cache holds `max_len` positions.
    fn kind(all: &[KvArg], max_len: usize) -> CacheKind {
        all.iter().fold(CacheKind::GROWING, |kind, arg| match arg {
            KvArg::Growing => kind,
            KvArg::Preallocated => kind.limited(max_len),
            KvArg::Sliding => kind.sliding(),
            KvArg::EightBit => kind.quantized(Bits::Eight, 64),
            KvArg::FourBit => kind.quantized(Bits::Four, 64),
            KvArg::Memory => kind.offloaded(Offload::Memory),
            KvArg::Disk => kind.offloaded(Offload::Disk),
        })
    }
}

pub(super) fn run(args: &GenerateArgs) -> CliResult {
    let options = args.model.processed(args.dtype.dtype, args.process)?;
    let chance = args.temperature.is_some() || args.top_k.is_some() || args.top_p.is_some() || args.min_p.is_some();
    if args.samples > 1 && !chance {
        let message = "--samples requires sampling, such as --temperature 1; otherwise all samples would be the same";
        return Err(Failure::Usage(message.into()));
    }
    let edited = (!args.set.is_empty()).then(|| replacement(&args.model, None)).transpose()?;
    let model = match &edited {
        // The dictionary's features are changed, but it is not spliced in.
        Some(_) => AnyModel::Decoder(plain_decoder("generate --set", &args.model, options)?),
        None => AnyModel::load_for(&args.model, options, args.prepend_bos)?,
    };
    let prompts = rows_of(&model, args)?;
    let samples = args.samples as usize;
    let count = prompts.len().saturating_mul(samples);
    if count > MOST_ROWS {
        let message = format!("--samples {samples} of {} is {count} rows", plural(prompts.len(), "prompt"));
        return Err(Failure::Usage(format!("{message}, more than the maximum of {MOST_ROWS}; generate them in parts")));
    }
    let rows: Vec<Vec<u32>> = prompts.into_iter().flat_map(|row| std::iter::repeat_n(row, samples)).collect();
    let input = Tokens::padded(&rows, 0, PaddingSide::Right)?;
    let sampling = Sampling {
        temperature: args.temperature.unwrap_or(if chance { 1.0 } else { 0.0 }),
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        frequency_penalty: args.frequency_penalty,
        repetition_penalty: args.repetition_penalty,
    };
    let longest_prompt = rows.iter().map(Vec::len).max().unwrap_or(0);
    let longest = longest_prompt.saturating_add(args.max_new_tokens);
    let first_token = args.first_token.as_ref().map(|token| one_token(&model, token)).transpose()?;
    let options = |seed: u64| {
        let options = GenerateOptions::new()
            .max_new_tokens(args.max_new_tokens)
            .sampling(sampling)
            .seed(seed)
            .cache_kind(KvArg::kind(&args.kv, longest))
            .stop_strings(args.stop.clone());
        first_token.into_iter().fold(options, GenerateOptions::first_token)
    };
    if let AnyModel::Decoder(model) = &model {
        fits(model, longest_prompt, args.max_new_tokens)?;
        past_context(model, longest);
    }
    let (made, before) = match (&model, &edited) {
        (AnyModel::Decoder(model), Some((replacement, _))) => {
            let edits: Vec<FeatureEdit> = args.set.iter().map(|set| set.edit).collect();
            let mut made = Vec::new();
            // Edits apply to one prompt at a time. Samples of a prompt need different seeds.
            for (row, seed) in rows.iter().zip(args.seed..) {
                made.extend(generate_edited(model, row.clone(), replacement, &edits, options(seed))?.rows);
            }
            (made, true)
        }
        (AnyModel::Decoder(model), None) if !args.json && rows.len() == 1 && model.tokenizer().is_ok() => {
            return stream(model, &input, options(args.seed));
        }
        (AnyModel::Decoder(model), None) => (model.generate_with(&input, options(args.seed))?.rows, true),
        // An encoder-decoder's output does not include its input.
        (AnyModel::EncoderDecoder(model), _) => (model.generate_with(&input, options(args.seed))?.rows, false),
        (AnyModel::Encoder(_), _) => {
            let message = "an encoder predicts masked tokens and cannot generate text; `hooklens info` lists its heads";
            return Err(Failure::Failed(message.into()));
        }
    };
    if args.json {
        return print_generation(&model.id(&args.model.model)?, &made);
    }
    let mut out = stdout();
    for row in &made {
        match &row.text {
            Some(_) if !before => writeln!(out, "{}", decode_generated(model.tokenizer()?, &row.new, true)?)?,
            Some(_) => {
                writeln!(out, "{}", decode_generated(model.tokenizer()?, &[&row.prompt[..], &row.new].concat(), true)?)?
            }
            None => writeln!(out, "{}", ids(&row.new))?,
        }
    }
    Ok(())
}

/// Checks that the longest prompt and its new tokens have places in the model's position table. The last new token is
/// never run.
fn fits(model: &HookedTransformer, prompt: usize, new: usize) -> CliResult {
    match model.check_length(prompt.saturating_add(new.saturating_sub(1))) {
        Err(InputError::TooLong { n_ctx, .. }) if prompt <= n_ctx => Err(Failure::Usage(format!(
            "--max-new-tokens {new} is too large: the longest prompt has {}, and the model's position table has {n_ctx} \
             entries; at most {} can be generated",
            plural(prompt, "token"),
            plural(n_ctx + 1 - prompt, "token")
        ))),
        Err(InputError::TooLong { n_ctx, .. }) => Err(Failure::Usage(format!(
            "the longest prompt has {}, but the model's position table has {n_ctx} entries; shorten the prompt",
            plural(prompt, "token")
        ))),
        other => Ok(other?),
    }
}

/// Tokenizes the prompts.
fn rows_of(model: &AnyModel, args: &GenerateArgs) -> Result<Vec<Vec<u32>>, Failure> {
    if args.source_language.is_some() && !matches!(model, AnyModel::EncoderDecoder(_)) {
        return Err(Failure::Failed("--source-language requires an encoder-decoder".into()));
    }
    let row = |text: &str| match (&args.source_language, model) {
        (Some(language), AnyModel::EncoderDecoder(own)) => Ok(own.to_tokens_of(language, text)?.real(0)),
        _ => model.prompt_row(text, args.prepend_bos),
    };
    let given = Given::read(&args.files, args.tokens.as_ref(), &args.prompt)?;
    let rows = given.map(|given| given.rows(|prompt| row_of(prompt, row))).transpose()?.map(|given| given.rows);
    rows.filter(|rows| !rows.is_empty()).ok_or_else(|| Failure::Failed("there are no prompts".into()))
}

/// Id of a token given by its text or id.
fn one_token(model: &AnyModel, token: &str) -> Result<u32, Failure> {
    match model.tokenizer().ok().and_then(|tokenizer| tokenizer.id(token)).or(token.parse().ok()) {
        Some(id) => Ok(id),
        None => Err(Failure::Failed(format!("--first-token {token}: the vocabulary has no such token").into())),
    }
}

fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Prints the text of a single prompt as it is generated.
fn stream(model: &HookedTransformer, input: &Tokens, options: GenerateOptions<'_>) -> CliResult {
    let mut out = stdout();
    let mut tokens = input.row(0).to_vec();
    let mut shown = 0;
    let mut show = |tokens: &[u32], all: bool| -> CliResult {
        let text = decode_generated(model.tokenizer()?, tokens, true)?;
        // A character may span several tokens. Incomplete ones are held back.
        let whole = if all { text.as_str() } else { text.trim_end_matches('\u{fffd}') };
        if let Some(new) = whole.get(shown..) {
            write!(out, "{new}")?;
            out.flush()?;
            shown = whole.len();
        }
        Ok(())
    };
    let steps = model.generate_steps(input, options)?;
    show(&tokens, false)?;
    for step in steps {
        tokens.extend(step?.tokens[0]);
        show(&tokens, false)?;
        if is_unread() {
            return Ok(());
        }
    }
    show(&tokens, true)?;
    writeln!(out)?;
    Ok(())
}

fn print_generation(model: &ModelId, made: &[GeneratedRow]) -> CliResult {
    let rows: Vec<_> = (made.iter())
        .map(|row| {
            let stop = match &row.stop {
                Stop::Length => json!("length"),
                Stop::Token(token) => json!({"token": token}),
                Stop::Text(text) => json!({"text": text}),
            };
            json!({
                "prompt_tokens": row.prompt, "new_tokens": row.new, "text": row.text,
                "log_probs": row.log_probs, "stop": stop,
            })
        })
        .collect();
    print_result(Some(model), json!({ "rows": rows }))
}
