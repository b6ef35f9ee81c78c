//! Summands of the residual stream, stored as factors.

use burn::tensor::Tensor;

/// One or more components of the stream.
#[derive(Debug, Clone)]
pub(super) enum Term {
    /// A vector, `[batch, pos, d_model]`.
    Vector(Tensor<3>),
    /// One vector per head: `z` `[batch, pos, head, d_head]` times `out` `[head, d_head, d_model]`.
    Heads { z: Tensor<4>, out: Tensor<3> },
    /// One vector per neuron: `post` `[batch, pos, neuron]` times `out` `[neuron, d_model]`.
    Neurons { post: Tensor<3>, out: Tensor<2> },
}

impl Term {
    /// Number of components.
    pub(super) fn count(&self) -> usize {
        match self {
            Term::Vector(_) => 1,
            Term::Heads { out, .. } => out.dims()[0],
            Term::Neurons { out, .. } => out.dims()[0],
        }
    }

    /// Multiplies out the factors to get the component vectors, `[component, batch, pos, d_model]`.
    pub(super) fn vectors(&self) -> Tensor<4> {
        match self {
            Term::Vector(vector) => vector.clone().unsqueeze_dim(0),
            Term::Heads { z, out } => {
                let [batch, pos, heads, d_head] = z.dims();
                let rows = z.clone().permute([2, 0, 1, 3]).reshape([heads, batch * pos, d_head]);
                rows.matmul(out.clone()).reshape([heads, batch, pos, out.dims()[2]])
            }
            Term::Neurons { post, out } => {
                let by_neuron = post.clone().permute([2, 0, 1]).unsqueeze_dim::<4>(3);
                let [neurons, d_model] = out.dims();
                by_neuron * out.clone().reshape([neurons, 1, 1, d_model])
            }
        }
    }

    /// The sum of the components, `[batch, pos, d_model]`, computed without multiplying them out.
    pub(super) fn sum(&self) -> Tensor<3> {
        match self {
            Term::Vector(vector) => vector.clone(),
            Term::Heads { z, out } => {
                let ([batch, pos, heads, d_head], [_, _, d_model]) = (z.dims(), out.dims());
                let rows = z.clone().reshape([batch * pos, heads * d_head]);
                rows.matmul(out.clone().reshape([heads * d_head, d_model])).reshape([batch, pos, d_model])
            }
            Term::Neurons { post, out } => {
                let ([batch, pos, neurons], [_, d_model]) = (post.dims(), out.dims());
                let rows = post.clone().reshape([batch * pos, neurons]);
                rows.matmul(out.clone()).reshape([batch, pos, d_model])
            }
        }
    }

    /// Projects each component onto `direction`, `[batch or 1, pos or 1, d_model]`, giving `[component, batch, pos]`.
    /// The direction is multiplied into the factors, so components are never multiplied out.
    pub(super) fn project(&self, direction: &Tensor<3>) -> Tensor<3> {
        let [rows, places, d_model] = direction.dims();
        let flat = || direction.clone().reshape([rows * places, d_model]);
        match self {
            Term::Vector(vector) => {
                (vector.clone() * direction.clone()).sum_dim(2).squeeze_dim::<2>(2).unsqueeze_dim(0)
            }
            Term::Heads { z, out } => {
                let [heads, d_head, _] = out.dims();
                let read = flat().matmul(out.clone().reshape([heads * d_head, d_model]).transpose());
                let read = read.reshape([rows, places, heads, d_head]);
                (z.clone() * read).sum_dim(3).squeeze_dim::<3>(3).permute([2, 0, 1])
            }
            Term::Neurons { post, out } => {
                let neurons = out.dims()[0];
                let read = flat().matmul(out.clone().transpose()).reshape([rows, places, neurons]);
                (post.clone() * read).permute([2, 0, 1])
            }
        }
    }

    /// Selects the components with these indices, in this order.
    pub(super) fn pick(&self, places: &[usize]) -> Term {
        let device = match self {
            Term::Vector(_) => return self.clone(),
            Term::Heads { z, .. } => z.device(),
            Term::Neurons { post, .. } => post.device(),
        };
        let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
        let places = Tensor::<1, burn::tensor::Int>::from_ints(places.as_slice(), &device);
        match self {
            Term::Vector(_) => self.clone(),
            Term::Heads { z, out } => {
                Term::Heads { z: z.clone().select(2, places.clone()), out: out.clone().select(0, places) }
            }
            Term::Neurons { post, out } => {
                Term::Neurons { post: post.clone().select(2, places.clone()), out: out.clone().select(0, places) }
            }
        }
    }
}
