"""Generation of text."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ._tokens import is_text

if TYPE_CHECKING:
    from . import _native
    from ._frameworks import Framework
    from ._hook_points import Direction
    from ._kv_cache import HookedTransformerKeyValueCache


class Generates:
    """The `generate` method of models."""

    _native: _native.Model
    _framework: ClassVar[Framework]

    def generate(
        self,
        input: Any = "",
        max_new_tokens: int = 10,
        stop_at_eos: bool = True,
        eos_token_id: int | list[int] | None = None,
        do_sample: bool = True,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        freq_penalty: float = 0.0,
        use_past_kv_cache: bool = True,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
        return_type: str | None = "input",
        verbose: bool = True,
        *,
        seed: int | None = None,
        past_kv_cache: HookedTransformerKeyValueCache | None = None,
    ) -> Any:
        """Continues a text, texts, or token ids. Hooks that were added to the model run in every step.

        Returns the input followed by the new tokens, as text for text and as ids, `[batch, pos]`, for ids, unless
        `return_type` is "str" or "tokens". Rows that end early are padded. Sampling uses `seed`; by default, a seed
        is drawn from Python's `random`.
        """
        rows, mask = self._rows(  # type: ignore[attr-defined]
            input, prepend_bos, padding_side or "left", past_kv_cache
        )
        sampling = None
        if do_sample:
            sampling = {
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "frequency_penalty": freq_penalty,
                "repetition_penalty": 1.0,
            }
        if return_type not in ("input", "str", "string", "tokens", None):
            raise ValueError(f"return_type must be 'input', 'str' or 'tokens', not {return_type!r}")
        stops: list[int] = []
        if stop_at_eos and eos_token_id is not None:
            stops = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        made = self._native.generate(
            rows,
            mask=mask,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            seed=random.getrandbits(63) if seed is None else seed,
            stop_at_eos=stop_at_eos,
            stop_tokens=stops,
            hooks=self._native_hooks("fwd"),
            kv_cache=None if past_kv_cache is None else past_kv_cache._native,
        )
        longest = max(len(new) for new, _, _ in made)
        bos, _, pad = self._native.special_tokens()
        whole = [row + new + [pad or 0] * (longest - len(new)) for row, (new, _, _) in zip(rows, made)]
        wants_text = is_text(input) if return_type == "input" else return_type in ("str", "string")
        if not wants_text:
            return self._framework.tokens(whole)
        texts = []
        for place, (row, (new, _, _)) in enumerate(zip(rows, made)):
            real = row if mask is None else [token for token, own in zip(row, mask[place]) if own]
            texts.append(self._native.to_string(real[1:] + new if real[:1] == [bos] else real + new))
        return texts[0] if len(texts) == 1 and not isinstance(input, (list, tuple)) else texts

    if TYPE_CHECKING:

        def _native_hooks(self, dir: Direction | None = None) -> list[dict[str, Any]]: ...
