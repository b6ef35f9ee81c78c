//! Timings compared with the `gemm` crate.
use hooklens_kernels::view::View2;
use std::time::Instant;

fn rnd(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e3779b97f4a7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32) / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn stats(mut t: Vec<f64>) -> (f64, f64) {
    t.sort_by(f64::total_cmp);
    (t[0], t[t.len() / 2])
}

fn time(f: &mut dyn FnMut()) -> f64 {
    let s = Instant::now();
    f();
    s.elapsed().as_secs_f64() * 1e3
}

fn bench_gemm(m: usize, k: usize, n: usize, transposed: bool, theirs: bool) {
    let a = rnd(m * k, 1);
    let b = rnd(k * n, 2);
    let (mut c, mut d) = (vec![0.0; m * n], vec![0.0; m * n]);
    let view = if transposed { View2::row_major(&b, n, k).t() } else { View2::row_major(&b, k, n) };
    let reps = ((4e9 / (m * n * k) as f64) as usize).clamp(5, 100);
    let (mut t1, mut t2) = (vec![], vec![]);
    for r in 0..reps + 1 {
        let x = time(&mut || hooklens_kernels::gemm::gemm(View2::row_major(&a, m, k), view, None, &mut c, n));
        let y = if theirs {
            time(&mut || unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    d.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    a.as_ptr(),
                    1,
                    k as isize,
                    b.as_ptr(),
                    view.col_stride() as isize,
                    view.row_stride() as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::Rayon(0),
                )
            })
        } else {
            0.0
        };
        if r > 0 {
            t1.push(x);
            t2.push(y);
        }
    }
    let (o, t) = (stats(t1), stats(t2));
    println!(
        "{m:4} {k:5} {n:6} {} ours {:8.3} / {:8.3} ms ({:5.1} GF/s)  gemm {:8.3} / {:8.3} ms  x{:.2}",
        if transposed { "T" } else { "N" },
        o.0,
        o.1,
        2e-6 * (m * n * k) as f64 / o.0,
        t.0,
        t.1,
        t.0 / o.0
    );
}

/// Prints the minimum and median time of `f`.
fn row(name: &str, mut f: impl FnMut()) {
    f();
    let (least, median) = stats((0..60).map(|_| time(&mut f)).collect());
    println!("{name:32} {least:8.3} / {median:8.3} ms");
}

fn bench_rest() {
    use hooklens_kernels::{attention::*, elementwise as el, norm::*, softmax::softmax};
    let x = rnd(128 * 3072, 3);
    let mut y = x.clone();
    type Activation = fn(&mut [f32]);
    let activations: [(&str, Activation); 6] = [
        ("gelu_tanh", el::gelu_tanh),
        ("gelu_erf", el::gelu_erf),
        ("silu", el::silu),
        ("exp", el::exp),
        ("tanh", el::tanh),
        ("relu", el::relu),
    ];
    for (name, f) in activations {
        y.copy_from_slice(&x);
        row(&format!("{name} [128, 3072]"), || f(&mut y));
    }
    let mut s = rnd(12 * 512 * 512, 4);
    row("softmax [6144, 512]", || softmax(&mut s, 512));
    let x = rnd(512 * 768, 5);
    let (mut y, w) = (x.clone(), rnd(768, 6));
    let layer = Norm { kind: Kind::Layer, eps: 1e-5, weight: Some(&w), bias: Some(&w) };
    row("layer norm [512, 768]", || norm(layer, &x, 768, &mut y));
    for (p, s) in [(128, 128), (512, 512), (2048, 2048), (8192, 8192), (64, 8192), (1, 1024), (1, 8192)] {
        let (q, kv) = (rnd(p * 768, 7), rnd(s * 768, 8));
        let mut z = vec![0.0; p * 768];
        let q = HeadsView::contiguous(&q, p, 12, 64);
        let kv = HeadsView::contiguous(&kv, s, 12, 64);
        let at = Attention {
            batch: 1,
            dh: 64,
            scale: 0.125,
            soft_cap: None,
            alibi: None,
            causal: Some(s - p),
            oldest: None,
            valid: None,
            query_pos: &[],
            key_pos: &[],
        };
        row(&format!("causal attention 12x64 {p}x{s}"), || attention(at, q, kv, kv, &mut z));
    }
}

/// Throughput of each instruction set on one shape.
fn bench_isas() {
    let (m, k, n) = (128, 768, 3072);
    let (a, b, mut c) = (rnd(m * k, 1), rnd(k * n, 2), vec![0.0; m * n]);
    for &isa in hooklens_kernels::isa::Isa::available() {
        let mut product =
            || hooklens_kernels::gemm::gemm(View2::row_major(&a, m, k), View2::row_major(&b, k, n), None, &mut c, n);
        hooklens_kernels::isa::with_isa(isa, || row(&format!("[128, 768] x [768, 3072] {isa:?}"), &mut product));
    }
}

fn main() {
    let arg: Vec<String> = std::env::args().collect();
    if arg.contains(&"rest".to_string()) {
        return bench_rest();
    }
    if arg.contains(&"isa".to_string()) {
        return bench_isas();
    }
    let theirs = !arg.contains(&"fast".to_string());
    let small = arg.contains(&"small".to_string());
    for (m, k, n) in [
        (128, 768, 768),
        (128, 768, 2304),
        (128, 768, 3072),
        (128, 3072, 768),
        (128, 768, 50257),
        (512, 768, 768),
        (512, 768, 2304),
        (512, 768, 3072),
        (512, 3072, 768),
        (512, 768, 50257),
        (1, 768, 50257),
        (1, 768, 3072),
        (1, 3072, 768),
        (1, 768, 768),
        (4, 768, 50257),
        (8, 768, 50257),
        (8, 768, 3072),
        (9, 768, 3072),
        (16, 768, 3072),
        (32, 768, 3072),
    ] {
        if small && m > 64 {
            continue;
        }
        for tr in [false, true] {
            bench_gemm(m, k, n, tr, theirs);
        }
    }
}
