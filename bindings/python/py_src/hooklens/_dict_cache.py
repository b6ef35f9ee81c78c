"""Sums over the residual stream for arrays that hooks collected.

A recording knows the run that it came from, and its decompositions are computed in Rust. A dictionary of arrays has
only names, so these functions rely on the names alone, as TransformerLens does. They reject models whose residual
stream is not the plain sum of the layers' outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._slice import Slice

if TYPE_CHECKING:
    from ._cache import ActivationCache


class DictCache:
    """Decompositions of a dictionary of arrays."""

    def __init__(self, cache: ActivationCache) -> None:
        self.cache = cache
        self.cfg = cache.model.cfg
        if self.cfg.use_normalization_before_and_after or self.cfg.raw.get("normalized_residual"):
            raise TypeError("for this model, decompose a recording made by run_with_cache, not a dictionary of arrays")

    def _layer(self, layer: int | None) -> int:
        return self.cfg.n_layers if layer in (None, -1) else int(layer)

    def _stacked(self, parts: list[Any], positions: Slice) -> Any:
        return self.cache.model._framework.stack([positions.apply(part, -2) for part in parts])

    def accumulated_resid(
        self, layer: int | None, incl_mid: bool, mlp_input: bool, positions: Slice
    ) -> tuple[Any, list[str]]:
        last = self._layer(layer)
        parts, labels = [], []
        for at in range(last + 1):
            if at == self.cfg.n_layers:
                parts.append(self.cache["resid_post", at - 1])
                labels.append("final_post")
                continue
            parts.append(self.cache["resid_pre", at])
            labels.append(f"{at}_pre")
            if (incl_mid and at < last) or (mlp_input and at == last):
                parts.append(self.cache["resid_mid", at])
                labels.append(f"{at}_mid")
        return self._stacked(parts, positions), labels

    def decompose_resid(
        self, layer: int | None, mlp_input: bool, mode: str, incl_embeds: bool, positions: Slice
    ) -> tuple[Any, list[str]]:
        last = self._layer(layer)
        keys: list[tuple[Any, str]] = []
        if incl_embeds:
            keys += [(f"hook_{name}", name) for name in ("embed", "pos_embed") if f"hook_{name}" in self.cache]
        for at in range(last):
            if mode != "mlp":
                keys.append((("attn_out", at), f"{at}_attn_out"))
            if mode != "attn" and not self.cfg.attn_only:
                keys.append((("mlp_out", at), f"{at}_mlp_out"))
        if mlp_input and mode != "mlp":
            keys.append((("attn_out", last), f"{last}_attn_out"))
        return self._stacked([self.cache[key] for key, _ in keys], positions), [label for _, label in keys]

    def stack_head_results(
        self, layer: int | None, incl_remainder: bool, positions: Slice
    ) -> tuple[Any, list[str]]:
        last = self._layer(layer)
        parts, labels = [], []
        for at in range(last):
            result = self.cache["result", at]
            for head in range(self.cfg.n_heads):
                parts.append(result[..., head, :])
                labels.append(f"L{at}H{head}")
        if incl_remainder:
            parts.append(self.cache["resid_post", last - 1] - sum(parts))
            labels.append("remainder")
        return self._stacked(parts, positions), labels

    def apply_ln(self, stack: Any, layer: int | None, mlp_input: bool, positions: Slice, rows: Slice) -> Any:
        kind, last = self.cfg.normalization_type, self._layer(layer)
        if kind is None:
            return stack
        if kind.startswith("LN"):
            stack = stack - stack.mean(-1)[..., None]
        norm = "ln_final" if last == self.cfg.n_layers else f"blocks.{last}.ln{2 if mlp_input else 1}"
        scale = positions.apply(self.cache[f"{norm}.hook_scale"], -2)
        stack = stack / (rows.apply(scale) if self.cache.has_batch_dim else scale)
        model = self.cache.model
        # Unless it is folded into the weights that read the norm.
        return stack * model._weight(f"{norm}.w") if f"{norm}.w" in model._native.weight_names() else stack
