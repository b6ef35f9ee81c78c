"""`model.blocks[0].attn.W_Q` and `model.blocks[0].attn.hook_z`: weights and hook points by attribute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._model import HookedTransformer


class Module:
    """A part of a model: its weights, its hook points, and its own parts."""

    def __init__(self, model: HookedTransformer, name: str) -> None:
        self._model, self._name = model, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return child(self._model, f"{self._name}.{attribute}")

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute.startswith("_"):
            super().__setattr__(attribute, value)
        else:
            self._model.set_weight(f"{self._name}.{attribute}", value)

    def __dir__(self) -> list[str]:
        start = f"{self._name}."
        names = [*self._model._native.weight_names(), *self._model._hooks.points]
        return sorted({name[len(start) :].split(".")[0] for name in names if name.startswith(start)})

    def __call__(self, x: Any) -> Any:
        """Runs this part alone: supported for blocks, the embedding, the final norm and the unembedding."""
        return run_part(self._model, self._name, x)

    def __repr__(self) -> str:
        return f"{self._name}: {', '.join(dir(self))}"


class Blocks:
    """The blocks of a model."""

    def __init__(self, model: HookedTransformer) -> None:
        self._model = model

    def __len__(self) -> int:
        return self._model.cfg.n_layers

    def __getitem__(self, layer: int) -> Module:
        return Module(self._model, f"blocks.{range(len(self))[layer]}")

    def __iter__(self) -> Iterator[Module]:
        return (self[layer] for layer in range(len(self)))


class Modules:
    """Parts of models by attribute."""

    if TYPE_CHECKING:
        embed: Module
        pos_embed: Module
        unembed: Module
        ln_final: Module

    @property
    def blocks(self) -> Blocks:
        return Blocks(self)  # type: ignore[arg-type]

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return child(self, attribute)  # type: ignore[arg-type]


def child(model: HookedTransformer, name: str) -> Any:
    """The hook point, weight or part with this name."""
    if name in model._hooks.points:
        return model._hooks.points[name]
    names = model._native.weight_names()
    if name in names:
        return model._weight(name)
    start = f"{name}."
    if any(own.startswith(start) for own in (*names, *model._hooks.points)):
        return Module(model, name)
    if name in model._parameter_names():
        return model._weight(name)
    if name.startswith("blocks.") and name.endswith((".attn.OV", ".attn.QK")):
        layer = int(name.split(".")[1])
        return (model.OV if name.endswith("OV") else model.QK)[layer]
    raise AttributeError(f"the model has no weight, hook point or part named {name!r}")


def run_part(model: HookedTransformer, name: str, x: Any) -> Any:
    """Applies one part of the model."""
    if name.startswith("blocks.") and name.count(".") == 1:
        layer = int(name.split(".")[1])
        stop = layer + 1
        return model.forward(x, start_at_layer=layer, stop_at_layer=stop)
    if name == "embed":
        return model.W_E[x]
    if name == "pos_embed":
        return model.W_pos[: x.shape[-1]]
    if name == "unembed":
        return x @ model.W_U + model.b_U
    if name == "ln_final":
        return _final_norm(model, x)
    raise NotImplementedError(
        f"{name} cannot run alone; record its output in a run, cache = model.run_with_cache(...)[1], or edit its input "
        "with a hook"
    )


def _final_norm(model: HookedTransformer, x: Any) -> Any:
    kind, own = model.cfg.normalization_type, set(model._native.weight_names())
    if kind is None:
        return x
    if kind.startswith("LN"):
        x = x - x.mean(-1)[..., None]
    x = x / ((x**2).mean(-1)[..., None] + model.cfg.eps) ** 0.5
    if "ln_final.w" in own:
        x = x * model._weight("ln_final.w")
    if "ln_final.b" in own:
        x = x + model._weight("ln_final.b")
    return x
