"""Weights, with TransformerLens's names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ._nearest import nearest

if TYPE_CHECKING:
    from . import _native
    from ._config import HookedTransformerConfig
    from ._frameworks import Framework

_OF_HEADS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")


class HasWeights:
    """Weights of models."""

    _native: _native.Model
    _framework: ClassVar[Framework]
    cfg: HookedTransformerConfig

    _weights: dict[str, Any]
    _replaced: int

    def _kept(self, name: str, read: Callable[[], Any]) -> Any:
        """A cached weight, which is read first if it is not cached yet."""
        if name not in self._weights:
            self._weights[name] = read()
        return self._weights[name]

    def _stacked(self, name: str) -> Any:
        return self._kept(name, lambda: self._framework.weight(self._native.stacked(name)))

    def _matrix(self, name: str) -> Any:
        def read() -> Any:
            found = self._native.matrix(name)
            if found is None:
                raise AttributeError(f"the model has no {name}: its positions are not learned")
            return self._framework.weight(found)

        return self._kept(name, read)

    @property
    def W_E(self) -> Any:
        """Token embedding, `[d_vocab, d_model]`."""
        return self._matrix("W_E")

    @property
    def W_pos(self) -> Any:
        """Position embedding, `[n_ctx, d_model]`."""
        return self._matrix("W_pos")

    @property
    def W_U(self) -> Any:
        """Unembedding, `[d_model, d_vocab]`."""
        return self._matrix("W_U")

    @property
    def b_U(self) -> Any:
        """Bias of the unembedding, `[d_vocab]`."""
        return self._matrix("b_U")

    @property
    def W_E_pos(self) -> Any:
        """Token and position embeddings, `[d_vocab + n_ctx, d_model]`."""
        both = np.concatenate([np.asarray(self.W_E), np.asarray(self.W_pos)])
        return self._framework.from_numpy(both)

    @property
    def W_Q(self) -> Any:
        """`[layer, head, d_model, d_head]`"""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Any:
        """`[layer, head, d_model, d_head]`"""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Any:
        """`[layer, head, d_model, d_head]`"""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Any:
        """`[layer, head, d_head, d_model]`"""
        return self._stacked("W_O")

    @property
    def b_Q(self) -> Any:
        """`[layer, head, d_head]`"""
        return self._stacked("b_Q")

    @property
    def b_K(self) -> Any:
        """`[layer, head, d_head]`"""
        return self._stacked("b_K")

    @property
    def b_V(self) -> Any:
        """`[layer, head, d_head]`"""
        return self._stacked("b_V")

    @property
    def b_O(self) -> Any:
        """`[layer, d_model]`"""
        return self._stacked("b_O")

    @property
    def W_in(self) -> Any:
        """`[layer, d_model, d_mlp]`"""
        return self._stacked("W_in")

    @property
    def W_gate(self) -> Any:
        """`[layer, d_model, d_mlp]`, or None if MLPs are not gated."""
        return self._stacked("W_gate") if self.cfg.gated_mlp else None

    @property
    def W_out(self) -> Any:
        """`[layer, d_mlp, d_model]`"""
        return self._stacked("W_out")

    @property
    def b_in(self) -> Any:
        """`[layer, d_mlp]`"""
        return self._stacked("b_in")

    @property
    def b_out(self) -> Any:
        """`[layer, d_model]`"""
        return self._stacked("b_out")

    def _parameter_names(self) -> list[str]:
        """Names of the weights, and of the biases that TransformerLens has and that are zero here."""
        own = self._native.weight_names()
        zeros = []
        for name in own:
            block, _, kind = name.rpartition(".")
            if kind == "W_Q" and block.endswith(".attn"):
                zeros += [f"{block}.b_{letter}" for letter in "QKVO"]
            elif kind == "W_in" and block.endswith(".mlp"):
                zeros += [f"{block}.b_in", f"{block}.b_out"]
        return [*own, *(name for name in [*zeros, "unembed.b_U"] if name not in own)]

    def _weight(self, name: str) -> Any:
        """A weight by its full name, in TransformerLens's shape."""
        if name == "unembed.b_U":
            return self.b_U
        if name not in self._native.weight_names() and name.startswith("blocks."):
            _, layer, _, kind = name.split(".")
            return self._stacked(kind)[int(layer)]

        def read() -> Any:
            array = self._native.weight(name)
            # Weights from 16-bit files are stored in 16 bits, even if the model computes in f32.
            widened = self._native.dtype == "f32" and array.dtype != "float32"
            return self._framework.weight(array.float32() if widened else array)

        value = self._kept(name, read)
        kind = name.rpartition(".")[2]
        if ".attn." not in name or kind not in _OF_HEADS:
            return value
        heads = self._native.heads_of(name)
        if kind == "W_O":
            return value.reshape(heads, -1, value.shape[-1])
        if kind.startswith("b_"):
            return value.reshape(heads, -1)
        return value.reshape(value.shape[0], heads, -1).swapaxes(0, 1)

    def set_weight(self, name: str, value: Any) -> None:
        """Replaces a weight, `model.set_weight("blocks.0.attn.W_Q", value)`, in the shape in which it is read."""
        known = self._parameter_names()
        if name not in known:
            raise KeyError(f"the model has no weight {name!r}; {nearest(name, known)}")
        expected = tuple(self._weight(name).shape)
        if tuple(value.shape) != expected:
            raise ValueError(f"{name} has shape {expected}; given {tuple(value.shape)}")
        kind = name.rpartition(".")[2]
        if ".attn." in name and kind in _OF_HEADS:
            if kind == "W_O":
                value = value.reshape(-1, value.shape[-1])
            elif kind.startswith("b_"):
                value = value.reshape(-1)
            else:
                value = value.swapaxes(0, 1).reshape(value.shape[1], -1)
        self._native.set_weight(name, self._framework.to_native(value))
        self._weights.clear()
        self._replaced += 1

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Names and weights. They have no gradients: hooklens differentiates with respect to activations."""
        for name in self._parameter_names():
            yield name, self._weight(name)

    def parameters(self) -> Iterator[Any]:
        """Raises NotImplementedError: weights have no gradients, so an optimizer would do nothing."""
        raise NotImplementedError(
            "hooklens computes gradients of activations, not of weights. Read weights with named_parameters() or "
            "state_dict(), replace them with set_weight(name, value), and train models in Rust: docs/training.md"
        )

    def state_dict(self) -> dict[str, Any]:
        """All weights by name."""
        return dict(self.named_parameters())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Replaces weights by name. Buffers of TransformerLens (masks, rotary tables) are skipped."""
        own = set(self._native.weight_names())
        buffers = (".mask", ".IGNORE", ".rotary_sin", ".rotary_cos")
        given = {name: value for name, value in state_dict.items() if not name.endswith(buffers)}
        unknown, missing = sorted(set(given) - own), sorted(own - set(given))
        if strict and (unknown or missing):
            raise KeyError(f"weights that the model does not have: {unknown}; weights that are missing: {missing}")
        for name in own & set(given):
            self.set_weight(name, given[name])

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Any:
        """Sum of the output biases before a layer, `[d_model]`."""
        found = self._native.accumulated_bias(layer, mlp_input=mlp_input, include_mlp_biases=include_mlp_biases)
        return self._framework.shared(found)

    def all_composition_scores(self, mode: Literal["Q", "K", "V"]) -> Any:
        """How much each head reads from earlier heads' outputs, `[layer, head, layer, head]`: writer, then reader."""
        values = self._native.composition_scores(mode).values
        sizes = (self.cfg.n_layers, self.cfg.n_heads)
        return self._framework.from_numpy(values.reshape(*sizes, *sizes).astype(np.float32))

    def all_head_labels(self) -> list[str]:
        """`L0H0`, `L0H1`, ..."""
        return self._native.head_labels()

    def tokens_to_residual_directions(self, tokens: Any) -> Any:
        """The unembedding's columns for tokens: `[d_model]` for one, `[.., d_model]` for an array of ids."""
        if isinstance(tokens, str):
            tokens = self.to_tokens(tokens, prepend_bos=False)  # type: ignore[attr-defined]
            tokens = tokens[0] if tokens.shape[-1] > 1 else tokens[0, 0]
        columns = self.W_U.swapaxes(0, 1)
        return columns[tokens]
