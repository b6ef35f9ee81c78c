"""TransformerLens's `SVDInterpreter`: singular vectors of weights, projected onto the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ._factored_matrix import FactoredMatrix

if TYPE_CHECKING:
    from ._model import HookedTransformer


class SVDInterpreter:
    """Projects the right singular vectors of weight matrices onto the vocabulary with the unembedding."""

    def __init__(self, model: HookedTransformer) -> None:
        self.model, self.cfg = model, model.cfg

    def get_singular_vectors(
        self,
        vector_type: Literal["OV", "w_in", "w_out"],
        layer_index: int,
        num_vectors: int = 10,
        head_index: int | None = None,
    ) -> Any:
        """Logits of the first singular vectors of a head's OV circuit or of an MLP's weights,
        `[d_vocab, 1, num_vectors]`. The sign of a singular vector is arbitrary."""
        block, svd = self.model.blocks[layer_index], self.model._framework.svd
        if vector_type == "OV":
            if head_index is None:
                raise ValueError("the OV circuit belongs to a head: give head_index")
            rows = FactoredMatrix(block.attn.W_V[head_index], block.attn.W_O[head_index]).Vh.swapaxes(0, 1)
        elif vector_type == "w_in":
            weight = block.mlp.W_in.swapaxes(0, 1)
            if f"blocks.{layer_index}.ln2.w" in self.model._native.weight_names():
                weight = weight * block.ln2.w
            rows = svd(weight)[2]
        elif vector_type == "w_out":
            rows = svd(block.mlp.W_out)[2]
        else:
            raise ValueError(f"vector_type must be 'OV', 'w_in' or 'w_out', not {vector_type!r}")
        if num_vectors > rows.shape[0]:
            raise ValueError(f"the matrix has {rows.shape[0]} singular vectors; given num_vectors={num_vectors}")
        return (rows[:num_vectors] @ self.model.W_U).swapaxes(0, 1)[:, None]
