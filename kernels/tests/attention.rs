//! Tests of fused attention against the explicit formula in `f64`.

mod common;
use common::{Random, each_isa, rounds};
use hooklens_kernels::attention::{Attention, HeadsView, attention};
use hooklens_kernels::attention_back::attention_back;
use hooklens_kernels::key_blocks::{KeyBlock, attention_over};

/// The explicit formula for one query and head: `z` `[dh]`.
fn reference(at: Attention, q: HeadsView, k: HeadsView, v: HeadsView, (b, i, h): (usize, usize, usize)) -> Vec<f64> {
    let at_index = |x: &HeadsView, s: usize, h: usize, d: usize| {
        x.data[b * x.batch_stride + s * x.token_stride + h * x.head_stride + d] as f64
    };
    let kv = h / (q.heads / k.heads);
    let mut logits = vec![f64::NEG_INFINITY; k.tokens];
    for (j, logit) in logits.iter_mut().enumerate() {
        let (qp, kp) = (at.query_pos[b * q.tokens + i], at.key_pos[b * k.tokens + j]);
        let seen = at.causal.is_none_or(|offset| j <= i + offset)
            && at.valid.is_none_or(|valid| valid[b * k.tokens + j])
            && at.oldest.is_none_or(|oldest| kp >= oldest[b * q.tokens + i]);
        if seen {
            let dot: f64 = (0..at.dh).map(|d| at_index(&q, i, h, d) * at_index(&k, j, kv, d)).sum();
            let mut s = dot * at.scale as f64;
            if let Some(cap) = at.soft_cap {
                s = cap as f64 * (s / cap as f64).tanh();
            }
            *logit = s + at.alibi.map_or(0.0, |slopes| slopes[h] as f64 * (kp - qp) as f64);
        }
    }
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut z = vec![0.0; at.dh];
    if max.is_finite() {
        let e: Vec<f64> = logits.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (j, e) in e.iter().enumerate() {
            for (d, z) in z.iter_mut().enumerate() {
                *z += e / sum * at_index(&v, j, kv, d);
            }
        }
    }
    z
}

/// Slopes, masks and positions of an attention call, some of which are enabled.
struct Rules {
    slopes: Vec<f32>,
    valid: Vec<bool>,
    past: usize,
    oldest: Vec<i32>,
    query_pos: Vec<i32>,
    key_pos: Vec<i32>,
    given: [bool; 5],
}

impl Rules {
    /// Rules for queries after `past` keys. The first key has position `first`, and windows have width `window`.
    fn random(
        random: &mut Random,
        [batch, queries, keys, past, heads]: [usize; 5],
        valid: Vec<bool>,
        first: i32,
        window: i32,
    ) -> Self {
        let query_pos: Vec<i32> = (0..batch * queries).map(|i| (i % queries + past) as i32 + first).collect();
        Self {
            slopes: (0..heads).map(|h| 0.5f32.powi(h as i32 + 1)).collect(),
            past,
            oldest: query_pos.iter().map(|p| p - window).collect(),
            query_pos,
            key_pos: (0..batch * keys).map(|i| (i % keys) as i32 + first).collect(),
            valid,
            given: std::array::from_fn(|_| random.below(2) == 0),
        }
    }

    fn request(&self, batch: usize, dh: usize, scale: f32, cap: f32) -> Attention<'_> {
        let [capped, sloped, causal, windowed, padded] = self.given;
        Attention {
            batch,
            dh,
            scale,
            soft_cap: capped.then_some(cap),
            alibi: sloped.then_some(&self.slopes),
            causal: causal.then_some(self.past),
            oldest: windowed.then_some(&self.oldest[..]),
            valid: padded.then_some(&self.valid),
            query_pos: &self.query_pos,
            key_pos: &self.key_pos,
        }
    }
}

#[test]
fn matches_explicit_formula() {
    each_isa(|_| {
        let mut random = Random(9);
        for round in 0..rounds(120) {
            let batch = 1 + random.below(3);
            let queries = if cfg!(miri) { 5 } else { random.pick(&[1, 2, 5, 17, 64, 65, 130]) };
            let cached = if cfg!(miri) { 3 } else { random.pick(&[0, 0, 1, 7, 40]) };
            // So many keys that a block of queries goes over them in parts.
            let cached = if round % 30 == 7 && !cfg!(miri) { 5000 } else { cached };
            let keys = if round == 0 { 0 } else { queries + cached };
            let dh = if cfg!(miri) { 5 } else { random.pick(&[1, 4, 8, 16, 40, 64]) };
            let kv_heads = 1 + random.below(3);
            let heads = kv_heads * (1 + random.below(3));
            // Queries, keys and values interleaved in one tensor with gaps.
            let token_stride = (heads + 2 * kv_heads) * dh + random.below(3);
            let (tokens, head_stride) = (queries.max(keys), dh);
            let batch_stride = tokens * token_stride + random.below(5);
            let data = random.floats(batch * batch_stride);
            let part = |start: usize, tokens, heads| HeadsView {
                data: if tokens == 0 { &[] } else { &data[start..] },
                tokens,
                heads,
                batch_stride,
                token_stride,
                head_stride,
            };
            let q = part(0, queries, heads);
            let k = part(heads * dh, keys, kv_heads);
            let v = part((heads + kv_heads) * dh, keys, kv_heads);
            let padding: Vec<usize> = (0..batch).map(|_| random.below(keys + 2)).collect();
            let left = random.below(2) == 0;
            let valid: Vec<bool> = (0..batch * keys)
                .map(|i| if left { i % keys >= padding[i / keys] } else { i % keys < padding[i / keys] })
                .collect();
            let rules = Rules::random(&mut random, [batch, queries, keys, cached, heads], valid, -3, 8);
            let at = rules.request(batch, dh, 1.0 / (dh as f32).sqrt() * 3.0, 2.0);
            // Biases of several thousands leave few digits to the scores.
            let bound = if at.alibi.is_some() && keys > 1000 { 1e-3 } else { 1e-5 };
            let mut z = vec![f32::NAN; batch * queries * heads * dh];
            attention(at, q, k, v, &mut z);
            for (index, z) in z.chunks(dh).enumerate() {
                let (token, h) = (index / heads, index % heads);
                let want = reference(at, q, k, v, (token / queries, token % queries, h));
                for (&got, want) in z.iter().zip(want) {
                    assert!((got as f64 - want).abs() < bound, "{at:?}: {got} instead of {want}");
                }
            }
        }
    });
}

#[test]
fn hidden_keys_may_hold_anything() {
    each_isa(|_| {
        let (queries, heads, dh) = (if cfg!(miri) { 5 } else { 70 }, 2, 8);
        let x = Random(4).floats(queries * heads * dh);
        let mut poisoned = x.clone();
        // Key 0 is padding, but inside the range of columns that is computed, so its junk must be finite.
        poisoned[..heads * dh].fill(1e30);
        let valid: Vec<bool> = (0..queries).map(|j| j != 0).collect();
        let at = Attention {
            batch: 1,
            dh,
            scale: 0.3,
            soft_cap: None,
            alibi: None,
            causal: Some(0),
            oldest: None,
            valid: Some(&valid),
            query_pos: &[],
            key_pos: &[],
        };
        let run = |k: &[f32]| {
            let mut z = vec![f32::NAN; x.len()];
            let q = HeadsView::contiguous(&x, queries, heads, dh);
            let k = HeadsView::contiguous(k, queries, heads, dh);
            attention(at, q, k, k, &mut z);
            z
        };
        let z = run(&x);
        assert_eq!(z, run(&poisoned));
        assert!(z[..heads * dh].iter().all(|&z| z == 0.0), "the first query sees nothing");
    });
}

/// For each batch row, the stored row that it reads; and all keys and values.
type Stored = (Vec<usize>, Vec<f32>, Vec<f32>);

/// Attention over blocks of keys, some shared by several rows, equals attention over the concatenated keys.
#[test]
fn parts_are_the_whole() {
    each_isa(|_| {
        let mut random = Random(11);
        for _ in 0..rounds(80) {
            let (batch, dh) = (1 + random.below(5), if cfg!(miri) { 5 } else { random.pick(&[1, 8, 16, 40]) });
            let queries = if cfg!(miri) { 2 } else { random.pick(&[1, 2, 5, 30, 70]) };
            let kv_heads = 1 + random.below(3);
            let heads = kv_heads * (1 + random.below(3));
            let token = kv_heads * dh;
            let sizes: Vec<usize> = (0..random.below(3)).map(|_| random.below(20)).chain([queries]).collect();
            let columns: usize = sizes.iter().sum();
            // The last block is each row's own; the others are assigned to rows at random.
            let stored: Vec<Stored> = (sizes.iter().enumerate())
                .map(|(place, tokens)| {
                    let own = place + 1 == sizes.len();
                    let rows = (0..batch).map(|b| if own { b } else { random.below(b + 1) }).collect();
                    let len = batch * tokens * token;
                    (rows, random.floats(len), random.floats(len))
                })
                .collect();
            let parts: Vec<KeyBlock> = (stored.iter().zip(&sizes))
                .map(|((rows, keys, values), tokens)| {
                    let heads = |data| HeadsView::contiguous(data, *tokens, kv_heads, dh);
                    KeyBlock { keys: heads(keys), values: heads(values), rows }
                })
                .collect();
            let joined = |which: fn(&Stored) -> &Vec<f32>| {
                let mut all = Vec::new();
                for b in 0..batch {
                    for (part, tokens) in stored.iter().zip(&sizes) {
                        let len = tokens * token;
                        all.extend(&which(part)[part.0[b] * len..][..len]);
                    }
                }
                all
            };
            let (keys, values) = (joined(|part| &part.1), joined(|part| &part.2));
            let q = random.floats(batch * queries * heads * dh);
            let valid: Vec<bool> = (0..batch * columns).map(|_| random.below(4) > 0).collect();
            let past = columns - queries;
            let rules = Rules::random(&mut random, [batch, queries, columns, past, heads], valid, 0, 6);
            let at = rules.request(batch, dh, 0.7, 2.0);
            let q = HeadsView::contiguous(&q, queries, heads, dh);
            let whole = |data| HeadsView::contiguous(data, columns, kv_heads, dh);
            let mut expected = vec![f32::NAN; batch * queries * heads * dh];
            attention(at, q, whole(&keys), whole(&values), &mut expected);
            let mut given = vec![f32::NAN; expected.len()];
            attention_over(at, q, &parts, &mut given);
            for (given, expected) in given.iter().zip(&expected) {
                assert!((given - expected).abs() < 1e-5, "{at:?}: {given} instead of {expected}");
            }
        }
    });
}

#[test]
fn parts_without_a_column_give_zero() {
    let at = Attention {
        batch: 1,
        dh: 4,
        scale: 1.0,
        soft_cap: None,
        alibi: None,
        causal: None,
        oldest: None,
        valid: None,
        query_pos: &[0],
        key_pos: &[],
    };
    let nothing = || HeadsView::contiguous(&[], 0, 1, 4);
    let mut z = [f32::NAN; 4];
    let parts = [KeyBlock { keys: nothing(), values: nothing(), rows: &[0] }];
    attention_over(at, HeadsView::contiguous(&[1.0; 4], 1, 1, 4), &parts, &mut z);
    assert_eq!(z, [0.0; 4]);
}

/// The backward pass matches finite differences of `Σ g z`, computed with the explicit formula.
#[test]
#[cfg_attr(miri, ignore = "too many differences")]
fn gradients_are_slopes() {
    each_isa(|_| {
        let mut random = Random(17);
        for _ in 0..rounds(30) {
            let (batch, queries, cached) = (1 + random.below(2), random.pick(&[1, 3, 9, 66]), random.pick(&[0, 2]));
            let (keys, dh, kv_heads) = (queries + cached, random.pick(&[1, 4, 7]), 1 + random.below(2));
            let heads = kv_heads * (1 + random.below(3));
            let lengths = [queries * heads, keys * kv_heads, keys * kv_heads, queries * heads];
            let mut held = lengths.map(|len| random.floats(batch * len * dh));
            let views = |held: &[Vec<f32>; 4]| -> [HeadsView<'static>; 4] {
                let shapes = [(queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads)];
                std::array::from_fn(|i| HeadsView::contiguous(held[i].clone().leak(), shapes[i].0, shapes[i].1, dh))
            };
            let padding: Vec<usize> = (0..batch).map(|_| random.below(keys + 1)).collect();
            let valid: Vec<bool> = (0..batch * keys).map(|i| i % keys >= padding[i / keys]).collect();
            let rules = Rules::random(&mut random, [batch, queries, keys, cached, heads], valid, 0, 3);
            let at = rules.request(batch, dh, 1.0 / (dh as f32).sqrt() * 2.0, 1.5);
            let mut made = [0, 1, 2].map(|i| vec![f32::NAN; held[i].len()]);
            let [dq, dk, dv] = &mut made;
            attention_back(at, views(&held), [dq, dk, dv]);
            let number = |held: &[Vec<f32>; 4]| -> f64 {
                let [q, k, v, g] = views(held);
                let mut sum = 0.0;
                for (index, g) in g.data.chunks(dh).enumerate() {
                    let (token, h) = (index / heads, index % heads);
                    let z = reference(at, q, k, v, (token / queries, token % queries, h));
                    sum += z.iter().zip(g).map(|(z, g)| z * f64::from(*g)).sum::<f64>();
                }
                sum
            };
            for which in 0..3 {
                for _ in 0..3 {
                    let place = random.below(held[which].len());
                    let (own, step) = (held[which][place], 1.0 / 256.0);
                    let mut at_step = |by: f32| {
                        held[which][place] = own + by;
                        number(&held)
                    };
                    let slope = (at_step(step) - at_step(-step)) / (2.0 * f64::from(step));
                    held[which][place] = own;
                    let given = f64::from(made[which][place]);
                    assert!((given - slope).abs() <= 2e-3 * (1.0 + slope.abs()), "{at:?}: {given} instead of {slope}");
                }
            }
        }
    });
}

/// Without keys, nothing depends on the queries: their gradient is zero, whatever the buffer contained.
#[test]
fn without_keys_gradients_are_zeros() {
    let (numbers, none) = ([1.0; 12], []);
    let (q, k) = (HeadsView::contiguous(&numbers, 2, 2, 3), HeadsView::contiguous(&none, 0, 2, 3));
    let request = Attention {
        batch: 1,
        dh: 3,
        scale: 1.0,
        soft_cap: None,
        alibi: None,
        causal: None,
        oldest: None,
        valid: None,
        query_pos: &[],
        key_pos: &[],
    };
    let mut dq = [f32::NAN; 12];
    attention_back(request, [q, k, k, q], [&mut dq, &mut [], &mut []]);
    assert_eq!(dq, [0.0; 12]);
    let mut z = [f32::NAN; 12];
    attention(request, q, k, k, &mut z);
    assert_eq!(z, [0.0; 12]);
}
