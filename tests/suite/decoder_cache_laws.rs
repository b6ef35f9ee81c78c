//! After any sequence of operations on an encoder-decoder's cache, running after it equals running the decoder over
//! everything that was kept.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hooklens::HookedModel;
use hooklens::prelude::*;
use proptest::prelude::*;

use crate::support::{DEVICE_IS_FULL, assert_close, cases, fixtures};

/// An operation on a cache of two rows.
#[derive(Debug, Clone)]
enum Step {
    /// Tokens for each row.
    Decode(Vec<[u32; 2]>),
    /// A run that fails at a point, with an error, a panic or out of memory, after a hook replaced the keys of the
    /// encoder's positions.
    Fail { site: usize, layer: usize, how: How },
    /// A run with hooks that only read.
    Watch(u32),
}

#[derive(Debug, Clone, Copy)]
enum How {
    Error,
    Panic,
    OutOfMemory,
}

const SITES: [&str; 6] =
    ["hook_resid_pre", "attn.hook_k", "attn.hook_z", "cross_attn.hook_pattern", "hook_mlp_out", "hook_resid_post"];

fn any_step() -> impl Strategy<Value = Step> {
    let token = 2..40u32;
    let how = prop_oneof![Just(How::Error), Just(How::Panic), Just(How::OutOfMemory)];
    prop_oneof![
        3 => prop::collection::vec(prop::array::uniform2(token.clone()), 1..4).prop_map(Step::Decode),
        3 => (0..SITES.len(), 0..2usize, how).prop_map(|(site, layer, how)| Step::Fail { site, layer, how }),
        1 => token.prop_map(Step::Watch),
    ]
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn what_runs_behind_is_what_was_kept(fixture in 0..7usize, steps in prop::collection::vec(any_step(), 1..7)) {
        let kinds = ["t5", "t5-gated", "t5-buckets", "marian", "m2m-apart", "blenderbot-small", "t5gemma"];
        let folder = fixtures().join(kinds[fixture]);
        let model = HookedEncoderDecoder::from_pretrained(folder.to_str().unwrap()).unwrap();
        let encoded = model.encode(vec![vec![5, 6, 7, 1], vec![9, 8, 3, 1]]).unwrap();
        let mut cache = model.decoder_cache(encoded.clone());
        let mut kept: Vec<Vec<u32>> = vec![vec![]; 2];
        let last = Step::Decode(vec![[4, 11]]);
        for step in steps.iter().chain([&last]) {
            let (columns, watched) = match step {
                Step::Decode(columns) => (columns.clone(), false),
                Step::Watch(token) => (vec![[*token, *token]], true),
                Step::Fail { site, layer, how } => {
                    let point = format!("decoder.{layer}.{}", SITES[*site]);
                    let end = at(point.as_str()).edit_any(|_, _| match how {
                        How::Error => Err("the hook's own".into()),
                        How::Panic => panic!("the hook's own"),
                        How::OutOfMemory => panic!("{DEVICE_IS_FULL}"),
                    });
                    // Cross-attention keys are only computed in the first run; afterwards there is nothing to hook.
                    let keys = (kept[0].is_empty()).then(|| {
                        at("decoder.0.cross_attn.hook_k").edit(|keys: Tensor<4>, _| keys * 2.0)
                    });
                    let options = ForwardOptions::new().hooks(keys.into_iter().chain([end]));
                    let run = || model.decode_with(&mut cache, vec![vec![0], vec![0]], options).map(drop);
                    let ended = catch_unwind(AssertUnwindSafe(run));
                    prop_assert!(!matches!(ended, Ok(Ok(()))), "{step:?}");
                    continue;
                }
            };
            let rows: Vec<Vec<u32>> = (0..2).map(|row| columns.iter().map(|column| column[row]).collect()).collect();
            let options = ForwardOptions::new();
            let options = if watched { options.record("decoder.*.attn.hook_pattern") } else { options };
            let output = model.decode_with(&mut cache, rows.clone(), options).unwrap();
            kept.iter_mut().zip(rows).for_each(|(kept, row)| kept.extend(row));
            let whole = model.decode(&encoded, kept.clone()).unwrap().logits.unwrap();
            let (len, new) = (kept[0].len(), columns.len());
            assert_close(&output.logits.unwrap(), &whole.narrow(1, len - new, new), 1e-4, "behind the cache");
        }
        prop_assert!(!model.catalog().points().is_empty());
    }
}
