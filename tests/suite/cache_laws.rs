//! After any sequence of operations on a cache, running after it equals running each row alone.

use burn::tensor::Tensor;
use hooklens::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
use hooklens::prelude::*;
use hooklens::{Bits, CacheError, CacheKind, Offload};
use proptest::prelude::*;

use crate::support::{DEVICE_IS_FULL, any_config, cases, device, distance, has, random_model, values};
use hooklens_model::config::{Layers, Settings};

/// One operation on a cache. Numbers are taken modulo the number of available items.
#[derive(Debug, Clone)]
enum Step {
    /// New tokens for every row, with `None` for padding anywhere; appended, run after a frozen cache, or run in a
    /// scope; with attention patterns recorded or not.
    Run {
        columns: Vec<[Option<u32>; 6]>,
        keep: Keep,
        watched: bool,
    },
    DropLast(usize),
    TruncateRow(usize, usize),
    Fork(usize),
    Repeat,
    Select(Vec<usize>),
    Reorder(usize),
    /// Inserts rows of a cache of another kind.
    Insert {
        slot: usize,
        rows: Vec<Vec<Option<u32>>>,
        kind: CacheKind,
    },
    /// Truncates the rows from a slot on, each by this amount.
    InsertIndex(usize, Vec<usize>),
    ToKind(CacheKind),
    /// A run that a hook in this layer aborts, with an error or by running out of memory.
    Fail(usize, bool),
    SaveAndLoad,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Keep {
    Yes,
    Frozen,
    Scoped,
}

fn any_token() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![4 => (0..20u32).prop_map(Some), 1 => Just(None)]
}

fn any_run() -> impl Strategy<Value = Step> {
    let token = prop_oneof![3 => any_token(), 1 => (0..20u32).prop_map(Some)];
    let columns = prop::collection::vec(prop::array::uniform6(token), 1..4);
    let keep = prop_oneof![4 => Just(Keep::Yes), 1 => Just(Keep::Frozen), 1 => Just(Keep::Scoped)];
    (columns, keep, any::<bool>()).prop_map(|(columns, keep, watched)| Step::Run { columns, keep, watched })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_run(),
        1 => (0..4usize).prop_map(Step::DropLast),
        1 => (0..6usize, 0..4usize).prop_map(|(slot, by)| Step::TruncateRow(slot, by)),
        2 => (1..4usize).prop_map(Step::Fork),
        1 => Just(Step::Repeat),
        1 => prop::collection::vec(0..6usize, 1..4).prop_map(Step::Select),
        1 => (0..6usize).prop_map(Step::Reorder),
        2 => (0..6usize, prop::collection::vec(prop::collection::vec(any_token(), 6), 1..4), 1..7usize, any_kind())
            .prop_map(|(slot, rows, len, kind)| {
                let rows = rows.into_iter().map(|row| row[..len].to_vec()).collect();
                Step::Insert { slot, rows, kind }
            }),
        1 => (0..6usize, prop::collection::vec(0..4usize, 1..4)).prop_map(|(slot, by)| Step::InsertIndex(slot, by)),
        1 => any_kind().prop_map(Step::ToKind),
        1 => (0..2usize, any::<bool>()).prop_map(|(layer, memory)| Step::Fail(layer, memory)),
        1 => Just(Step::SaveAndLoad),
        1 => Just(Step::Reset),
    ]
}

fn any_kind() -> impl Strategy<Value = CacheKind> {
    let of = |kind: CacheKind, limited: bool, sliding: bool| {
        let kind = if limited { kind.limited(60) } else { kind };
        if sliding { kind.sliding() } else { kind }
    };
    let place = prop_oneof![
        4 => Just(CacheKind::GROWING),
        1 => Just(CacheKind::GROWING.offloaded(Offload::Memory)),
        1 => Just(CacheKind::GROWING.offloaded(Offload::Disk)),
        1 => Just(CacheKind::GROWING.quantized(Bits::Eight, 4)),
    ];
    (place, prop::bool::weighted(0.3), any::<bool>())
        .prop_map(move |(kind, limited, sliding)| of(kind, limited, sliding))
}

fn uses_few_bits(step: &Step) -> bool {
    matches!(step, Step::Insert { kind, .. } | Step::ToKind(kind) if kind.to_string().contains("quantized"))
}

fn tolerance_of(kind: CacheKind) -> f32 {
    if kind.to_string().contains("quantized") { 0.1 } else { 1e-5 }
}

/// A cache, and the contents of each of its columns.
struct Held {
    cache: KeyValueCache,
    rows: Vec<Vec<Option<u32>>>,
    /// Allowed deviation of runs after the cache, which is larger once the cache has been quantized.
    tolerance: f32,
}

impl Held {
    /// Tokens of each row, in the columns where the cache has them.
    fn place(&mut self, reals: Vec<Vec<u32>>) {
        let row = |(mask, real): (Vec<bool>, Vec<u32>)| {
            let mut real = real.into_iter();
            let row: Vec<_> = mask.into_iter().map(|there| if there { real.next() } else { None }).collect();
            assert_eq!(real.next(), None, "the mask has lost tokens");
            row
        };
        self.rows = self.cache.attention_mask().into_iter().zip(reals).map(row).collect();
    }

    fn real(&self, row: usize) -> Vec<u32> {
        self.rows[row].iter().flatten().copied().collect()
    }

    fn check(&self) {
        let mask: Vec<Vec<bool>> = self.rows.iter().map(|row| row.iter().map(Option::is_some).collect()).collect();
        if self.cache.is_empty() {
            return;
        }
        assert_eq!(self.cache.attention_mask(), mask);
        assert!(self.cache.lengths().iter().enumerate().all(|(row, len)| *len == self.real(row).len()));
    }
}

/// The columns as tokens with a mask.
fn tokens(rows: &[Vec<Option<u32>>]) -> Tokens {
    let ids = rows.iter().map(|row| row.iter().map(|token| token.unwrap_or(7)).collect()).collect();
    let mask = rows.iter().map(|row| row.iter().map(Option::is_some).collect()).collect();
    Tokens::new(ids).unwrap().with_mask(mask).unwrap()
}

/// Runs new columns after the cache and compares each row with a run of it alone.
fn run(
    model: &HookedTransformer,
    cache: &mut KeyValueCache,
    rows: &[Vec<Option<u32>>],
    new: &[Vec<Option<u32>>],
    watched: bool,
    tolerance: f32,
) -> Result<(), CacheError> {
    let past = cache.len();
    let record = if watched { Selection::from("*hook_pattern") } else { Selection::default() };
    let options = ForwardOptions::new().kv_cache(cache).record(record.clone());
    let output = match model.run(tokens(new), options) {
        Err(hooklens::Error::Cache(error)) => return Err(error),
        other => other.unwrap(),
    };
    let logits = values(output.logits.as_ref().unwrap());
    for (row, new) in new.iter().enumerate() {
        let before = if rows.len() == 1 { &rows[0] } else { &rows[row] };
        let all: Vec<Option<u32>> = before.iter().chain(new).copied().collect();
        let real: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_some()).collect();
        let first = real.iter().filter(|at| **at < past).count();
        if first == real.len() {
            continue;
        }
        let ids: Vec<u32> = all.iter().flatten().copied().collect();
        let alone = model.run(vec![ids], ForwardOptions::new().record(record.clone())).unwrap();
        let expected = values(alone.logits.as_ref().unwrap());
        let columns: Vec<usize> = real[first..].iter().map(|at| at - past).collect();
        let given = logits.index_axis(ndarray::Axis(0), row).select(ndarray::Axis(0), &columns).into_dyn();
        let queries: Vec<usize> = (first..real.len()).collect();
        let expected = expected.index_axis(ndarray::Axis(0), 0).select(ndarray::Axis(0), &queries).into_dyn();
        let worst = distance(&given, &expected);
        assert!(worst <= tolerance, "logits of row {row}: {worst:e}");
        for (name, pattern) in output.cache.iter() {
            let pattern = pattern.to_ndarray().unwrap();
            let pattern = pattern.index_axis(ndarray::Axis(0), row).select(ndarray::Axis(1), &columns);
            let seen: f32 = pattern.sum();
            let pattern = pattern.select(ndarray::Axis(2), &real).into_dyn();
            assert!((seen - pattern.sum()).abs() < 1e-4, "{name} looks at padding");
            let alone = alone.cache.activation(name).unwrap().to_ndarray().unwrap();
            let alone = alone.index_axis(ndarray::Axis(0), 0).select(ndarray::Axis(1), &queries).into_dyn();
            let worst = distance(&pattern, &alone);
            assert!(worst <= tolerance, "{name} of row {row}: {worst:e}");
        }
    }
    Ok(())
}

/// Applies an operation to the cache and to the model of its contents. Unsupported operations must be rejected and
/// leave the cache unchanged.
fn apply(model: &HookedTransformer, held: &mut Held, step: &Step) {
    if held.cache.is_empty() && !matches!(step, Step::Run { .. }) {
        held.rows = vec![vec![]; held.cache.batch()];
    }
    let (batch, tolerance) = (held.rows.len(), held.tolerance);
    match step {
        Step::Run { columns, keep, watched } => {
            let longest = (0..batch).map(|row| held.real(row).len()).max().unwrap_or(0);
            let columns = &columns[..columns.len().min(30usize.saturating_sub(longest))];
            if columns.is_empty() || held.cache.len() + columns.len() > 60 {
                return;
            }
            let row = |row: usize| columns.iter().map(|column| column[row % 6]).collect::<Vec<_>>();
            let mut new: Vec<_> = (0..batch).map(row).collect();
            match keep {
                Keep::Yes => {
                    run(model, &mut held.cache, &held.rows, &new, *watched, tolerance).unwrap();
                    held.rows.iter_mut().zip(new).for_each(|(row, new)| row.extend(new));
                }
                Keep::Scoped => {
                    let mut scope = held.cache.scoped();
                    run(model, &mut scope, &held.rows, &new, *watched, tolerance).unwrap();
                    assert_eq!(scope.len(), held.rows[0].len() + columns.len());
                }
                Keep::Frozen => {
                    held.cache.freeze();
                    // One frozen row serves three.
                    if batch == 1 && held.cache.batch() == 1 {
                        new = (0..3).map(row).collect();
                    }
                    run(model, &mut held.cache, &held.rows, &new, *watched, tolerance).unwrap();
                    assert!(matches!(held.cache.truncate(0), Err(CacheError::Frozen)));
                    held.cache.unfreeze();
                }
            }
        }
        Step::DropLast(count) => {
            let count = (*count).min(held.cache.len());
            match held.cache.truncate(held.cache.len() - count) {
                Ok(()) => held.rows.iter_mut().for_each(|row| row.truncate(row.len() - count)),
                Err(error) => assert!(matches!(error, CacheError::Dropped { .. }), "{error}"),
            }
        }
        Step::TruncateRow(slot, by) => {
            let slot = slot % batch;
            let len = held.real(slot).len().saturating_sub(*by);
            match held.cache.insert_index(&[len], slot) {
                Ok(()) => {
                    let mut left = len;
                    for token in held.rows[slot].iter_mut().filter(|token| token.is_some()) {
                        if left == 0 {
                            *token = None;
                        }
                        left = left.saturating_sub(1);
                    }
                }
                Err(error) => assert!(matches!(error, CacheError::Dropped { .. }), "{error}"),
            }
        }
        Step::Fork(n) => {
            if batch * n > 6 {
                return;
            }
            let fork = held.cache.fork(*n).unwrap();
            let parent = Held { cache: held.cache.clone(), rows: held.rows.clone(), tolerance };
            parent.check();
            // The parent continues independently, and the fork is not affected.
            let mut parent = parent;
            let new = vec![vec![Some(3)]; batch];
            if parent.cache.len() < 30 {
                run(model, &mut parent.cache, &parent.rows, &new, false, tolerance).unwrap();
            }
            held.rows = held.rows.iter().flat_map(|row| vec![row.clone(); *n]).collect();
            held.cache = fork;
        }
        Step::Repeat => {
            if batch <= 3 {
                held.cache.batch_repeat_interleave(2).unwrap();
                held.rows = held.rows.iter().flat_map(|row| [row.clone(), row.clone()]).collect();
            }
        }
        Step::Select(rows) => {
            let rows: Vec<usize> = rows.iter().map(|row| row % batch).collect();
            held.cache.select_rows(&rows).unwrap();
            held.rows = rows.iter().map(|row| held.rows[*row].clone()).collect();
        }
        Step::Reorder(by) => {
            let order: Vec<usize> = (0..batch).map(|row| (row + by) % batch).rev().collect();
            held.cache.reorder_cache(&order).unwrap();
            held.rows = order.iter().map(|row| held.rows[*row].clone()).collect();
        }
        Step::Insert { slot, rows, kind } => {
            let slot = slot % batch;
            let rows = &rows[..rows.len().min(batch - slot)];
            let mut other = KeyValueCache::of_kind(model.config(), rows.len(), *kind).unwrap();
            let loose = tolerance.max(tolerance_of(*kind));
            run(model, &mut other, &vec![vec![]; rows.len()], rows, false, loose).unwrap();
            match held.cache.insert(&other, slot) {
                Ok(()) => {
                    let mut reals: Vec<Vec<u32>> = (0..batch).map(|row| held.real(row)).collect();
                    for (at, row) in rows.iter().enumerate() {
                        reals[slot + at] = row.iter().flatten().copied().collect();
                    }
                    held.place(reals);
                    held.tolerance = loose;
                }
                Err(error) => assert!(matches!(error, CacheError::Dropped { .. }), "{error}"),
            }
        }
        Step::InsertIndex(slot, by) => {
            let slot = slot % batch;
            let count = by.len().min(batch - slot);
            let reals: Vec<Vec<u32>> = (0..batch).map(|row| held.real(row)).collect();
            let index: Vec<usize> = (0..count).map(|at| reals[slot + at].len().saturating_sub(by[at])).collect();
            match held.cache.insert_index(&index, slot) {
                Ok(()) => {
                    let len = |row: usize| row.checked_sub(slot).and_then(|at| index.get(at));
                    let kept = reals.into_iter().enumerate();
                    held.place(kept.map(|(row, real)| real[..*len(row).unwrap_or(&real.len())].to_vec()).collect());
                }
                Err(error) => assert!(matches!(error, CacheError::Dropped { .. }), "{error}"),
            }
        }
        Step::ToKind(kind) => match held.cache.to_kind(*kind) {
            Ok(cache) => {
                held.cache = cache;
                held.tolerance = tolerance.max(tolerance_of(*kind));
            }
            Err(error) => assert!(matches!(error, CacheError::Dropped { .. }), "{error}"),
        },
        Step::Fail(layer, memory) => {
            if held.cache.len() >= 30 {
                return;
            }
            let before = held.cache.to_data().unwrap();
            let failing = hook::z(*layer).edit(|_, _| match memory {
                true => panic!("{DEVICE_IS_FULL}"),
                false => Err::<Tensor<4>, _>("no"),
            });
            let options = ForwardOptions::new().kv_cache(&mut held.cache).hooks([failing]);
            assert!(model.forward_with(vec![vec![1]; batch], options).is_err());
            assert_eq!(held.cache.to_data().unwrap(), before);
        }
        Step::SaveAndLoad => {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("cache.safetensors");
            held.cache.save(&path, model).unwrap();
            held.cache = KeyValueCache::load(&path, model).unwrap();
        }
        Step::Reset => {
            held.cache.truncate(0).unwrap();
            held.rows = vec![vec![]; held.cache.batch()];
        }
    }
    held.check();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(2000) })]

    #[test]
    fn whatever_is_done_to_a_cache_runs_behind_it_are_right(
        config in any_config(), seed in 0..1000u64, kind in any_kind(), batch in 1..4usize,
        unused in 0..3usize, first in any_run(), steps in prop::collection::vec(any_step(), 1..6), last in any_run(),
    ) {
        // A rounding error may route a token to another expert, which does not indicate an error in the cache.
        let few_bits = kind.to_string().contains("quantized") || steps.iter().any(uses_few_bits);
        let config = match few_bits {
            true => config.with_mixture(None).with_attn_experts(None),
            false => config,
        };
        let model = random_model(config, seed);
        // Allocated for more rows than are used.
        let cache = KeyValueCache::of_kind(model.config(), batch + unused, kind).unwrap();
        let mut held = Held { cache, rows: vec![vec![]; batch], tolerance: tolerance_of(kind) };
        for step in std::iter::once(&first).chain(&steps).chain([&last]) {
            apply(&model, &mut held, step);
        }
    }
}

/// The same properties hold where Burn's own operations run instead of our kernels.
#[test]
fn parts_in_another_element_type() {
    if !has(DType::F64) {
        return;
    }
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let config = TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2);
    random_model(config, 5).save_pretrained(folder.path()).unwrap();
    let options = LoadOptions::new().dtype(DType::F64).device(&device);
    let model = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
    let mut trunk = model.prefill([1, 2, 3, 4]).unwrap();
    let mut branches = trunk.fork(3).unwrap();
    let rows = [[5, 6], [7, 8], [9, 10]];
    let forward = |cache: &mut KeyValueCache, rows: Vec<Vec<u32>>| {
        model.forward_with(rows, ForwardOptions::new().kv_cache(cache)).unwrap()
    };
    forward(&mut branches, rows.iter().map(|row| vec![row[0]]).collect());
    // Uneven reads: the middle branch is used twice.
    branches.select_rows(&[0, 1, 1, 2]).unwrap();
    let last = forward(&mut branches, vec![vec![6], vec![8], vec![8], vec![10]]);
    for (place, row) in [rows[0], rows[1], rows[1], rows[2]].into_iter().enumerate() {
        let whole: Tensor<3> = model.forward(vec![[&[1, 2, 3, 4][..], &row].concat()]).unwrap().narrow(1, 5, 1);
        let worst = distance(&values(&last.clone().narrow(0, place, 1)), &values(&whole));
        assert!(worst <= 1e-6, "row {place}: {worst:e}");
    }
}

/// The same properties hold in 16 bits: rotary and ALiBi models, windows, whole and sliding caches, forks.
#[test]
fn parts_in_sixteen_bits() {
    use hooklens::{Positional, RopeScaling, Rotary, Window};
    let rotary = Positional::Rotary(Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    for (positional, dtype) in
        [(rotary, DType::BF16), (Positional::Alibi, DType::F16), (Positional::Learned, DType::BF16)]
    {
        if !has(dtype) {
            continue;
        }
        let windows = vec![Some(Window::Sliding(4)), None];
        let config =
            TransformerConfig::new(2, 32, 4, 20, 32).with_positional(positional).with_windows(windows).unwrap();
        let folder = tempfile::tempdir().unwrap();
        random_model(config, 5).save_pretrained(folder.path()).unwrap();
        let name = folder.path().to_str().unwrap();
        let model = HookedTransformer::from_pretrained_with(name, LoadOptions::new().dtype(dtype)).unwrap();
        let widened = |x: &Tensor<3>| values(&x.clone().cast(burn::tensor::FloatDType::F32));
        let whole = model.forward([1, 2, 3, 4, 5, 6, 7]).unwrap().narrow(1, 5, 2);
        for kind in [CacheKind::GROWING, CacheKind::GROWING.sliding(), CacheKind::EIGHT_BIT] {
            let mut trunk = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
            model.forward_with([1, 2, 3, 4, 5], ForwardOptions::new().kv_cache(&mut trunk)).unwrap();
            let mut fork = trunk.fork(2).unwrap();
            let options = ForwardOptions::new().kv_cache(&mut fork).record("*hook_pattern");
            let given = model.run(vec![vec![6, 7]; 2], options).unwrap().logits.unwrap();
            let worst = distance(&widened(&given.narrow(0, 1, 1)), &widened(&whole));
            assert!(worst <= 0.03, "{dtype} {kind:?}: {worst:e}");
            let mask =
                ForwardOptions::new().kv_cache(&mut fork).attention_mask(vec![vec![true, false], vec![false, true]]);
            assert!(model.forward_with(vec![vec![1, 2]; 2], mask).is_ok());
        }
        let made = model.generate_with([1, 2, 3], GenerateOptions::new().max_new_tokens(3)).unwrap();
        assert_eq!(made.rows[0].new.len(), 3);
    }
}
