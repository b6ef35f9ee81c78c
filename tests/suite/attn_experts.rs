//! Mixtures of attention experts give the same result as attention with a scale factor per head.

use burn::module::Param;
use hooklens::prelude::*;
use hooklens_model::config::{AttnExperts, Settings};
use hooklens_model::model::ModelParts;

use crate::support::{assert_close, random_model};

const PROMPT: [u32; 5] = [1, 4, 2, 7, 3];

fn config(count: usize, per_token: usize, n_kv_heads: usize) -> TransformerConfig {
    let plain = TransformerConfig::new(2, 24, count * n_kv_heads, 20, 8);
    plain
        .with_kv_heads(n_kv_heads)
        .with_d_head(6)
        .with_attn_scale(6f64.sqrt())
        .with_attn_experts(AttnExperts { count, per_token })
}

/// The same model without experts, with head outputs scaled by `by`.
fn without(model: &HookedTransformer, by: f64) -> HookedTransformer {
    let config = model.config().clone().with_attn_experts(None);
    let mut plain = random_model(config, 0);
    *plain.parts_mut() = model.parts().clone();
    for block in &mut plain.parts_mut().blocks {
        let attn = block.attn_mut().unwrap();
        attn.router = None;
        attn.o.weight = Param::from_tensor(attn.o.weight.val() * by);
    }
    plain
}

#[test]
fn one_expert_is_plain_attention() {
    let model = random_model(config(1, 1, 4), 3);
    assert_close(&model.forward(PROMPT).unwrap(), &without(&model, 1.0).forward(PROMPT).unwrap(), 1e-6, "logits");
}

#[test]
fn experts_without_preference_share_alike() {
    let mut model = random_model(config(4, 4, 2), 4);
    for block in &mut model.parts_mut().blocks {
        let router = block.attn_mut().unwrap().router.as_mut().unwrap();
        router.weight = Param::from_tensor(router.weight.val().zeros_like());
        router.bias = None;
    }
    assert_close(&model.forward(PROMPT).unwrap(), &without(&model, 0.25).forward(PROMPT).unwrap(), 1e-5, "logits");
}

#[test]
fn heads_of_other_experts_give_nothing() {
    let (count, per_token, n_kv_heads) = (5, 2, 3);
    let model = random_model(config(count, per_token, n_kv_heads), 5);
    let cache = model.record(PROMPT, "blocks.*.attn.hook_*").unwrap();
    for layer in 0..2 {
        let shares = cache.get(hook::attn_expert_weights(layer)).unwrap().into_data().convert::<f32>();
        let shares = shares.try_to_vec::<f32>().unwrap();
        let z = cache
            .get(hook::z(layer))
            .unwrap()
            .abs()
            .sum_dim(3)
            .into_data()
            .convert::<f32>()
            .try_to_vec::<f32>()
            .unwrap();
        for (token, shares) in shares.chunks(count).enumerate() {
            assert_eq!(shares.iter().filter(|share| **share > 0.0).count(), per_token);
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            for head in 0..count * n_kv_heads {
                assert_eq!(z[token * count * n_kv_heads + head] > 0.0, shares[head % count] > 0.0);
            }
        }
    }
}

#[test]
fn an_edit_of_the_shares_sends_tokens_elsewhere() {
    let model = random_model(config(3, 1, 2), 6);
    let all_to = |expert: usize| {
        let route = at(hook::attn_expert_weights(1)).edit(move |shares: Tensor<3>, _| {
            let [batch, pos, count] = shares.dims();
            let numbers = Tensor::<1, burn::tensor::Int>::arange(0..count as i64, &shares.device());
            numbers.equal_elem(expert as i64).float().unsqueeze::<3>().expand([batch, pos, count])
        });
        model.run(PROMPT, ForwardOptions::new().hooks([route]).record("*hook_z")).unwrap().cache
    };
    for expert in 0..3 {
        let z = all_to(expert).get(hook::z(1)).unwrap().abs().sum_dim(3).sum_dim(1).flatten::<1>(0, 3);
        let given: Vec<bool> = z.greater_elem(0.0).into_data().try_to_vec().unwrap();
        let wanted: Vec<bool> = (0..6).map(|head| head % 3 == expert).collect();
        assert_eq!(given, wanted);
    }
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let message = |changed: TransformerConfig| changed.validate().unwrap_err().to_string();
    let own = config(3, 2, 2);
    assert_eq!(
        message(
            TransformerConfig::new(2, 24, 8, 20, 8)
                .with_kv_heads(2)
                .with_attn_experts(AttnExperts { count: 3, per_token: 2 })
        ),
        "invalid `attn_experts`: 3 experts with 2 key/value heads need a multiple of 6 heads, not 8"
    );
    let none = Some(AttnExperts { count: 3, per_token: 4 });
    assert_eq!(
        message(own.clone().with_attn_experts(none)),
        "invalid `attn_experts`: can't choose 4 of 3 experts per token"
    );
    assert!(message(own.with_attn_gates(true)).starts_with("invalid `attn_experts`: "));
}
