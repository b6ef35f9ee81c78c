"""Attribution graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native

if TYPE_CHECKING:
    from ._model import HookedTransformer


class Node(NamedTuple):
    """A node of a graph. `influence` is cumulative: the fraction of the total influence that this node and all nodes
    with more influence have together."""

    kind: str
    layer: int | None
    position: int
    unit: int | None
    activation: float | None
    label: str
    influence: float


class AttributionGraph:
    """Direct effects between features, tokens, errors and logits of one prompt. Jupyter shows it as a page.

    Features are latents of `transcoders` (a path), or the `neurons` with the largest outputs at each position. `answer`
    and `wrong` choose the targets; by default, they are the most likely tokens.
    """

    def __init__(
        self,
        model: HookedTransformer,
        prompt: Any,
        *,
        transcoders: str | Path | None = None,
        neurons: int | None = None,
        answer: str | None = None,
        wrong: str | None = None,
        max_nodes: int | None = None,
    ) -> None:
        if wrong is not None and answer is None:
            raise TypeError("wrong requires answer")
        self._native = _native.AttributionGraph(
            model._native, model._rows(prompt)[0], transcoders=transcoders, neurons=neurons, answer=answer,
            wrong=wrong, max_nodes=max_nodes,
        )

    def nodes(self) -> list[Node]:
        """All nodes; the targets come last."""
        return [Node(*node) for node in self._native.nodes()]

    def effects_on(self, node: int) -> Any:
        """Direct effects of all nodes except targets on one node; None for a node without inputs."""
        return self._native.effects_on(node)

    @property
    def replacement_score(self) -> float:
        """The fraction of the influence that comes from tokens rather than from errors."""
        return self._native.scores()[0]

    @property
    def completeness_score(self) -> float:
        """The fraction of a node's input that does not come from errors, averaged over nodes weighted by influence."""
        return self._native.scores()[1]

    @property
    def deviation(self) -> float:
        """The largest relative difference between a node's value in the model and the sum of its constant and the
        effects on it."""
        return self._native.deviation

    def prune(self, node_share: float = 0.8, edge_share: float = 0.98) -> tuple[list[int], list[tuple[int, int, float]]]:
        """Nodes that account for `node_share` of the influence, and edges (source, target, effect) that account for
        `edge_share`."""
        return self._native.prune(node_share, edge_share)

    def save(self, path: str | Path, node_share: float = 0.8, edge_share: float = 0.98) -> None:
        """Writes the pruned graph: a page (`.html`), or Neuronpedia's JSON."""
        self._native.save(path, node_share, edge_share)

    def to_pandas(self) -> Any:
        """The nodes as a table."""
        import pandas

        return pandas.DataFrame(self.nodes())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._native.mimebundle()

    def __repr__(self) -> str:
        return f"AttributionGraph({len(self._native.nodes())} nodes)"
