//! Places along the residual stream.

use crate::config::TransformerConfig;
use crate::error::InputError;

/// A place along the residual stream: where what has been written so far is read.
///
/// ```
/// use hooklens::activations::Stage;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", Record::all())?;
/// let count = |stage| Ok::<_, hooklens::Error>(model.analyze(&cache)?.decompose_resid(stage)?.len());
/// // The embedding and its positions, then attention and MLP of each layer before the stage.
/// assert_eq!(count(Stage::Before(2))?, 2 + 2 * 2);
/// assert_eq!(count(Stage::BeforeMlp(2))?, 2 + 2 * 2 + 1);
/// assert_eq!(count(Stage::Final)?, 2 + 4 * 2);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// What a layer's attention reads; negative layers count from the end.
    Before(isize),
    /// What a layer's MLP reads: in a block with parallel attention and MLP the same as
    /// [`Stage::Before`].
    BeforeMlp(isize),
    /// What the unembedding reads.
    Final,
}

/// A stage of one model: how many layers have written, and whether the next one's attention has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Layers that have written both their parts.
    pub(super) layers: usize,
    /// Whether the attention of the layer behind them has written too.
    pub(super) attn: bool,
    /// The norm that reads here.
    pub(super) reader: Reader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Attn(usize),
    Mlp(usize),
    Unembed,
}

impl Place {
    /// Layers whose attention has written.
    pub(super) fn attn_layers(self) -> usize {
        self.layers + usize::from(self.attn)
    }
}

impl Stage {
    /// How many layers' attention and how many layers' MLPs have written here.
    pub(crate) fn layers_before(self, config: &TransformerConfig) -> Result<(usize, usize), InputError> {
        let place = self.place(config)?;
        Ok((place.attn_layers(), place.layers))
    }

    pub(super) fn place(self, config: &TransformerConfig) -> Result<Place, InputError> {
        let n_layers = config.n_layers;
        let layer = |layer: isize| {
            let placed = if layer < 0 { layer + n_layers as isize } else { layer };
            if (0..n_layers as isize).contains(&placed) {
                Ok(placed as usize)
            } else {
                Err(InputError::Layer { layer, n_layers })
            }
        };
        Ok(match self {
            Stage::Before(asked) => {
                let layers = layer(asked)?;
                Place { layers, attn: false, reader: Reader::Attn(layers) }
            }
            Stage::BeforeMlp(layer) if config.attn_only => return Err(InputError::NoMlp { layer }),
            Stage::BeforeMlp(asked) => {
                let layers = layer(asked)?;
                Place { layers, attn: !config.parallel, reader: Reader::Mlp(layers) }
            }
            Stage::Final => Place { layers: n_layers, attn: false, reader: Reader::Unembed },
        })
    }
}
