//! The active features of a prompt.

use std::ops::Range;

/// Nonzero features, ordered by site, then position, then latent.
#[derive(Debug, Default, Clone)]
pub(super) struct Active {
    /// Number of positions in the prompt.
    pub(super) len: usize,
    /// Index of the first feature of each site and position, `[site * pos]`, followed by the total count.
    first: Vec<usize>,
    latents: Vec<u32>,
    pub(super) acts: Vec<f32>,
    /// Pre-activations.
    pub(super) pre: Vec<f32>,
}

impl Active {
    pub(super) fn new(len: usize) -> Self {
        Self { len, first: vec![0], ..Self::default() }
    }

    /// Adds the features of one position as `(latent, activation, pre-activation)`.
    pub(super) fn add(&mut self, features: impl IntoIterator<Item = (u32, f32, f32)>) {
        for (latent, act, pre) in features {
            self.latents.push(latent);
            self.acts.push(act);
            self.pre.push(pre);
        }
        self.first.push(self.latents.len());
    }

    pub(super) fn count(&self) -> usize {
        self.latents.len()
    }

    /// Indices of the features of a site at a position.
    pub(super) fn range(&self, site: usize, pos: usize) -> Range<usize> {
        let place = site * self.len + pos;
        self.first[place]..self.first[place + 1]
    }

    /// Latents of the features of a site at a position.
    pub(super) fn latents(&self, site: usize, pos: usize) -> &[u32] {
        &self.latents[self.range(site, pos)]
    }

    pub(super) fn latent(&self, feature: usize) -> u32 {
        self.latents[feature]
    }

    /// The index of the feature with this site, position and latent; `None` if the latent is not active there.
    pub(super) fn find(&self, site: usize, pos: usize, latent: u32) -> Option<usize> {
        let own = self.range(site, pos);
        let place = self.latents[own.clone()].binary_search(&latent);
        place.ok().map(|place| own.start + place)
    }

    /// The activation of a latent of a site at a position; zero if it is not active there.
    pub(super) fn act(&self, site: usize, pos: usize, latent: u32) -> f32 {
        self.find(site, pos, latent).map_or(0.0, |feature| self.acts[feature])
    }

    /// The site and position of a feature.
    pub(super) fn place(&self, feature: usize) -> (usize, usize) {
        let place = self.first.partition_point(|first| *first <= feature) - 1;
        (place / self.len.max(1), place % self.len.max(1))
    }
}
