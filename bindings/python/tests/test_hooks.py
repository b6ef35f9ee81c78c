"""Hooks: what a Python function may do, and what happens when it fails."""

import numpy as np
import pytest

from hooklens import HookedTransformer, HookedTransformerKeyValueCache

CLEAN = "When Mary and John went to the store, John gave a drink to"
Z = "blocks.1.attn.hook_z"


@pytest.fixture()
def model():
    return HookedTransformer.from_pretrained("embedded:ioi")


def test_every_way_to_edit_gives_the_same(model):
    def in_place(z, hook):
        z[:, :, 1] *= 0.5

    def in_place_and_returned(z, hook):
        z[:, :, 1] *= 0.5
        return z

    def returned(z, hook):
        scale = np.ones((1, 1, 4, 1))
        scale[0, 0, 1] = 0.5
        return z * scale  # float64, as NumPy makes it

    logits = [model.run_with_hooks(CLEAN, fwd_hooks=[(Z, f)]) for f in (in_place, in_place_and_returned, returned)]
    assert np.array_equal(logits[0], logits[1]) and np.abs(logits[0] - logits[2]).max() < 1e-5
    assert np.abs(logits[0] - model(CLEAN)).max() > 1e-3


def test_identity_at_every_point_changes_nothing(model):
    plain = model(CLEAN)
    for function in (lambda x, hook: None, lambda x, hook: x, lambda x, hook: x.copy()):
        names = [(name, function) for name in model._hooks.default_names()]
        assert np.abs(model.run_with_hooks(CLEAN, fwd_hooks=names) - plain).max() < 1e-4


def test_edit_of_one_head_input_does_not_reach_the_others(model):
    seen = {}

    def edit(x, hook):
        seen["before"] = x.copy()
        x[:, :, 2] += 1

    def look(x, hook):
        seen["after"] = x.copy()

    model.run_with_hooks(CLEAN, fwd_hooks=[("blocks.1.hook_q_input", edit), ("blocks.1.hook_q_input", look)])
    difference = seen["after"] - seen["before"]
    assert np.allclose(difference[:, :, 2], 1, atol=1e-5) and not difference[:, :, [0, 1, 3]].any()


def test_edits_stay_in_the_run(model):
    plain = model(CLEAN)
    _, cache = model.run_with_cache(CLEAN)
    kept = []

    def keep(x, hook):
        kept.append(x)
        x[:] = 7

    model.run_with_hooks(CLEAN, fwd_hooks=[("hook_embed", keep), ("hook_pos_embed", keep)])
    kept[0][:] = 9
    assert np.array_equal(model(CLEAN), plain) and np.array_equal(model.run_with_cache(CLEAN)[1]["embed"], cache["embed"])


def test_exception_of_a_hook_reaches_the_caller(model):
    class Own(Exception):
        pass

    def fail(x, hook):
        raise Own(hook.name)

    cache = HookedTransformerKeyValueCache.init_cache(model)
    model("When Mary", past_kv_cache=cache)
    with pytest.raises(Own, match="blocks.2.hook_resid_pre") as raised:
        with model.hooks([("blocks.2.hook_resid_pre", fail)]):
            model("and John", past_kv_cache=cache)
    assert raised.traceback[-1].name == "fail"
    # The run was rolled back, and the hook is gone.
    assert len(cache) == 3 and model("and John", past_kv_cache=cache).shape[1] == 2 and len(cache) == 5


@pytest.mark.parametrize(
    ("returned", "message"),
    [(lambda x: x[:, :-1], "shape"), (lambda x: "zero", "could not convert|supported"), (lambda x: x[None], "shape")],
)
def test_wrong_results_are_errors(model, returned, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model.run_with_hooks(CLEAN, fwd_hooks=[(Z, lambda x, hook: returned(x))])


def test_cache_in_use_is_an_error(model):
    cache = HookedTransformerKeyValueCache.init_cache(model)
    with pytest.raises(RuntimeError, match="in use by a run"):
        with model.hooks([(Z, lambda x, hook: len(cache) and None)]):
            model(CLEAN, past_kv_cache=cache)
    assert len(cache) == 0


def test_hook_may_run_the_model(model):
    inner = []
    hook = (Z, lambda x, hook: inner.append(HookedTransformer.from_pretrained("embedded:induction")("red fox").shape))
    model.run_with_hooks(CLEAN, fwd_hooks=[hook])
    assert inner == [(1, 3, 63)]


def test_backward_hooks_read_and_replace(model):
    grads = {}

    def gradient(logits):
        slope = np.zeros_like(logits)
        slope[0, -1, 1] = 1
        return logits[0, -1, 1], slope

    def stop(grad, hook):
        return np.zeros_like(grad)

    def keep(grad, hook):
        grads[hook.name] = grad.copy()

    names = ("blocks.0.hook_resid_post", "blocks.2.hook_resid_post")
    with model.hooks(bwd_hooks=[(name, keep) for name in names]):
        _, cache = model.run_with_gradients(CLEAN, gradient)
    assert all(np.array_equal(grads[name], cache[f"{name}_grad"]) for name in names)
    with model.hooks(bwd_hooks=[("blocks.1.hook_resid_post", stop), (names[0], keep)]):
        model.run_with_gradients(CLEAN, gradient)
    assert not grads[names[0]].any()


def test_forward_edit_with_gradients_is_refused(model):
    with model.hooks([(Z, lambda z, hook: z * 2)], [("blocks.0.hook_resid_post", lambda g, hook: None)]):
        with pytest.raises(NotImplementedError, match="blocks.1.attn.hook_z"):
            model.run_with_gradients(CLEAN, lambda logits: (0.0, np.ones_like(logits)))


def test_exception_of_a_metric_reaches_the_caller(model):
    def metric(logits):
        raise ZeroDivisionError("in the metric")

    with pytest.raises(ZeroDivisionError, match="in the metric"):
        model.run_with_gradients(CLEAN, metric)
    with pytest.raises(ZeroDivisionError, match="in the metric"):
        model.patching(CLEAN, CLEAN.replace("John gave", "Mary gave"), metric=metric).sweep("resid_pre")
