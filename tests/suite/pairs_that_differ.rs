//! All combinations of two values that may not belong together give the right result or an error, but never a wrong
//! number or a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hooklens::activations::Stage;
use hooklens::experiments::{PrefixStore, SteeringVector};
use hooklens::plot::AttentionPatterns;
use hooklens::prelude::*;
use hooklens::{Error, HookedModel, PaddingSide};
use hooklens_plot::ShownHeads;

use crate::support::{device, distance, random_model, values};

/// How a value's origin differs from the run, model and text it is combined with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    /// No difference.
    Same,
    /// The same texts, padded on the other side.
    Side,
    /// Texts with one token less.
    Shorter,
    /// Texts with one token more.
    Longer,
    /// One row less.
    FewerRows,
    /// One row more.
    MoreRows,
    /// The rows in another order.
    Order,
    /// Different tokens.
    Text,
    /// Only some positions.
    Positions,
    /// Different weights of the same shape.
    Model,
    /// The same weights, processed.
    Processing,
    /// Recorded in another dtype.
    DType,
    /// A run that was edited by a hook.
    Edited,
}

const OTHERS: [Other; 13] = [
    Other::Same,
    Other::Side,
    Other::Shorter,
    Other::Longer,
    Other::FewerRows,
    Other::MoreRows,
    Other::Order,
    Other::Text,
    Other::Positions,
    Other::Model,
    Other::Processing,
    Other::DType,
    Other::Edited,
];

/// The expected outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// The value for the same run, model and text.
    AsSame,
    /// A different but valid value, checked by other tests: texts, rows or edits are the caller's choice.
    Value,
    /// An error.
    Error,
    /// Either of these.
    AsSameOrError,
}

struct World {
    model: HookedTransformer,
    other: HookedTransformer,
    folded: HookedTransformer,
}

/// Rows of five, four and three tokens.
fn texts() -> Vec<Vec<u32>> {
    vec![vec![1, 2, 3, 4, 5], vec![6, 7, 8, 9], vec![10, 11, 12]]
}

impl World {
    fn new() -> Self {
        let config = TransformerConfig::new(2, 16, 4, 20, 32);
        let [model, other] = [1, 2].map(|seed| random_model(config.clone(), seed));
        let folded = model.clone().processed(&Processing::standard()).unwrap();
        Self { model, other, folded }
    }

    fn model_of(&self, other: Other) -> &HookedTransformer {
        match other {
            Other::Model => &self.other,
            Other::Processing => &self.folded,
            _ => &self.model,
        }
    }

    fn texts_of(other: Other) -> Vec<Vec<u32>> {
        let mut texts = texts();
        match other {
            Other::Shorter => texts.iter_mut().for_each(|row| row.truncate(row.len() - 1)),
            Other::Longer => texts.iter_mut().for_each(|row| row.push(13)),
            Other::FewerRows => texts.truncate(2),
            Other::MoreRows => texts.push(vec![14, 15]),
            Other::Order => texts.reverse(),
            Other::Text => texts.iter_mut().flatten().for_each(|id| *id = (*id + 3) % 20),
            _ => {}
        }
        texts
    }

    fn tokens_of(other: Other) -> Tokens {
        let side = if other == Other::Side { PaddingSide::Left } else { PaddingSide::Right };
        Tokens::padded(&Self::texts_of(other), 0, side).unwrap()
    }

    fn recording(&self, other: Other) -> ActivationCache {
        let record = match other {
            Other::Positions => Record::all().positions(-1),
            Other::DType => Record::all().dtype(DType::F64),
            _ => Record::all(),
        };
        let model = self.model_of(other);
        match other {
            Other::Edited => {
                let hooked = model.hooks([hook::resid_pre(1).edit(|x, _| x * 2.0)]);
                hooked.record(Self::tokens_of(other), record).unwrap()
            }
            _ => model.record(Self::tokens_of(other), record).unwrap(),
        }
    }

    fn cache(&self, other: Other) -> KeyValueCache {
        let model = self.model_of(other);
        match other {
            Other::Edited => model.hooks([hook::v(0).scale(2.0)]).prefill(Self::tokens_of(other)).unwrap(),
            _ => model.prefill(Self::tokens_of(other)).unwrap(),
        }
    }
}

type Way = (&'static str, fn(&World, Other) -> Result<Vec<f32>, Error>, fn(Other) -> Right);

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    values(&tensor).into_iter().collect()
}

/// Logits of real tokens, so that padding may be anywhere.
fn logits(world: &World, hooks: Vec<hook::Hook<'_>>) -> Result<Vec<f32>, Error> {
    Ok(flat(world.model.run_with_hooks(World::tokens_of(Other::Same), hooks)?))
}

const WAYS: &[Way] = &[
    (
        "replace",
        |world, other| logits(world, vec![hook::z(0).replace(&world.recording(other))]),
        |other| match other {
            Other::Same | Other::Side | Other::DType => Right::AsSame,
            Other::Text | Other::Edited => Right::Value,
            _ => Right::Error,
        },
    ),
    (
        "replace one position",
        |world, other| logits(world, vec![hook::resid_pre(1).positions(-1).replace(&world.recording(other))]),
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Positions => Right::AsSame,
            Other::Text | Other::Edited => Right::Value,
            _ => Right::Error,
        },
    ),
    (
        "replace a position from the start",
        |world, other| logits(world, vec![hook::resid_pre(1).positions(1).replace(&world.recording(other))]),
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Longer | Other::Shorter => Right::AsSame,
            Other::Text | Other::Edited | Other::Order => Right::Value,
            _ => Right::Error,
        },
    ),
    (
        "replace patterns",
        |world, other| logits(world, vec![hook::pattern(1).replace(&world.recording(other))]),
        |other| match other {
            Other::Same | Other::Side | Other::DType => Right::AsSame,
            Other::Text | Other::Edited => Right::Value,
            _ => Right::Error,
        },
    ),
    (
        "mean",
        |world, other| logits(world, vec![hook::mlp_out(0).mean(&world.recording(other))]),
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Order => Right::AsSame,
            Other::Model | Other::Processing => Right::Error,
            _ => Right::Value,
        },
    ),
    (
        "mean of patterns",
        |world, other| logits(world, vec![hook::pattern(1).mean(&world.recording(other))]),
        |_| Right::Error,
    ),
    (
        "an analysis",
        |world, other| {
            let recording = world.recording(other);
            let last = world.model.analyze(&recording)?.positions(-1)?;
            Ok(flat(last.logit_attrs(&last.decompose_resid(Stage::Final)?, Direction::token(3))?))
        },
        |other| match other {
            Other::Same | Other::Side | Other::Positions | Other::DType => Right::AsSame,
            Other::Model | Other::Processing => Right::Error,
            _ => Right::Value,
        },
    ),
    (
        "components of one recording in an analysis of another",
        |world, other| {
            let (own, given) = (world.recording(Other::Same), world.recording(other));
            let (own, given) = (world.model.analyze(&own)?, world.model_of(other).analyze(&given)?);
            Ok(flat(own.with_remainder(given.stack_head_results(Stage::Final)?)?.sum()))
        },
        |other| match other {
            Other::Same => Right::AsSame,
            Other::DType => Right::AsSameOrError,
            _ => Right::Error,
        },
    ),
    (
        "components of the last position in an analysis of all",
        |world, _| {
            let recording = world.recording(Other::Same);
            let all = world.model.analyze(&recording)?;
            let last = all.clone().positions(-1)?.decompose_resid(Stage::Final)?;
            Ok(flat(all.apply_ln(last)?.sum()))
        },
        |_| Right::Error,
    ),
    (
        "a run after a cache",
        |world, other| {
            let mut cache = world.cache(other);
            cache.freeze();
            let rows = vec![vec![1u32]; 3];
            Ok(flat(world.model.forward_with(rows, ForwardOptions::new().kv_cache(&mut cache))?))
        },
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Positions => Right::AsSame,
            Other::Model | Other::Processing | Other::FewerRows | Other::MoreRows => Right::Error,
            _ => Right::Value,
        },
    ),
    (
        "a generation after a cache",
        |world, other| {
            let mut cache = world.cache(other);
            let rows = vec![vec![1u32]; 3];
            let options = GenerateOptions::new().max_new_tokens(2).logits().kv_cache(&mut cache);
            Ok(flat(world.model.generate_with(rows, options)?.logits.unwrap()))
        },
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Positions => Right::AsSame,
            Other::Model | Other::Processing | Other::FewerRows | Other::MoreRows => Right::Error,
            _ => Right::Value,
        },
    ),
    (
        "rows of another cache",
        |world, other| {
            let (mut cache, given) = (world.cache(Other::Same), world.cache(other));
            cache.insert(&given, 0)?;
            let rows = vec![vec![1u32]; cache.batch()];
            Ok(flat(world.model.forward_with(rows, ForwardOptions::new().kv_cache(&mut cache))?))
        },
        |other| match other {
            Other::Same | Other::Side | Other::DType | Other::Positions => Right::AsSame,
            Other::Model | Other::Processing | Other::MoreRows => Right::Error,
            _ => Right::Value,
        },
    ),
    (
        "a cache in a store of prefixes",
        |world, other| {
            let mut cache = world.cache(other);
            if other != Other::MoreRows {
                cache.select_rows(&[0])?;
            }
            let mut store = PrefixStore::new(&world.model);
            store.insert(vec![texts()[0].clone()], cache)?;
            let mut found = store.get(vec![texts()[0].clone()])?;
            Ok(flat(world.model.forward_with([1], ForwardOptions::new().kv_cache(&mut found))?))
        },
        |other| match other {
            Other::Same | Other::DType | Other::Positions | Other::FewerRows => Right::AsSame,
            // The first row has no padding.
            Other::Side => Right::AsSame,
            _ => Right::Error,
        },
    ),
    (
        "a recording that goes on from another",
        |world, other| {
            let record = Record::new("*hook_resid_post");
            let mut cache = world.cache(Other::Same);
            let after = world
                .model
                .run(vec![vec![1u32]; 3], ForwardOptions::new().kv_cache(&mut cache).record(record.clone()))?;
            let before = match other {
                Other::DType | Other::Positions | Other::Edited => {
                    return Err(hooklens::HookError::NoOrigin { what: "" }.into());
                }
                _ => world.model_of(other).record(World::tokens_of(other), record)?,
            };
            Ok(flat(before.stitched(&after.cache)?.get(hook::resid_post(1))?.narrow(1, 5, 1)))
        },
        |other| match other {
            Other::Same | Other::Side => Right::AsSame,
            _ => Right::Error,
        },
    ),
    (
        "a steering vector",
        |world, other| {
            let model = world.model_of(other);
            let vector =
                SteeringVector::between(model, vec![texts()[0].clone()], vec![texts()[1].clone()], "resid_pre1")?;
            logits(world, vec![vector.hook(2.0)])
        },
        |other| match other {
            Other::Model | Other::Processing => Right::Error,
            _ => Right::AsSame,
        },
    ),
    (
        "a picture of patterns with tokens",
        |world, other| {
            let recording = match other {
                Other::Positions | Other::DType => world.recording(Other::Same),
                _ => world.recording(other),
            };
            let patterns = AttentionPatterns::of(&world.model, &recording, &World::tokens_of(Other::Same), 0)?;
            Ok(patterns.heads_shown().iter().flat_map(|head| head.values.iter().copied()).collect())
        },
        |other| match other {
            Other::Same | Other::Side | Other::Positions | Other::DType => Right::AsSame,
            Other::FewerRows | Other::MoreRows | Other::Edited | Other::Model | Other::Processing => Right::Value,
            _ => Right::Error,
        },
    ),
];

#[test]
fn no_pair_that_differs_is_a_wrong_number() {
    let world = World::new();
    let mut wrong = vec![];
    for (name, way, right) in WAYS {
        let same = way(&world, Other::Same);
        for other in OTHERS {
            let given = match catch_unwind(AssertUnwindSafe(|| way(&world, other))) {
                Ok(given) => given,
                Err(_) => {
                    wrong.push(format!("{name}, {other:?}: a panic"));
                    continue;
                }
            };
            let is_same = |given: &[f32]| match &same {
                Ok(same) if same.len() == given.len() => {
                    let array = |x: &[f32]| ndarray::ArrayD::from_shape_vec(vec![x.len()], x.to_vec()).unwrap();
                    distance(&array(given), &array(same)) < 1e-4
                }
                _ => false,
            };
            let fits = match (&given, right(other)) {
                (Ok(given), Right::AsSame | Right::AsSameOrError) => is_same(given),
                (Ok(given), Right::Value) => given.iter().all(|value| value.is_finite()),
                (Err(_), Right::Error | Right::AsSameOrError) => true,
                _ => false,
            };
            if !fits {
                let message = given.as_ref().map(|given| format!("{} numbers", given.len()));
                wrong.push(format!("{name}, {other:?}: {message:?}, where {:?} is right", right(other)));
            }
        }
    }
    let _ = device();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
