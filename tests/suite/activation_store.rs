//! Reading vectors of dumps in random order: every vector comes once, for any batch size, sharding and set of dumps.

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use hooklens::dump::{ActivationBatch, ActivationStore, Dump, DumpReport, Shard};
use hooklens::prelude::*;
use hooklens::{DType, DumpError, Error, PaddingSide};
use hooklens_data::dump::DumpJob;
use proptest::prelude::*;

use crate::dump::read;
use crate::support::{any_row, cases, failure};

const POINT: &str = "blocks.1.hook_resid_post";
const OTHER: &str = "blocks.0.attn.hook_z";

/// A vector with its token, in comparable form.
type Served = (u32, Vec<u32>);

fn served(batches: impl IntoIterator<Item = hooklens::Result<ActivationBatch>>, point: &str) -> Vec<Served> {
    let mut all = Vec::new();
    for batch in batches {
        let batch = batch.unwrap();
        let vectors = batch.vectors(point).unwrap();
        assert_eq!(vectors.nrows(), batch.tokens().len());
        let bits = vectors.rows().into_iter().map(|row| row.iter().map(|x| x.to_bits()).collect());
        all.extend(batch.tokens().iter().copied().zip(bits));
    }
    all
}

/// The vectors at tokens in a dump's files, without padding.
fn held(files: &[std::path::PathBuf], point: &str) -> Vec<Served> {
    let mut all = Vec::new();
    for file in files {
        let tensors = read(file);
        let tokens: Vec<f32> = tensors["tokens"].iter().copied().collect();
        let width = tensors[point].len() / tokens.len();
        let vectors: Vec<f32> = tensors[point].iter().copied().collect();
        for ((token, real), vector) in tokens.iter().zip(&tensors["attention_mask"]).zip(vectors.chunks(width)) {
            if *real != 0.0 {
                all.push((*token as u32, vector.iter().map(|x| x.to_bits()).collect()));
            }
        }
    }
    all
}

fn sorted(mut all: Vec<Served>) -> Vec<Served> {
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(60) })]

    /// An epoch yields every unpadded vector once. Other batch sizes, or readers that start in the middle, yield the
    /// same vectors in the same order. All shards together yield everything once. Another seed gives another order.
    #[test]
    fn every_vector_comes_once_in_an_order_of_the_seed(
        rows in prop::collection::vec(any_row(1..9), 1..12), files in 1..4usize, left: bool, half: bool,
        size in 1..9usize, buffer in 1..60usize, seed: u64, start in 0..200u64, shards in 1..4usize, left_out in 0..20u32,
    ) {
        let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let dump = |points: &str| {
            let dtype = if half { DType::BF16 } else { DType::F32 };
            Dump::new(points).batch_size(files).padding_side(side).dtype(dtype)
        };
        let [first, second] = ["first", "second.safetensors"].map(|name| folder.path().join(name));
        let files = |report: DumpReport| report.files;
        let mut written = files(dump("*").run(&model, &rows, &first).unwrap());
        written.extend(files(dump("*").run(&model, &rows[..1], &second).unwrap()));
        let store = || ActivationStore::new([&first, &second], [POINT, OTHER]).seed(seed).buffer(buffer);

        let all = served(store().batches().unwrap(), POINT);
        prop_assert_eq!(sorted(all.clone()), sorted(held(&written, POINT)));
        // Batches of another point contain the same tokens in the same order.
        let other = served(store().batches().unwrap(), OTHER);
        let pairs: BTreeMap<Served, Served> =
            held(&written, POINT).into_iter().zip(held(&written, OTHER)).collect();
        prop_assert!(all.iter().zip(&other).all(|(one, other)| pairs[one] == *other));

        let batches: Vec<_> = store().batch_size(size).epochs(2).batches().unwrap().collect();
        let sizes: Vec<usize> = batches.iter().map(|batch| batch.as_ref().unwrap().tokens().len()).collect();
        prop_assert!(sizes[..sizes.len() - 1].iter().all(|own| *own == size));
        let twice = served(batches, POINT);
        prop_assert_eq!(&twice[..all.len()], &all[..]);
        prop_assert_eq!(sorted(twice[all.len()..].to_vec()), sorted(all.clone()));

        let start = start % (twice.len() as u64 + 1);
        let mut rest = store().batch_size(size + 1).epochs(2).starting_at(start).batches().unwrap();
        prop_assert_eq!(hooklens_data::dump::vectors_an_epoch(&rest) as usize, all.len());
        prop_assert_eq!(served(&mut rest, POINT), twice[start as usize..].to_vec());
        prop_assert_eq!(rest.position() as usize, twice.len());
        let endless = store().endless().batch_size(2 * all.len() + 3).batches().unwrap().next().unwrap();
        prop_assert_eq!(endless.unwrap().tokens().len(), 2 * all.len() + 3);

        let share = |index| match store().shard(Shard::new(index, shards).unwrap()).batches() {
            Ok(batches) => served(batches, POINT),
            Err(error) => {
                assert!(error.to_string().contains(&format!("shard {index}/{shards}")), "{error}");
                Vec::new()
            }
        };
        prop_assert_eq!(sorted((1..=shards).flat_map(share).collect()), sorted(all.clone()));
        if all.len() > 20 && buffer > 10 {
            prop_assert!(served(store().seed(seed ^ 1).batches().unwrap(), POINT) != all);
        }

        let wanted: Vec<Served> = sorted(all).into_iter().filter(|(token, _)| *token != left_out).collect();
        match store().exclude_tokens([left_out]).batches() {
            Ok(batches) => prop_assert_eq!(sorted(served(batches, POINT)), wanted),
            Err(_) => prop_assert!(wanted.is_empty()),
        }
    }
}

/// Writes a dump of one file from the given vectors.
fn as_dump(path: &Path, tokens: usize, width: usize, vectors: &[f32]) {
    let device = burn::tensor::Device::flex();
    let integers = || {
        let data = burn::tensor::TensorData::new(vec![1i64; tokens], [1, tokens]);
        hooklens::Activation::from(Tensor::<2, burn::tensor::Int>::from_data(data, &device))
    };
    let data = burn::tensor::TensorData::new(vectors.to_vec(), [1, tokens, width]);
    let tensors = [
        ("tokens".to_string(), integers()),
        ("attention_mask".to_string(), integers()),
        (POINT.to_string(), Tensor::<3>::from_data(data, &device).into()),
    ];
    let tensors = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    hooklens::write_safetensors(path, tensors, Default::default()).unwrap();
}

/// A file larger than the read buffer is read in pieces, which are mixed.
#[test]
fn a_large_file_is_shuffled_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let (tokens, width) = (20_000, 128); // 10 MB
    let vectors: Vec<f32> = (0..tokens * width).map(|x| (x / width) as f32).collect();
    as_dump(&path, tokens, width, &vectors);
    let store = ActivationStore::new([&path], [POINT]).buffer(9_000);
    let order: Vec<usize> = store
        .batches()
        .unwrap()
        .flat_map(|batch| {
            batch.unwrap().vectors(POINT).unwrap().column(0).iter().map(|x| *x as usize).collect::<Vec<_>>()
        })
        .collect();
    let mut all = order.clone();
    all.sort();
    assert!(all.iter().copied().eq(0..tokens));
    // Pieces of 8,192 positions are chosen at random, two per chunk.
    let far = order[..1000].iter().map(|place| place / 8192).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(far.len(), 2, "{far:?}");
    let first: Vec<Vec<usize>> = (0..8)
        .map(|seed| {
            let batch = store.clone().seed(seed).batches().unwrap().next().unwrap().unwrap();
            batch.vectors(POINT).unwrap().column(0).iter().map(|x| *x as usize / 8192).collect()
        })
        .collect();
    assert!(first.iter().flatten().collect::<std::collections::BTreeSet<_>>().len() == 3);
}

/// Errors name the problem: a missing point, mismatched widths, a folder that is not a dump, invalid numbers, or a file
/// that changed.
#[test]
fn what_cannot_be_served_is_told() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let rows = vec![vec![0, 5, 6], vec![0, 7]];
    Dump::new("*").run(&model, &rows, at("all")).unwrap();
    let message = |dumps: &[&str], point: &str| {
        let store = ActivationStore::new(dumps.iter().map(|name| at(name)), [point]);
        match store.batches().and_then(|batches| batches.collect::<Result<Vec<_>, _>>()) {
            Ok(_) => panic!("{dumps:?} {point}"),
            Err(error) => error.to_string(),
        }
    };
    assert!(message(&["all"], "blocks.1.hook_resid_pst").contains("similar names: blocks.1.hook_resid_post"));
    let scores = message(&["all"], "blocks.1.attn.hook_pattern");
    assert!(scores.contains("does not have one vector per token"), "{scores}");
    assert!(message(&[], POINT).contains("the list of dumps is empty"));
    let none = message(&["none.safetensors"], POINT);
    assert!(none.contains("none.safetensors"), "{none}");
    std::fs::create_dir(at("nothing")).unwrap();
    assert!(message(&["nothing"], POINT).contains("no finished files of a dump"));
    std::fs::write(at("broken.safetensors"), b"not at all").unwrap();
    assert!(message(&["broken.safetensors"], POINT).contains("broken.safetensors"));

    as_dump(&at("narrow.safetensors"), 4, 8, &[1.0; 32]);
    let differs = message(&["all", "narrow.safetensors"], POINT);
    assert!(differs.contains("width 8, but width 64 in another file"), "{differs}");
    let mut vectors = [1.0; 32];
    vectors[17] = f32::NAN;
    as_dump(&at("nan.safetensors"), 4, 8, &vectors);
    assert!(message(&["nan.safetensors"], POINT).contains("NaN or infinite"));

    as_dump(&at("short.safetensors"), 4, 8, &[1.0; 32]);
    let batches = ActivationStore::new([at("short.safetensors")], [POINT]).epochs(u64::MAX).batch_size(64).batches();
    let mut batches = batches.unwrap();
    batches.next().unwrap().unwrap();
    std::fs::OpenOptions::new().write(true).open(at("short.safetensors")).unwrap().set_len(200).unwrap();
    let error = batches.by_ref().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Load(_)) && error.to_string().contains("short.safetensors"), "{error}");
    assert!(batches.next().is_none());

    as_dump(&at("masked.safetensors"), 4, 8, &[1.0; 32]);
    let mut batches = ActivationStore::new([at("masked.safetensors")], [POINT]).endless().batches().unwrap();
    let start = 8 + u64::from_le_bytes(*std::fs::read(at("masked.safetensors")).unwrap().first_chunk().unwrap());
    let mut file = std::fs::OpenOptions::new().write(true).open(at("masked.safetensors")).unwrap();
    file.seek(SeekFrom::Start(start)).unwrap();
    file.write_all(&[0; 2 * 4 * 8]).unwrap(); // tokens and mask
    let error = batches.by_ref().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("masked.safetensors: it was modified while being read"), "{error}");
    assert!(batches.next().is_none());

    let batch = ActivationStore::new([at("all")], [POINT]).batches().unwrap().next().unwrap().unwrap();
    assert!(batch.vectors("blocks.0.hook_resid_post").unwrap_err().to_string().contains("was not recorded"));
    assert_eq!(batch.tensor(POINT, &burn::tensor::Device::flex()).unwrap().dims(), [5, 64]);
    let tables = at("tables");
    std::fs::create_dir(&tables).unwrap();
    assert!(matches!(failure(ActivationStore::new([&tables], [POINT]).batches()), Some(DumpError::Refused { .. })));
}

/// A folder of shards is read as a whole, before and after merging.
#[test]
fn a_folder_of_shards_is_one_dump() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let rows: Vec<Vec<u32>> = (1..8).map(|id| vec![0, id, id + 1]).collect();
    let dump = Dump::new("resid_post1").batch_size(2);
    dump.run(&model, &rows, &whole).unwrap();
    for index in 1..=2 {
        let shard = Shard::new(index, 2).unwrap();
        dump.clone().shard(shard).run(&model, &rows, parts.join(index.to_string())).unwrap();
    }
    let all = |dump: &Path| served(ActivationStore::new([dump], [POINT]).batches().unwrap(), POINT);
    let apart = all(&parts);
    assert_eq!(sorted(apart.clone()), sorted(all(&whole)));
    hooklens::dump::merge(&parts, &[parts.join("1"), parts.join("2")]).unwrap();
    assert_eq!(sorted(all(&parts)), sorted(apart));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(40) })]

    /// Each vector's prompt, position and token are those of the prompts and of the files: over several dumps, shards,
    /// padding and selected positions.
    #[test]
    fn places_are_those_of_the_files(
        rows in prop::collection::vec(any_row(1..9), 3..12), size in 1..4usize, left: bool, kept in 0..4usize,
        buffer in 1..60usize, seed: u64, shards in 1..4usize,
    ) {
        let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let positions = [Positions::All, (-2..).into(), (..3).into(), (-3..-1).into()][kept].clone();
        let long: Vec<Vec<u32>> = rows.iter().filter(|row| kept != 3 || row.len() > 1).cloned().collect();
        if long.is_empty() {
            return Ok(());
        }
        let dump = || Dump::new(POINT).batch_size(size).padding_side(side).positions(positions.clone());
        let [all, one] = ["all", "one.safetensors"].map(|name| folder.path().join(name));
        for index in 1..=shards {
            if Shard::new(index, shards).is_ok() && dump().shard(Shard::new(index, shards).unwrap()).own_rows(long.len()) > 0 {
                let out = all.join(index.to_string());
                dump().shard(Shard::new(index, shards).unwrap()).run(&model, &long, out).unwrap();
            }
        }
        dump().run(&model, &long, &one).unwrap();
        let stream = model.record(Tokens::padded(&long, 0, PaddingSide::Right).unwrap(), POINT).unwrap();
        let stream: ndarray::ArrayD<f32> = stream.activation(POINT).unwrap().to_ndarray().unwrap();
        let mut seen = Vec::new();
        // The rows of the second dump follow those of the first.
        let store = ActivationStore::new([&all, &one], [POINT]).seed(seed).buffer(buffer).batch_size(5);
        for batch in store.batches().unwrap() {
            let batch = batch.unwrap();
            let vectors = batch.vectors(POINT).unwrap();
            let labels = batch.rows().iter().zip(batch.positions()).zip(batch.tokens()).zip(vectors.rows());
            for (((row, position), token), vector) in labels {
                prop_assert_eq!(long[row % long.len()][*position], *token);
                let expected = stream.slice(ndarray::s![row % long.len(), *position, ..]);
                prop_assert!(vector.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-3));
                seen.push((*row, *position));
            }
        }
        seen.sort_unstable();
        let wanted = |row: &Vec<u32>| {
            let range = match kept {
                0 => 0..row.len(),
                1 => row.len().saturating_sub(2)..row.len(),
                2 => 0..row.len().min(3),
                _ => row.len().saturating_sub(3)..row.len() - 1,
            };
            range.collect::<Vec<_>>()
        };
        let twice = long.iter().chain(&long).enumerate();
        let wanted: Vec<_> = twice.flat_map(|(row, ids)| wanted(ids).into_iter().map(move |at| (row, at))).collect();
        prop_assert_eq!(seen, wanted);
    }
}
