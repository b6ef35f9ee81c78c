//! Fixtures whose weights are computed by a formula (`tests/fixtures/seeded.py`) instead of stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::support::fixtures;

/// A `weights.json`.
#[derive(Deserialize)]
struct Spec {
    seed: u64,
    tensors: BTreeMap<String, Seeded>,
}

/// Shape of a tensor, and the interval of its values: `center` plus or minus `spread`.
#[derive(Deserialize)]
struct Seeded {
    shape: Vec<usize>,
    center: f32,
    spread: f32,
}

impl Seeded {
    /// Values of the tensor, as computed by `values` in `seeded.py`, which documents the formula.
    fn values(&self, seed: u64, name: &str) -> Vec<f32> {
        let start = format!("{seed}:{name}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let value = |index: u64| {
            let mut z = start.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            let unit = ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32;
            self.center + self.spread * unit
        };
        (0..self.shape.iter().product::<usize>() as u64).map(value).collect()
    }
}

/// Folder of a fixture's model: the fixture itself, or a copy with its `model.safetensors` if its weights are seeded.
/// A process writes each copy once.
pub(crate) fn fixture(case: &str) -> PathBuf {
    static WRITTEN: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let from = fixtures().join(case);
    let Ok(spec) = fs::read(from.join("weights.json")) else { return from };
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    written
        .entry(case.to_string())
        .or_insert_with(|| write_model(&from, &serde_json::from_slice(&spec).unwrap()))
        .clone()
}

/// Writes a copy of the folder with its weights. Another process may be reading an earlier copy, so each file is
/// replaced as a whole.
fn write_model(from: &Path, spec: &Spec) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("seeded").join(from.file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    let place = |name: &str, bytes: &[u8]| {
        let file = tempfile::NamedTempFile::new_in(&folder).unwrap();
        fs::write(file.path(), bytes).unwrap();
        file.persist(folder.join(name)).unwrap();
    };
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        place(entry.file_name().to_str().unwrap(), &fs::read(entry.path()).unwrap());
    }
    let bytes = |name: &str, of: &Seeded| -> Vec<u8> {
        of.values(spec.seed, name).into_iter().flat_map(f32::to_le_bytes).collect()
    };
    let data: Vec<_> = spec.tensors.iter().map(|(name, of)| (name, of.shape.clone(), bytes(name, of))).collect();
    let views =
        data.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    place("model.safetensors", &safetensors::serialize(views, None).unwrap());
    folder
}

/// The formula gives the values that Python computed, bit by bit.
#[test]
fn seeded_weights_are_those_of_python() {
    #[derive(Deserialize)]
    struct Example {
        seed: u64,
        name: String,
        bits: Vec<u32>,
        #[serde(flatten)]
        tensor: Seeded,
    }
    let examples: Vec<Example> = serde_json::from_slice(&fs::read(fixtures().join("seeded.json")).unwrap()).unwrap();
    assert!(examples.len() >= 5);
    for example in examples {
        let values = example.tensor.values(example.seed, &example.name);
        assert_eq!(values.into_iter().map(f32::to_bits).collect::<Vec<_>>(), example.bits, "{}", example.name);
    }
}

/// The written folder has the fixture's files and the tensors of its `weights.json`.
#[test]
fn seeded_fixtures_are_written_whole() {
    let folder = fixture("falcon-h1");
    assert_eq!(fixture("falcon-h1"), folder);
    let spec: Spec = serde_json::from_slice(&fs::read(folder.join("weights.json")).unwrap()).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let names: BTreeSet<String> = tensors.names().into_iter().map(|name| name.to_string()).collect();
    assert!(names.iter().eq(spec.tensors.keys()), "{names:?}");
    for (name, of) in &spec.tensors {
        let (view, values) = (tensors.tensor(name).unwrap(), of.values(spec.seed, name));
        assert!(view.shape() == of.shape && values.iter().any(|x| *x != values[0]), "{name}");
        assert!(values.iter().all(|x| (x - of.center).abs() <= of.spread), "{name}");
        assert!(view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).eq(values), "{name}");
    }
    for file in ["config.json", "golden.safetensors"] {
        assert!(fs::read(folder.join(file)).unwrap() == fs::read(fixtures().join("falcon-h1").join(file)).unwrap());
    }
}
