"""Recorded activations, with TransformerLens's methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._dict_cache import DictCache
from ._names import get_act_name
from ._nearest import nearest
from ._slice import Slice, SliceInput

if TYPE_CHECKING:
    from ._model import HookedTransformer


class ActivationCache(Mapping[str, Any]):
    """The recording of one run: a mapping from hook point names to arrays.

    `cache["pattern", 3]` is short for `cache["blocks.3.attn.hook_pattern"]`; negative layers count from the end. Arrays
    share memory with the recording. Methods that decompose the residual stream check that the recording belongs to the
    model.

    `ActivationCache(dictionary, model)` wraps arrays that hooks collected.
    """

    def __init__(
        self,
        cache_dict: _native.Cache | Mapping[str, Any],
        model: HookedTransformer,
        has_batch_dim: bool = True,
        *,
        tokens: list[list[int]] | None = None,
    ) -> None:
        self.model = model
        self._native: _native.Cache | None = None
        self._made: dict[str, Any] = {}
        if isinstance(cache_dict, _native.Cache):
            self._native = cache_dict
            self._names = cache_dict.names()
            self.has_batch_dim = cache_dict.has_batch_dim
        else:
            self._made = dict(cache_dict)
            self._names = list(self._made)
            self.has_batch_dim = has_batch_dim
        # The ids of a run without edits, for sweeps that repeat it, and how often weights had been replaced.
        self._tokens, self._replaced = tokens, model._replaced

    def _resolve(self, key: Any) -> str:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) == 1 and parts[0] in self._made:
            return str(parts[0])
        if len(parts) == 1 and isinstance(parts[0], int):
            # The residual stream before a layer, and after the last one.
            n_layers = self.model.cfg.n_layers
            layer = parts[0] + n_layers if parts[0] < 0 else parts[0]
            parts = ("resid_post", n_layers - 1) if layer == n_layers else ("resid_pre", layer)
        if len(parts) > 1 and isinstance(parts[1], int) and parts[1] < 0:
            parts = (parts[0], parts[1] + self.model.cfg.n_layers, *parts[2:])
        if not isinstance(parts[0], str):
            raise KeyError(f"index a recording by name, or by name and layer, such as (\"pattern\", 3); given {key!r}")
        name = parts[0] if len(parts) == 1 and parts[0] in self._names else get_act_name(*parts)
        if name not in self._names:
            hint = nearest(name, self._names)
            if name in self.model._hooks.points:
                hint = f"the model has it, so record it by name: names_filter={name!r}"
            raise KeyError(f"{name!r} is not among the {len(self._names)} recorded hook points; {hint}")
        return name

    def __getitem__(self, key: Any) -> Any:
        name = self._resolve(key)
        if name not in self._made:
            assert self._native is not None
            array = self._native.get(name)
            # Position embeddings may be the weight itself.
            is_weight = name.startswith("hook_pos_embed")
            framework = self.model._framework
            self._made[name] = framework.weight(array) if is_weight else framework.shared(array)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        try:
            self._resolve(key)
        except (KeyError, TypeError):
            return False
        return True

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self)} if self._native is None else self._native.mimebundle()

    def __repr__(self) -> str:
        return f"ActivationCache with keys {list(self._names)}"

    def _was_changed(self) -> bool:
        """Whether arrays were changed in place, which torch counts."""
        return any(getattr(value, "_version", 0) != 0 for value in self._made.values())

    @property
    def cache_dict(self) -> dict[str, Any]:
        """All arrays by name."""
        return {name: self[name] for name in self._names}

    @property
    def has_embed(self) -> bool:
        return "hook_embed" in self._names

    @property
    def has_pos_embed(self) -> bool:
        return "hook_pos_embed" in self._names

    def save(self, path: str | Path) -> None:
        """Writes a `.safetensors` or `.npz` file."""
        self._recorded("save").save(path)

    def to(self, device: Any = None, move_model: bool = False) -> ActivationCache:
        """Returns the cache itself: arrays are in main memory. For another device, move the arrays."""
        if device is not None and "cpu" not in str(device):
            raise NotImplementedError("recordings stay in main memory; move single arrays to another device")
        return self

    def toggle_autodiff(self, mode: bool = False) -> None:
        raise NotImplementedError(
            "recordings have no autodiff graph; use model.run_with_cache(..., incl_bwd=True), or hooks with dir='bwd'"
        )

    def remove_batch_dim(self) -> ActivationCache:
        """Removes the batch axis of a single row, in place."""
        if self.has_batch_dim:
            if self._native is not None:
                recorded = set(self._native.names())
                self._native = self._native.remove_batch_dim()
                # Results that were computed from the recording lose the axis, too.
                self._made = {name: value[0] for name, value in self._made.items() if name not in recorded}
            else:
                for name, value in self._made.items():
                    if value.shape[0] != 1:
                        raise ValueError(f"cannot remove a batch axis of length {value.shape[0]}, at {name}")
                    self._made[name] = value[0]
            self.has_batch_dim = False
        return self

    def apply_slice_to_batch_dim(self, batch_slice: SliceInput) -> ActivationCache:
        """The recording of the selected rows."""
        if not self.has_batch_dim:
            raise ValueError("the cache has no batch axis to select rows from")
        batch_slice = Slice(batch_slice)
        arrays = {name: batch_slice.apply(value) for name, value in self.items()}
        one = batch_slice.mode == "int"
        return ActivationCache(arrays, self.model, has_batch_dim=self.has_batch_dim and not one)

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: SliceInput = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Any:
        """The residual stream before each layer up to `layer`, `[component, batch, pos, d_model]`. `incl_mid` adds the
        stream between attention and MLP."""
        if self._native is None:
            stack, labels = self._dict().accumulated_resid(layer, incl_mid, mlp_input, Slice(pos_slice))
            return self._finish(stack, labels, apply_ln, layer, mlp_input, pos_slice, return_labels)
        place, drop = self._place(layer, mlp_input, pos_slice)
        made = self.model._native.accumulated_resid(self._native, place, incl_mid, apply_ln)
        return self._stack(made, drop, return_labels)

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: Literal["all", "mlp", "attn"] = "all",
        apply_ln: bool = False,
        pos_slice: SliceInput = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Any:
        """The contributions of the embeddings and of each layer's attention and MLP to the stream before `layer`,
        `[component, batch, pos, d_model]`."""
        if self._native is None:
            stack, labels = self._dict().decompose_resid(layer, mlp_input, mode, incl_embeds, Slice(pos_slice))
            return self._finish(stack, labels, apply_ln, layer, mlp_input, pos_slice, return_labels)
        place, drop = self._place(layer, mlp_input, pos_slice)
        made = self.model._native.decompose_resid(self._native, place, mode, incl_embeds, apply_ln)
        return self._stack(made, drop, return_labels)

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: SliceInput = None,
        return_labels: bool = False,
    ) -> Any:
        """The stream before `layer` as a sum of heads, neurons (or MLPs), embeddings and biases,
        `[component, batch, pos, d_model]`."""
        native = self._recorded("get_full_resid_decomposition")
        place, drop = self._place(layer, mlp_input, pos_slice)
        made = self.model._native.full_resid_decomposition(native, place, expand_neurons, apply_ln)
        return self._stack(made, drop, return_labels)

    def compute_head_results(self) -> None:
        """Adds `hook_result` of every layer: each head's contribution to the stream, `[batch, pos, head, d_model]`."""
        for layer in range(self.model.cfg.n_layers):
            name = f"blocks.{layer}.attn.hook_result"
            if name not in self._names:
                # [batch, pos, head, d_head] times [head, d_head, d_model].
                z, w = self["z", layer], self.model.blocks[layer].attn.W_O
                self._made[name] = (z[..., None, :] @ w)[..., 0, :]
                self._names.append(name)

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: SliceInput = None,
        apply_ln: bool = False,
    ) -> Any:
        """The contribution of each head before `layer` to the stream, `[component, batch, pos, d_model]`.
        `incl_remainder` adds the rest of the stream."""
        if self._native is None:
            self.compute_head_results()
            stack, labels = self._dict().stack_head_results(layer, incl_remainder, Slice(pos_slice))
            return self._finish(stack, labels, apply_ln, layer, False, pos_slice, return_labels)
        place, drop = self._place(layer, False, pos_slice)
        made = self.model._native.stack_head_results(self._native, place, incl_remainder, apply_ln)
        return self._stack(made, drop, return_labels)

    def stack_neuron_results(
        self,
        layer: int | None,
        pos_slice: SliceInput = None,
        neuron_slice: SliceInput = None,
        return_labels: bool = False,
        incl_remainder: bool = False,
        apply_ln: bool = False,
    ) -> Any:
        """The contribution of each neuron before `layer` to the stream, `[component, batch, pos, d_model]`."""
        native = self._recorded("stack_neuron_results")
        place, drop = self._place(layer, False, pos_slice)
        wants_rest = incl_remainder and Slice(neuron_slice).mode == "identity"
        array, labels = self.model._native.stack_neuron_results(native, place, wants_rest, apply_ln)
        if Slice(neuron_slice).mode == "identity":
            return self._stack((array, labels), drop, return_labels)
        if incl_remainder:
            raise NotImplementedError("neuron_slice does not support incl_remainder: subtract the sum from the stream")
        kept = set(Slice(neuron_slice).indices(self.model.cfg.d_mlp))
        chosen = [place for place, label in enumerate(labels) if int(label.split("N")[1]) in kept]
        stack, labels = self._stack((array, labels), drop, True)
        stack, labels = stack[chosen], [labels[place] for place in chosen]
        return (stack, labels) if return_labels else stack

    def get_neuron_results(self, layer: int, neuron_slice: SliceInput = None, pos_slice: SliceInput = None) -> Any:
        """The contributions of single neurons of a layer to the stream, `[batch, pos, neuron, d_model]`."""
        neurons = Slice(neuron_slice)
        acts = neurons.apply(Slice(pos_slice).apply(self["post", layer], -2), -1)
        return acts[..., None] * neurons.apply(self.model.blocks[layer].mlp.W_out, 0)

    def stack_activation(self, activation_name: str, layer: int | None = -1, sublayer_type: str | None = None) -> Any:
        """Stacks one activation of every layer before `layer`, `[layer, ..]`."""
        layers = self.model.cfg.n_layers if layer in (None, -1) else layer
        assert layers is not None
        return self.model._framework.stack([self[activation_name, at, sublayer_type] for at in range(layers)])

    def apply_ln_to_stack(
        self,
        residual_stack: Any,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: SliceInput = None,
        batch_slice: SliceInput = None,
        has_batch_dim: bool = True,
    ) -> Any:
        """Divides vectors of the stream, `[component, batch, pos, d_model]`, by the recorded scale of the norm that
        reads the stream before `layer`, and centers them if the norm does."""
        if self._native is None:
            stack = Slice(batch_slice).apply(residual_stack, 1) if has_batch_dim else residual_stack
            return self._dict().apply_ln(stack, layer, mlp_input, Slice(pos_slice), Slice(batch_slice))
        place, stack, restore = self._four_axes(
            residual_stack, layer, mlp_input, pos_slice, batch_slice, has_batch_dim
        )
        made = self.model._native.apply_ln(self._native, place, self.model._framework.to_native(stack))
        return restore(self.model._framework.shared(made))

    def logit_attrs(
        self,
        residual_stack: Any,
        tokens: Any,
        incorrect_tokens: Any = None,
        pos_slice: SliceInput = None,
        batch_slice: SliceInput = None,
        has_batch_dim: bool = True,
    ) -> Any:
        """Direct contributions of vectors of the stream to the logits of `tokens`, or to the difference between their
        logits and the logits of `incorrect_tokens`, `[component, batch, pos]`."""
        if self._native is None:
            scaled = self.apply_ln_to_stack(residual_stack, None, False, pos_slice, batch_slice, has_batch_dim)
            direction = self.model.tokens_to_residual_directions(tokens)
            if incorrect_tokens is not None:
                direction = direction - self.model.tokens_to_residual_directions(incorrect_tokens)
            if len(direction.shape) == 2 and len(scaled.shape) == 4:
                # One token per row: [batch, 1, d_model].
                direction = direction[:, None]
            return (scaled * direction).sum(-1)
        place, stack, restore = self._four_axes(residual_stack, None, False, pos_slice, batch_slice, has_batch_dim)
        answer, wrong = _plain(tokens), None if incorrect_tokens is None else _plain(incorrect_tokens)
        made = self.model._native.logit_attrs(
            self._native, place, self.model._framework.to_native(stack), answer, wrong
        )
        return restore(self.model._framework.shared(made)[..., None])[..., 0]

    def _recorded(self, what: str) -> _native.Cache:
        if self._native is None:
            raise TypeError(f"{what} needs a recording made by run_with_cache, not a dictionary of arrays")
        return self._native

    def _dict(self) -> DictCache:
        return DictCache(self)

    def _shape(self) -> tuple[int, int]:
        """Number of rows and of positions."""
        for name in self._names:
            if name.split(".")[-1].startswith(("hook_resid", "hook_attn_out", "hook_embed", "hook_scale", "hook_z")):
                shape = self[name].shape
                return (int(shape[0]), int(shape[1])) if self.has_batch_dim else (1, int(shape[0]))
        raise KeyError("the recording has no activation of the residual stream")

    def _place(self, layer: int | None, mlp_input: bool, pos_slice: SliceInput, rows: Any = None) -> tuple[Any, bool]:
        """The place of a decomposition for native calls, and whether the position axis is dropped."""
        positions = Slice(pos_slice)
        chosen = None if positions.mode == "identity" else positions.indices(self._shape()[1])
        place = {
            "layer": None if layer == -1 and not mlp_input else layer,
            "mlp_input": mlp_input,
            "rows": rows,
            "positions": chosen,
        }
        return place, positions.mode == "int"

    def _stack(self, made: tuple[_native.Array, list[str]], drop: bool, return_labels: bool) -> Any:
        array, labels = made
        stack = self.model._framework.shared(array)
        if drop:
            stack = stack[:, :, 0]
        if not self.has_batch_dim:
            stack = stack[:, 0]
        return (stack, labels) if return_labels else stack

    def _finish(
        self,
        stack: Any,
        labels: list[str],
        apply_ln: bool,
        layer: int | None,
        mlp_input: bool,
        pos_slice: SliceInput,
        return_labels: bool,
    ) -> Any:
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, layer, mlp_input, pos_slice, None, self.has_batch_dim)
        return (stack, labels) if return_labels else stack

    def _four_axes(
        self,
        stack: Any,
        layer: int | None,
        mlp_input: bool,
        pos_slice: SliceInput,
        batch_slice: SliceInput,
        has_batch_dim: bool,
    ) -> tuple[Any, Any, Any]:
        """The place, the vectors as `[component, batch, pos, d_model]`, and a function that restores their axes."""
        rows, batch = Slice(batch_slice), self._shape()[0]
        chosen = rows.indices(batch) if rows.mode != "identity" else list(range(batch))
        if chosen != list(range(chosen[0], chosen[0] + len(chosen))):
            raise NotImplementedError("batch_slice must select consecutive rows")
        if has_batch_dim and rows.mode != "identity":
            stack = rows.apply(stack, 1)
        own_batch = has_batch_dim and rows.mode != "int" and self.has_batch_dim
        place, drop = self._place(layer, mlp_input, pos_slice, (chosen[0], chosen[-1] + 1))
        single = len(stack.shape) == 1 + own_batch + (not drop)
        if single:
            stack = stack[None]
        if not own_batch:
            stack = stack[:, None]
        if drop:
            stack = stack[:, :, None]
        if len(stack.shape) != 4:
            raise ValueError(
                f"vectors of the stream need the axes component, batch (if the cache has one), position (unless "
                f"pos_slice is a number) and d_model; given {tuple(stack.shape)} after inserting the dropped axes"
            )

        def restore(scaled: Any) -> Any:
            scaled = scaled[:, :, 0] if drop else scaled
            scaled = scaled if own_batch else scaled[:, 0]
            return scaled[0] if single else scaled

        return place, stack, restore


def _plain(tokens: Any) -> Any:
    """Tokens as numbers, texts, or lists of them."""
    return tokens.tolist() if hasattr(tokens, "tolist") else tokens
