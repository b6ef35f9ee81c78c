"""Activation patching, with TransformerLens's functions.

Each function patches activations of a clean run into a corrupted run, one site at a time, and returns the metric of
every patched run. Sweeps over one prompt run in Rust: each patched run restarts at the patched layer, and many sites
are computed in one batch. Sweeps over several prompts at once, or with a cache of an edited run, run with hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ._cache import ActivationCache
from ._names import get_act_name

if TYPE_CHECKING:
    from ._model import HookedTransformer

Metric = Callable[[Any], Any]
Setter = Callable[[Any, Sequence[int], Any], Any]


def make_df_from_ranges(column_max_ranges: Sequence[int], column_names: Sequence[str]) -> Any:
    """A pandas table with every combination of indices."""
    import pandas

    rows = list(product(*(range(length) for length in column_max_ranges)))
    return pandas.DataFrame(rows, columns=list(column_names))


def generic_activation_patch(
    model: HookedTransformer,
    corrupted_tokens: Any,
    clean_cache: Any,
    patching_metric: Metric,
    patch_setter: Setter,
    activation_name: str,
    index_axis_names: Sequence[str] | None = None,
    index_df: Any = None,
    return_index_df: bool = False,
) -> Any:
    """Patches with any setter, in one run per site.

    `patch_setter(corrupted_activation, index, clean_activation)` returns the patched activation; the first index is the
    layer. Returns an array with one axis per index axis, or one value per row of `index_df`.
    """
    if (index_df is None) == (index_axis_names is None):
        raise ValueError("give either index_axis_names or index_df")
    if index_df is None:
        assert index_axis_names is not None
        sizes = _sizes(model, corrupted_tokens)
        shape = tuple(sizes[name] for name in index_axis_names)
        indices = list(product(*(range(length) for length in shape)))
    else:
        indices = [tuple(int(place) for place in row) for row in index_df.itertuples(index=False)]
        shape = (len(indices),)
    values = np.zeros(len(indices), dtype=np.float32)
    for number, index in enumerate(indices):
        name = get_act_name(activation_name, index[0])
        clean = clean_cache[name]

        def patch(activation: Any, hook: Any, index: Any = index, clean: Any = clean) -> Any:
            return patch_setter(activation, list(index), clean)

        logits = model.run_with_hooks(corrupted_tokens, fwd_hooks=[(name, patch)])
        value = patching_metric(logits)
        values[number] = float(value.detach() if hasattr(value, "detach") else value)
    patched = model._framework.from_numpy(values.reshape(shape))
    if return_index_df:
        columns = list(index_axis_names) if index_axis_names is not None else list(index_df.columns)
        return patched, index_df if index_df is not None else make_df_from_ranges(shape, columns)
    return patched


def _patched(corrupted: Any, clean: Any, place: tuple[Any, ...]) -> Any:
    own, given = tuple(corrupted.shape), tuple(clean.shape)
    if given[1:] != own[1:] or given[0] not in (1, own[0]):
        raise ValueError(
            f"the clean activation has shape {given}, but the corrupted one has shape {own}: both prompts must have the "
            "same number of tokens, and the clean cache a batch axis"
        )
    corrupted[place] = clean[place]
    return corrupted


def layer_pos_patch_setter(corrupted_activation: Any, index: Sequence[int], clean_activation: Any) -> Any:
    """Patches `[layer, pos]` of `[batch, pos, ..]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), index[1]))


def layer_pos_head_vector_patch_setter(corrupted_activation: Any, index: Sequence[int], clean_activation: Any) -> Any:
    """Patches `[layer, pos, head]` of `[batch, pos, head, d_head]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), index[1], index[2]))


def layer_head_vector_patch_setter(corrupted_activation: Any, index: Sequence[int], clean_activation: Any) -> Any:
    """Patches `[layer, head]` of `[batch, pos, head, d_head]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), slice(None), index[1]))


def layer_head_pattern_patch_setter(corrupted_activation: Any, index: Sequence[int], clean_activation: Any) -> Any:
    """Patches `[layer, head]` of `[batch, head, query, key]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), index[1]))


def layer_head_pos_pattern_patch_setter(corrupted_activation: Any, index: Sequence[int], clean_activation: Any) -> Any:
    """Patches `[layer, head, query]` of `[batch, head, query, key]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), index[1], index[2]))


def layer_head_dest_src_pos_pattern_patch_setter(
    corrupted_activation: Any, index: Sequence[int], clean_activation: Any
) -> Any:
    """Patches `[layer, head, query, key]` of `[batch, head, query, key]`."""
    return _patched(corrupted_activation, clean_activation, (slice(None), index[1], index[2], index[3]))


def _sizes(model: HookedTransformer, tokens: Any) -> dict[str, int]:
    length = len(model._rows(tokens)[0][0])
    positions = dict.fromkeys(("pos", "src_pos", "dest_pos"), length)
    return {"layer": model.cfg.n_layers, **positions, **dict.fromkeys(("head", "head_index"), model.cfg.n_heads)}


class Sweep:
    """One of TransformerLens's sweeps: `sweep(model, corrupted_tokens, clean_cache, patching_metric)`."""

    def __init__(self, name: str, activation: str, setter: Setter, axes: tuple[str, ...], shape: str) -> None:
        self._name, self._activation, self._setter, self._axes = name, activation, setter, axes
        self.__name__ = f"get_act_patch_{name}"
        self.__doc__ = f"Patches `{activation}`, one site at a time. Returns the metric, {shape}."

    def __call__(
        self,
        model: HookedTransformer,
        corrupted_tokens: Any,
        clean_cache: Any,
        patching_metric: Metric,
        return_index_df: bool = False,
    ) -> Any:
        swept = in_rust(model, corrupted_tokens, clean_cache, patching_metric, self._name)
        if swept is None:
            return generic_activation_patch(
                model, corrupted_tokens, clean_cache, patching_metric, self._setter, self._activation, self._axes,
                return_index_df=return_index_df,
            )
        if return_index_df:
            return swept, make_df_from_ranges(swept.shape, self._axes)
        return swept

    def __repr__(self) -> str:
        return self.__name__


def in_rust(
    model: HookedTransformer, corrupted_tokens: Any, clean_cache: Any, metric: Metric, sweep: str
) -> Any | None:
    """The sweep computed in Rust, or None if it must run with hooks: the cache is not a plain run of one prompt, the
    model has hooks, or heads share keys."""
    if isinstance(clean_cache, ActivationCache) and clean_cache.model is not model:
        raise ValueError("the clean cache was recorded by another model")
    clean = clean_cache._tokens if isinstance(clean_cache, ActivationCache) else None
    corrupted, mask = model._rows(corrupted_tokens)
    plain = clean is not None and mask is None and not model._hooks.handles and model.cfg.n_key_value_heads is None
    if not plain or clean is None or len(clean) != 1 or len(corrupted) != 1 or len(clean[0]) != len(corrupted[0]):
        return None
    if clean_cache._replaced != model._replaced or clean_cache._was_changed():
        # The recorded activations are not those of the model as it is now.
        return None
    result = model.patching(clean, corrupted, metric=metric).sweep(sweep)
    return model._framework.from_numpy(result.values[..., 0].astype(np.float32))


get_act_patch_resid_pre = Sweep("resid_pre", "resid_pre", layer_pos_patch_setter, ("layer", "pos"), "`[layer, pos]`")
get_act_patch_resid_mid = Sweep("resid_mid", "resid_mid", layer_pos_patch_setter, ("layer", "pos"), "`[layer, pos]`")
get_act_patch_attn_out = Sweep("attn_out", "attn_out", layer_pos_patch_setter, ("layer", "pos"), "`[layer, pos]`")
get_act_patch_mlp_out = Sweep("mlp_out", "mlp_out", layer_pos_patch_setter, ("layer", "pos"), "`[layer, pos]`")

_BY_POS, _BY_POS_SHAPE = ("layer", "pos", "head"), "`[layer, pos, head]`"
get_act_patch_attn_head_out_by_pos = Sweep(
    "attn_head_out_by_pos", "z", layer_pos_head_vector_patch_setter, _BY_POS, _BY_POS_SHAPE
)
get_act_patch_attn_head_q_by_pos = Sweep(
    "attn_head_q_by_pos", "q", layer_pos_head_vector_patch_setter, _BY_POS, _BY_POS_SHAPE
)
get_act_patch_attn_head_k_by_pos = Sweep(
    "attn_head_k_by_pos", "k", layer_pos_head_vector_patch_setter, _BY_POS, _BY_POS_SHAPE
)
get_act_patch_attn_head_v_by_pos = Sweep(
    "attn_head_v_by_pos", "v", layer_pos_head_vector_patch_setter, _BY_POS, _BY_POS_SHAPE
)
get_act_patch_attn_head_pattern_by_pos = Sweep(
    "attn_head_pattern_by_pos", "pattern", layer_head_pos_pattern_patch_setter, ("layer", "head_index", "dest_pos"),
    "`[layer, head, dest_pos]`",
)
get_act_patch_attn_head_pattern_dest_src_pos = Sweep(
    "attn_head_pattern_dest_src_pos", "pattern", layer_head_dest_src_pos_pattern_patch_setter,
    ("layer", "head_index", "dest_pos", "src_pos"), "`[layer, head, dest_pos, src_pos]`",
)

_ALL_POS, _ALL_POS_SHAPE = ("layer", "head"), "`[layer, head]`"
get_act_patch_attn_head_out_all_pos = Sweep(
    "attn_head_out_all_pos", "z", layer_head_vector_patch_setter, _ALL_POS, _ALL_POS_SHAPE
)
get_act_patch_attn_head_q_all_pos = Sweep(
    "attn_head_q_all_pos", "q", layer_head_vector_patch_setter, _ALL_POS, _ALL_POS_SHAPE
)
get_act_patch_attn_head_k_all_pos = Sweep(
    "attn_head_k_all_pos", "k", layer_head_vector_patch_setter, _ALL_POS, _ALL_POS_SHAPE
)
get_act_patch_attn_head_v_all_pos = Sweep(
    "attn_head_v_all_pos", "v", layer_head_vector_patch_setter, _ALL_POS, _ALL_POS_SHAPE
)
get_act_patch_attn_head_pattern_all_pos = Sweep(
    "attn_head_pattern_all_pos", "pattern", layer_head_pattern_patch_setter, ("layer", "head_index"), _ALL_POS_SHAPE
)


def get_act_patch_attn_head_all_pos_every(
    model: HookedTransformer, corrupted_tokens: Any, clean_cache: Any, metric: Metric
) -> Any:
    """Output, query, key, value and pattern of every head, `[patch_type, layer, head]`."""
    sweeps = [
        get_act_patch_attn_head_out_all_pos,
        get_act_patch_attn_head_q_all_pos,
        get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos,
        get_act_patch_attn_head_pattern_all_pos,
    ]
    return model._framework.stack([sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps])


def get_act_patch_attn_head_by_pos_every(
    model: HookedTransformer, corrupted_tokens: Any, clean_cache: Any, metric: Metric
) -> Any:
    """Output, query, key, value and pattern of every head at every position, `[patch_type, layer, pos, head]`."""
    sweeps = [
        get_act_patch_attn_head_out_by_pos,
        get_act_patch_attn_head_q_by_pos,
        get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
    ]
    swept = [sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps]
    pattern = get_act_patch_attn_head_pattern_by_pos(model, corrupted_tokens, clean_cache, metric)
    return model._framework.stack([*swept, pattern.swapaxes(1, 2)])


def get_act_patch_block_every(
    model: HookedTransformer, corrupted_tokens: Any, clean_cache: Any, metric: Metric
) -> Any:
    """Residual stream, attention output and MLP output of every layer, `[patch_type, layer, pos]`."""
    sweeps = [get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out]
    return model._framework.stack([sweep(model, corrupted_tokens, clean_cache, metric) for sweep in sweeps])
