"""Decoder models with hook points, with TransformerLens's interface."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Union

from . import _native
from ._cache import ActivationCache
from ._config import HookedTransformerConfig
from ._factored_matrix import FactoredMatrix
from ._frameworks import Framework
from ._frameworks.numpy import FRAMEWORK as NUMPY
from ._generation import Generates
from ._graph import AttributionGraph
from ._hook_points import Direction, Handle, HookPoint, Hooks, NamesFilter, ReturnsGradient
from ._kv_cache import HookedTransformerKeyValueCache
from ._loading import LoadsModels
from ._modules import Modules
from ._patching_task import Patching
from ._sae import SAE
from ._slice import Slice, SliceInput
from ._tokens import Tokenizes, mask_rows
from ._weights import HasWeights

ReturnType = Literal["logits", "loss", "both"]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_native.after_fork_in_child)

# Hook points that TransformerLens lacks.
_OWN = ("hook_tokens", "mlp.hook_in", "mlp.hook_out")

HookList = Iterable[tuple[Union[str, Callable[[str], bool]], Callable[..., Any]]]


class Output(NamedTuple):
    """Result of a run with `return_type="both"`."""

    logits: Any
    loss: Any


class HookedTransformer(LoadsModels, Tokenizes, HasWeights, Generates, Modules):
    """A decoder model whose activations can be recorded and changed.

    Arrays are NumPy arrays here, torch tensors in `hooklens.torch.HookedTransformer`, and JAX arrays in
    `hooklens.jax.HookedTransformer`. Names, shapes and defaults are those of TransformerLens 2.16.1.

    >>> from hooklens import HookedTransformer
    >>> model = HookedTransformer.from_pretrained("embedded:ioi")
    >>> logits, cache = model.run_with_cache("When Mary and John went to the store, John gave a drink to")
    >>> logits.shape, cache["pattern", 1].shape
    ((1, 15, 61), (1, 4, 15, 15))
    """

    _framework: ClassVar[Framework] = NUMPY

    def __init__(
        self, cfg: HookedTransformerConfig | _native.Model, *, name: str = "custom", padding_side: Any = None
    ) -> None:
        """A model with random weights. `from_pretrained` loads one."""
        native = cfg
        if isinstance(native, HookedTransformerConfig):
            native = _native.Model.random(json.dumps(native.raw), native.seed or 0)
        self._native, self._name = native, name
        self._padding_side: Literal["left", "right"] = padding_side or "right"
        self.cfg = HookedTransformerConfig.of(self)
        self._hooks = Hooks(self, native.hook_points())
        self._paddings: dict[int, tuple[int, int] | None] = {}
        self._weights: dict[str, Any] = {}
        # How often weights were replaced.
        self._replaced = 0

    def __repr__(self) -> str:
        c = self.cfg
        sizes = f"{c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads"
        return f"{type(self).__name__}({self._name}: {sizes}, {c.n_params} weights)"

    def __call__(self, input: Any, **options: Any) -> Any:
        return self.forward(input, **options)

    def forward(
        self,
        input: Any,
        return_type: ReturnType | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
        start_at_layer: int | None = None,
        tokens: Any = None,
        attention_mask: Any = None,
        stop_at_layer: int | None = None,
        past_kv_cache: HookedTransformerKeyValueCache | None = None,
    ) -> Any:
        """Runs the model on a text, texts, or token ids, `[batch, pos]`.

        Returns logits, `[batch, pos, d_vocab]`; the mean loss, or `[batch, pos - 1]` with `loss_per_token`; both; or
        None. With `stop_at_layer`, returns the residual stream before that layer, `[batch, pos, d_model]`. With
        `start_at_layer`, `input` is the residual stream before that layer.
        """
        options = self._options(
            input, return_type, loss_per_token, prepend_bos, padding_side, start_at_layer, tokens, attention_mask,
            stop_at_layer, past_kv_cache,
        )
        return self._run(options, return_type, loss_per_token)[0]

    def run_with_cache(
        self,
        input: Any,
        *,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        names_filter: NamesFilter = None,
        device: Any = None,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: SliceInput = None,
        return_type: ReturnType | None = "logits",
        loss_per_token: bool = False,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Runs the model and records the hook points that `names_filter` selects: all, a name, names, or a function of
        the name. With `incl_bwd`, the run returns the loss, and the cache has its gradients as `<name>_grad`.

        `pos_slice` records some positions only. Other options are the same as for `forward`.
        """
        names = self._hooks.resolve(names_filter)
        positions = Slice(pos_slice)
        if incl_bwd:
            if loss_per_token:
                raise ValueError("incl_bwd takes gradients of the mean loss, so it cannot be combined with loss_per_token")
            return self._run_with_loss_gradients(
                input, names, positions, remove_batch_dim, return_cache_object, options
            )
        made = self._options(input, return_type, loss_per_token, **options)
        if names_filter is None or callable(names_filter):
            n_layers = self.cfg.n_layers
            given = (made["start_at_layer"], made["stop_at_layer"])
            start, stop = (at + n_layers if at is not None and at < 0 else at for at in given)
            names = self._hooks.within(names, start, stop)
        made["record"] = _record(names, self._recorded(positions, made["input"]), remove_batch_dim)
        result, native = self._run(made, return_type, loss_per_token)
        if clear_contexts:
            self.clear_contexts()
        return result, self._cache(native, made, return_cache_object, positions)

    def run_with_hooks(
        self,
        input: Any,
        *,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **options: Any,
    ) -> Any:
        """Runs the model with hooks, which are removed after the run. Options are the same as for `forward`.

        A hook is `(name, function)`, where the name may be a function that selects names. The function is called as
        `function(activation, hook=hook_point)`.
        """
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self.forward(input, **options)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[HookedTransformer]:
        """Hooks for all runs in a `with` block."""
        handles = [self._handle(names, function, "fwd") for names, function in fwd_hooks]
        handles += [self._handle(names, function, "bwd") for names, function in bwd_hooks]
        with self._hooks.added(handles, reset_hooks_end, clear_contexts):
            yield self

    def add_hook(
        self,
        name: str | Callable[[str], bool],
        hook: Callable[..., Any],
        dir: Direction = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Adds a hook to all later runs, until `reset_hooks`."""
        handle = self._handle(name, hook, dir)
        handle.is_permanent, handle.level = is_permanent, level
        self._hooks.add(handle, prepend)

    def add_perma_hook(
        self, name: str | Callable[[str], bool], hook: Callable[..., Any], dir: Direction = "fwd"
    ) -> None:
        """Adds a hook that `reset_hooks` keeps."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: Literal["fwd", "bwd", "both"] = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Removes the hooks that were added."""
        if clear_contexts:
            self.clear_contexts()
        self._hooks.remove(direction, including_permanent, level)

    def remove_all_hook_fns(
        self,
        direction: Literal["fwd", "bwd", "both"] = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Removes the hooks that were added, and keeps their contexts."""
        self._hooks.remove(direction, including_permanent, level)

    def clear_contexts(self) -> None:
        """Empties the `ctx` of every hook point."""
        for point in self._hooks.points.values():
            point.clear_context()

    @property
    def hook_dict(self) -> dict[str, HookPoint]:
        """The hook points that TransformerLens has, by name, including those that are computed only on request."""
        return {name: point for name, point in self._hooks.points.items() if not name.endswith(_OWN)}

    def hook_names(self) -> list[str]:
        """Names of all hook points in firing order."""
        return list(self._hooks.points)

    def hook_points(self) -> list[HookPoint]:
        """The hook points in firing order."""
        return list(self.hook_dict.values())

    def add_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: Any = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Adds hooks that store activations in a dictionary, which is returned."""
        cache = {} if cache is None else cache
        forward, backward = self._storing(names_filter, incl_bwd, remove_batch_dim, cache)
        for names, function in forward:
            self.add_hook(names, function)
        for names, function in backward:
            self.add_hook(names, function, "bwd")
        return cache

    def get_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: Any = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Any] | None = None,
        pos_slice: SliceInput = None,
    ) -> tuple[dict[str, Any], list[Any], list[Any]]:
        """A dictionary, and the forward and backward hooks that store activations in it."""
        cache = {} if cache is None else cache
        return (cache, *self._storing(names_filter, incl_bwd, remove_batch_dim, cache, pos_slice))

    def _storing(
        self,
        names_filter: NamesFilter,
        incl_bwd: bool,
        remove_batch_dim: bool,
        cache: dict[str, Any],
        pos_slice: SliceInput = None,
    ) -> tuple[list[Any], list[Any]]:
        # As in a recording, a single position keeps its axis.
        positions = Slice([pos_slice] if isinstance(pos_slice, int) else pos_slice)

        def store(value: Any, hook: HookPoint, suffix: str) -> None:
            kept = value[0] if remove_batch_dim else value
            if positions.mode != "identity":
                kept = positions.apply(kept, self._position_axis(hook.name))
            cache[hook.name + suffix] = kept

        def forward(value: Any, hook: HookPoint) -> None:
            store(value, hook, "")

        def backward(value: Any, hook: HookPoint) -> None:
            store(value, hook, "_grad")

        # A function that only reads gets memory that nothing changes later.
        forward._reads = backward._reads = True  # type: ignore[attr-defined]
        names = self._hooks.resolve(names_filter)
        return [(name, forward) for name in names], [(name, backward) for name in names] if incl_bwd else []

    def _position_axis(self, name: str) -> int:
        axis = self._hooks.position_axes[name]
        if axis is None:
            raise ValueError(f"{name} has no axis of positions, so pos_slice cannot be applied to it")
        return axis

    def loss_fn(self, logits: Any, tokens: Any, attention_mask: Any = None, per_token: bool = False) -> Any:
        """The loss of next-token predictions: the mean, or `[batch, pos - 1]` with `per_token`."""
        from .utils import lm_cross_entropy_loss

        return lm_cross_entropy_loss(logits, tokens, attention_mask, per_token)

    def _handle(self, names: str | Callable[[str], bool], function: Callable[..., Any], dir: Direction) -> Handle:
        if isinstance(names, str):
            self._hooks.check(names)
            return Handle([names], function, dir)
        return Handle(self._hooks.resolve(names), function, dir)

    def _native_hooks(self, dir: Direction | None = None, editing: tuple[Handle, ...] = ()) -> list[dict[str, Any]]:
        """The active hooks for a native call. Backward hooks only read, except for those in `editing`."""
        made = []
        for handle in self._hooks.handles:
            if dir in (None, handle.dir):
                backward, reads = handle.dir == "bwd", getattr(handle.function, "_reads", False)
                edits = any(handle is own for own in editing) if backward else not reads
                function = self._edits(handle.function) if edits else self._reads(handle)
                made.append({"names": handle.names, "function": function, "edits": edits, "backward": backward})
        return made

    def _reads(self, handle: Handle) -> Callable[[_native.Array, str], None]:
        """Wraps a function that does not change its array in the form that the native module calls."""
        framework, points, function = self._framework, self._hooks.points, handle.function

        def call(array: _native.Array, name: str) -> None:
            value = framework.shared(array)
            # torch counts changes in place. Recordings share the memory, so changed values must not be kept.
            version = getattr(value, "_version", None)
            returned = function(value, hook=points[name])
            if returned is not None or getattr(value, "_version", None) != version:
                raise ReturnsGradient(handle)

        return call

    def _edits(self, function: Callable[..., Any]) -> Callable[[_native.Array, str], _native.Array | None]:
        """Wraps a function that may change its array in the form that the native module calls."""
        framework, points = self._framework, self._hooks.points

        def call(array: _native.Array, name: str) -> _native.Array | None:
            value = framework.writable(array)
            returned = function(value, hook=points[name])
            if isinstance(returned, tuple):
                returned = returned[0]  # backward hooks of torch return tuples
            if returned is None or returned is value:
                # Where the framework's array is not the model's memory, changes in place must be copied back.
                return framework.to_native(value, array) if framework.copies(array) else None
            return framework.to_native(returned, array)

        return call

    def _run_gradients(self, input: Any, **options: Any) -> _native.RunOutput:
        """A native run with gradients. If a backward hook returns a gradient, runs again with its edit allowed."""
        editing: tuple[Handle, ...] = ()
        while True:
            try:
                return self._native.run_with_gradients(input, hooks=self._native_hooks(None, editing), **options)
            except ReturnsGradient as raised:
                editing = (*editing, raised.handle)

    def _options(
        self,
        input: Any,
        return_type: ReturnType | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
        start_at_layer: int | None = None,
        tokens: Any = None,
        attention_mask: Any = None,
        stop_at_layer: int | None = None,
        past_kv_cache: HookedTransformerKeyValueCache | None = None,
    ) -> dict[str, Any]:
        """Arguments of a native run."""
        if return_type not in ("logits", "loss", "both", None):
            raise ValueError(f"return_type must be 'logits', 'loss', 'both' or None, not {return_type!r}")
        made: dict[str, Any] = {"start_at_layer": start_at_layer, "stop_at_layer": stop_at_layer}
        if start_at_layer is not None:
            made["input"] = self._framework.to_native(input)
            has_mask = attention_mask is not None
            made["tokens"], mask = (None, None) if tokens is None else self._rows(tokens, has_mask=has_mask)
        elif tokens is not None:
            raise ValueError("tokens are the ids behind a residual stream; pass start_at_layer, or the ids as input")
        else:
            has_mask = attention_mask is not None
            made["input"], mask = self._rows(input, prepend_bos, padding_side, past_kv_cache, has_mask)
        made["mask"] = mask if attention_mask is None else mask_rows(attention_mask)
        wants_loss = return_type in ("loss", "both") and stop_at_layer is None
        made["loss"], made["loss_per_token"] = wants_loss and not loss_per_token, wants_loss and loss_per_token
        made["logits"] = return_type is not None and stop_at_layer is None
        if past_kv_cache is not None:
            made["kv_cache"] = past_kv_cache._native
        return made

    def _run(
        self, made: dict[str, Any], return_type: ReturnType | None, loss_per_token: bool
    ) -> tuple[Any, _native.Cache]:
        made["hooks"] = self._native_hooks("fwd")
        output = self._native.run(**made)
        return self._result(output, made, return_type, loss_per_token), output.cache

    def _result(
        self, output: _native.RunOutput, made: dict[str, Any], return_type: ReturnType | None, loss_per_token: bool
    ) -> Any:
        shared = self._framework.shared
        if made["stop_at_layer"] is not None:
            return None if output.output is None else shared(output.output)
        loss = None
        if return_type in ("loss", "both"):
            found = output.loss_per_token if loss_per_token else output.loss
            assert found is not None
            loss = shared(found) if loss_per_token else shared(found)[0]
        if return_type == "loss":
            return loss
        if return_type is None:
            return None
        assert output.output is not None
        logits = shared(output.output)
        return Output(logits, loss) if return_type == "both" else logits

    def _run_with_loss_gradients(
        self,
        input: Any,
        names: list[str],
        positions: Slice,
        remove_batch_dim: bool,
        as_object: bool,
        options: Mapping[str, Any],
    ) -> tuple[Any, Any]:
        made = self._options(input, "loss", False, **options)
        unsupported = [name for name in ("start_at_layer", "stop_at_layer", "kv_cache") if made.get(name) is not None]
        if unsupported:
            raise NotImplementedError(f"incl_bwd cannot be combined with {', '.join(unsupported)}")
        record = _record(names, self._recorded(positions, made["input"]), remove_batch_dim)
        output = self._run_gradients(made["input"], mask=made["mask"], record=record)
        assert output.loss is not None
        return self._framework.shared(output.loss)[0], self._cache(output.cache, {}, as_object, positions)

    def run_with_gradients(
        self,
        input: Any,
        metric: Callable[[Any], Any],
        *,
        names_filter: NamesFilter = None,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
    ) -> tuple[Any, ActivationCache]:
        """Runs the model and its backward pass from a metric of the logits, `[batch, pos, d_vocab]`.

        In torch, the metric returns a scalar, which torch differentiates; in JAX likewise. In NumPy, it returns the
        scalar and its gradient with respect to the logits. Returns the scalar, and a cache with activations and, under
        `<name>_grad`, gradients.
        """
        rows, mask = self._rows(input, prepend_bos, padding_side)
        found: list[Any] = []

        def gradient(logits: _native.Array) -> _native.Array:
            value, slope = self._differentiate(metric, self._framework.shared(logits))
            found.append(value)
            return self._framework.to_native(slope, logits)

        record = _record(self._hooks.resolve(names_filter), None, False)
        output = self._run_gradients(rows, mask=mask, record=record, gradient=gradient)
        return found[-1], ActivationCache(output.cache, self)

    def _differentiate(self, metric: Callable[[Any], Any], logits: Any) -> tuple[Any, Any]:
        """The metric's value and its gradient with respect to the logits."""
        returned = metric(logits)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise TypeError(
                "with NumPy, the metric must return a pair: its value, and its gradient with respect to the logits, "
                f"[batch, pos, d_vocab]; it returned {type(returned).__name__}"
            )
        value, slope = returned
        return value, slope

    def _cache(self, native: _native.Cache, made: Mapping[str, Any], as_object: bool, positions: Slice) -> Any:
        plain = not self._hooks.handles and positions.mode == "identity" and made.get("kv_cache") is None
        rows = made.get("input")
        whole = plain and isinstance(rows, list) and made.get("mask") is None
        cache = ActivationCache(native, self, tokens=rows if whole else None)
        return cache if as_object else cache.cache_dict

    def _recorded(self, positions: Slice, input: Any) -> list[int] | None:
        """The positions to record; all if `None`."""
        length = len(input[0]) if isinstance(input, list) else int(input.shape[1])
        return None if positions.mode == "identity" else positions.indices(length)

    def patching(self, clean: Any, corrupted: Any, **metric: Any) -> Patching:
        """Patching of pairs of prompts, with sweeps, attribution, edge scores and circuits. See `Patching`."""
        return Patching(self, clean, corrupted, **metric)

    def to(self, device: Any = None, *_: Any, **__: Any) -> HookedTransformer:
        """Returns the model itself, on the CPU. `from_pretrained(dtype=)` chooses the element type."""
        if device is not None and "cpu" not in str(device):
            raise NotImplementedError(f"models of the Python package run on the CPU, not on {device}")
        return self

    def cpu(self) -> HookedTransformer:
        """Returns the model itself."""
        return self

    def eval(self) -> HookedTransformer:
        """Returns the model itself: it has no dropout."""
        return self

    def splice(self, sae: SAE) -> HookedTransformer:
        """A model with a dictionary spliced in at the dictionary's hook point. The latents become the hook point
        `<name>.hook_sae_acts_post`, and without edits the model computes the same as before."""
        if not isinstance(sae, SAE):
            raise TypeError(f"splice takes one SAE, not {type(sae).__name__}")
        native = self._native.splice(sae._native)
        return type(self)(native, name=self._name, padding_side=self._padding_side)

    def attribution_graph(self, prompt: Any, **options: Any) -> AttributionGraph:
        """The attribution graph of a prompt. See `AttributionGraph`."""
        return AttributionGraph(self, prompt, **options)

    def intervene(
        self,
        prompt: Any,
        edits: Iterable[tuple[int, int, int, float]],
        *,
        transcoders: str | Path | None = None,
        neurons: int | None = None,
    ) -> Any:
        """Logits, `[1, pos, d_vocab]`, of a run in which features of an attribution graph are set: `(layer, position,
        unit, value)`."""
        rows = self._rows(prompt)[0]
        made = self._native.intervene(rows, list(edits), transcoders=transcoders, neurons=neurons)
        return self._framework.shared(made)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the model's files to a folder, which `from_pretrained` reads."""
        self._native.save_pretrained(folder)

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Sets whether runs compute `hook_result` even if it is not requested by name."""
        self._request("use_attn_result", use_attn_result, ("hook_result",))

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Sets whether runs compute `hook_q_input`, `hook_k_input` and `hook_v_input` even if not requested by name."""
        names = ("hook_q_input", "hook_k_input", "hook_v_input")
        self._request("use_split_qkv_input", use_split_qkv_input, names)

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Sets whether runs compute `hook_attn_in` even if it is not requested by name."""
        self._request("use_attn_in", use_attn_in, ("hook_attn_in",))

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Sets whether runs compute `hook_mlp_in` even if it is not requested by name."""
        self._request("use_hook_mlp_in", use_hook_mlp_in, ("hook_mlp_in",))

    def set_ungroup_grouped_query_attention(self, ungroup_grouped_query_attention: bool) -> None:
        if ungroup_grouped_query_attention:
            raise NotImplementedError("keys and values cannot be ungrouped; model.W_K and model.W_V repeat them")

    def _request(self, flag: str, on: bool, endings: tuple[str, ...]) -> None:
        setattr(self.cfg, flag, on)
        names = {name for name in self._hooks.on_request if name.endswith(endings)}
        self._hooks.requested = self._hooks.requested | names if on else self._hooks.requested - names

    @property
    def QK(self) -> FactoredMatrix:
        """`W_Q @ W_K.T` of every head, `[layer, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_Q, self.W_K.swapaxes(-2, -1))

    @property
    def OV(self) -> FactoredMatrix:
        """`W_V @ W_O` of every head, `[layer, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)


def _record(names: list[str], positions: list[int] | None, remove_batch_dim: bool) -> dict[str, Any]:
    return {"names": names, "positions": positions, "remove_batch_dim": remove_batch_dim}
