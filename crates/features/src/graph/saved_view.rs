//! Pinned nodes, groups and labels in a graph file: its `qParams`.

use std::collections::BTreeSet;

use serde_json::Value;

/// Key of the pinned nodes in `qParams`. Neuronpedia writes lists in files and text in URLs; files may contain either.
const PINNED: &str = "pinnedIds";
/// Key of the groups in `qParams`, which are also written as a list or as text.
const GROUPS: &str = "supernodes";
/// Key of the labels in `qParams`, which are also written as a list or as text.
const LABELS: &str = "clerps";

/// Replaces lists encoded as text with lists, and fails if they cannot be parsed.
pub(super) fn read_lists(json: &mut Value) -> Result<(), String> {
    match json.get_mut("qParams") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(params)) => {
            for (name, read) in [(PINNED, ids as fn(&str, Value) -> _), (GROUPS, rows), (LABELS, rows)] {
                if let Some(value) = params.get_mut(name).filter(|value| !value.is_null()) {
                    *value = read(name, value.take())?;
                }
            }
            Ok(())
        }
        Some(other) => Err(format!("`qParams` is {}; expected an object", short(other))),
    }
}

/// Reads a list of node ids: a list, JSON text, or comma-separated text.
fn ids(name: &str, value: Value) -> Result<Value, String> {
    let value = match value {
        Value::String(text) if text.trim_start().starts_with('[') => parsed(name, &text)?,
        Value::String(text) => text.split(',').map(str::trim).filter(|id| !id.is_empty()).collect(),
        other => other,
    };
    match value.as_array().is_some_and(|list| list.iter().all(is_text)) {
        true => Ok(value),
        false => Err(format!("`qParams.{name}` is {}; expected a list of node ids", short(&value))),
    }
}

/// Reads a list of lists of texts: a list, or JSON text.
fn rows(name: &str, value: Value) -> Result<Value, String> {
    let value = match value {
        Value::String(text) if text.trim().is_empty() => Value::Array(Vec::new()),
        Value::String(text) => parsed(name, &text)?,
        other => other,
    };
    let wanted = if name == GROUPS { "a name and node ids" } else { "a node id and a label" };
    let Some(list) = value.as_array() else {
        return Err(format!("`qParams.{name}` is {}; expected a list of lists, each with {wanted}", short(&value)));
    };
    let is_row = |row: &Value| row.as_array().is_some_and(|row| !row.is_empty() && row.iter().all(is_text));
    match list.iter().position(|row| !is_row(row)) {
        None => Ok(value),
        Some(place) => {
            let given = short(&list[place]);
            Err(format!("entry {place} of `qParams.{name}` is {given}; expected a list with {wanted}"))
        }
    }
}

fn parsed(name: &str, text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("`qParams.{name}` is text that is not JSON: {error}"))
}

/// Whether a value can be a name. Some tools write ids as numbers.
fn is_text(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

/// JSON shortened for an error message.
fn short(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.chars().count() > SHOWN {
        true => format!("{}...", text.chars().take(SHOWN).collect::<String>()),
        false => text,
    }
}

/// The entries of a list; empty for any other value.
fn entries(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Ids that are pinned, grouped or labeled but belong to no node, without repeats.
pub(super) fn ids_without_node(json: &Value) -> Vec<&str> {
    let params = &json["qParams"];
    let nodes: BTreeSet<&str> = entries(&json["nodes"]).iter().filter_map(|node| node["node_id"].as_str()).collect();
    let members = entries(&params[GROUPS]).iter().flat_map(|row| entries(row).iter().skip(1));
    let labeled = entries(&params[LABELS]).iter().filter_map(|row| row.get(0));
    let all = entries(&params[PINNED]).iter().chain(members).chain(labeled).filter_map(Value::as_str);
    all.filter(|id| !nodes.contains(id)).collect::<BTreeSet<_>>().into_iter().collect()
}
