"""Arrays share memory with recordings, whatever the framework."""

import gc
from pathlib import Path

import numpy as np
import pytest

from hooklens import HookedTransformer

CLEAN = "When Mary and John went to the store, John gave a drink to"
LLAMA = Path(__file__).parents[3] / "tests/fixtures/llama"


def test_numpy_reads_the_recording_itself():
    model = HookedTransformer.from_pretrained("embedded:ioi")
    _, cache = model.run_with_cache(CLEAN)
    for name in cache:
        array = cache._native.get(name)
        value = cache[name]
        assert value.ctypes.data == array.address, name
        assert not value.flags.writeable, name
    with pytest.raises(ValueError, match="read-only"):
        cache["resid_pre", 0][:] = 0
    with pytest.raises(ValueError, match="read-only"):
        model.W_E[:] = 0


def test_array_outlives_the_recording():
    model = HookedTransformer.from_pretrained("embedded:ioi")
    value = model.run_with_cache(CLEAN)[1]["resid_post", 3]
    before = value.copy()
    del model
    gc.collect()
    assert np.array_equal(value, before)


def test_torch_reads_the_recording_itself():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch

    model = Torch.from_pretrained("embedded:ioi")
    with torch.no_grad():
        logits, cache = model.run_with_cache(CLEAN)
    for name in cache:
        if not name.startswith("hook_pos_embed"):
            assert cache[name].data_ptr() == cache._native.get(name).address, name
    assert torch.equal(cache["resid_post", 3].clone(), torch.from_numpy(np.array(cache["resid_post", 3])))
    assert logits.dtype == torch.float32 and not logits.requires_grad


def test_weights_of_torch_do_not_change_in_place():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch

    model = Torch.from_pretrained("embedded:ioi")
    for change in (
        lambda w: w.zero_(),
        lambda w: w.__setitem__(0, 0.0),
        lambda w: w[0].fill_(1.0),
        lambda w: w.mul_(2),
        lambda w: w[1:].copy_(w[:-1]),
        lambda w: w.data.zero_(),
        lambda w: w.detach().zero_(),
    ):
        with pytest.raises(RuntimeError, match="set_weight"):
            change(model.W_E)
    with pytest.raises(ValueError, match="read-only"):
        model.W_U.numpy().fill(0)
    assert torch.equal(model.W_E.clone() * 2, model.W_E * 2) and type(model.W_E * 2) is torch.Tensor


def test_bfloat16_is_exact():
    torch = pytest.importorskip("torch", reason="needs torch")
    from hooklens.torch import HookedTransformer as Torch

    ids = [[1, 5, 9, 3]]
    model = Torch.from_pretrained_no_processing(LLAMA, dtype=torch.bfloat16)
    plain = HookedTransformer.from_pretrained_no_processing(LLAMA, dtype="bf16")
    with torch.no_grad():
        value = model.run_with_cache(ids)[1]["resid_post", 0]
        same = model.run_with_hooks(ids, fwd_hooks=[("blocks.0.hook_resid_post", lambda x, hook: x.clone())])
        assert value.dtype == torch.bfloat16 and torch.equal(same, model(ids))
    # NumPy has no bfloat16, so it gets the same numbers as float32, and gives them back rounded.
    wide = plain.run_with_cache(ids)[1]["resid_post", 0]
    assert wide.dtype == np.float32 and np.array_equal(wide, value.float().numpy())
    hooks = [("blocks.0.hook_resid_post", lambda x, hook: None), ("blocks.1.hook_resid_pre", lambda x, hook: x * 1.0)]
    assert np.array_equal(plain.run_with_hooks(ids, fwd_hooks=hooks), plain(ids))


def test_jax_gets_its_own_arrays():
    jax = pytest.importorskip("jax", reason="needs JAX")
    from hooklens.jax import HookedTransformer as Jax

    model = Jax.from_pretrained("embedded:ioi")
    logits, cache = model.run_with_cache(CLEAN)
    assert isinstance(logits, jax.Array) and isinstance(cache["pattern", 0], jax.Array)
    value, cache = model.run_with_gradients(CLEAN, lambda logits: logits[0, -1, 1] ** 2)
    assert cache["resid_post_grad", 1].shape == (1, 15, 64)
    edited = model.run_with_hooks(CLEAN, fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: z.at[:, :, 1].set(0))])
    assert abs(edited - logits).max() > 1e-3


def test_dlpack_is_read_by_numpy():
    model = HookedTransformer.from_pretrained("embedded:ioi")
    array = model.run_with_cache(CLEAN)[1]._native.get("blocks.0.hook_resid_post")
    value = np.from_dlpack(array)
    assert value.ctypes.data == array.address and array.__dlpack_device__() == (1, 0)
    # A capsule that nobody reads frees its memory.
    for _ in range(1000):
        array.__dlpack__()
        array.__dlpack__(max_version=(1, 0))


def test_activations_are_rounded_as_in_llama_cpp():
    path = LLAMA.parent / "gguf/llama.gguf"
    exact = HookedTransformer.from_pretrained_no_processing(path)([[1, 2, 3]])
    rounded = HookedTransformer.from_pretrained_no_processing(path, dtype="q8")([[1, 2, 3]])
    assert 0 < np.abs(exact - rounded).max() < 0.1 * np.abs(exact).max()
    for name, dtype, words in [
        (path, "q4", "or q8, or bf16-products"),
        ("embedded:ioi", "q8", "block-quantized"),
        ("embedded:ioi", "bf16-products", "without bf16 linear layers"),
    ]:
        with pytest.raises(Exception, match=words):
            HookedTransformer.from_pretrained_no_processing(name, dtype=dtype)
