//! Hook points of a stack of blocks.

use hooklens_hooks::PointId;

use super::site::{self, Site};

const NONE: SitePoints = [None; site::ALL.len()];

type SitePoints = [Option<PointId>; site::ALL.len()];

/// Lookup from a layer and a site to a point.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    sites: Vec<SitePoints>,
    experts: Vec<Vec<ExpertPoints>>,
}

/// Hook points of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertPoints {
    pub(crate) gate: Option<PointId>,
    pub(crate) pre: Option<PointId>,
    pub(crate) post: Option<PointId>,
}

impl Stack {
    pub(super) fn new(n_layers: usize) -> Self {
        Self { sites: vec![NONE; n_layers], experts: vec![Vec::new(); n_layers] }
    }

    /// The point at `site` of block `layer`, if this model fires it.
    #[inline]
    pub(crate) fn at(&self, layer: usize, site: Site) -> Option<PointId> {
        self.sites[layer][site as usize]
    }

    /// The points of one expert of block `layer`.
    pub(crate) fn expert(&self, layer: usize, expert: usize) -> ExpertPoints {
        self.experts[layer][expert]
    }

    pub(super) fn set(&mut self, layer: usize, site: Site, id: Option<PointId>) {
        self.sites[layer][site as usize] = id;
    }

    pub(super) fn add_expert(&mut self, layer: usize, points: ExpertPoints) {
        self.experts[layer].push(points);
    }

    pub(super) fn ids(&mut self) -> impl Iterator<Item = &mut Option<PointId>> {
        let experts = self.experts.iter_mut().flatten().flat_map(|one| [&mut one.gate, &mut one.pre, &mut one.post]);
        self.sites.iter_mut().flatten().chain(experts)
    }
}
