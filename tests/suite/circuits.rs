//! Factored matrices equal the products they represent.

use hooklens::activations::Stage;
use hooklens::circuits::{Composition, FactoredMatrix, WeightMatrix};
use hooklens::prelude::*;
use proptest::prelude::*;

use burn::tensor::Distribution;

use crate::support::{any_config, any_sum, assert_close, cases, device, random_model, values};
use hooklens_model::config::{Layers, Settings};

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device())
}

fn factored(left: usize, inner: usize, right: usize) -> FactoredMatrix<4> {
    FactoredMatrix::new(random([2, 1, left, inner]), random([1, 3, inner, right])).unwrap()
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn factors_stand_for_their_product(left in 1usize..9, inner in 1usize..9, right in 1usize..9, other in 1usize..9) {
        let m = factored(left, inner, right);
        let dense = m.ab();
        prop_assert_eq!(m.dims(), [2, 3, left, right]);
        assert_close(&m.transposed().ab(), &dense.clone().swap_dims(2, 3), 1e-5, "transposed");
        assert_close(&m.scaled(-2.5).ab(), &(dense.clone() * -2.5), 1e-5, "scaled");
        let x = random([2, 3, right, other]);
        assert_close(&m.times_matrix(x.clone()).unwrap().ab(), &dense.clone().matmul(x), 1e-4, "times a matrix");
        let x = random([2, 3, other, left]);
        assert_close(&m.after_matrix(x.clone()).unwrap().ab(), &x.matmul(dense.clone()), 1e-4, "after a matrix");
        let n = factored(right, other, 4);
        let product = m.times(&n).unwrap();
        prop_assert_eq!(product.inner(), inner.min(other));
        assert_close(&product.ab(), &dense.clone().matmul(n.ab()), 1e-4, "times");
        let norm = dense.clone().square().sum_dim(3).sum_dim(2).sqrt();
        assert_close(&m.norm(), &norm, 1e-4, "norm");
        let (u, s, vh) = m.svd().unwrap();
        assert_close(&(u * s.clone()).matmul(vh.clone()), &dense, 1e-4, "singular values");
        let rank = s.dims()[3];
        let one = vh.clone().matmul(vh.swap_dims(2, 3));
        assert_close(&one, &Tensor::<2>::eye(rank, &device()).unsqueeze::<4>().expand([2, 3, rank, rank]), 1e-4, "unit");
        assert_close(&m.make_even().unwrap().ab(), &dense, 1e-4, "even");
        assert_close(&m.at(1, 2).unwrap().ab(), &dense.clone().narrow(0, 1, 1).narrow(1, 2, 1).squeeze_dims(&[0, 1]), 1e-5, "one");
        assert_close(&m.slice(0..1, ..).unwrap().ab(), &dense.clone().narrow(2, 0, 1), 1e-5, "rows");
        assert_close(&m.slice(.., right - 1..right).unwrap().ab(), &dense.clone().narrow(3, right - 1, 1), 1e-5, "columns");
        // When one side is collapsed, products of the other side with itself are kept.
        let gram = dense.clone().matmul(dense.clone().swap_dims(2, 3));
        let collapsed = m.collapse_r().unwrap();
        assert_close(&collapsed.clone().matmul(collapsed.swap_dims(2, 3)), &gram, 1e-4, "collapsed");
        if left == right {
            let (re, _) = m.eigenvalues().unwrap();
            let trace = (dense * Tensor::<2>::eye(left, &device()).unsqueeze()).sum_dim(3).sum_dim(2);
            assert_close(&re.sum_dim(3), &trace, 2e-4, "trace");
        } else {
            prop_assert!(m.eigenvalues().is_err());
        }
    }

    /// Composition scores equal those computed from the full matrices.
    #[test]
    fn composition_is_what_products_say(config in any_config(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        let heads = model.config().n_heads();
        let (ov, qk) = (model.ov().ab(), model.qk().ab());
        for (mode, reader) in [(Composition::Q, qk.clone()), (Composition::K, qk.swap_dims(2, 3)), (Composition::V, ov.clone())] {
            let scores = model.composition_scores(mode).unwrap();
            for (from, to) in (0..heads).flat_map(|from| (0..heads).map(move |to| (from, to))) {
                let one = |t: &Tensor<4>, layer: usize, head: usize| t.clone().narrow(0, layer, 1).narrow(1, head, 1);
                let size = |t: Tensor<4>| t.square().sum().sqrt().into_scalar::<f32>();
                let (w, r) = (one(&ov, 0, from), one(&reader, 1, to));
                let wanted = size(w.clone().matmul(r.clone())) / (size(w) * size(r));
                let given = scores.values()[[from, heads + to]] as f32;
                prop_assert!((given - wanted).abs() < 1e-4, "{given} for {wanted}");
                prop_assert_eq!(scores.values()[[heads + to, from]], 0.0);
            }
        }
    }

    /// With zero inputs, the residual stream equals the accumulated biases.
    #[test]
    fn accumulated_biases_are_those_of_the_decomposition(config in any_sum(), seed in any::<u64>()) {
        prop_assume!(!config.post_norms() && config.experts().is_none());
        let model = random_model(config, seed);
        if model.config().per_layer_inputs().is_some() || model.config().layer_scalars() {
            let message = model.accumulated_bias(Stage::Final, hooklens::circuits::Biases::All).unwrap_err();
            prop_assert!(matches!(message, hooklens::Error::Input(hooklens::InputError::NotDefined { .. })), "{message}");
            return Ok(());
        }
        let cache = model.record([3, 9, 1], Record::all()).unwrap();
        let parts = model.analyze(&cache).unwrap().full_resid_decomposition(Stage::Final, Neurons::Apart).unwrap();
        let bias = parts.vector("bias").unwrap().narrow(1, 0, 1).reshape([model.config().d_model()]);
        assert_close(&model.accumulated_bias(Stage::Final, hooklens::circuits::Biases::All).unwrap(), &bias, 1e-5, "bias");
    }
}

#[test]
fn the_induction_head_reads_what_the_previous_token_head_wrote() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let scores = model.composition_scores(Composition::K).unwrap();
    let mut config = model.config().clone();
    config.layers_mut().truncate(2);
    let random = random_model(config, 0);
    let by_chance = random.composition_scores(Composition::K).unwrap();
    let [most, chance] = [&scores, &by_chance].map(|scores| scores.largest(1)[0].1);
    assert!(most > 1.3 * chance, "{most}, by chance {chance}");
}

#[test]
fn directions_are_the_strongest_ones() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    for matrix in [WeightMatrix::Ov(2, 1), WeightMatrix::MlpIn(0), WeightMatrix::MlpOut(3)] {
        let found = model.singular_directions(matrix, 3).unwrap();
        let values = values(&found.values);
        assert!(values[[0]] >= values[[1]] && values[[1]] >= values[[2]] && values[[2]] > 0.0);
        let lengths = found.vectors.clone().square().sum_dim(1);
        assert_close(&lengths, &lengths.ones_like(), 1e-4, "unit vectors");
        assert_close(&found.vectors.matmul(model.w_u()), &found.logits, 1e-5, "logits");
    }
    assert!(model.singular_directions(WeightMatrix::Ov(9, 0), 1).is_err());
    assert!(model.singular_directions(WeightMatrix::Ov(0, 9), 1).is_err());
    assert!(model.singular_directions(WeightMatrix::MlpOut(0), 0).is_err());
    let attn_only = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    assert!(attn_only.singular_directions(WeightMatrix::MlpOut(0), 1).is_err());
    assert!(attn_only.stacked::<3>("W_in").is_err());
}

#[test]
fn matrices_that_do_not_fit_are_said() {
    let message = FactoredMatrix::new(random([2, 3]), random([4, 2])).unwrap_err().to_string();
    assert!(message.contains("inner dimensions"), "{message}");
    assert!(FactoredMatrix::new(random([2, 2, 3]), random([3, 3, 2])).is_err());
    let m = factored(3, 2, 4);
    assert!(m.at(2, 0).unwrap_err().to_string().contains("layer"));
    assert!(m.at(0, 3).is_err() && m.slice(2..5, ..).is_err() && m.slice(.., 2..2).is_err() && m.times(&m).is_err());
}
