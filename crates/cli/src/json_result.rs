//! JSON results. Each begins with the version of hooklens, the command with its settings, and the model.

use std::any::TypeId;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::terminal::print_json;
use hooklens_data::dump::DumpModel;

/// The function that defines the program, and the command line of this process.
static INVOCATION: OnceLock<(fn() -> Command, ArgMatches)> = OnceLock::new();

/// Options that change where a result goes, but not the result.
const NOT_SETTINGS: [&str; 13] = [
    "out",
    "save",
    "save_mib",
    "diagram",
    "json",
    "quiet",
    "spreadsheet_safe",
    "color_range",
    "colormap",
    "png_scale",
    "resume",
    "help",
    "version",
];

/// Minimum length, in bytes, of JSON that is written to files without indentation.
const LARGE: usize = 1 << 20;

/// Records the command line for [`with_header`]. `program` defines the program.
pub(super) fn record(program: fn() -> Command, matches: ArgMatches) {
    // Set once: a process runs one command.
    INVOCATION.set((program, matches)).ok();
}

/// The command that is running, and its settings.
fn invocation() -> Option<(String, Map<String, Value>)> {
    let (program, matches) = INVOCATION.get()?;
    let mut command = program();
    command.build();
    let (mut definition, mut matches) = (&command, matches);
    let mut names = Vec::new();
    while let Some((name, own)) = matches.subcommand() {
        names.push(name);
        (definition, matches) = (definition.find_subcommand(name)?, own);
    }
    let settings = definition.get_arguments().filter_map(|arg| Some((name_of(arg), setting(arg, matches)?)));
    let settings = settings.filter(|(name, _)| !NOT_SETTINGS.contains(&&**name)).collect();
    Some((names.join(" "), settings))
}

/// Name of an option, as in JSON: `batch_size` for `--batch-size`.
fn name_of(arg: &Arg) -> String {
    arg.get_long().unwrap_or(arg.get_id().as_str()).replace('-', "_")
}

/// Value of an option that was given or has a default: a number, a text, `true`, or a list of these.
fn setting(arg: &Arg, matches: &ArgMatches) -> Option<Value> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return matches.get_flag(id).then_some(Value::Bool(true));
    }
    if !arg.get_action().takes_values() {
        return None;
    }
    let kind = arg.get_value_parser().type_id();
    let numbers =
        [TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>(), TypeId::of::<isize>(), TypeId::of::<bool>()];
    let is_real = kind == TypeId::of::<f32>() || kind == TypeId::of::<f64>();
    let is_number = numbers.iter().any(|number| kind == *number);
    let value = |text: &std::ffi::OsStr| {
        let text = text.to_string_lossy();
        let number = match is_real {
            true => text.parse::<f64>().ok().map(Value::from),
            false => serde_json::from_str(&text).ok().filter(|_| is_number),
        };
        number.unwrap_or_else(|| Value::String(text.into_owned()))
    };
    let mut values: Vec<Value> = matches.get_raw(id)?.map(value).collect();
    let several = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_value_delimiter().is_some()
        || arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    match several {
        true => Some(values.into()),
        false => values.pop(),
    }
}

/// The model of a result.
#[derive(Debug, Clone)]
pub(super) struct ModelId {
    /// The model as it was given with `--model`.
    pub(super) name: String,
    /// A hash of the weights, if they were read.
    pub(super) fingerprint: Option<String>,
}

impl ModelId {
    /// A model whose weights were not read.
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.into(), fingerprint: None }
    }

    /// A loaded model.
    pub(super) fn of(name: &str, model: &impl DumpModel) -> Result<Self, hooklens_model::error::Error> {
        Ok(Self { name: name.into(), fingerprint: Some(model.fingerprint_of_weights()?) })
    }
}

/// Adds the fields that every result begins with to `body`, an object.
pub(super) fn with_header(model: Option<&ModelId>, body: Value) -> Value {
    let mut all = Map::new();
    all.insert("hooklens".into(), env!("CARGO_PKG_VERSION").into());
    if let Some((command, settings)) = invocation() {
        all.insert("command".into(), command.into());
        all.insert("settings".into(), settings.into());
    }
    if let Some(model) = model {
        all.insert("model".into(), model.name.clone().into());
        all.insert("fingerprint".into(), json!(model.fingerprint));
    }
    match body {
        Value::Object(body) => all.extend(body),
        other => {
            all.insert("result".into(), other);
        }
    }
    all.into()
}

/// Prints a result as JSON.
pub(super) fn print_result(model: Option<&ModelId>, body: Value) -> super::CliResult {
    Ok(print_json(&with_header(model, body))?)
}

/// A result as text for a file. Large results are not indented.
pub(super) fn file_text(result: &Value) -> String {
    let short = result.to_string();
    if short.len() < LARGE { format!("{result:#}\n") } else { short + "\n" }
}
