//! The replacement of a model's activations in an attribution graph: dictionaries or neurons.

use super::Failure;
use super::any_model::{dictionary, opened_name};
use super::args::ModelArg;
use super::terminal::note;
use hooklens_features::graph::Replacement;
use hooklens_features::{Dictionary, Opened, is_cross_layer, open};

/// The transcoders that are used for `embedded:ioi` if no dictionary is given.
const OF_IOI: &str = "embedded:ioi-transcoders";

/// A dictionary, or transcoders of all layers, under its name.
pub(super) struct NamedDictionary {
    /// Name of the dictionary or of the set.
    pub(super) name: String,
    /// The dictionary, or the first one of the set.
    pub(super) first: Dictionary,
}

/// The replacement for the model's activations, and the first dictionary of each `--dictionary`.
pub(super) fn replacement(
    model: &ModelArg,
    neurons: Option<usize>,
) -> Result<(Replacement, Vec<NamedDictionary>), Failure> {
    if let Some(count) = neurons {
        return Ok((Replacement::neurons(count), Vec::new()));
    }
    if model.dictionary.is_empty() {
        return match &*model.model {
            "embedded:ioi" => {
                note(format!("--dictionary is not given; using {OF_IOI}"));
                Ok(opened(open(OF_IOI)?))
            }
            _ => {
                let message = "--dictionary (transcoders or autoencoders, whose latents become features) or --neurons N \
                            (neurons of the MLPs) is required";
                Err(Failure::Usage(message.into()))
            }
        };
    }
    if let [path] = &model.dictionary[..] {
        return Ok(opened(dictionary(path, model)?));
    }
    let (mut all, mut firsts) = (Vec::new(), Vec::new());
    for path in &model.dictionary {
        let place = all.len();
        let opened = dictionary(path, model)?;
        let name = opened_name(&opened).to_string();
        match opened {
            Opened::Dictionary(one) => all.push(one),
            Opened::Transcoders(own) if is_cross_layer(&own) => {
                let message = format!(
                    "{} is a cross-layer transcoder and cannot be combined with other dictionaries",
                    path.display()
                );
                return Err(Failure::Usage(message));
            }
            Opened::Transcoders(own) => all.extend(own.layers().iter().cloned()),
        }
        firsts.extend(all.get(place).cloned().map(|first| NamedDictionary { name, first }));
    }
    Ok((Replacement::dictionaries(all), firsts))
}

fn opened(opened: Opened) -> (Replacement, Vec<NamedDictionary>) {
    let name = opened_name(&opened).to_string();
    match opened {
        Opened::Dictionary(one) => {
            (Replacement::dictionaries([one.clone()]), vec![NamedDictionary { name, first: one }])
        }
        Opened::Transcoders(all) => {
            let first = all.layers().first().cloned().map(|first| NamedDictionary { name, first });
            (Replacement::transcoders(all), first.into_iter().collect())
        }
    }
}
