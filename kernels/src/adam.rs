//! Adam optimizer step (Kingma and Ba 2015) over slices.

use crate::isa::{Isa, multiversion};
use crate::tasks::{CHUNK, each_item};

/// Settings of one step.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Learning rate.
    pub rate: f32,
    /// Decay rates of the running means of gradients and of squared gradients.
    pub betas: [f32; 2],
    /// Added to the square root of the second moment.
    pub eps: f32,
    /// Factor by which gradients are multiplied first.
    pub scale: f32,
    /// Step number, starting at 1.
    pub step: i32,
}

impl Adam {
    /// Updates the values, and the running means of gradients and squared gradients.
    ///
    /// ```
    /// use hooklens_kernels::adam::Adam;
    /// let step = Adam { rate: 0.1, betas: [0.9, 0.999], eps: 1e-8, scale: 1.0, step: 1 };
    /// let (mut value, mut first, mut second) = ([1.0], [0.0], [0.0]);
    /// step.apply(&mut value, &[2.0], &mut first, &mut second);
    /// assert!((value[0] - 0.9f32).abs() < 1e-6); // the first step has the size of the learning rate
    /// ```
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn apply(self, values: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32]) {
        let len = values.len();
        assert!(gradients.len() == len && first.len() == len && second.len() == len, "the slices differ in length");
        let isa = Isa::current();
        let moments = first.chunks_mut(CHUNK).zip(second.chunks_mut(CHUNK));
        each_item(
            values.chunks_mut(CHUNK).zip(gradients.chunks(CHUNK)).zip(moments),
            |((values, gradients), (m, v))| {
                step(isa, self, values, gradients, m, v);
            },
        );
    }
}

multiversion! {
    fn step(adam: Adam, values: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32]) = step_body
}

#[inline(always)]
fn step_body<const FMA: bool>(
    adam: Adam,
    values: &mut [f32],
    gradients: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let [b1, b2] = adam.betas;
    let rate = adam.rate / (1.0 - b1.powi(adam.step));
    let root = (1.0 - b2.powi(adam.step)).sqrt().recip();
    for (((value, gradient), m), v) in values.iter_mut().zip(gradients).zip(first).zip(second) {
        let gradient = gradient * adam.scale;
        *m = b1 * *m + (1.0 - b1) * gradient;
        *v = b2 * *v + (1.0 - b2) * gradient * gradient;
        *value -= rate * *m / (v.sqrt() * root + adam.eps);
    }
}
