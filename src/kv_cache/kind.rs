//! Kinds of cache, and what one is made for.

use burn::tensor::{DType, Device};
use serde::{Deserialize, Serialize};

use super::quantized::Bits;
use crate::config::{TransformerConfig, Window};
use crate::error::CacheError;

/// How a cache stores what it is given.
///
/// ```
/// # use hooklens::prelude::*;
/// let model = HookedTransformer::random(TransformerConfig::new(1, 128, 2, 50, 256), 0, &Device::flex())?;
/// let bytes = |kind| {
///     let mut cache = KeyValueCache::of_kind(model.config(), 1, kind)?;
///     model.forward(vec![vec![7; 200]], ForwardOptions::new().kv_cache(&mut cache))?;
///     Ok::<_, hooklens::Error>(cache.memory()[0])
/// };
/// assert!(3 * bytes(CacheKind::EIGHT_BIT)? < bytes(CacheKind::Growing)?);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CacheKind {
    /// Whole, in room that grows by half when it runs out.
    #[default]
    Growing,
    /// Whole, in room made at once; more is an error.
    Preallocated {
        /// Positions there is room for.
        max_len: usize,
    },
    /// Layers with a window keep what a later query can still see, the others all.
    Sliding,
    /// All, in 8 or 4 bits an element, on the host.
    Quantized {
        /// Bits an element.
        bits: Bits,
        /// Elements of a head that share a scale.
        group: usize,
    },
}

impl CacheKind {
    /// 8 bits an element, a scale for 64.
    pub const EIGHT_BIT: Self = Self::Quantized { bits: Bits::Eight, group: 64 };
    /// 4 bits an element, a scale for 64.
    pub const FOUR_BIT: Self = Self::Quantized { bits: Bits::Four, group: 64 };

    /// What error messages call it.
    pub fn name(self) -> &'static str {
        match self {
            CacheKind::Growing => "growing",
            CacheKind::Preallocated { .. } => "preallocated",
            CacheKind::Sliding => "sliding",
            CacheKind::Quantized { .. } => "quantized",
        }
    }
}

/// What a cache is made for: checked sizes, a window a layer.
///
/// ```
/// use hooklens::{CacheKind, CacheShape, KeyValueCache};
/// let shape = CacheShape::new(4, 2, 8, 64)?; // rows, layers, key/value heads, width of a head
/// let cache = KeyValueCache::of_shape(shape, CacheKind::Preallocated { max_len: 1024 })?;
/// assert_eq!((cache.batch(), cache.n_layers(), cache.len()), (4, 2, 0));
/// assert!(CacheShape::new(4, 2, 0, 64).unwrap_err().to_string().contains("kv_heads"));
/// # Ok::<(), hooklens::CacheError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShape {
    /// Rows.
    pub batch: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// How far back each layer's queries see, one entry a layer.
    pub windows: Vec<Option<Window>>,
}

impl CacheShape {
    /// A shape of these sizes, without windows.
    ///
    /// # Errors
    /// [`CacheError::Size`] naming the size that is zero or absurd.
    pub fn new(batch: usize, layers: usize, kv_heads: usize, d_head: usize) -> Result<Self, CacheError> {
        let checked = |field, given: usize, most: usize| {
            if given == 0 || given > most { Err(CacheError::Size { field, given }) } else { Ok(given) }
        };
        const LARGEST: usize = 1 << 28;
        Ok(Self {
            batch: checked("batch", batch, LARGEST)?,
            kv_heads: checked("kv_heads", kv_heads, LARGEST)?,
            d_head: checked("d_head", d_head, LARGEST)?,
            windows: vec![None; checked("layers", layers, TransformerConfig::MOST_LAYERS)?],
        })
    }

    /// What a model of this configuration needs for `batch` rows.
    ///
    /// ```
    /// use hooklens::{CacheShape, TransformerConfig};
    /// let shape = CacheShape::of(&TransformerConfig::gpt2_small(), 8)?;
    /// assert_eq!((shape.batch, shape.kv_heads, shape.d_head, shape.windows.len()), (8, 12, 64, 12));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`CacheShape::new`].
    pub fn of(config: &TransformerConfig, batch: usize) -> Result<Self, CacheError> {
        let plain = Self::new(batch, config.n_layers, config.n_kv_heads, config.d_head)?;
        Ok(Self { windows: (0..config.n_layers).map(|layer| config.window(layer)).collect(), ..plain })
    }
}

/// What attention needs to know of the columns a cache holds for a layer.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let rows = Tokens::padded(&[vec![0, 51, 59], vec![0, 51]], 0, PaddingSide::Left)?;
/// let cache = model.prefill(&rows)?;
/// let info = cache.mask_info(0);
/// assert_eq!(info.as_ref().map(|info| info.starts.clone()), Some(vec![0, 1])); // columns of padding
/// assert_eq!(info.map(|info| info.lengths), Some(vec![3, 2]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskInfo {
    /// Column of each row's first real position.
    pub starts: Vec<usize>,
    /// Real positions of each row: the position its next token stands at.
    pub lengths: Vec<usize>,
    /// How far back the layer's queries see.
    pub window: Option<Window>,
    /// The first column whose keys and values are still held.
    pub first_column: usize,
}

/// Element type and device of what is held.
pub(super) type Form = (DType, Device);
