"""Laws of runs: parts add up to the whole, rows do not depend on each other, and caches change nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from hooklens import ActivationCache, HookedTransformer, HookedTransformerConfig, HookedTransformerKeyValueCache

CLEAN = "When Mary and John went to the store, John gave a drink to"
TEXTS = [CLEAN, "After lunch Tom and Anna went to the park", "Lucy gave a ring to"]


@pytest.fixture(scope="module")
def model():
    return HookedTransformer.from_pretrained("embedded:ioi")


def near(a, b, tolerance=1e-4):
    return np.abs(np.asarray(a) - np.asarray(b)).max() <= tolerance * max(1.0, np.abs(np.asarray(b)).max())


def test_first_and_second_half_are_the_whole(model):
    for layer in range(model.cfg.n_layers + 1):
        stream = model(CLEAN, stop_at_layer=layer)
        rest = model(stream, start_at_layer=layer) if layer < 4 else model.unembed(model.ln_final(stream))
        assert near(rest, model(CLEAN)), layer


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_single_texts(model, side):
    tokens = model.to_tokens(TEXTS, padding_side=side)
    batch = model(tokens)
    for row, text in enumerate(TEXTS):
        alone = model(text)[0]
        real = batch[row, -len(alone) :] if side == "left" else batch[row, : len(alone)]
        assert near(real, alone), (side, row)
    # The mask belongs to the rows, not to the batch.
    assert near(model(tokens[2:])[0], batch[2])


def test_mask_of_the_caller_is_used(model):
    tokens = model.to_tokens(CLEAN)
    mask = np.ones_like(tokens)
    mask[0, 4] = 0
    assert near(model(tokens, attention_mask=mask)[0, -1], model(np.delete(tokens, 4, 1))[0, -1])


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_are_those_of_the_loss_of_real_tokens(model, side):
    tokens = model.to_tokens(TEXTS, padding_side=side)
    name = "blocks.1.hook_resid_post"
    loss, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, names_filter=name)
    assert near(loss, model(tokens, return_type="loss"))
    for option in ({"pos_slice": -1}, {"loss_per_token": True}):
        with pytest.raises(ValueError, match="whole activations|mean loss"):
            model.run_with_cache(tokens, return_type="loss", incl_bwd=True, **option)
    stream, slope, step = cache[name], cache[f"{name}_grad"], 1e-2

    def moved(by):
        return model(stream + by * slope, start_at_layer=2, tokens=tokens, return_type="loss")

    change = (moved(step) - moved(-step)) / (2 * step)
    assert near(change / (slope**2).sum(), 1.0, 1e-2)


def test_cached_run_equals_whole_run(model):
    tokens = model.to_tokens(CLEAN)
    cache = HookedTransformerKeyValueCache.init_cache(model.cfg, batch_size=1)
    parts = [model(tokens[:, part], past_kv_cache=cache) for part in (slice(0, 5), slice(5, 6), slice(6, None))]
    assert near(np.concatenate(parts, 1), model(tokens))
    assert len(cache) == tokens.shape[1]
    assert cache[0].past_keys.shape == (1, tokens.shape[1], 4, 16)


def test_frozen_prefix_serves_any_batch(model):
    prefix = "When Mary and John went to the store,"
    cache = HookedTransformerKeyValueCache.init_cache(model)
    model(prefix, past_kv_cache=cache)
    cache.freeze()
    endings = model.to_tokens(["John gave a drink to", "Mary gave a drink to"], prepend_bos=False)
    after = model(endings, past_kv_cache=cache)
    whole = model([prefix + " John gave a drink to", prefix + " Mary gave a drink to"])
    assert near(after[:, -1], whole[:, -1])
    assert cache.frozen and len(cache) == 10
    fork = cache.fork(3)
    fork.unfreeze()
    model(np.repeat(endings[:1], 3, 0), past_kv_cache=fork)
    assert (len(fork), len(cache)) == (15, 10)


def test_losses_agree(model):
    each = model(CLEAN, return_type="loss", loss_per_token=True)
    assert near(each.mean(), model(CLEAN, return_type="loss"))
    logits, loss = model(CLEAN, return_type="both")
    assert near(model.loss_fn(logits, model.to_tokens(CLEAN)), loss)


def test_generation_continues_forward_passes(model):
    tokens = model.to_tokens(CLEAN)
    made = model.generate(tokens, max_new_tokens=3, do_sample=False)
    for step in range(3):
        length = tokens.shape[1] + step
        assert model(made[:, :length])[0, -1].argmax() == made[0, length]
    assert model.generate(CLEAN, max_new_tokens=2, seed=1) == model.generate(CLEAN, max_new_tokens=2, seed=1)


def test_decompositions_add_up(model):
    _, cache = model.run_with_cache(CLEAN)
    stream = cache["resid_post", -1]
    for name, options in [
        ("decompose_resid", {}),
        ("get_full_resid_decomposition", {"expand_neurons": False}),
        ("get_full_resid_decomposition", {}),
        ("stack_head_results", {"incl_remainder": True}),
    ]:
        parts, labels = getattr(cache, name)(return_labels=True, **options)
        assert len(parts) == len(labels)
        total = parts.sum(0)
        assert near(total, stream), name
    gap = cache.logit_attrs(cache.decompose_resid(), "Mary", "John", pos_slice=None)[:, 0, -1].sum()
    logits = model(CLEAN)[0, -1]
    expected = logits[1] - logits[2] - (model.b_U[1] - model.b_U[2])
    assert near(gap, expected)


def test_dictionary_and_recording_decompose_alike(model):
    _, cache = model.run_with_cache(CLEAN)
    plain = ActivationCache(dict(cache), model)
    for name, options in [
        ("accumulated_resid", {"incl_mid": True, "apply_ln": True, "pos_slice": -1}),
        ("decompose_resid", {"layer": 2, "mode": "attn", "pos_slice": (2, 5)}),
        ("stack_head_results", {"layer": 3, "incl_remainder": True, "apply_ln": True}),
    ]:
        (own, labels), (other, others) = (getattr(c, name)(return_labels=True, **options) for c in (cache, plain))
        assert labels == others and own.shape == other.shape and near(own, other), name


def test_gradients_are_those_of_finite_differences(model):
    tokens = model.to_tokens(CLEAN)
    direction = np.zeros((1, tokens.shape[1], model.cfg.d_vocab), dtype=np.float32)
    direction[0, -1, 1], direction[0, -1, 2] = 1, -1
    value, cache = model.run_with_gradients(tokens, lambda logits: ((logits * direction).sum(), direction))
    slope = cache["blocks.1.hook_resid_post_grad"]
    rng = np.random.default_rng(0)
    step = rng.normal(size=slope.shape).astype(np.float32) * 1e-3

    def moved(sign):
        hook = ("blocks.1.hook_resid_post", lambda x, hook: x + sign * step)
        return float((model.run_with_hooks(tokens, fwd_hooks=[hook]) * direction).sum())

    assert near(value, (model(tokens) * direction).sum())
    assert abs((moved(1) - moved(-1)) / 2 - (slope * step).sum()) < 2e-3


def test_weights_are_read_and_replaced(model):
    other = HookedTransformer.from_pretrained("embedded:ioi")
    weight = np.array(other.blocks[1].attn.W_O)
    weight[2] = 0
    other.blocks[1].attn.W_O = weight
    assert not other.W_O[1, 2].any() and model.W_O[1, 2].any()
    ablated = model.run_with_hooks(CLEAN, fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: zeroed(z, 2))])
    assert near(other(CLEAN), ablated)
    with pytest.raises(ValueError, match="shape"):
        other.set_weight("blocks.1.attn.W_O", weight[0])
    copy = HookedTransformer.from_pretrained("embedded:ioi")
    copy.load_state_dict(other.state_dict(), strict=False)
    assert near(copy(CLEAN), other(CLEAN))


def zeroed(z, head):
    z[:, :, head] = 0
    return z


def test_saved_model_is_loaded(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    again = HookedTransformer.from_pretrained_no_processing(tmp_path / "saved")
    assert near(again(CLEAN), model(CLEAN))


def test_configuration_makes_a_model():
    cfg = HookedTransformerConfig(n_layers=2, d_model=32, n_ctx=16, d_head=8, d_vocab=50, act_fn="relu", seed=3)
    made = HookedTransformer(cfg)
    assert made(np.array([[1, 2, 3]])).shape == (1, 3, 50)
    assert near(HookedTransformer(cfg)(np.array([[1, 2, 3]])), made(np.array([[1, 2, 3]])))
    assert json.dumps(made.cfg.raw)
    with pytest.raises(NotImplementedError, match="num_experts"):
        HookedTransformerConfig(n_layers=2, d_model=32, n_ctx=16, d_head=8, d_vocab=50, act_fn="relu", num_experts=4)


def test_processing_keeps_predictions():
    plain = HookedTransformer.from_pretrained_no_processing("embedded:ioi")
    folded = HookedTransformer.from_pretrained("embedded:ioi", center_unembed=False)
    assert near(folded(CLEAN), plain(CLEAN))
    assert (plain.cfg.normalization_type, folded.cfg.normalization_type) == ("LN", "LNPre")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: HookedTransformer.from_pretrained("no/such/folder/at all"), (OSError, ValueError), "no/such"),
        (lambda m: m.run_with_cache(CLEAN, names_filter="blocks.0.attn.hook_patern"), KeyError, "hook_pattern"),
        (lambda m: m.run_with_cache(CLEAN)[1]["patern", 0], KeyError, "hook_pattern"),
        (lambda m: m(np.array([[1, 99]])), ValueError, "99"),
        (lambda m: m(np.array([[0.5, 1.0]])), TypeError, "integers"),
        (lambda m: m(CLEAN, stop_at_layer=9), IndexError, "9"),
        (lambda m: m(CLEAN, return_type="probs"), ValueError, "probs"),
        (lambda m: m.to_single_token("When Mary"), ValueError, "When Mary"),
        (lambda m: m.blocks[0].attn.W_X, AttributeError, "W_X"),
        (lambda m: m.blocks[4], IndexError, "range"),
        (lambda m: m.parameters(), NotImplementedError, "set_weight"),
        (lambda m: HookedTransformer.from_pretrained("embedded:ioi", hf_model=1), NotImplementedError, "save_pretrained"),
        (lambda m: HookedTransformer.from_pretrained("embedded:ioi", fold=1), TypeError, "fold"),
        (lambda m: m.generate(CLEAN, temperature=-1.0), ValueError, "temperature"),
        (lambda m: m([[1, 2], [3]]), ValueError, "row 1"),
        (lambda m: m([[1, -2]]), ValueError, "negative id -2"),
        (lambda m: m(np.zeros((1, 2, 3))), TypeError, "start_at_layer"),
        (lambda m: m.run_with_cache(CLEAN)[1][1, "pattern"], KeyError, "by name and layer"),
        (lambda m: m.run_with_cache(CLEAN)[1]["blocks.0.mlp.hook_in"], KeyError, "names_filter"),
        (lambda m: m.run_with_cache(CLEAN, names_filter=lambda name: False), ValueError, "selects no hook point"),
        (lambda m: m.set_weight("blocks.0.W_Q", m.W_E), KeyError, "W_Q"),
        (lambda m: m(np.zeros((0, 3), dtype=int)), ValueError, "empty"),
    ],
)
def test_errors_name_the_thing(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_gguf_is_read_in_one_type():
    path = Path(__file__).parents[3] / "tests/fixtures/gguf/llama-bf16.gguf"
    model = HookedTransformer.from_pretrained_no_processing(path)
    ids = [[1, 5, 9, 3]]
    _, cache = model.run_with_cache(ids)
    assert all(weight.dtype == np.float32 for weight in model.state_dict().values())
    mlp = cache["post", 0] @ model.blocks[0].mlp.W_out
    assert near(mlp, cache["mlp_out", 0])
