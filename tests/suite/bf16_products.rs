//! Inputs of products with `bf16` weights, rounded to `bf16`.

use std::path::Path;

use hooklens::prelude::*;

use crate::narrow::{kept_here, rounded};
use crate::support::{assert_close, distance, fixtures, program, values};

const IDS: [u32; 12] = [1, 7, 3, 9, 2, 8, 4, 4, 6, 1, 5, 3];
/// Fixtures with `[out, in]` weights, and with `[in, out]` weights and biases.
const CASES: [&str; 2] = ["llama", "gpt2"];

fn loaded(folder: &Path, options: LoadOptions) -> HookedTransformer {
    HookedTransformer::from_pretrained_with(folder.to_str().unwrap(), options).unwrap()
}

/// A fixture in `bf16`, loaded with rounded inputs and without.
fn both(case: &str) -> (tempfile::TempDir, [HookedTransformer; 2]) {
    let folder = rounded(case, DType::BF16).unwrap();
    let models = [LoadOptions::new().bf16_products(), LoadOptions::new()].map(|options| loaded(folder.path(), options));
    (folder, models)
}

/// The largest difference, relative to the largest expected value.
fn apart<const D: usize>(given: &Tensor<D>, expected: &Tensor<D>) -> f32 {
    distance(&values(given), &values(expected))
}

/// A value rounded to `bf16`, ties to even.
fn nearest(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// One row, a few rows and many rows use different code.
#[test]
fn products_are_those_of_rounded_inputs() {
    if !kept_here() {
        return;
    }
    for case in CASES {
        let (_folder, [model, exact]) = both(case);
        for len in [1, 5, 12] {
            let names = ["blocks.0.mlp.hook_post", "blocks.0.hook_mlp_out"];
            let seen =
                model.record(&IDS[..len], Selection::matching(move |point| names.contains(&&*point.name.to_string())));
            let [input, output]: [Tensor<3>; 2] = names.map(|name| seen.as_ref().unwrap().get(name).unwrap());
            let weight = model.weights().get::<2>("blocks.0.mlp.W_out").unwrap();
            assert_eq!(weight.dtype(), DType::BF16.burn());
            let [d_mlp, d_model] = weight.dims();
            let weight: Vec<f32> = weight.cast(DType::F32.burn()).to_data().iter().collect();
            let bias: Vec<f64> = match case {
                "llama" => vec![0.0; d_model],
                _ => model.weights().get::<1>("blocks.0.mlp.b_out").unwrap().to_data().iter().collect(),
            };
            let (input, output): (Vec<f32>, Vec<f32>) =
                (input.to_data().iter().collect(), output.to_data().iter().collect());
            for (row, given) in input.chunks(d_mlp).zip(output.chunks(d_model)) {
                for (column, given) in given.iter().enumerate() {
                    let product = |i: usize| f64::from(nearest(row[i])) * f64::from(weight[i * d_model + column]);
                    let products: Vec<f64> = (0..d_mlp).map(product).collect();
                    let size = products.iter().map(|x| x.abs()).sum::<f64>() + 1e-3;
                    let expected = products.iter().sum::<f64>() + bias[column];
                    assert!((f64::from(*given) - expected).abs() <= 1e-6 * size, "{case}: {given}, not {expected}");
                }
            }
        }
        let [given, expected] = [&model, &exact].map(|model| model.forward(IDS).unwrap());
        let apart = apart(&given, &expected);
        assert!(apart > 1e-5 && apart < 0.05, "{case}: {apart}");
    }
}

/// A value near the middle of two numbers may be rounded either way, since sums have another order.
#[test]
fn caches_and_batches_change_little() {
    if !kept_here() {
        return;
    }
    for case in CASES {
        let (_folder, [model, _]) = both(case);
        let whole = model.forward(IDS).unwrap();
        let bound = 0.02;
        let batch = model.forward(vec![IDS.to_vec(); 3]).unwrap();
        assert!(apart(&batch.narrow(0, 2, 1), &whole) < bound, "{case}");
        let mut cache = model.prefill(&IDS[..11]).unwrap();
        let last = model.forward_with([IDS[11]], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert!(apart(&last, &whole.narrow(1, 11, 1)) < bound, "{case}");
    }
}

#[test]
fn gradients_are_those_of_the_exact_products() {
    if !kept_here() {
        return;
    }
    let (_folder, models) = both("llama");
    let [rounded, exact] = models.map(|model| {
        let options = ForwardOptions::new().record("resid_post1");
        let score = |logits: Tensor<3>| logits.narrow(1, 11, 1).narrow(2, 5, 1).sum();
        let output = model.run_with_gradients(IDS, options, score).unwrap();
        output.cache.grad(hook::resid_post(1)).unwrap()
    });
    // The norm's scale differs a little.
    assert!(values(&exact).iter().any(|x| *x != 0.0) && apart(&rounded, &exact) < 0.05);
}

#[test]
fn another_rounding_is_another_model() {
    if !kept_here() {
        return;
    }
    let (_folder, [model, exact]) = both("llama");
    assert_ne!(model.fingerprint().unwrap(), exact.fingerprint().unwrap());
    let report = model.load_report().to_string();
    assert!(report.contains("rounded to bf16"), "{report}");
    let recorded = exact.record(IDS, "resid_pre1").unwrap();
    assert!(model.run_with_hooks(IDS, [hook::resid_pre(1).replace(&recorded)]).is_err());
    let error = model.clone().processed(&Processing::standard()).unwrap_err().to_string();
    assert!(error.contains("no longer be rounded"), "{error}");
    // On a device with autodiff, the model is the exact one.
    let autodiff = [Device::flex().autodiff()];
    let moved = model.clone().to_devices(&autodiff);
    assert!(!moved.load_report().to_string().contains("rounded"));
    let expected = exact.clone().to_devices(&autodiff).forward(IDS).unwrap();
    assert_close(&moved.forward(IDS).unwrap(), &expected, 1e-6, "moved");
}

#[test]
fn what_can_not_be_rounded_is_refused() {
    let folder = rounded("llama", DType::BF16).unwrap();
    let options = || LoadOptions::new().bf16_products();
    for (options, words) in [
        (options().dtype(DType::F32), "`dtype`"),
        (options().trainable(), "`trainable`"),
        (options().process(Processing::standard()), "`process`"),
        (options().quantize_activations(), "`bf16_products`"),
    ] {
        let path = folder.path().to_str().unwrap();
        let error = HookedTransformer::from_pretrained_with(path, options).unwrap_err().to_string();
        assert!(error.contains("can't be combined with") && error.contains(words), "{error}");
    }
    for (model, words) in [("embedded:ioi", "a model without bf16 linear layers"), ("t5", "an encoder-decoder")] {
        let folder = fixtures().join(model);
        let name = if folder.is_dir() { folder.to_str().unwrap() } else { model };
        let output = program().args(["bench", "--dtype", "bf16-products", "--model", name]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(words), "{name}: {said}");
    }
}

/// `parity` states how much the rounding changes.
#[test]
fn parity_measures_the_rounding() {
    if !kept_here() {
        return;
    }
    let folder = rounded("llama", DType::BF16).unwrap();
    let reference = folder.path().join("exact.safetensors");
    let ids = IDS.map(|id| id.to_string()).join(",");
    let model = folder.path().to_str().unwrap();
    let dump = ["dump", "--model", model, "--tokens", &ids, "--hooks", "*hook_resid_post", "--logits", "all", "--out"];
    let output = program().args(dump).arg(&reference).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let parity = |dtype: &[&str]| {
        let given = ["parity", "--model", model, "--json", "--reference"];
        program().args(given).arg(&reference).args(dtype).output().unwrap()
    };
    assert!(parity(&[]).status.success());
    let output = parity(&["--dtype", "bf16-products"]);
    let (said, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{said} {notes}");
    assert!(notes.contains("rounded to bf16"), "{notes}");
}
