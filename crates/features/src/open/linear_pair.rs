//! Two linear layers without a description: ReLU dictionaries without input normalization, such as Goodfire's and those
//! for DeepSeek R1.

use super::{Found, Parts, linear_layers};
use crate::dictionary::Dictionary;
use hooklens_model::error::Result;

/// Names of the two layers.
const NAMES: [[&str; 2]; 2] = [["encoder_linear", "decoder_linear"], ["encoder", "decoder"]];

fn names(found: &Found) -> Option<[&'static str; 2]> {
    let there = |names: &[&str; 2]| names.iter().all(|name| found.has(&format!("{name}.weight")));
    NAMES.into_iter().find(there)
}

pub(super) fn fits(found: &Found) -> bool {
    names(found).is_some_and(|[_, decoder]| found.has(&format!("{decoder}.bias")))
}

pub(super) fn read(found: &Found, format: &'static str) -> Result<Dictionary> {
    let names @ [_, decoder_name] = names(found).unwrap_or(NAMES[0]);
    let (encoder, bias, decoder) = linear_layers(found, names)?;
    let center = found.vector(&format!("{decoder_name}.bias"), decoder.shape()[1])?;
    Parts::new(encoder, bias, decoder, center).dictionary(found, format)
}
