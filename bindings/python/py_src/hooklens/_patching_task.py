"""Patching, attribution and circuits for pairs of prompts, computed in Rust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._results import LabeledArray, PatchingResult

if TYPE_CHECKING:
    from ._model import HookedTransformer


class Edge(NamedTuple):
    """An edge between components, and its score."""

    sender: str
    receiver: str
    score: float


class Faithfulness(NamedTuple):
    """The fraction of the metric that a circuit recovers, and its 95 % interval over the examples if there is more than
    one."""

    value: float
    interval: tuple[float, float] | None


class FaithfulnessCurve(NamedTuple):
    """Faithfulness of circuits with increasing fractions of the edges. As in MIB, CPR is the area under the curve, and
    CMD is the area between the curve and 1."""

    shares: list[float]
    faithfulness: list[float]
    cpr: float
    cmd: float


class Patching:
    """Pairs of prompts of equal length and a metric of the logits.

    `metric` is a function of the logits of one prompt, `[1, pos, d_vocab]`, that returns a number, or a list with one
    such function per pair. Without `metric`, the metric is the logit of `answer` at the last position, minus the logit
    of `wrong` if it is given. Answers are texts or ids, or lists with one per pair. Attribution and edge scores need
    the gradient of the function: torch and JAX compute it, as in `run_with_gradients`; with NumPy, the function returns
    a pair of the number and its gradient with respect to the logits.
    """

    def __init__(
        self,
        model: HookedTransformer,
        clean: Any,
        corrupted: Any,
        *,
        answer: Any = None,
        wrong: Any = None,
        metric: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
    ) -> None:
        if (metric is None) == (answer is None):
            raise TypeError("give either answer (and wrong) or metric")
        judge: Any
        if metric is None:
            judge = ("logit" if wrong is None else "logit_diff", answer, wrong)
        else:
            functions = [metric] if callable(metric) else list(metric)
            if not all(map(callable, functions)):
                raise TypeError("metric must be a function of logits, or a list of functions, one per pair")
            judge = _judge(model, functions)

        self.model = model
        rows = [model._rows(prompts) for prompts in (clean, corrupted)]
        if metric is not None and not callable(metric) and len(functions) != len(rows[0][0]):
            raise ValueError(f"there are {len(functions)} metrics for {len(rows[0][0])} pairs; give one per pair")
        if any(mask is not None for _, mask in rows):
            raise ValueError("the prompts of a sweep must not be padded: give prompts of equal length")
        for place, (one, other) in enumerate(zip(rows[0][0], rows[1][0])):
            if len(one) != len(other):
                raise ValueError(f"pair {place} has prompts of different length: {len(one)} and {len(other)} tokens")
        self._task = _native.PatchingTask(model._native, rows[0][0], rows[1][0], judge)

    def sweep(self, name: str, progress: Callable[[int, int], None] | None = None) -> PatchingResult:
        """Patches activations of the clean run into the corrupted run, one site at a time. The names are
        TransformerLens's without `get_act_patch_`: `resid_pre`, `attn_head_out_all_pos`, ..."""
        return PatchingResult(self._task.sweep(name, progress))

    def attribution(self, name: str) -> PatchingResult:
        """Estimates a sweep from one gradient (attribution patching)."""
        return PatchingResult(self._task.attribution(name))

    def edges(
        self, method: str = "eap-ig", *, steps: int | None = None, ablation: str = "patching", keep: float = 0.05
    ) -> EdgeScores:
        """Scores of all edges between heads, MLPs, embeddings and logits: the change in the metric if the edge is
        ablated. `method` is `eap`, `eap-ig`, `relp`, `mask-gradients`, `exact` or `learned-masks` (which trains a mask
        that keeps the fraction `keep` of the edges); `ablation` is `patching` (from the corrupted run), `zero`, `mean`
        or `mean-positional`. `steps` defaults to 5, or to 300 for learned masks."""
        return EdgeScores(self._task.edges(method, steps=steps, ablation=ablation, keep=keep))

    def acdc(self, threshold: float, ablation: str = "patching") -> Circuit:
        """The circuit that is left after removing edges whose ablation changes the metric by less than `threshold`, one
        after another from the logits backward. Slow: one run per edge."""
        return Circuit(self._task.acdc(threshold, ablation))

    def node_scores(
        self, nodes: str, *, by_position: bool = False, method: str = "attribution", ablation: str = "patching"
    ) -> NodeScores:
        """The change in the metric if a node is ablated, for all `heads`, `mlps`, `neurons` or, in a model with a spliced
        dictionary (`model.splice(sae)`), `latents`; with `by_position`, at each position. `method` is `attribution` or `exact`."""
        scores = self._task.node_scores(nodes, by_position=by_position, method=method, ablation=ablation)
        return NodeScores(scores)

    def run_nodes(self, circuits: Sequence[NodeCircuit], ablation: str = "patching") -> list[Faithfulness]:
        """Faithfulness of circuits of nodes, with all other nodes of their kind ablated."""
        natives = [circuit._native for circuit in circuits]
        return [Faithfulness(*run) for run in self._task.run_nodes(natives, ablation)]

    def run_circuits(self, circuits: Sequence[Circuit], ablation: str = "patching") -> list[Faithfulness]:
        """Faithfulness of circuits, with all other edges ablated."""
        natives = [circuit._native for circuit in circuits]
        return [Faithfulness(*run) for run in self._task.run_circuits(natives, ablation)]

    def faithfulness(
        self,
        scores: EdgeScores,
        selection: str = "top",
        shares: Sequence[float] | None = None,
        ablation: str = "patching",
    ) -> FaithfulnessCurve:
        """Faithfulness of circuits with increasing fractions of the best edges; by default, MIB's fractions."""
        given = None if shares is None else list(shares)
        return FaithfulnessCurve(*self._task.faithfulness(scores._native, selection, given, ablation))

    def adversarial_ablation(
        self, circuit: Circuit, steps: int = 5, subsets: int = 20, ablation: str = "patching"
    ) -> tuple[float, float]:
        """Faithfulness with all edges outside the circuit ablated, and the worst faithfulness with only a subset of
        these edges ablated."""
        return self._task.adversarial_ablation(circuit._native, steps, subsets, ablation)


def _judge(model: HookedTransformer, functions: list[Callable[[Any], Any]]) -> Callable[..., list[Any]]:
    """Builds the function that computes the metric of each row of a batch. All rows belong to one example. The function
    returns one number per row, or one pair of number and gradient."""
    framework = model._framework

    def number(value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"the metric must return a number, not {str(value)[:80]} ({type(value).__name__})") from None

    def judge(logits: _native.Array, example: int, gradient: bool) -> list[Any]:
        function = functions[example if len(functions) > 1 else 0]
        rows = framework.shared(logits)
        each = [rows[row : row + 1] for row in range(rows.shape[0])]
        if not gradient:
            values = map(function, each)
            return [number(value[0] if isinstance(value, tuple) and len(value) == 2 else value) for value in values]
        pairs = []
        for row in each:
            value, slope = model._differentiate(function, row)
            shape = getattr(slope, "shape", None)
            if shape is None or tuple(shape) != tuple(row.shape):
                given = f"shape {tuple(shape)}" if shape is not None else f"type {type(slope).__name__}"
                raise ValueError(f"the gradient of the metric has {given}; the logits have shape {tuple(row.shape)}")
            pairs.append((number(value), framework.to_native(slope, logits)))
        return pairs

    return judge


class EdgeScores:
    """A score for every edge and example."""

    def __init__(self, native: _native.EdgeScores) -> None:
        self._native = native

    def largest(self, count: int = 10) -> list[Edge]:
        """The edges with the largest mean scores by magnitude."""
        return [Edge(*edge) for edge in self._native.largest(count)]

    def mean(self) -> LabeledArray:
        """Mean scores, `[sender, receiver]`."""
        return LabeledArray(self._native.mean())

    @property
    def scores(self) -> LabeledArray:
        """Scores, `[sender, receiver, example]`."""
        return LabeledArray(self._native.scores)

    def circuit(self, count: int, selection: str = "top") -> Circuit:
        """The circuit of the best edges: `top` by magnitude, `most-helpful` by sign, or grown from the logits (`greedy`
        or `greedy-helpful`)."""
        return Circuit(self._native.circuit(count, selection))

    def stability(self, count: int, resamples: int = 200, seed: int = 0) -> tuple[list[Edge], float]:
        """How the `count` best edges change if the examples are resampled: each edge with the fraction of resamples in
        which it is among the best, and the mean Jaccard index of the resampled circuits with the circuit of all
        examples."""
        inclusion, jaccard = self._native.stability(count, resamples, seed)
        return [Edge(*edge) for edge in inclusion], jaccard

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._native.mean().mimebundle()


class Circuit:
    """A set of edges of a model."""

    def __init__(self, native: _native.Circuit) -> None:
        self._native = native

    @classmethod
    def from_json(cls, model: HookedTransformer, text: str) -> Circuit:
        """Reads a circuit that `to_json` or MIB's code wrote, and checks that it belongs to the model."""
        return cls(_native.Circuit.from_json(model._native, text))

    def to_json(self) -> str:
        """The circuit as JSON, with the hash of the model's weights."""
        return self._native.to_json()

    def edges(self) -> list[tuple[str, str]]:
        """Sender and receiver of every edge."""
        return self._native.edges()

    def complement(self) -> Circuit:
        """All other edges of the model."""
        return Circuit(self._native.complement())

    def jaccard(self, other: Circuit) -> float:
        """The Jaccard index of two circuits: the number of common edges divided by the number of edges in either."""
        return self._native.jaccard(other._native)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._native.mimebundle()

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"Circuit({len(self)} edges)"


class NodeScores:
    """The effect of ablating each node of a kind."""

    def __init__(self, native: _native.NodeScores) -> None:
        self._native = native

    @property
    def effects(self) -> LabeledArray:
        """Mean effects, with one axis for layers and one for each kind of index, such as `[layer, head]`."""
        return LabeledArray(self._native.effects)

    def circuit(self, count: int, selection: str = "top") -> NodeCircuit:
        """The circuit of the best nodes: `top` by magnitude or `most-helpful` by sign."""
        return NodeCircuit(self._native.circuit(count, selection))

    def circuit_from_json(self, text: str) -> NodeCircuit:
        """Reads a circuit of these nodes, and checks that it belongs to the model."""
        return NodeCircuit(self._native.circuit_from_json(text))

    def __repr__(self) -> str:
        axes = ", ".join(f"{len(labels)} {name}" for name, labels in self.effects.axes.items())
        return f"NodeScores({axes})"


class NodeCircuit:
    """Heads, MLPs, neurons or latents that are kept while the others are ablated."""

    def __init__(self, native: _native.NodeCircuit) -> None:
        self._native = native

    def names(self) -> list[str]:
        """The names of the nodes, such as `layer 3 head 0`."""
        return self._native.names()

    def nodes(self) -> list[list[int]]:
        """The nodes, each as one index per axis of the scores."""
        return self._native.nodes()

    def complement(self) -> NodeCircuit:
        """All other nodes of the kind."""
        return NodeCircuit(self._native.complement())

    def to_json(self) -> str:
        """The circuit as JSON, with the hash of the model's weights."""
        return self._native.to_json()

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return repr(self._native)
