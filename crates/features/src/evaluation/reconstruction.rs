//! Accumulates reconstruction metrics over tokens.

use burn::tensor::Tensor;

use super::sums::Sums;
use crate::transcoders::{Transcoders, combined};
use hooklens_model::error::Result;

/// Adds each layer's reconstruction to the layer's sums; a single dictionary counts as a set of one layer. `rows`
/// returns the activations at a point, `[row, width]`, with `len` rows per prompt. Only `counted` rows are added.
/// `groups` contains the group of each prompt, or is empty.
pub(crate) fn add_reconstructions(
    all: &Transcoders,
    sums: &mut [Sums],
    rows: &dyn Fn(&str, usize) -> Result<Tensor<2>>,
    (counted, len): (&[bool], usize),
    groups: &[usize],
) -> Result<()> {
    // The contributions of earlier layers' latents to each layer.
    let mut written: Vec<Option<Tensor<2>>> = vec![None; sums.len()];
    for (layer, (one, sums)) in all.layers().iter().zip(sums).enumerate() {
        let [read, write] = one.points()?;
        let input = rows(read, one.d_in())?;
        let (acts, output) = one.encode_and_reconstruct(input)?;
        for (to, written) in written.iter_mut().enumerate().skip(layer + 1) {
            if let Some(decoder) = all.across(layer, to) {
                let more = combined(acts.clone(), decoder)?;
                *written = Some(written.take().map_or(more.clone(), |sum| sum + more));
            }
        }
        let output = written[layer].take().map_or(output.clone(), |written| output + written);
        sums.add([rows(write, one.d_out())?, output, acts], (counted, len), groups);
    }
    Ok(())
}
