//! The parts put into a model.

use std::fmt;
use std::sync::Arc;

use crate::catalog::{Catalog, PointId};
use crate::error::HookError;
use crate::part::Part;
use crate::point::PointInfo;
use crate::run::Halt;
use crate::selection::Selection;

/// The parts put into a model, in the order in which they were.
///
/// An addition gives a new catalog, which lists the part's points before the point it is put at; see [`Part`] for an
/// example.
#[derive(Clone, Default)]
pub struct Splices {
    all: Vec<Spliced>,
}

/// One part and its place.
#[derive(Clone)]
pub(crate) struct Spliced {
    pub(crate) part: Arc<dyn Part>,
    /// The point it reads; the one it writes, unless it reads another.
    pub(crate) read: PointId,
    pub(crate) write: PointId,
    /// The points it sees too.
    pub(crate) also: Vec<PointId>,
    pub(crate) points: Vec<PointId>,
}

/// The map from ids of a catalog to those after points were inserted.
///
/// ```
/// # use hooklens_hooks::{Shift, example};
/// # let (_, ids) = example::points();
/// assert_eq!(Shift::default().moved(ids[2]), ids[2]); // nothing was put in
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shift {
    from: u32,
    by: u32,
}

impl Shift {
    /// The id in the new catalog of a point of the old one.
    pub fn moved(self, id: PointId) -> PointId {
        PointId(if id.0 >= self.from { id.0 + self.by } else { id.0 })
    }
}

impl Splices {
    /// Whether there is no part.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn all(&self) -> &[Spliced] {
        &self.all
    }

    /// Each part's name and the point it is put at, in the catalog that these parts came with.
    pub fn named<'s>(&'s self, catalog: &'s Catalog) -> impl Iterator<Item = (String, &'s str)> {
        self.all.iter().map(|one| (one.part.name(), &*catalog.info(one.write).name))
    }

    /// Whether a part reads a point of an earlier layer than the one it writes, so that it can't run in a run that starts
    /// between them.
    pub fn reach_back(&self, catalog: &Catalog) -> bool {
        let layer = |id: &PointId| catalog.info(*id).layer;
        let earlier = |one: &Spliced| {
            one.also.iter().chain([&one.read]).filter_map(layer).any(|read| Some(read) < layer(&one.write))
        };
        self.all.iter().any(earlier)
    }

    /// The hash that each part gives of itself, if it does.
    ///
    /// # Errors
    /// What a part reports.
    pub fn fingerprints(&self) -> Result<Vec<Option<String>>, Halt> {
        self.all.iter().map(|one| one.part.fingerprint()).collect()
    }

    /// One part more: it replaces the tensor of `write`, made from the tensor of `read` (`None`: from the tensor it
    /// replaces). Several parts at one point follow each other.
    ///
    /// # Errors
    /// What [`Selection::resolve_one`] reports; [`HookError::Splice`] for points of integers, for a point read after it
    /// is written, and for names that the point has already.
    pub fn with(
        &self,
        catalog: &Arc<Catalog>,
        read: Option<Selection>,
        write: impl Into<Selection>,
        part: impl Part + 'static,
    ) -> Result<(Arc<Catalog>, Splices, Shift), HookError> {
        let write = write.into().resolve_one(catalog)?;
        let read = read.map_or(Ok(write), |read| read.resolve_one(catalog))?;
        let host = catalog.info(write);
        let fails = |at: &PointInfo, reason: String| {
            Err(HookError::Splice { part: part.name(), point: at.name.to_string(), reason })
        };
        let also = part.also_reads();
        let also =
            also.iter().map(|name| Selection::from(&**name).resolve_one(catalog)).collect::<Result<Vec<_>, _>>()?;
        if let Some(late) = also.iter().find(|id| **id >= write) {
            return fails(
                host,
                format!("`{}`, which the part reads, does not fire before it", catalog.info(*late).name),
            );
        }
        if let Some(integer) = [host, catalog.info(read)].into_iter().find(|point| point.integer) {
            return fails(integer, "it holds integers".into());
        }
        if read > write {
            return fails(host, format!("`{}`, which the part reads, fires later", catalog.info(read).name));
        }
        let new: Vec<PointInfo> = part.points().iter().map(|point| point.at(host)).collect();
        let taken = |(place, point): &(usize, &PointInfo)| {
            new[..*place].iter().any(|other| other.name == point.name) || catalog.has(&point.name)
        };
        if let Some((_, twice)) = new.iter().enumerate().find(taken) {
            return fails(host, format!("there is a point `{}` already", twice.name));
        }
        let by = new.len() as u32;
        let shift = Shift { from: write.0, by };
        let points = (write.0..write.0 + by).map(PointId).collect();
        let mut all: Vec<Spliced> = self.all.iter().map(|one| one.moved(shift)).collect();
        all.push(Spliced { part: Arc::new(part), read: shift.moved(read), write: shift.moved(write), also, points });
        Ok((Arc::new(catalog.with_inserted(write, new)), Splices { all }, shift))
    }
}

impl Spliced {
    fn moved(&self, shift: Shift) -> Self {
        let [points, also] = [&self.points, &self.also].map(|ids| ids.iter().map(|id| shift.moved(*id)).collect());
        Self { part: self.part.clone(), read: shift.moved(self.read), write: shift.moved(self.write), also, points }
    }
}

impl fmt::Debug for Spliced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.part.name(), self.write)
    }
}

impl fmt::Debug for Splices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|one| one.part.name())).finish()
    }
}
