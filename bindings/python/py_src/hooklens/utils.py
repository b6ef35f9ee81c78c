"""TransformerLens's `utils` for arrays of NumPy, torch and JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._frameworks import framework_of
from ._names import get_act_name
from ._slice import Slice, SliceInput

if TYPE_CHECKING:
    from ._model import HookedTransformer

__all__ = [
    "Slice",
    "SliceInput",
    "composition_scores",
    "gelu_new",
    "get_act_name",
    "get_attention_mask",
    "get_corner",
    "get_device",
    "is_lower_triangular",
    "is_square",
    "lm_accuracy",
    "lm_cross_entropy_loss",
    "remove_batch_dim",
    "sample_logits",
    "test_prompt",
    "to_numpy",
    "transpose",
]


def to_numpy(tensor: Any) -> Any:
    """A NumPy array with the same values."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
        return tensor.numpy()
    return np.asarray(tensor)


def get_corner(tensor: Any, n: int = 3) -> Any:
    """The first `n` entries of every axis; of the product, for a factored matrix."""
    if hasattr(tensor, "get_corner"):
        return tensor.get_corner(n)
    return tensor[tuple(slice(n) for _ in tensor.shape)]


def lm_cross_entropy_loss(logits: Any, tokens: Any, attention_mask: Any = None, per_token: bool = False) -> Any:
    """The loss of next-token predictions: the mean, or `[batch, pos - 1]` with `per_token`. Predictions of or from
    padding count as 0 and are excluded from the mean."""
    framework = framework_of(logits)
    losses = -framework.at_ids(framework.log_softmax(logits)[..., :-1, :], tokens[..., 1:])
    if attention_mask is None:
        return losses if per_token else losses.mean()
    real = (attention_mask[..., :-1] != 0) & (attention_mask[..., 1:] != 0)
    losses = losses * real
    return losses if per_token else losses.sum() / real.sum()


def lm_accuracy(logits: Any, tokens: Any, per_token: bool = False) -> Any:
    """The fraction of positions at which the most likely token is the next one; with `per_token`, whether it is at each
    position, `[batch, pos - 1]`."""
    right = logits[..., :-1, :].argmax(-1) == tokens[..., 1:]
    return right if per_token else right.sum() / int(np.prod(right.shape))


def sample_logits(
    final_logits: Any,
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    freq_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    tokens: Any = None,
) -> Any:
    """Draws one token per row from logits, `[batch, d_vocab]`: the most likely one at temperature 0.

    Random numbers come from NumPy's global generator.
    """
    if temperature == 0.0:
        return final_logits.argmax(-1)
    logits = to_numpy(final_logits).astype(np.float64)
    if tokens is not None and (freq_penalty or repetition_penalty != 1.0):
        for row, seen in zip(logits, to_numpy(tokens)):
            ids, counts = np.unique(seen, return_counts=True)
            row[ids] = np.where(row[ids] > 0, row[ids] / repetition_penalty, row[ids] * repetition_penalty)
            row[ids] -= freq_penalty * counts
    logits = logits / temperature
    if top_k is not None:
        logits[logits < np.sort(logits)[:, -top_k, None]] = -np.inf
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    if top_p is not None:
        order = np.argsort(-probabilities)
        before = np.cumsum(np.take_along_axis(probabilities, order, -1), -1)
        before -= np.take_along_axis(probabilities, order, -1)
        dropped = np.zeros_like(probabilities, dtype=bool)
        np.put_along_axis(dropped, order, before >= top_p, -1)
        probabilities[dropped] = 0
        probabilities /= probabilities.sum(-1, keepdims=True)
    drawn = [np.random.choice(len(row), p=row) for row in probabilities]
    framework = framework_of(final_logits)
    return framework.tokens([[int(token) for token in drawn]])[0]


def get_attention_mask(tokenizer: Any, tokens: Any, prepend_bos: bool) -> Any:
    """The mask of ids, `[batch, pos]`: 0 for the padding tokens at the end, or at the start for a tokenizer that pads on
    the left."""
    ids = to_numpy(tokens)
    mask = np.ones_like(ids)
    if tokenizer is not None:
        is_token = ids != tokenizer.pad_token_id
        if tokenizer.padding_side == "right":
            mask[np.cumsum(is_token[:, ::-1], -1)[:, ::-1] == 0] = 0
        else:
            padding = np.cumsum(is_token, -1) == 0
            mask[padding] = 0
            if prepend_bos and tokenizer.bos_token_id == tokenizer.pad_token_id:
                mask[np.arange(len(mask)), padding.sum(-1) - 1] = 1
    return framework_of(tokens).tokens(mask.tolist())


def gelu_new(input: Any) -> Any:
    """GPT-2's approximation of GELU."""
    framework = framework_of(input)
    x = to_numpy(input)
    return framework.from_numpy(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def remove_batch_dim(tensor: Any) -> Any:
    """Removes the first axis if its length is 1."""
    return tensor[0] if tensor.shape[0] == 1 else tensor


def transpose(tensor: Any) -> Any:
    """Swaps the last two axes."""
    return tensor.swapaxes(-2, -1)


def is_square(x: Any) -> bool:
    """Whether an array is a square matrix."""
    return len(x.shape) == 2 and x.shape[0] == x.shape[1]


def is_lower_triangular(x: Any) -> bool:
    """Whether a square matrix has only zeros above its diagonal."""
    return is_square(x) and bool(np.array_equal(to_numpy(x), np.tril(to_numpy(x))))


def composition_scores(left: Any, right: Any, broadcast_dims: bool = True) -> Any:
    """Norm of the product of factored matrices, divided by their norms. With `broadcast_dims`, compares every `left`
    with every `right`."""
    if broadcast_dims:
        for _ in range(right.ndim - 2):
            left = left.unsqueeze(left.ndim - 2)
        for _ in range(left.ndim - right.ndim):
            right = right.unsqueeze(0)
    if left.rdim != right.ldim:
        raise ValueError(f"the left matrix has {left.rdim} columns, but the right one has {right.ldim} rows")
    r_left, r_right = left.collapse_r(), right.collapse_l()
    norms = [(part**2).sum((-2, -1)) ** 0.5 for part in (r_left, r_right)]
    # The factors that are dropped are orthogonal, so they do not change the norm.
    product = left.collapse_l() @ right.collapse_r()
    return (product**2).sum((-2, -1)) ** 0.5 / norms[0] / norms[1]


def get_device() -> str:
    """The device of models: `cpu`."""
    return "cpu"


def test_prompt(
    prompt: str,
    answer: str | list[str],
    model: HookedTransformer,
    prepend_space_to_answer: bool = True,
    print_details: bool = True,
    prepend_bos: bool | None = None,
    top_k: int = 10,
) -> None:
    """Prints how likely a model continues a prompt with an answer: the rank and probability of each token."""
    answers = [answer] if isinstance(answer, str) else list(answer)
    ranks = []
    for one in answers:
        one = f" {one}" if prepend_space_to_answer and not one.startswith(" ") else one
        start, end = model.to_tokens(prompt, prepend_bos=prepend_bos), model.to_tokens(one, prepend_bos=False)
        ids, wanted = start.tolist()[0], end.tolist()[0]
        logits = to_numpy(model.forward([ids + wanted]))[0]
        print(f"Tokenized prompt: {model.to_str_tokens(start)}")
        print(f"Tokenized answer: {model.to_str_tokens(end)}")
        for place, token in enumerate(wanted):
            row = logits[len(ids) + place - 1]
            probabilities = np.exp(row - row.max())
            probabilities /= probabilities.sum()
            order = np.argsort(-row)
            rank = int(np.nonzero(order == token)[0][0])
            text = model.to_single_str_token(token)
            print("Performance on answer token:")
            print(f"Rank: {rank: <8} Logit: {row[token]:5.2f} Prob: {probabilities[token]:6.2%} Token: |{text}|")
            if print_details:
                for number, top in enumerate(order[:top_k]):
                    shown = model.to_single_str_token(int(top))
                    print(
                        f"Top {number}th token. Logit: {row[top]:5.2f} Prob: {probabilities[top]:6.2%} Token: |{shown}|"
                    )
            ranks.append((text, rank))
    print(f"Ranks of the answer tokens: {ranks}")


# pytest would take the name for a test.
test_prompt.__test__ = False  # type: ignore[attr-defined]
