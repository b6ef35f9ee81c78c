//! Where a recording comes from: the model, the texts of its rows, the positions of its columns, and what was edited.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::Xxh3;

use super::ActivationCache;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::hook::add_tensor;
use crate::model_identity::ModelIdentity;
use crate::point::{PointInfo, Segment};
use crate::recorded_rows::RecordedRows;

/// Positions that a recording was to have and the run did not compute.
#[derive(Debug, Clone)]
pub(crate) struct LeftOut {
    /// The positions.
    pub(crate) asked: String,
    /// Number of positions cached before the run.
    pub(crate) cached: usize,
    /// The points to be recorded.
    pub(crate) points: Arc<[PointId]>,
}

/// Hashes of a row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextHashes {
    /// Hash of the tokens in the key-value cache that the run continued.
    pub before: u64,
    /// Hash of these and the run's own tokens.
    pub whole: u64,
    /// Hash of what the encoder read, where the row is a decoder's; 0 elsewhere.
    pub read: u64,
}

/// Where a recording comes from: its model, its texts, and whether something was edited.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Number of the run, or of a recording derived from one.
    id: u64,
    pub(crate) model: Option<Arc<ModelIdentity>>,
    /// A hash of each row's text, where the tokens are known.
    texts: Option<Arc<[TextHashes]>>,
    /// Points whose tensors hooks or parts changed.
    pub(crate) edited: Arc<[PointId]>,
    own: Option<Arc<RecordedRows>>,
    /// Rows of the encoder, in a model of an encoder and a decoder.
    encoder: Option<Arc<RecordedRows>>,
    /// What was asked for and is not in the run.
    pub(crate) left_out: Option<LeftOut>,
}

impl Default for Origin {
    fn default() -> Self {
        let edited = Arc::new([]);
        Self { id: next(), model: None, texts: None, edited, own: None, encoder: None, left_out: None }
    }
}

fn next() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Whether a point's columns are the positions of an encoder that a decoder reads.
fn is_of_encoder(point: &PointInfo) -> bool {
    matches!(point.segment, Segment::Encoder | Segment::CrossKeys)
}

impl Origin {
    pub(crate) fn set_rows(&mut self, of_encoder: bool, rows: RecordedRows) {
        let rows = Some(Arc::new(rows));
        if of_encoder { self.encoder = rows } else { self.own = rows }
    }

    /// Number of keys of each row, a cache's included.
    pub(super) fn keys(&self) -> usize {
        self.own.as_ref().and_then(|rows| rows.keys.first()).map_or(0, |row| row.len())
    }

    /// Whether rows are kept: something is recorded.
    pub(crate) fn has_rows(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) fn made_by(&mut self, model: Arc<ModelIdentity>, texts: Option<Vec<TextHashes>>) {
        (self.model, self.texts) = (Some(model), texts.map(Into::into));
    }

    pub(crate) fn rows_of(&self, point: &PointInfo) -> Option<&RecordedRows> {
        // A run of the encoder alone has no rows but its own.
        let encoder = self.encoder.as_deref().filter(|_| is_of_encoder(point));
        if point.segment == Segment::CrossKeys { encoder } else { encoder.or(self.own.as_deref()) }
    }

    pub(crate) fn encoder_rows(&self) -> Option<&RecordedRows> {
        self.encoder.as_deref()
    }

    /// The origin of a recording derived from this one, with changed rows and texts.
    fn derived(
        &self,
        rows: impl Fn(&RecordedRows) -> RecordedRows,
        texts: impl FnOnce(&[TextHashes]) -> Option<Arc<[TextHashes]>>,
    ) -> Self {
        let changed = |old: &Option<Arc<RecordedRows>>| old.as_ref().map(|old| Arc::new(rows(old)));
        Self {
            id: next(),
            own: changed(&self.own),
            encoder: changed(&self.encoder),
            texts: self.texts.as_deref().and_then(texts),
            ..self.clone()
        }
    }

    pub(super) fn rows(&self, rows: &Range<usize>) -> Self {
        self.derived(|own| own.rows(rows.clone()), |texts| Some(texts[rows.clone()].into()))
    }

    pub(super) fn first(&self, count: usize) -> Self {
        self.derived(|own| own.first(count), |_| None)
    }

    pub(super) fn columns(&self, places: &[Vec<usize>], of_encoder: Option<&[Vec<usize>]>) -> Self {
        let cut = |rows: &Option<Arc<RecordedRows>>, places: &[Vec<usize>]| {
            rows.as_ref().map(|rows| Arc::new(rows.columns(places)))
        };
        let encoder = match of_encoder {
            Some(places) => cut(&self.encoder, places),
            None => self.encoder.clone(),
        };
        Self { id: next(), own: cut(&self.own, places), encoder, ..self.clone() }
    }

    pub(super) fn stitched(&self, after: &Self) -> Self {
        let rows = |own: &Option<Arc<RecordedRows>>, after: &Option<Arc<RecordedRows>>| {
            Some(Arc::new(own.as_ref()?.stitched(after.as_ref()?)))
        };
        let mut edited: Vec<PointId> = self.edited.iter().chain(after.edited.iter()).copied().collect();
        edited.sort_unstable();
        edited.dedup();
        Self {
            id: next(),
            edited: edited.into(),
            own: rows(&self.own, &after.own),
            left_out: self.left_out.clone().and(after.left_out.clone()),
            ..after.clone()
        }
    }

    /// The origin of a recording whose values someone changed.
    pub(super) fn changed(&self) -> Self {
        Self { id: next(), texts: None, ..self.clone() }
    }
}

impl ActivationCache {
    /// The model that made the recording, if it is known.
    pub fn model(&self) -> Option<&Arc<ModelIdentity>> {
        self.origin.model.as_ref()
    }

    /// Names of the points whose tensors were changed in the run, by hooks or by parts put into the model.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut hooks = [at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0)];
    /// let mut run = Run::new(&catalog, &mut hooks, Record::new("resid_post1"), Rows::new(1, 3), &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// assert_eq!(run.finish()?.edited().collect::<Vec<_>>(), ["hook_embed"]);
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn edited(&self) -> impl Iterator<Item = &str> {
        self.origin.edited.iter().map(|id| &*self.catalog.info(*id).name)
    }

    /// Allows the recording to be used with any model whose points have the same names and shapes: patching across
    /// models, for instance of a base model and a fine-tuned one.
    #[must_use]
    pub fn for_any_model(mut self) -> Self {
        self.origin.model = None;
        self
    }

    /// Fails if another model made the recording.
    ///
    /// # Errors
    /// [`HookError::OtherModel`].
    pub fn check_model(&self, model: &ModelIdentity) -> Result<(), HookError> {
        match &self.origin.model {
            Some(own) if !own.is(model) => {
                Err(HookError::OtherModel { recorded: own.label().to_string(), model: model.label().to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Rows and columns of the recording: which token each column holds. In a model with an encoder and a decoder, the
    /// decoder's.
    ///
    /// # Errors
    /// [`HookError::NoOrigin`] for a cache that no run filled.
    pub fn recorded_rows(&self) -> Result<&RecordedRows, HookError> {
        self.origin.own.as_deref().ok_or(HookError::NoOrigin { what: "positions" })
    }

    /// Where the recording comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Adds what is recorded of a point to a hash: its values, and the token that each column holds.
    pub(crate) fn add_to_hash(&self, point: &PointInfo, hash: &mut Xxh3) -> Result<(), HookError> {
        add_tensor(hash, self.activation(&*point.name)?)?;
        let rows = [self.origin.rows_of(point), self.origin.encoder_rows().filter(|_| point.keys_of_encoder)];
        rows.into_iter().flatten().for_each(|rows| rows.add_to_hash(hash));
        Ok(())
    }
}

impl Origin {
    /// Whether a row's text has this hash, or is unknown.
    pub fn may_be_of(&self, row: usize, hash: u64) -> bool {
        self.texts.as_ref().and_then(|texts| texts.get(row)).is_none_or(|text| text.whole == hash)
    }

    /// Why another recording does not continue this one, if that is known.
    pub(super) fn why_not_continued_by(&self, after: &Self) -> Option<&'static str> {
        if let (Some(mine), Some(theirs)) = (&self.model, &after.model)
            && !mine.is(theirs)
        {
            return Some("they are of two models");
        }
        if let (Some(mine), Some(theirs)) = (&self.texts, &after.texts) {
            let of = |row: usize| if mine.len() == 1 { mine[0] } else { mine[row] };
            let same = mine.len() == 1 || mine.len() == theirs.len();
            if !same || theirs.iter().enumerate().any(|(row, text)| text.before != of(row).whole) {
                return Some("the second does not continue the text of the first");
            }
        }
        if let (Some(mine), Some(theirs)) = (&self.own, &after.own) {
            for (row, theirs) in theirs.kept.iter().enumerate() {
                let before = mine.kept.get(row.min(mine.kept.len().saturating_sub(1)));
                let last = before.and_then(|before| before.iter().flatten().max());
                let first = theirs.iter().flatten().min();
                if let (Some(last), Some(first)) = (last, first)
                    && first <= last
                {
                    return Some("the second does not begin after the positions of the first");
                }
            }
        }
        None
    }

    /// Whether these rows of two recordings hold the same: they come from one run, or from unedited runs of one model over
    /// the same texts.
    pub fn is_of_the_same_texts(&self, rows: &[usize], other: &Origin, others: &[usize]) -> bool {
        let (mine, theirs) = (self, other);
        if mine.id == theirs.id {
            return rows == others;
        }
        let same_model = match (&mine.model, &theirs.model) {
            (Some(mine), Some(theirs)) => mine.is(theirs),
            _ => false,
        };
        let texts = |origin: &Origin, rows: &[usize]| -> Option<Vec<(u64, u64)>> {
            let texts = origin.texts.as_ref()?;
            rows.iter().map(|row| texts.get(*row).map(|text| (text.whole, text.read))).collect()
        };
        let unedited = mine.edited.is_empty() && theirs.edited.is_empty();
        let texts = (texts(mine, rows), texts(theirs, others));
        same_model && unedited && matches!(texts, (Some(mine), Some(theirs)) if mine == theirs)
    }
}
