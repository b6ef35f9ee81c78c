//! Assignment of a model's layers to devices.

use burn::tensor::Device;

/// Devices for the parts of a model, in layer order; at least one.
#[derive(Debug, Clone)]
pub struct Placement {
    first: Device,
    others: Vec<Device>,
}

impl Placement {
    /// Places everything on one device.
    pub fn on(device: Device) -> Self {
        Self { first: device, others: Vec::new() }
    }

    /// Spreads the model over these devices; `None` if the list is empty.
    pub fn over(devices: &[Device]) -> Option<Self> {
        let (first, others) = devices.split_first()?;
        Some(Self { first: first.clone(), others: others.to_vec() })
    }

    /// Device of the embedding.
    pub fn first(&self) -> &Device {
        &self.first
    }

    /// Device of the final norm and the unembedding.
    pub fn last(&self) -> &Device {
        self.others.last().unwrap_or(&self.first)
    }

    /// Device of a layer's block. Devices get equal numbers of blocks, give or take one.
    pub fn of_layer(&self, layer: usize, n_layers: usize) -> &Device {
        match layer * (self.others.len() + 1) / n_layers.max(1) {
            0 => &self.first,
            n => self.others.get(n - 1).unwrap_or(self.last()),
        }
    }

    /// The placement with autodiff disabled on all devices.
    pub fn without_autodiff(&self) -> Self {
        let without = |device: &Device| device.clone().without_autodiff();
        Self { first: without(&self.first), others: self.others.iter().map(without).collect() }
    }

    /// The placement with autodiff enabled on all devices.
    pub fn autodiff(&self) -> Self {
        let with = |device: &Device| device.clone().autodiff();
        Self { first: with(&self.first), others: self.others.iter().map(with).collect() }
    }

    /// All devices.
    pub fn devices(&self) -> Vec<Device> {
        std::iter::once(&self.first).chain(&self.others).cloned().collect()
    }

    /// The device, if there is only one.
    pub fn only(&self) -> Option<&Device> {
        self.others.iter().all(|other| *other == self.first).then_some(&self.first)
    }
}
