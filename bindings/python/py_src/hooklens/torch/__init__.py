"""hooklens with torch's tensors: `from hooklens.torch import HookedTransformer`.

All names are from TransformerLens 2.16.1, so in scripts written for it, only the import lines change. Models run in
Rust, on the CPU; tensors share memory with recordings. Gradients of activations come from hooks with `dir="bwd"`,
`run_with_cache(incl_bwd=True)` or `run_with_gradients`; weights have none.
"""

from __future__ import annotations

from .. import head_detector, patching, utils
from .._cache import ActivationCache
from .._config import HookedTransformerConfig
from .._factored_matrix import FactoredMatrix
from .._hook_points import HookPoint
from .._svd_interpreter import SVDInterpreter
from .._kv_cache import HookedTransformerKeyValueCache, HookedTransformerKeyValueCacheEntry
from ._model import HookedTransformer

__all__ = [
    "ActivationCache",
    "FactoredMatrix",
    "HookPoint",
    "HookedTransformer",
    "HookedTransformerConfig",
    "HookedTransformerKeyValueCache",
    "HookedTransformerKeyValueCacheEntry",
    "SVDInterpreter",
    "head_detector",
    "patching",
    "utils",
]
