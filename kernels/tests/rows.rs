//! Tests of softmax, score masking and norms against `f64` references.

mod common;
use common::{Random, each_isa};
use hooklens_kernels::norm::{Kind, Norm, norm, norm_and_scale};
use hooklens_kernels::softmax::{RowMask, Scores, mask_scores, softmax};

fn close(got: f32, want: f64, tolerance: f64) {
    assert!((got as f64 - want).abs() <= tolerance * (1.0 + want.abs()), "{got} instead of {want}");
}

fn softmax_reference(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x as f64));
    let e: Vec<f64> = row.iter().map(|&x| if max.is_finite() { (x as f64 - max).exp() } else { 0.0 }).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| if sum > 0.0 { e / sum } else { 0.0 }).collect()
}

#[test]
fn softmax_matches_reference() {
    each_isa(|_| {
        let mut random = Random(5);
        for cols in [1, 2, 7, 15, 16, 17, 63, 64, 65, 131, 1000, 20_001] {
            for rows in [0, 1, 3, 40] {
                let mut x: Vec<f32> = random.floats(rows * cols).iter().map(|x| x * 30.0).collect();
                for (i, x) in x.iter_mut().enumerate() {
                    if random.below(4) == 0 || i / cols == 2 {
                        *x = f32::NEG_INFINITY;
                    }
                }
                let input = x.clone();
                softmax(&mut x, cols);
                for (x, input) in x.chunks(cols).zip(input.chunks(cols)) {
                    for (&got, want) in x.iter().zip(softmax_reference(input)) {
                        close(got, want, 1e-6);
                        assert!(want > 0.0 || got == 0.0);
                    }
                }
            }
        }
        let mut nan = [f32::NAN, f32::NEG_INFINITY, f32::NAN, 1.0];
        softmax(&mut nan, 2);
        assert!(nan[0].is_nan() && nan[2].is_nan() && nan[3].is_nan());
    });
}

#[test]
fn masking_matches_reference() {
    each_isa(|_| {
        let mut random = Random(6);
        for _ in 0..200 {
            let kv = random.below(50);
            let raw: Vec<f32> = random.floats(kv).iter().map(|x| x * 40.0).collect();
            let keys: Vec<i32> = (0..kv).map(|_| random.below(30) as i32).collect();
            let valid: Vec<bool> = (0..kv).map(|_| random.below(3) > 0).collect();
            let query = random.below(30) as i32;
            let cap = (random.below(2) == 0).then_some(20.0);
            let slope = (random.below(2) == 0).then_some(0.25);
            let width = (random.below(2) == 0).then_some(8);
            let limit = random.pick(&[usize::MAX, 0, 10, 49]);
            let padded = random.below(2) == 0;
            let mut row = raw.clone();
            mask_scores(
                &mut row,
                Scores { scale: 0.5, soft_cap: cap, alibi: slope.map(|slope| (slope, query, &keys[..])) },
                RowMask {
                    limit,
                    valid: padded.then_some(&valid[..]),
                    oldest: width.map(|width| (query - width + 1, &keys[..])),
                },
            );
            for j in 0..kv {
                let seen = j < limit && (!padded || valid[j]) && width.is_none_or(|width| query - keys[j] < width);
                if !seen {
                    assert_eq!(row[j], f32::NEG_INFINITY);
                    continue;
                }
                let mut want = raw[j] as f64 * 0.5;
                if let Some(cap) = cap {
                    want = cap as f64 * (want / cap as f64).tanh();
                }
                want += slope.unwrap_or(0.0) as f64 * (keys[j] - query) as f64;
                close(row[j], want, 1e-6);
            }
        }
        let mut row = [1.0, 2.0];
        mask_scores(&mut row, Scores { scale: 2.0, soft_cap: None, alibi: None }, RowMask::NONE);
        assert_eq!(row, [2.0, 4.0]);
    });
}

#[test]
fn norms_match_reference() {
    each_isa(|_| {
        let mut random = Random(7);
        for kind in [Kind::Layer, Kind::Rms] {
            for cols in [1, 3, 16, 63, 64, 65, 200, 768] {
                for rows in [0, 1, 2, 50] {
                    let x: Vec<f32> = random.floats(rows * cols).iter().map(|x| x * 3.0 + 5.0).collect();
                    let (w, b) = (random.floats(cols), random.floats(cols));
                    let how = Norm {
                        kind,
                        eps: 1e-5,
                        weight: (random.below(2) == 0).then_some(&w[..]),
                        bias: (random.below(2) == 0).then_some(&b[..]),
                    };
                    let (mut scale, mut hat) = (vec![0.0; rows], vec![0.0; rows * cols]);
                    let (mut y, mut only) = (hat.clone(), hat.clone());
                    norm_and_scale(how, &x, cols, &mut scale, &mut y);
                    norm_and_scale(Norm { weight: None, bias: None, ..how }, &x, cols, &mut scale, &mut hat);
                    norm(how, &x, cols, &mut only);
                    assert_eq!(y, only);
                    for r in 0..rows {
                        let row = &x[r * cols..][..cols];
                        let count = cols as f64;
                        let mean = match kind {
                            Kind::Layer => row.iter().map(|&x| x as f64).sum::<f64>() / count,
                            Kind::Rms => 0.0,
                        };
                        let square = row.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / count;
                        let s = (square + 1e-5).sqrt();
                        close(scale[r], s, 2e-6);
                        for j in 0..cols {
                            let want = (row[j] as f64 - mean) / s;
                            close(hat[r * cols + j], want, 4e-6);
                            let want =
                                want * how.weight.map_or(1.0, |w| w[j] as f64) + how.bias.map_or(0.0, |b| b[j] as f64);
                            close(y[r * cols + j], want, 4e-6);
                        }
                    }
                }
            }
        }
    });
}
