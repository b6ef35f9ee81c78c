//! The parts spliced into a model.

use std::fmt;
use std::sync::Arc;

use super::{Halt, Part, Run, Slot, Spliced};
use crate::catalog::{Catalog, PointId};
use crate::error::HookError;
use crate::point::PointInfo;
use crate::selection::{ResolveOne, Selection, Silent};

/// The parts spliced into a model, in the order in which they were added.
///
/// Adding a part creates a new catalog, which lists the part's points before the point where it is spliced in; see
/// [`Part`] for an example.
#[derive(Clone, Default)]
pub struct Splices {
    all: Vec<Spliced>,
}

/// Mapping from ids of an old catalog to ids of the catalog with inserted points.
///
/// ```
/// # use hooklens_hooks::{Shift, example};
/// # let (_, ids) = example::points();
/// assert_eq!(Shift::default().moved(ids[2]), ids[2]); // no points were inserted
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shift {
    from: u32,
    by: u32,
}

impl Shift {
    /// Maps the id of a point in the old catalog to its id in the new one.
    pub fn moved(self, id: PointId) -> PointId {
        PointId(if id.0 >= self.from { id.0 + self.by } else { id.0 })
    }
}

impl Splices {
    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The name of each part and of the point where it is spliced in. `catalog` must be the one that [`Splices::with`]
    /// returned together with these splices.
    pub fn named<'s>(&'s self, catalog: &'s Catalog) -> impl Iterator<Item = (String, &'s str)> {
        self.all.iter().map(|one| (one.part.name(), &*catalog.info(one.write).name))
    }

    /// Whether a part reads a point in an earlier layer than the point that it writes. A run must not start between
    /// these layers.
    pub fn reach_back(&self, catalog: &Catalog) -> bool {
        let layer = |id: &PointId| catalog.info(*id).layer;
        let earlier = |one: &Spliced| {
            one.also.iter().chain([&one.read]).filter_map(layer).any(|read| Some(read) < layer(&one.write))
        };
        self.all.iter().any(earlier)
    }

    /// Names of the points whose tensors the parts replace.
    pub fn replaced<'c>(&self, catalog: &'c Catalog) -> Vec<&'c str> {
        self.all.iter().map(|one| &*catalog.info(one.write).name).collect()
    }

    /// The fingerprint of each part, if it has one.
    ///
    /// # Errors
    /// An error from a part.
    pub fn fingerprints(&self) -> Result<Vec<Option<String>>, Halt> {
        self.all.iter().map(|one| one.part.fingerprint()).collect()
    }

    /// Adds a part that reads the tensor of `read` and replaces the tensor of `write`. If `read` is `None`, the part
    /// reads the tensor that it replaces. Several parts at one point run in sequence.
    ///
    /// # Errors
    /// An error from [`ResolveOne::resolve_one`], or [`HookError::Splice`] if a point holds integers, if a point that
    /// the part reads fires too late, or if a point with the name of one of the part's points exists already.
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
                format!("`{}`, which the part reads, does not fire before this point", catalog.info(*late).name),
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
            return fails(host, format!("there is already a point `{}`", twice.name));
        }
        let by = new.len() as u32;
        let shift = Shift { from: write.0, by };
        let points = (write.0..write.0 + by).map(PointId).collect();
        let mut all: Vec<Spliced> = self.all.iter().map(|one| one.moved(shift)).collect();
        all.push(Spliced { part: Arc::new(part), read: shift.moved(read), write: shift.moved(write), also, points });
        Ok((Arc::new(catalog.with_inserted(write, new)), Splices { all }, shift))
    }
}

impl<'r> Run<'r, '_> {
    /// Adds the parts spliced into the model. The run's catalog must be the one returned when they were added.
    ///
    /// # Errors
    /// [`HookError::CannotFire`] if the run skips a point that a part reads but reaches the point that it writes.
    pub fn with(mut self, splices: &'r Splices, silent: Silent<'_>) -> Result<Self, HookError> {
        self.parts = &splices.all;
        if !self.parts.is_empty() && self.slots.is_empty() {
            self.slots = vec![Slot::default(); self.catalog.points().len()];
        }
        self.read = vec![None; self.parts.len()];
        for (place, one) in self.parts.iter().enumerate() {
            self.slots[one.write.index()].parts.push(place);
            if silent(self.info(one.write)).is_some() {
                continue;
            }
            for also in &one.also {
                let point = self.catalog.info(*also);
                if let Some(reason) = silent(point) {
                    return Err(HookError::CannotFire { point: point.name.to_string(), reason });
                }
                self.slots[also.index()].seen = true;
            }
            if one.read == one.write {
                continue;
            }
            let read = self.catalog.info(one.read);
            if let Some(reason) = silent(read) {
                return Err(HookError::CannotFire { point: read.name.to_string(), reason });
            }
            self.slots[one.read.index()].readers.push(place);
        }
        Ok(self)
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
