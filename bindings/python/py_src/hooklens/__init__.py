"""Interpretability of transformer language models, computed in Rust.

>>> from hooklens import HookedTransformer
>>> model = HookedTransformer.from_pretrained("embedded:ioi")
>>> logits, cache = model.run_with_cache("When Mary and John went to the store, John gave a drink to")
>>> cache["pattern", 1].shape                        # [batch, head, query, key]
(1, 4, 15, 15)

Arrays are NumPy arrays. `hooklens.torch` and `hooklens.jax` have the same classes for torch tensors and JAX arrays.

Dumps written by the `hooklens` command are read without a model:

>>> import hooklens
>>> dump = hooklens.load("activations")              # a folder, merged shards, or one .safetensors file # doctest: +SKIP
>>> x = dump["blocks.0.hook_resid_post"]             # doctest: +SKIP
>>> x.shape, x[3], x[:100], numpy.asarray(x)         # read on access # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._dump import Batch, Dump, Incomplete, Point, load
from ._latents import Latents
from ._store import ActivationStore, Places

if TYPE_CHECKING:
    from . import head_detector, patching, utils
    from ._cache import ActivationCache
    from ._config import HookedTransformerConfig
    from ._factored_matrix import FactoredMatrix
    from ._hook_points import HookPoint
    from ._kv_cache import HookedTransformerKeyValueCache, HookedTransformerKeyValueCacheEntry
    from ._graph import AttributionGraph
    from ._model import HookedTransformer
    from ._patching_task import Circuit, EdgeScores, Patching
    from ._results import LabeledArray, PatchingResult
    from ._sae import SAE
    from ._svd_interpreter import SVDInterpreter

# These modules are imported on first use, so that dumps can be read where the native module is not installed.
_NATIVE = {
    "ActivationCache": "_cache",
    "AttributionGraph": "_graph",
    "Circuit": "_patching_task",
    "EdgeScores": "_patching_task",
    "FactoredMatrix": "_factored_matrix",
    "HookPoint": "_hook_points",
    "LabeledArray": "_results",
    "Patching": "_patching_task",
    "PatchingResult": "_results",
    "SAE": "_sae",
    "SVDInterpreter": "_svd_interpreter",
    "HookedTransformer": "_model",
    "HookedTransformerConfig": "_config",
    "HookedTransformerKeyValueCache": "_kv_cache",
    "HookedTransformerKeyValueCacheEntry": "_kv_cache",
}
_MODULES = ("head_detector", "patching", "utils")

__all__ = [
    "ActivationCache",
    "ActivationStore",
    "AttributionGraph",
    "Batch",
    "Circuit",
    "Dump",
    "EdgeScores",
    "FactoredMatrix",
    "HookPoint",
    "HookedTransformer",
    "HookedTransformerConfig",
    "HookedTransformerKeyValueCache",
    "HookedTransformerKeyValueCacheEntry",
    "Incomplete",
    "LabeledArray",
    "Latents",
    "Patching",
    "PatchingResult",
    "Places",
    "Point",
    "SAE",
    "SVDInterpreter",
    "head_detector",
    "load",
    "patching",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        return getattr(importlib.import_module(f".{_NATIVE[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
