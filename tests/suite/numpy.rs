//! NumPy files, read back according to the format description.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use burn::tensor::{Device, Int, Tensor};
use hooklens::prelude::*;
use ndarray::{ArrayD, IxDyn};

/// Dtype, shape and data of a `.npy` file.
fn parsed(file: &[u8]) -> (String, Vec<usize>, &[u8]) {
    assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    let header = std::str::from_utf8(&file[10..start]).unwrap();
    assert!(start.is_multiple_of(64) && header.ends_with('\n') && header.contains("'fortran_order': False"));
    let between = |from: &str, to: &str| header.split_once(from).unwrap().1.split_once(to).unwrap().0.to_string();
    let shape = between("'shape': (", ")");
    let shape = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    (between("'descr': '", "'"), shape.map(|length| length.parse().unwrap()).collect(), &file[start..])
}

fn floats(file: &[u8]) -> ArrayD<f32> {
    let (kind, shape, elements) = parsed(file);
    assert_eq!(kind, "<f4");
    let values = elements.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap()
}

#[test]
fn npy_files_hold_floats_and_integers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.npy");
    let saved = |activation: Activation| {
        activation.save_npy(&path).unwrap();
        fs::read(&path).unwrap()
    };
    let tensor = Tensor::<3>::from_floats([[[1.5, -2.0], [f32::INFINITY, 4.0], [5.0, 6.0]]], &Device::flex());
    let expected = Activation::from(tensor.clone()).to_ndarray().unwrap();
    assert_eq!(floats(&saved(tensor.clone().into())), expected);
    // A view is written in its own axis order.
    let turned = floats(&saved(tensor.clone().swap_dims(1, 2).into()));
    assert_eq!(turned, expected.clone().permuted_axes(IxDyn(&[0, 2, 1])));
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(floats(&saved(tensor.clone().cast(dtype.burn()).into())), expected, "{dtype}");
    }
    let file = saved(Tensor::<1, Int>::from_ints([3, -1], &Device::flex()).into());
    let (kind, shape, elements) = parsed(&file);
    assert_eq!((kind.as_str(), shape, elements.len()), ("<i8", vec![2], 16));
    assert_eq!(elements[8..], (-1i64).to_le_bytes());
    let message = Activation::from(tensor).save_npy("/no/such/folder/one.npy").unwrap_err().to_string();
    assert!(message.contains("/no/such/folder/one.npy"), "{message}");
}

#[test]
fn npz_files_hold_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.npz");
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let cache = model.record("king drum sun king", Record::all()).unwrap();
    cache.save(&path).unwrap();
    let mut archive = zip::ZipArchive::new(fs::File::open(&path).unwrap()).unwrap();
    let mut held = BTreeMap::new();
    for number in 0..archive.len() {
        let mut file = archive.by_index(number).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        held.insert(file.name().unwrap().to_string(), floats(&bytes));
    }
    assert_eq!(held.len(), cache.len());
    for (name, activation) in cache.iter() {
        assert_eq!(held[&format!("{name}.npy")], activation.to_ndarray().unwrap(), "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
    assert!(cache.save("/no/such/folder/all.npz").is_err());
}
