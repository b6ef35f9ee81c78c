"""Key-value caches, with TransformerLens's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _native
from ._tokens import mask_rows

if TYPE_CHECKING:
    from ._config import HookedTransformerConfig
    from ._model import HookedTransformer


class HookedTransformerKeyValueCacheEntry:
    """Keys and values of one layer, `[batch, pos, head, d_head]`. Keys are rotated, as in Hugging Face."""

    def __init__(self, cache: HookedTransformerKeyValueCache, layer: int) -> None:
        self._cache, self._layer = cache, layer

    def _arrays(self) -> tuple[Any, Any]:
        keys, values = self._cache._native.entry(self._layer)
        shared = self._cache._model._framework.shared
        return shared(keys), shared(values)

    @property
    def past_keys(self) -> Any:
        return self._arrays()[0]

    @property
    def past_values(self) -> Any:
        return self._arrays()[1]

    @property
    def frozen(self) -> bool:
        return self._cache.frozen


class HookedTransformerKeyValueCache:
    """Keys and values of earlier positions, for `past_kv_cache`. Runs append to it unless it is frozen. A frozen cache
    of one row serves batches of any size."""

    def __init__(self, native: _native.KvCache, model: HookedTransformer) -> None:
        self._native, self._model = native, model

    @classmethod
    def init_cache(
        cls, cfg: HookedTransformerConfig | HookedTransformer, device: Any = None, batch_size: int = 1
    ) -> HookedTransformerKeyValueCache:
        """An empty cache for a model or its `cfg`."""
        model: Any = getattr(cfg, "_model", cfg)
        return cls(_native.KvCache(model._native, batch_size), model)

    @property
    def entries(self) -> list[HookedTransformerKeyValueCacheEntry]:
        return [HookedTransformerKeyValueCacheEntry(self, layer) for layer in range(self._native.n_layers)]

    def __getitem__(self, layer: int) -> HookedTransformerKeyValueCacheEntry:
        return self.entries[layer]

    def __iter__(self) -> Iterator[HookedTransformerKeyValueCacheEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        """Number of cached positions."""
        return len(self._native)

    @property
    def frozen(self) -> bool:
        return self._native.frozen

    def freeze(self) -> None:
        """Stops runs from appending."""
        self._native.freeze()

    def unfreeze(self) -> None:
        """Lets runs append again."""
        self._native.unfreeze()

    @property
    def previous_attention_mask(self) -> Any:
        """The mask of the cached positions, `[batch, pos]`: 1 for tokens, 0 for padding."""
        rows = [[int(real) for real in row] for row in self._native.attention_mask]
        return self._model._framework.tokens(rows)

    def append_attention_mask(self, attention_mask: Any) -> Any:
        """Appends a mask, `[batch, new]`, and returns the whole mask. Runs append their own masks."""
        whole = self._native.append_attention_mask(mask_rows(attention_mask))
        return self._model._framework.tokens([[int(real) for real in row] for row in whole])

    def fork(self, count: int) -> HookedTransformerKeyValueCache:
        """`count` copies of the only row. They share the memory of the cached positions."""
        return HookedTransformerKeyValueCache(self._native.fork(count), self._model)

    def truncate(self, length: int) -> None:
        """Drops all positions after the first `length`."""
        self._native.truncate(length)

    def copy(self) -> HookedTransformerKeyValueCache:
        """A cache with the same content, which later grows independently of this one."""
        return HookedTransformerKeyValueCache(self._native.copy(), self._model)
