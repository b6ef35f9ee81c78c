"""Conversion of texts to tokens and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from . import _native
    from ._frameworks import Framework
    from ._kv_cache import HookedTransformerKeyValueCache

Rows = list[list[int]]
# Numbers of padding tokens on the left and on the right of a row.
Padding = tuple[int, int]


class Tokenizer:
    """The model's tokenizer, reduced to what models need. `transformers` has complete tokenizers."""

    def __init__(self, native: _native.Model, padding_side: Literal["left", "right"]) -> None:
        self._native, self.padding_side = native, padding_side
        self.bos_token_id, self.eos_token_id, self.pad_token_id = native.special_tokens()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        return self._native.to_tokens([text], prepend_bos=False)[0][0]

    def decode(self, ids: Any) -> str:
        """Text of ids."""
        return self._native.to_string(_ids(ids))

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self._native.to_string([token])

    @property
    def bos_token(self) -> str | None:
        return self._text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self._text(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        return self._text(self.pad_token_id)


class Tokenizes:
    """Methods of models that convert text."""

    _native: _native.Model
    _framework: ClassVar[Framework]
    # The padding of rows that `to_tokens` returned, by their hash; None if the same ids were padded in different ways.
    _paddings: dict[int, Padding | None]
    _padding_side: Literal["left", "right"]

    @property
    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer(self._native, self._padding_side) if self._native.has_tokenizer else None

    def to_tokens(
        self,
        input: str | list[str],
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
        move_to_device: bool = True,
        truncate: bool = True,
    ) -> Any:
        """Token ids, `[batch, pos]`. Shorter texts are padded, on the right by default.

        The model remembers which rows it padded: runs on these ids mask the padding. Runs on ids that were padded in
        different ways raise ValueError; pass their `attention_mask`.
        """
        rows, mask = self._tokenized(input, prepend_bos, padding_side, truncate)
        self._remember(rows, mask)
        return self._framework.tokens(rows)

    def to_string(self, tokens: Any) -> Any:
        """Text of token ids: one for `[pos]`, a list for `[batch, pos]`."""
        tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
        if isinstance(tokens, int):
            return self._native.to_string([tokens])
        if tokens and isinstance(tokens[0], (list, tuple)):
            return [self._native.to_string(list(row)) for row in tokens]
        return self._native.to_string(list(tokens))

    def to_str_tokens(
        self,
        input: Any,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
    ) -> Any:
        """Text of each token of a text, or of ids; a list of lists for a list of texts."""
        if isinstance(input, (list, tuple)) and input and isinstance(input[0], str):
            return [self.to_str_tokens(text, prepend_bos, padding_side) for text in input]
        if isinstance(input, str):
            ids = self._tokenized(input, prepend_bos, padding_side, False)[0][0]
        else:
            ids = _ids(input)
        return [self._native.to_string([token]) for token in ids]

    def to_single_token(self, string: str) -> int:
        """The id of a text that is a single token."""
        return self._native.to_single_token(string)

    def to_single_str_token(self, int_token: int) -> str:
        """The text of an id."""
        return self._native.to_string([int(int_token)])

    def get_token_position(
        self,
        single_token: str | int,
        input: Any,
        mode: Literal["first", "last"] = "first",
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
    ) -> int:
        """Position of a token in a text or in ids."""
        ids = self._tokenized(input, prepend_bos, padding_side, False)[0][0] if isinstance(input, str) else _ids(input)
        token = self.to_single_token(single_token) if isinstance(single_token, str) else int(single_token)
        found = [position for position, own in enumerate(ids) if own == token]
        if not found:
            raise ValueError(f"the input does not contain the token {single_token!r}")
        return found[0] if mode == "first" else found[-1]

    def _tokenized(
        self, input: str | list[str], prepend_bos: bool | None, padding_side: str | None, truncate: bool
    ) -> tuple[Rows, list[list[bool]] | None]:
        texts = [input] if isinstance(input, str) else list(input)
        cfg = self.cfg  # type: ignore[attr-defined]
        longest = cfg.n_ctx if truncate else None
        if prepend_bos is None:
            prepend_bos = cfg.default_prepend_bos
        rows, mask = self._native.to_tokens(
            texts, prepend_bos=prepend_bos, padding_side=padding_side or self._padding_side, truncate=longest
        )
        return rows, mask

    def _remember(self, rows: Rows, mask: list[list[bool]] | None) -> None:
        pad = self._native.special_tokens()[2]
        for place, row in enumerate(rows):
            if not row or pad not in (row[0], row[-1]):
                continue
            real = [True] if mask is None else mask[place]
            padding = (real.index(True), real[::-1].index(True)) if any(real) else (len(row), 0)
            key = hash(tuple(row))
            self._paddings[key] = padding if self._paddings.get(key, padding) == padding else None

    def _mask_of(self, place: int, row: list[int]) -> list[bool] | None:
        """The mask of a row that `to_tokens` padded."""
        padding = self._paddings.get(hash(tuple(row)), (0, 0))
        if padding is None:
            raise ValueError(
                f"row {place} can't be told from a row that to_tokens padded differently, because padding and text have "
                "the same ids; pass attention_mask"
            )
        left, right = padding
        return [left <= at < len(row) - right for at in range(len(row))] if left or right else None

    def _rows(
        self,
        input: Any,
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] | None = None,
        past_kv_cache: HookedTransformerKeyValueCache | None = None,
        has_mask: bool = False,
    ) -> tuple[Rows, list[list[bool]] | None]:
        """Ids of the input of a run, and their mask. If the caller has a mask, paddings are not looked up."""
        if is_text(input):
            if past_kv_cache is not None and len(past_kv_cache) and prepend_bos is None:
                prepend_bos = False
            return self._tokenized(input, prepend_bos, padding_side, False)
        rows = input.tolist() if hasattr(input, "tolist") else [list(row) if hasattr(row, "__len__") else row for row in input]
        if not isinstance(rows, list):
            raise TypeError(f"the input of a run is a text, texts, or token ids, not {type(input).__name__}")
        if rows and not isinstance(rows[0], list):
            rows = [rows]
        first = rows[0][0] if rows and rows[0] else 0
        if not isinstance(first, int):
            raise TypeError(
                "token ids must be integers, [batch, pos]; to start from a residual stream, pass start_at_layer"
            )
        for place, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"row {place} has {len(row)} ids and row 0 has {len(rows[0])}: rows must have equal length; "
                    "to_tokens pads texts"
                )
            if any(token < 0 for token in row):
                raise ValueError(f"row {place} contains the negative id {min(row)}")
        looked_up = self._paddings and not has_mask
        known = [self._mask_of(place, row) for place, row in enumerate(rows)] if looked_up else []
        if any(own is not None for own in known):
            return rows, [own or [True] * len(row) for own, row in zip(known, rows)]
        return rows, None


def mask_rows(attention_mask: Any) -> list[list[bool]]:
    """The rows of a mask, `[batch, pos]`."""
    return [[bool(real) for real in row] for row in attention_mask.tolist()]


def is_text(input: Any) -> bool:
    """Whether an input is a text or texts."""
    return isinstance(input, str) or (isinstance(input, (list, tuple)) and bool(input) and isinstance(input[0], str))


def _ids(tokens: Any) -> list[int]:
    """The ids of one row."""
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    while tokens and isinstance(tokens[0], (list, tuple)):
        if len(tokens) != 1:
            raise ValueError(f"expected the ids of one text, given {len(tokens)} rows")
        tokens = list(tokens[0])
    return tokens if isinstance(tokens, list) else [tokens]
