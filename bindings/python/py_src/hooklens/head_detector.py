"""Scores of attention heads against a pattern, with TransformerLens's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .utils import is_lower_triangular, to_numpy

if TYPE_CHECKING:
    from ._cache import ActivationCache
    from ._model import HookedTransformer

HeadName = Literal["previous_token_head", "duplicate_token_head", "induction_head"]
HEAD_NAMES = ("previous_token_head", "duplicate_token_head", "induction_head")


def detect_head(
    model: HookedTransformer,
    seq: str | list[str],
    detection_pattern: Any,
    heads: list[tuple[int, int]] | Mapping[int, list[int]] | None = None,
    cache: ActivationCache | None = None,
    *,
    exclude_bos: bool = False,
    exclude_current_token: bool = False,
    error_measure: Literal["abs", "mul"] = "mul",
) -> Any:
    """How well each head's attention pattern fits a detection pattern, `[layer, head]`; -1 for heads that are left out.

    `detection_pattern` is one of `HEAD_NAMES` or a lower triangular matrix, `[query, key]`. With `"mul"`, the score is
    the fraction of the attention that falls on the pattern; with `"abs"`, 1 minus the mean difference per query.
    Scores of several texts are averaged.
    """
    if isinstance(seq, list):
        options: dict[str, Any] = {"exclude_bos": exclude_bos, "exclude_current_token": exclude_current_token}
        options["error_measure"] = error_measure
        each = [to_numpy(detect_head(model, text, detection_pattern, heads, **options)) for text in seq]
        return model._framework.from_numpy(np.mean(each, axis=0))
    if error_measure not in ("abs", "mul"):
        raise ValueError(f"error_measure must be 'abs' or 'mul', not {error_measure!r}")
    tokens = model.to_tokens(seq)
    if isinstance(detection_pattern, str):
        if detection_pattern not in HEAD_NAMES:
            raise ValueError(f"detection_pattern must be a matrix or one of {HEAD_NAMES}, not {detection_pattern!r}")
        detection_pattern = _PATTERNS[detection_pattern](tokens)
    wanted = to_numpy(detection_pattern)
    length = int(tokens.shape[-1])
    if wanted.shape != (length, length) or not is_lower_triangular(wanted):
        raise ValueError(
            f"the detection pattern must be a lower triangular matrix of shape ({length}, {length}), the length of the "
            f"text; it has shape {wanted.shape}"
        )
    if cache is None:
        cache = model.run_with_cache(tokens, remove_batch_dim=True)[1]
    _check_cache(cache, model, tokens)
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    chosen: dict[int, list[int]] = {layer: list(range(n_heads)) for layer in range(n_layers)}
    if heads is not None:
        pairs = heads if isinstance(heads, list) else [(layer, head) for layer, own in heads.items() for head in own]
        chosen = {}
        for layer, head in pairs:
            chosen.setdefault(layer, []).append(head)
    scores = -np.ones((n_layers, n_heads), dtype=np.float32)
    for layer, own in chosen.items():
        patterns = to_numpy(cache["pattern", layer])
        patterns = patterns[0] if patterns.ndim == 4 else patterns
        for head in own:
            scores[layer, head] = compute_head_attention_similarity_score(
                patterns[head], wanted, exclude_bos=exclude_bos, exclude_current_token=exclude_current_token,
                error_measure=error_measure,
            )
    return model._framework.from_numpy(scores)


def _check_cache(cache: ActivationCache, model: HookedTransformer, tokens: Any) -> None:
    """Raises ValueError unless the cache is a recording of this text by this model."""
    if cache.model is not model:
        raise ValueError("the cache was recorded by another model")
    pattern = tuple(cache["pattern", 0].shape)
    if len(pattern) == 4 and pattern[0] != 1:
        raise ValueError(f"the cache has {pattern[0]} rows; detect_head needs a recording of one text")
    ids = to_numpy(tokens).reshape(-1).tolist()
    if pattern[-1] != len(ids) or cache._tokens not in (None, [ids]):
        raise ValueError("the cache is a recording of another text")


def _like(tokens: Any, matrix: Any) -> Any:
    from ._frameworks import framework_of

    return framework_of(tokens).from_numpy(matrix.astype(np.float32))


def get_previous_token_head_detection_pattern(tokens: Any) -> Any:
    """Attention to the previous token, `[query, key]`."""
    return _like(tokens, np.eye(int(tokens.shape[-1]), k=-1))


def _duplicates(tokens: Any) -> Any:
    ids = to_numpy(tokens).reshape(-1)
    return np.tril(ids[:, None] == ids[None], k=-1)


def get_duplicate_token_head_detection_pattern(tokens: Any) -> Any:
    """Attention to earlier copies of the current token, `[query, key]`."""
    return _like(tokens, _duplicates(tokens))


def get_induction_head_detection_pattern(tokens: Any) -> Any:
    """Attention to the tokens after earlier copies of the current token, `[query, key]`."""
    shifted = np.roll(_duplicates(tokens), 1, axis=1)
    shifted[:, 0] = False
    return _like(tokens, np.tril(shifted))


_PATTERNS = {
    "previous_token_head": get_previous_token_head_detection_pattern,
    "duplicate_token_head": get_duplicate_token_head_detection_pattern,
    "induction_head": get_induction_head_detection_pattern,
}


def get_supported_heads() -> None:
    """Prints the names of the detection patterns."""
    print(f"Supported heads: {HEAD_NAMES}")


def compute_head_attention_similarity_score(
    attention_pattern: Any,
    detection_pattern: Any,
    *,
    exclude_bos: bool,
    exclude_current_token: bool,
    error_measure: Literal["abs", "mul"],
) -> float:
    """The score of one attention pattern, `[query, key]`."""
    pattern, wanted = to_numpy(attention_pattern), to_numpy(detection_pattern)
    compared = np.array(pattern if error_measure == "mul" else np.abs(pattern - wanted))
    if exclude_bos:
        compared[:, 0] = 0
    if exclude_current_token:
        np.fill_diagonal(compared, 0)
    if error_measure == "mul":
        return float((compared * wanted).sum() / compared.sum())
    return 1 - round(float(compared.mean() * len(compared)), 3)
