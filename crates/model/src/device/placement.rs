//! Assignment of a model's layers to devices.

use burn::tensor::Device;

/// Devices for the parts of a model, in the order of its layers; at least one.
#[derive(Debug, Clone)]
pub struct Placement {
    first: Device,
    others: Vec<Device>,
}

impl Placement {
    /// All on one device.
    pub fn on(device: Device) -> Self {
        Self { first: device, others: Vec::new() }
    }

    /// Spread over these devices; `None` of none.
    pub fn over(devices: &[Device]) -> Option<Self> {
        let (first, others) = devices.split_first()?;
        Some(Self { first: first.clone(), others: others.to_vec() })
    }

    /// Where the embedding goes.
    pub fn first(&self) -> &Device {
        &self.first
    }

    /// Where the final norm and the unembedding go.
    pub fn last(&self) -> &Device {
        self.others.last().unwrap_or(&self.first)
    }

    /// Where a layer's block goes: each device has as many as the next, give or take one.
    pub fn of_layer(&self, layer: usize, n_layers: usize) -> &Device {
        match layer * (self.others.len() + 1) / n_layers.max(1) {
            0 => &self.first,
            n => self.others.get(n - 1).unwrap_or(self.last()),
        }
    }

    /// The same, none of them with autodiff.
    pub fn without_autodiff(&self) -> Self {
        let without = |device: &Device| device.clone().without_autodiff();
        Self { first: without(&self.first), others: self.others.iter().map(without).collect() }
    }

    /// The same, all of them with autodiff.
    pub fn autodiff(&self) -> Self {
        let with = |device: &Device| device.clone().autodiff();
        Self { first: with(&self.first), others: self.others.iter().map(with).collect() }
    }

    /// All of them.
    pub fn devices(&self) -> Vec<Device> {
        std::iter::once(&self.first).chain(&self.others).cloned().collect()
    }

    /// The only device, if there is but one.
    pub fn only(&self) -> Option<&Device> {
        self.others.iter().all(|other| *other == self.first).then_some(&self.first)
    }
}
