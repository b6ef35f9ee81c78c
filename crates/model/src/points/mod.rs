//! The hook points that a model fires, with TransformerLens's names, shapes, and order.
//!
//! [`Site`] and [`Outer`] list every point once. A model's [`Points`] are built in firing order; a point that it can't
//! fire is listed with the reason.

mod attributes;
mod axes;
mod outer;
mod site;
mod stack;

use std::sync::Arc;

use hooklens_hooks::{Catalog, CatalogBuilder, Halt, HookError, Part, PointId, PointInfo, Selection, Splices};

pub(crate) use outer::Outer;
pub(crate) use site::Site;
pub(crate) use stack::{ExpertPoints, Stack};

/// The catalog of a model, the parts spliced into it, and a lookup from places in the forward pass to points.
#[derive(Debug, Clone)]
pub struct Points {
    pub(crate) catalog: Arc<Catalog>,
    /// The parts spliced in.
    pub splices: Splices,
    outer: [Option<PointId>; outer::COUNT],
    stacks: Vec<Stack>,
}

impl Points {
    /// The point `outer`, if this model fires it.
    #[inline]
    pub(crate) fn outer(&self, outer: Outer) -> Option<PointId> {
        self.outer[outer as usize]
    }

    /// The points of a stack of blocks, by the index that [`PointsBuilder::stack`] returned.
    pub(crate) fn stack(&self, number: usize) -> &Stack {
        &self.stacks[number]
    }

    /// The parts spliced into the model, each as `NAME at POINT`.
    pub(crate) fn named_parts(&self) -> impl Iterator<Item = String> {
        self.splices.named(&self.catalog).map(|(part, point)| format!("{part} at {point}"))
    }

    /// The parts spliced into the model, each as `NAME at POINT (HASH)`, or `NAME at POINT` if it has
    /// no hash.
    pub fn fingerprinted_parts(&self) -> Result<Vec<String>, Halt> {
        let hashes = self.splices.fingerprints()?;
        Ok(self
            .named_parts()
            .zip(hashes)
            .map(|(part, hash)| hash.map_or(part.clone(), |hash| format!("{part} ({hash})")))
            .collect())
    }

    /// Returns the points with one more part spliced in.
    pub(crate) fn with_part(
        &self,
        read: Option<Selection>,
        write: Selection,
        part: impl Part + 'static,
    ) -> Result<Self, HookError> {
        let (catalog, splices, shift) = self.splices.with(&self.catalog, read, write, part)?;
        let mut points = Self { catalog, splices, ..self.clone() };
        let ids = points.outer.iter_mut().chain(points.stacks.iter_mut().flat_map(Stack::ids));
        ids.flatten().for_each(|id| *id = shift.moved(*id));
        Ok(points)
    }
}

/// Builds [`Points`] in firing order.
pub(crate) struct PointsBuilder {
    catalog: CatalogBuilder,
    outer: [Option<PointId>; outer::COUNT],
    stacks: Vec<Stack>,
}

impl PointsBuilder {
    /// Creates a builder without points. The note describes anything special about the model's tensors.
    pub(crate) fn new(n_layers: usize, note: &str) -> Self {
        let mut catalog = Catalog::builder(n_layers);
        catalog.note(note);
        Self { catalog, outer: [None; outer::COUNT], stacks: Vec::new() }
    }

    /// Adds a point outside the blocks, or the reason why it does not fire.
    pub(crate) fn outer(&mut self, outer: Outer, why_not: Option<&'static str>) {
        self.outer[outer as usize] = self.add(outer.info(), why_not);
    }

    /// Like [`PointsBuilder::outer`], for an encoder whose token embeddings are narrower than the residual stream.
    pub(crate) fn narrow_outer(&mut self, outer: Outer, why_not: Option<&'static str>) {
        self.outer[outer as usize] = self.add(outer.narrow(), why_not);
    }

    /// Adds a stack of `n_layers` blocks without points and returns its index.
    pub(crate) fn stack(&mut self, n_layers: usize) -> usize {
        self.stacks.push(Stack::new(n_layers));
        self.stacks.len() - 1
    }

    /// Adds a point of a block, or the reason why it does not fire.
    pub(crate) fn site(&mut self, stack: usize, layer: usize, site: Site, info: PointInfo, why: Option<&'static str>) {
        let id = self.add(info, why);
        self.stacks[stack].set(layer, site, id);
    }

    /// Adds the points of a block's experts.
    pub(crate) fn experts(&mut self, stack: usize, layer: usize, count: usize, gated: bool) {
        for expert in 0..count {
            let point = |name: &str| {
                let name = format!("blocks.{layer}.mlp.experts.{expert}.{name}");
                PointInfo::new(name, Some(layer), axes::ROUTED)
            };
            let gate = self.add(point("hook_gate"), (!gated).then_some("the experts are not gated"));
            let [pre, post] = ["hook_pre", "hook_post"].map(|name| self.add(point(name), None));
            self.stacks[stack].add_expert(layer, ExpertPoints { gate, pre, post });
        }
    }

    fn add(&mut self, info: PointInfo, why_not: Option<&'static str>) -> Option<PointId> {
        match why_not {
            Some(reason) => {
                self.catalog.absent(&*info.name, reason);
                None
            }
            None => Some(self.catalog.add(info)),
        }
    }

    /// Builds the points.
    pub(crate) fn build(self) -> Points {
        let Self { catalog, outer, stacks } = self;
        Points { catalog: Arc::new(catalog.build()), splices: Splices::default(), outer, stacks }
    }
}

/// All points of a decoder's block, in firing order. `behind` selects post-norm blocks, whose norms follow the
/// additions, as in encoders.
pub(crate) fn decoder_sites(behind: bool) -> impl Iterator<Item = Site> {
    let elsewhere = |site: &Site| {
        !matches!(
            site,
            Site::CrossAttnIn
                | Site::CrossAttnOut
                | Site::ResidMidCross
                | Site::Ln3Scale
                | Site::Ln3Normalized
                | Site::Ln3PostScale
                | Site::Ln3PostNormalized
        )
    };
    let mut sites: Vec<Site> = site::ALL.iter().copied().filter(elsewhere).collect();
    if behind {
        let mut moved = |sites_of: [Site; 2], before: Site| {
            sites.retain(|site| !sites_of.contains(site));
            let at = sites.iter().position(|site| *site == before).unwrap_or(sites.len());
            sites.splice(at..at, sites_of);
        };
        moved([Site::Ln1Scale, Site::Ln1Normalized], Site::MlpReads);
        moved([Site::Ln2Scale, Site::Ln2Normalized], Site::NormalizedResidPost);
    }
    sites.into_iter()
}
