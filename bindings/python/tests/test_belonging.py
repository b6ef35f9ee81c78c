"""Tokens, caches and hooks know what they belong to: they are used with that, or refused."""

import threading
from pathlib import Path

import numpy as np
import pytest

from hooklens import HookedTransformer, HookedTransformerConfig, HookedTransformerKeyValueCache, patching
from hooklens.head_detector import detect_head

FIXTURES = Path(__file__).parents[3] / "tests/fixtures"
TEXTS = ["king drum", "king drum sun star"]


@pytest.fixture
def model():
    return HookedTransformer.from_pretrained("embedded:induction")


@pytest.fixture(scope="module")
def ioi():
    return HookedTransformer.from_pretrained("embedded:ioi")


def far(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_masks_of_rows_are_not_forgotten(model):
    tokens = model.to_tokens(TEXTS)
    expected = model(tokens)
    for start in range(0, 6000, 1000):
        names = ["king", "drum", "sun", "star", "moon", "fox", "tea", "owl", "red", "cup"]
        texts = [" ".join(names[int(digit)] for digit in str(number)) for number in range(start, start + 1000)]
        model.to_tokens([*texts, "king drum sun star moon king drum sun"])
    assert far(model(tokens), expected) == 0


def test_rows_with_two_masks_need_one(model):
    # Padding and BOS are the same token, so that these are the same ids: a padded row and another one.
    first = model.to_tokens([*TEXTS], padding_side="left")
    mask = model.to_tokens([*TEXTS], padding_side="left") * 0 + 1
    mask[0, :2] = 0
    expected = model(first)
    second = model.to_tokens([*TEXTS, "king drum sun star king"][::2], padding_side="left", prepend_bos=False)
    assert (first[0] == second[0]).all()
    for tokens in (first, second):
        with pytest.raises(ValueError, match="row 0 can't be told from a row that to_tokens padded differently"):
            model(tokens)
    assert far(model(first, attention_mask=mask), expected) == 0
    # Texts are not confused.
    assert far(model(TEXTS, padding_side="left"), expected) == 0
    # A row of real tokens that was padded in another text.
    other = HookedTransformer.from_pretrained("embedded:induction")
    padded = other.to_tokens(TEXTS, padding_side="left")
    other.to_tokens(other.to_string(padded[0]), prepend_bos=False)
    with pytest.raises(ValueError, match="pass attention_mask"):
        other(padded)


def test_generation_behind_a_cache_continues_its_text(model):
    def cache():
        made = HookedTransformerKeyValueCache.init_cache(model)
        model("king drum sun star", past_kv_cache=made)
        return made

    options = {"max_new_tokens": 3, "do_sample": False, "verbose": False, "return_type": "tokens"}
    whole = model.generate("king drum sun star king", **options)
    behind = model.generate(" king", past_kv_cache=cache(), **options)
    assert behind[0].tolist() == whole[0, -4:].tolist()


def test_absurd_batches_of_caches_are_errors(model):
    for batch in (2**40, 2**60):
        with pytest.raises(ValueError, match="batch"):
            HookedTransformerKeyValueCache.init_cache(model, batch_size=batch)


def test_sweeps_patch_what_was_recorded(ioi):
    clean, corrupted = "When Mary and John went", "When Mary and Tom went"
    metric = lambda logits: float(logits[0, -1, 5])  # noqa: E731
    model = HookedTransformer.from_pretrained("embedded:ioi")
    cache = model.run_with_cache(clean)[1]
    name = "blocks.2.mlp.W_out"
    model.set_weight(name, 3 * model._weight(name))
    swept = patching.get_act_patch_resid_pre(model, corrupted, cache, metric)
    by_hand = patching.generic_activation_patch(
        model, corrupted, cache, metric, patching.layer_pos_patch_setter, "resid_pre", ("layer", "pos")
    )
    assert far(swept, by_hand) < 1e-4
    # Another model's cache, also for several prompts, and a cache of another length.
    for prompts in (corrupted, [corrupted, clean]):
        with pytest.raises(ValueError, match="recorded by another model"):
            patching.get_act_patch_resid_pre(model, prompts, ioi.run_with_cache(clean)[1], metric)
    longer = ioi.run_with_cache(clean + " to the store")[1]
    with pytest.raises(ValueError, match="same number of tokens"):
        patching.get_act_patch_resid_pre(ioi, corrupted, longer, metric)
    without = ioi.run_with_cache(clean, remove_batch_dim=True)[1]
    with pytest.raises(ValueError, match="a batch axis"):
        patching.get_act_patch_attn_out(ioi, [corrupted, clean], without, metric)


def test_dictionaries_of_arrays_and_recordings_decompose_alike():
    model = HookedTransformer.from_pretrained_no_processing("embedded:induction")
    tokens = model.to_tokens(["king drum sun star", "sun star moon fox"])
    cache = model.run_with_cache(tokens)[1]
    stack = cache.accumulated_resid(apply_ln=False)
    row = cache.apply_slice_to_batch_dim(slice(0, 2))
    answers = [59, 51]
    assert far(row.logit_attrs(stack, np.array(answers)), cache.logit_attrs(stack, answers)) < 1e-3
    assert far(row.apply_ln_to_stack(stack), cache.apply_ln_to_stack(stack)) < 1e-4
    with pytest.raises(ValueError, match="no batch axis"):
        model.run_with_cache(tokens[:1], remove_batch_dim=True)[1].apply_slice_to_batch_dim(0)


@pytest.mark.parametrize("family", ["v5-gemma4", "deepseek-v2", "deepseek-v2-lite", "falcon-new"])
def test_heads_of_any_width(family):
    model = HookedTransformer.from_pretrained_no_processing(str(FIXTURES / family))
    names = [name for name in model._native.weight_names() if name.endswith((".attn.W_Q", ".attn.W_O"))]
    assert names
    for name in names:
        weight = model._weight(name)
        assert weight.shape[0] == model.cfg.n_heads, name
        model.set_weight(name, weight)
        assert far(model._weight(name), weight) == 0


def test_detected_heads_are_of_the_text(ioi):
    text = "When Mary and John went"
    expected = detect_head(ioi, text, "previous_token_head")
    cache = ioi.run_with_cache(text)[1]
    assert far(detect_head(ioi, text, "previous_token_head", cache=cache), expected) == 0
    for other, message in [
        (ioi.run_with_cache("When Anna and Tom went", remove_batch_dim=True)[1], "another text"),
        (ioi.run_with_cache([text] * 5)[1], "5 rows"),
        (ioi.run_with_cache(text + " to", remove_batch_dim=True)[1], "another text"),
    ]:
        with pytest.raises(ValueError, match=message):
            detect_head(ioi, text, "previous_token_head", cache=other)


def test_positions_are_sliced_at_every_point(ioi):
    tokens = ioi.to_tokens(["When Mary and John", "When Anna and Tom"])
    recorded = ioi.run_with_cache(tokens, pos_slice=-1, names_filter=lambda name: "hook" in name)[1]
    names = [*recorded.keys(), "blocks.0.hook_q_input", "blocks.0.attn.hook_result"]
    for name in names:
        axis = ioi._hooks.position_axes[name]
        if axis is None:
            continue
        stored, forward, _ = ioi.get_caching_hooks([name], pos_slice=-1)
        ioi.run_with_hooks(tokens, fwd_hooks=forward)
        expected = ioi.run_with_cache(tokens, pos_slice=-1, names_filter=name)[1][name]
        assert stored[name].shape == expected.shape and far(stored[name], expected) == 0, name


def test_changes_from_threads_are_all_kept(ioi):
    model = HookedTransformer.from_pretrained("embedded:ioi")
    names = [name for name in model._native.weight_names() if name.startswith("blocks.")][:8]
    values = {name: model._weight(name) for name in names}

    def change(name):
        for times in range(1, 11):
            model.set_weight(name, values[name] * np.float32(times))

    threads = [threading.Thread(target=change, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert far(model._weight(name), values[name] * 10) == 0, name


def test_options_that_would_change_results_are_not_ignored():
    assert HookedTransformer.from_pretrained("embedded:ioi", torch_dtype="float32").cfg.dtype == "float32"
    with pytest.raises(ValueError, match="give one of them"):
        HookedTransformer.from_pretrained("embedded:ioi", torch_dtype="bfloat16", dtype="float32")
    with pytest.raises(NotImplementedError, match="HF_HUB_OFFLINE"):
        HookedTransformer.from_pretrained("embedded:ioi", local_files_only=True)
    sizes = {"n_layers": 1, "d_model": 16, "n_ctx": 8, "d_head": 8, "d_vocab": 20, "act_fn": "relu"}
    HookedTransformer(HookedTransformerConfig(**sizes, device="cpu", dtype="float32", init_weights=True, n_devices=1))
    for name, value in [("device", "cuda"), ("dtype", "float16"), ("initializer_range", 10.0), ("init_mode", "xavier")]:
        with pytest.raises(NotImplementedError, match=name):
            HookedTransformerConfig(**sizes, **{name: value})


def test_backward_of_torch_repeats_the_run_that_it_differentiates():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch

    model = Torch.from_pretrained("embedded:induction")
    tokens = model.to_tokens("king drum sun star king")
    found = []

    def ablate(x, hook):
        x[:, :, 1] = 0
        return x

    def gradient(x, hook):
        found.append(x.clone())

    def read(x, hook):
        seen.append(x.clone())

    name, seen = "blocks.0.hook_resid_pre", []
    model.add_hook(name, gradient, "bwd")
    model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", read)])[0, -1, 59].backward()
    assert len(found) == 1 and len(seen) == 2
    # Not the gradients of the run without the edit, which is over.
    with pytest.raises(NotImplementedError, match="hook_z changed its activation"):
        model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", ablate)])[0, -1, 59].backward()

    # Gradients changed in place are used as changed.
    model.reset_hooks()

    def drop(x, hook):
        x[:, 1] = 0

    model.add_hook("blocks.1.hook_resid_pre", drop, "bwd")
    model.add_hook("blocks.0.hook_resid_post", gradient, "bwd")
    model(tokens)[0, -1, 59].backward()
    assert (found[-1][:, 1] == 0).all() and (found[-1][:, 0] != 0).any()

    logits = model(tokens)
    weight = model._weight("blocks.0.attn.W_Q")
    model.set_weight("blocks.0.attn.W_Q", weight * 2)
    with pytest.raises(RuntimeError, match="weights were replaced"):
        logits[0, -1, 59].backward()


def test_changed_caches_of_torch_are_patched_as_changed():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch
    from hooklens.torch import patching as sweeps

    model = Torch.from_pretrained("embedded:ioi")
    cache = model.run_with_cache("When Mary and John went")[1]
    corrupted = model.to_tokens("When Mary and Tom went")
    metric = lambda logits: logits[0, -1, 5]  # noqa: E731
    cache["attn_out", 1].zero_()
    swept = sweeps.get_act_patch_attn_out(model, corrupted, cache, metric)
    setter = sweeps.layer_pos_patch_setter
    by_hand = sweeps.generic_activation_patch(model, corrupted, cache, metric, setter, "attn_out", ("layer", "pos"))
    assert torch.allclose(swept, by_hand, atol=1e-4)


def test_results_of_heads_lose_the_batch_axis_with_the_rest(ioi):
    cache = ioi.run_with_cache("When Mary and John")[1]
    cache.compute_head_results()
    before = np.array(cache["result", 1])
    cache.remove_batch_dim()
    assert far(cache["result", 1], before[0]) == 0
    assert all(np.asarray(value).size for value in cache.values())


def test_defaults_that_are_given_are_kept():
    without = HookedTransformer.from_pretrained("embedded:ioi", default_prepend_bos=False)
    assert without.to_tokens("When Mary").shape == (1, 2)
    assert without.to_tokens("When Mary", prepend_bos=True).shape == (1, 3)
    for name, value in [("center_writing_weight", False), ("fold_norm", None)]:
        with pytest.raises(TypeError, match=name):
            HookedTransformer.from_pretrained("embedded:ioi", **{name: value})


def test_generation_does_as_it_is_told(ioi):
    options = {"max_new_tokens": 4, "do_sample": False, "verbose": False, "return_type": "tokens"}
    plain = ioi.generate("When Mary and John went", **options)
    stop = int(plain[0, -3])
    ended = ioi.generate("When Mary and John went", eos_token_id=stop, **options)
    assert ended.shape[1] < plain.shape[1]
    assert (ioi.generate("When Mary and John went", stop_at_eos=False, eos_token_id=stop, **options) == plain).all()
    with pytest.raises(ValueError, match="return_type"):
        ioi.generate("When", return_type="strng")
    with pytest.raises(Exception, match="not both"):
        ioi.attribution_graph("When Mary", transcoders="embedded:ioi-transcoders", neurons=3)


def test_ids_behind_a_stream_only(ioi):
    with pytest.raises(ValueError, match="pass start_at_layer"):
        ioi([[0, 5, 6]], tokens=[[0, 9, 9]], return_type="loss")
