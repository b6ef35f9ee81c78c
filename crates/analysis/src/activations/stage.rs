//! [`Stage`], [`Per`] and [`Neurons`]: where and how finely the residual stream is decomposed.

use hooklens_model::config::{Layers, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::InputError;

/// A stage of the residual stream: a point where a component reads what earlier components have written.
///
/// ```
/// use hooklens::activations::Stage;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", Record::all())?;
/// let count = |stage| Ok::<_, hooklens::Error>(model.analyze(&cache)?.decompose_resid(stage)?.labels().len());
/// // Token and position embeddings, then attention and MLP of each layer before the stage.
/// assert_eq!(count(Stage::Before(2))?, 2 + 2 * 2);
/// assert_eq!(count(Stage::BeforeMlp(2))?, 2 + 2 * 2 + 1);
/// assert_eq!(count(Stage::Final)?, 2 + 4 * 2);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The input of a layer's attention. Negative layers count from the end.
    Before(isize),
    /// The input of a layer's MLP. With parallel attention and MLP, the same as [`Stage::Before`].
    BeforeMlp(isize),
    /// The end of the stream, which the unembedding reads through the final norm.
    Final,
}

/// Whether the residual stream is read once per layer, or before each sublayer.
///
/// ```
/// use hooklens::activations::{Per, Stage};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", "*hook_resid_{pre,mid,post}")?;
/// let count = |per| Ok::<_, hooklens::Error>(model.analyze(&cache)?.accumulated_resid(Stage::Final, per)?.labels().len());
/// assert_eq!((count(Per::Layer)?, count(Per::Sublayer)?), (5, 9));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Per {
    /// Before each layer.
    #[default]
    Layer,
    /// Before each layer's attention and before its MLP.
    Sublayer,
}

/// Whether an MLP is one term of a decomposition, or each of its neurons is.
///
/// ```
/// use hooklens::activations::{Neurons, Stage};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", Record::all())?;
/// let terms = |of| Ok::<_, hooklens::Error>(model.analyze(&cache)?.full_resid_decomposition(Stage::Final, of)?.labels().len());
/// assert_eq!(terms(Neurons::Apart)? - terms(Neurons::Summed)?, 4 * 256 - 4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Neurons {
    /// An MLP's output is one term.
    #[default]
    Summed,
    /// Each neuron's output is a term, and the MLP's bias is part of the term `bias`.
    Apart,
}

/// A stage resolved for one model: how many layers have written, and whether the next layer's attention has written
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResolvedStage {
    /// Number of layers whose attention and MLP have both written.
    pub(super) layers: usize,
    /// Whether the next layer's attention has written too.
    pub(super) attn: bool,
    /// The component that reads the stream at this stage.
    pub(super) reader: Reader,
}

/// A component that reads the residual stream at a stage, with its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Attn(usize),
    Mlp(usize),
    Unembed,
}

impl ResolvedStage {
    /// Number of layers whose attention has written.
    pub(super) fn attn_layers(self) -> usize {
        self.layers + usize::from(self.attn)
    }
}

impl Stage {
    /// Two numbers: how many layers' attention, and how many layers' MLPs, have written to the stream by this stage.
    pub(crate) fn layers_before(self, config: &TransformerConfig) -> Result<(usize, usize), InputError> {
        let place = self.place(config)?;
        Ok((place.attn_layers(), place.layers))
    }

    pub(super) fn place(self, config: &TransformerConfig) -> Result<ResolvedStage, InputError> {
        let n_layers = config.n_layers();
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
                let reader = if config.mixes(layers) { Reader::Attn(layers) } else { Reader::Mlp(layers) };
                ResolvedStage { layers, attn: false, reader }
            }
            Stage::BeforeMlp(asked) => {
                let layers = layer(asked)?;
                if !config.has_mlp(layers) {
                    return Err(InputError::NoMlp { layer: asked });
                }
                ResolvedStage {
                    layers,
                    attn: config.mixes(layers) && config.residual() != ResidualScheme::Parallel,
                    reader: Reader::Mlp(layers),
                }
            }
            Stage::Final => ResolvedStage { layers: n_layers, attn: false, reader: Reader::Unembed },
        })
    }
}
