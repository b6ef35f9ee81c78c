//! Provenance of a recording: the model, the texts of its rows, the positions of its columns, and the edited points.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::catalog::PointId;
use crate::model_identity::ModelIdentity;
use crate::point::{PointInfo, Segment};
use crate::recorded_rows::RecordedRows;

/// Requested positions that the run did not compute.
#[derive(Debug, Clone)]
pub(crate) struct LeftOut {
    /// The requested positions, as text.
    pub(crate) asked: String,
    /// Number of positions cached before the run.
    pub(crate) cached: usize,
    /// The points selected for recording.
    pub(crate) points: Arc<[PointId]>,
}

/// Hashes of one row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextHashes {
    /// Hash of the tokens already in the key-value cache when the run started.
    pub before: u64,
    /// Hash of the cached tokens followed by the run's own tokens.
    pub whole: u64,
    /// In an encoder-decoder model, hash of the encoder's input for this row; otherwise 0.
    pub read: u64,
}

/// Provenance of a recording: its model, its texts, and the edited points.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Unique number of the run, or of the recording if it was derived from another one.
    id: u64,
    pub(crate) model: Option<Arc<ModelIdentity>>,
    /// Hashes of each row's text, if the tokens are known.
    texts: Option<Arc<[TextHashes]>>,
    /// Points whose tensors were changed by hooks or parts.
    pub(crate) edited: Arc<[PointId]>,
    pub(super) own: Option<Arc<RecordedRows>>,
    /// Rows of the encoder, in an encoder-decoder model.
    encoder: Option<Arc<RecordedRows>>,
    /// Requested positions that the run did not compute.
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

/// Whether a point's columns are encoder positions in an encoder-decoder model.
fn is_of_encoder(point: &PointInfo) -> bool {
    matches!(point.segment, Segment::Encoder | Segment::CrossKeys)
}

impl Origin {
    pub(crate) fn set_rows(&mut self, of_encoder: bool, rows: RecordedRows) {
        let rows = Some(Arc::new(rows));
        if of_encoder { self.encoder = rows } else { self.own = rows }
    }

    /// Number of keys in the first row, including cached keys.
    pub(super) fn keys(&self) -> usize {
        self.own.as_ref().and_then(|rows| rows.keys.first()).map_or(0, |row| row.len())
    }

    /// Whether row information was stored, that is, whether anything is recorded.
    pub(crate) fn has_rows(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) fn made_by(&mut self, model: Arc<ModelIdentity>, texts: Option<Vec<TextHashes>>) {
        (self.model, self.texts) = (Some(model), texts.map(Into::into));
    }

    pub(crate) fn rows_of(&self, point: &PointInfo) -> Option<&RecordedRows> {
        // A run of the encoder alone stores the encoder's rows in `own`.
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
        // The text begins where the first recording does, whose only row may be followed by several.
        let joined = |mine: &Arc<[TextHashes]>, theirs: &Arc<[TextHashes]>| {
            let begin = |row: usize| mine.get(row).or(mine.first()).map(|text| text.before);
            let texts = theirs.iter().enumerate();
            texts.map(|(row, text)| TextHashes { before: begin(row).unwrap_or(text.before), ..*text }).collect()
        };
        let texts = match (&self.texts, &after.texts) {
            (Some(mine), Some(theirs)) => Some(joined(mine, theirs)),
            _ => after.texts.clone(),
        };
        Self {
            id: next(),
            edited: edited.into(),
            own: rows(&self.own, &after.own),
            left_out: self.left_out.clone().and(after.left_out.clone()),
            texts,
            ..after.clone()
        }
    }

    /// The origin of a recording whose values were modified.
    pub(super) fn changed(&self) -> Self {
        Self { id: next(), texts: None, ..self.clone() }
    }

    /// Whether a row's text has the given hash, or is unknown.
    pub fn may_be_of(&self, row: usize, hash: u64) -> bool {
        self.texts.as_ref().and_then(|texts| texts.get(row)).is_none_or(|text| text.whole == hash)
    }

    /// Why `after` can't continue this recording; `None` if it can.
    pub(super) fn why_not_continued_by(&self, after: &Self) -> Option<&'static str> {
        if let (Some(mine), Some(theirs)) = (&self.model, &after.model)
            && !mine.is(theirs)
        {
            return Some("they were made by different models");
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
                    return Some("the second starts before the first ends");
                }
            }
        }
        None
    }

    /// Whether `rows` of this recording and `others` of `other` are equivalent: they come from the same run, or from
    /// unedited runs of the same model on the same texts.
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
