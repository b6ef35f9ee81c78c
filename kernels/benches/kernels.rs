//! Benchmarks of the kernels on the shapes of GPT-2 small, with memory bandwidth or arithmetic throughput:
//! `cargo bench -p hooklens-kernels --bench kernels`.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use hooklens_kernels::attention::{Attention, HeadsView, attention};
use hooklens_kernels::elementwise::{gelu_erf, gelu_tanh};
use hooklens_kernels::gemm::{Product, gemm, gemm_each};
use hooklens_kernels::norm::{Kind, Norm, norm};
use hooklens_kernels::softmax::softmax;
use hooklens_kernels::view::View2;

fn main() {
    divan::main();
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect()
}

/// Weights that are not in any cache: each call reads different weights, as the layers of a model do.
struct Layers {
    weights: Vec<Vec<f32>>,
    next: usize,
}

impl Layers {
    fn new(len: usize) -> Self {
        let count = (400_000_000 / (4 * len)).clamp(1, 64);
        Self { weights: (0..count).map(|_| numbers(len)).collect(), next: 0 }
    }

    fn next(&mut self) -> &[f32] {
        self.next = (self.next + 1) % self.weights.len();
        &self.weights[self.next]
    }
}

/// One token: bound by reading the weights (in bytes per second). Weights are `[in, out]`, as GPT-2 stores them.
#[divan::bench(args = [(768, 768), (768, 2304), (768, 3072), (3072, 768)])]
fn vector_by_rows(bencher: Bencher, (k, n): (usize, usize)) {
    let (a, mut c, mut layers) = (numbers(k), vec![0.0; n], Layers::new(k * n));
    bencher.counter(BytesCount::new(4 * k * n)).bench_local(|| {
        gemm(View2::row_major(&a, 1, k), View2::row_major(layers.next(), k, n), None, black_box(&mut c), n);
    });
}

/// One token, with weights as `[out, in]`: the tied unembedding, and the linear layers of most other families.
#[divan::bench(args = [(768, 50257), (768, 3072), (3072, 768)])]
fn vector_by_columns(bencher: Bencher, (k, n): (usize, usize)) {
    let (a, mut c, mut layers) = (numbers(k), vec![0.0; n], Layers::new(k * n));
    bencher.counter(BytesCount::new(4 * k * n)).bench_local(|| {
        gemm(View2::row_major(&a, 1, k), View2::row_major(layers.next(), n, k).t(), None, black_box(&mut c), n);
    });
}

/// One token for each of several batch rows: also bound by reading the weights.
#[divan::bench(args = [2, 4, 8])]
fn few_rows(bencher: Bencher, m: usize) {
    let (k, n) = (768, 3072);
    let (a, mut c, mut layers) = (numbers(m * k), vec![0.0; m * n], Layers::new(k * n));
    bencher.counter(BytesCount::new(4 * k * n)).bench_local(|| {
        gemm(View2::row_major(&a, m, k), View2::row_major(layers.next(), k, n), None, black_box(&mut c), n);
    });
}

/// Queries, keys and values of one token, with their weights side by side in one matrix, as GPT-2 stores them.
#[divan::bench]
fn three_at_once(bencher: Bencher) {
    let d = 768;
    let (a, mut layers) = (numbers(d), Layers::new(3 * d * d));
    let mut outputs = [0; 3].map(|_| vec![0.0; d]);
    bencher.counter(BytesCount::new(12 * d * d)).bench_local(|| {
        let weights = layers.next();
        let product =
            |(i, c)| Product { b: View2::new(weights, i * d, (d, d), (3 * d, 1)).into(), bias: None, c, ldc: d };
        let products = outputs.iter_mut().map(Vec::as_mut_slice).enumerate().map(product).collect();
        gemm_each(View2::row_major(&a, 1, d), products);
    });
}

/// Many tokens: bound by arithmetic (items are floating-point operations).
#[divan::bench(args = [(16, 768, 3072), (128, 768, 3072), (128, 3072, 768), (512, 768, 3072), (128, 768, 50257)])]
fn matrix(bencher: Bencher, (m, k, n): (usize, usize, usize)) {
    let (a, b, mut c) = (numbers(m * k), numbers(k * n), vec![0.0; m * n]);
    bencher.counter(ItemsCount::new(2 * m * k * n)).bench_local(|| {
        gemm(View2::row_major(&a, m, k), View2::row_major(&b, k, n), None, black_box(&mut c), n);
    });
}

/// Causal attention, 12 heads of 64.
#[divan::bench(args = [(128, 128), (512, 512), (8, 264), (1, 512)])]
fn fused_attention(bencher: Bencher, (queries, keys): (usize, usize)) {
    let (heads, dh) = (12, 64);
    let (q, k) = (numbers(queries * heads * dh), numbers(keys * heads * dh));
    let mut z = vec![0.0; q.len()];
    let request = Attention {
        batch: 1,
        dh,
        scale: 0.125,
        soft_cap: None,
        alibi: None,
        causal: Some(keys - queries),
        oldest: None,
        valid: None,
        query_pos: &[],
        key_pos: &[],
    };
    bencher.bench_local(|| {
        let of = |x, tokens| HeadsView::contiguous(x, tokens, heads, dh);
        attention(request, of(&q, queries), of(&k, keys), of(&k, keys), black_box(&mut z));
    });
}

/// GPT-2's activation on `[128, 3072]`.
#[divan::bench]
fn gelu_new(bencher: Bencher) {
    let x = numbers(128 * 3072);
    bencher.with_inputs(|| x.clone()).bench_local_refs(|x| gelu_tanh(x));
}

/// BERT's activation on `[128, 3072]`.
#[divan::bench]
fn gelu(bencher: Bencher) {
    let x = numbers(128 * 3072);
    bencher.with_inputs(|| x.clone()).bench_local_refs(|x| gelu_erf(x));
}

/// Layer norm of `[128, 768]`.
#[divan::bench]
fn layer_norm(bencher: Bencher) {
    let (x, w, mut y) = (numbers(128 * 768), numbers(768), vec![0.0; 128 * 768]);
    let parameters = || Norm { kind: Kind::Layer, eps: 1e-5, weight: Some(&w), bias: Some(&w) };
    bencher.bench_local(|| norm(parameters(), &x, 768, black_box(&mut y)));
}

/// Softmax of a layer's scores, `[12 * 128, 128]`.
#[divan::bench]
fn softmax_rows(bencher: Bencher) {
    let x = numbers(12 * 128 * 128);
    bencher.with_inputs(|| x.clone()).bench_local_refs(|x| softmax(x, 128));
}
