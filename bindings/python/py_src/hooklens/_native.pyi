"""
The native module.
"""

from _typeshed import Incomplete, SupportsGetItem
from os import PathLike
from typing import Any, SupportsFloat, SupportsIndex, final

__all__ = ["Array", "AttributionGraph", "Cache", "Circuit", "Dictionary", "EdgeScores", "KvCache", "Labeled", "Model", "NodeCircuit", "NodeScores", "PatchingTask", "RunOutput", "after_fork_in_child"]

@final
class Array:
    """
    An array in main memory. NumPy, torch and others read it without a copy, through `__array_interface__` or DLPack.
    """
    @property
    def __array_interface__(self, /) -> dict:
        """
        NumPy's array interface, version 3. `bfloat16` has none, because NumPy has no such type.
        """
    def __dlpack__(self, /, *, stream: Any | None = None, max_version: tuple[SupportsIndex, SupportsIndex] | None = None, dl_device: Any | None = None, copy: bool | None = None) -> "Any":
        """
        A DLPack capsule, without a copy.
        """
    def __dlpack_device__(self, /) -> tuple[int, int]:
        """
        The DLPack device: `kDLCPU`, number 0.
        """
    def __repr__(self, /) -> str: ...
    @property
    def address(self, /) -> int:
        """
        Address of the first element.
        """
    @staticmethod
    def copy_of(array: Any, *, bf16: bool = False) -> Array:
        """
        A copy of a NumPy array of floats or integers. With `bf16=True`, the elements are the bits of bfloat16 numbers.
        """
    @property
    def dtype(self, /) -> str:
        """
        Element type: `float32`, `bfloat16`, `int64`, ...
        """
    def float32(self, /) -> Array:
        """
        The array converted to `float32`.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Size in bytes.
        """
    @property
    def shape(self, /) -> tuple:
        """
        Length of each axis.
        """

@final
class AttributionGraph:
    """
    The direct effects between features, tokens, errors and logits of one prompt.
    """
    def __new__(cls, /, model: Model, prompt: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, *, transcoders: str | PathLike[str] | None = None, neurons: SupportsIndex | None = None, answer: str | None = None, wrong: str | None = None, max_nodes: SupportsIndex | None = None) -> AttributionGraph:
        """
        Traces a prompt. Features are latents of transcoders, or neurons. `answer` and `wrong` choose the targets; by
        default, they are the most likely tokens.
        """
    @property
    def deviation(self, /) -> float:
        """
        The largest relative difference between a node's value in the model and the sum of its constant and the effects
        on it.
        """
    def effects_on(self, /, node: SupportsIndex) -> Incomplete | None:
        """
        Direct effects of all nodes except targets on one node; `None` for a node without inputs.
        """
    def mimebundle(self, /) -> dict[str, str]: ...
    def nodes(self, /) -> list[tuple[str, int | None, int, int | None, float | None, str, float]]:
        """
        All nodes; targets come last.
        """
    def prune(self, /, node_share: SupportsFloat | SupportsIndex = 0.8, edge_share: SupportsFloat | SupportsIndex = 0.98) -> tuple[list[int], list[tuple[int, int, float]]]:
        """
        Prunes the graph: indices of the nodes that account for `node_share` of the influence, and the edges (source,
        target, effect) that account for `edge_share`.
        """
    def save(self, /, path: str | PathLike[str], node_share: SupportsFloat | SupportsIndex = 0.8, edge_share: SupportsFloat | SupportsIndex = 0.98) -> None:
        """
        Writes the pruned graph: a page (`.html`), or Neuronpedia's JSON.
        """
    def scores(self, /) -> tuple[float, float]:
        """
        The replacement and completeness scores.
        """

@final
class Cache:
    """
    A recording of one run.
    """
    def __repr__(self, /) -> str: ...
    def get(self, /, name: str) -> Array:
        """
        The activation with this name, without a copy.
        """
    @property
    def has_batch_dim(self, /) -> bool:
        """
        Whether the activations have a batch axis.
        """
    def mimebundle(self, /) -> dict[str, str]: ...
    def names(self, /) -> list[str]:
        """
        Names of the recorded hook points, in firing order; then the names of gradients, with `_grad` appended, in the
        order of the backward pass.
        """
    def remove_batch_dim(self, /) -> Cache:
        """
        The recording of one row without its batch axis.
        """
    def save(self, /, path: str | PathLike[str]) -> None:
        """
        Writes a `.safetensors` or `.npz` file.
        """

@final
class Circuit:
    """
    A set of edges of a model.
    """
    def __len__(self, /) -> int: ...
    def complement(self, /) -> Circuit:
        """
        The edges of the model that are not in the circuit.
        """
    def edges(self, /) -> list[tuple[str, str]]:
        """
        Sender and receiver of every edge.
        """
    @staticmethod
    def from_json(model: Model, text: str) -> Circuit:
        """
        Reads a circuit that [`Circuit::to_json`] or MIB's code wrote, and checks that it belongs to the model.
        """
    def jaccard(self, /, other: Circuit) -> float:
        """
        The Jaccard index of two circuits: the number of common edges divided by the number of edges in either.
        """
    def mimebundle(self, /) -> dict[str, str]: ...
    def to_json(self, /) -> str:
        """
        The circuit as JSON, with the hash of the model's weights.
        """

@final
class Dictionary:
    """
    A sparse autoencoder or a transcoder.
    """
    @property
    def architecture(self, /) -> str:
        """
        SAELens's name of the architecture.
        """
    @property
    def d_in(self, /) -> int:
        """
        Width of the input.
        """
    @property
    def d_sae(self, /) -> int:
        """
        Number of latents.
        """
    def decode(self, /, acts: Array) -> Array:
        """
        The reconstruction from activations, `[.., d_in]`.
        """
    def direction(self, /, latent: SupportsIndex) -> Array:
        """
        What a latent adds to the reconstruction per unit of activation, `[d_in]`.
        """
    def encode(self, /, x: Array) -> Array:
        """
        Activations of the latents, `[.., d_sae]`.
        """
    def forward(self, /, x: Array) -> Array:
        """
        The reconstruction of an input, `[.., d_in]`.
        """
    @property
    def hook_name(self, /) -> str | None:
        """
        Name of the hook point that the dictionary reads, if its files record it.
        """
    def mimebundle(self, /) -> dict[str, str]: ...
    @property
    def name(self, /) -> str:
        """
        Name of the dictionary.
        """
    @staticmethod
    def open(path: str | PathLike[str]) -> Dictionary:
        """
        Opens a dictionary of any published format: a folder, a file, or an embedded one.
        """
    def save(self, /, folder: str | PathLike[str]) -> None:
        """
        Writes SAELens's format.
        """
    @property
    def threshold(self, /) -> Array | None:
        """
        Thresholds of a JumpReLU dictionary, `[d_sae]`.
        """
    def weight(self, /, name: str) -> Array:
        """
        One of SAELens's weights: `W_enc`, `[d_in, d_sae]`; `b_enc`, `[d_sae]`; `W_dec`, `[d_sae, d_in]`; or `b_dec`,
        `[d_in]`.
        """
    def with_error_term(self, /, error_term: bool) -> Dictionary:
        """
        A copy of the dictionary. `error_term` says whether the reconstruction error is added where the copy is spliced
        into a model.
        """

@final
class EdgeScores:
    """
    A score for every edge and example.
    """
    def circuit(self, /, count: SupportsIndex, selection: str = "top") -> Circuit:
        """
        The circuit of the best edges: `top` by magnitude, `most-helpful` by sign, or grown from the logits (`greedy` or
        `greedy-helpful`).
        """
    def largest(self, /, count: SupportsIndex) -> list[tuple[str, str, float]]:
        """
        The edges with the largest scores by magnitude: sender, receiver, and mean score.
        """
    def mean(self, /) -> Labeled:
        """
        Mean scores, `[sender, receiver]`.
        """
    @property
    def scores(self, /) -> Labeled:
        """
        Scores, `[sender, receiver, example]`.
        """
    def stability(self, /, count: SupportsIndex, resamples: SupportsIndex = 200, seed: SupportsIndex = 0) -> tuple[list[tuple[str, str, float]], float]:
        """
        For each edge, the fraction of resamples of the examples in which the edge is among the `count` best; and the
        mean Jaccard index of the resampled circuits with the circuit of all examples.
        """

@final
class KvCache:
    """
    Keys and values of earlier positions, with their mask.
    """
    def __len__(self, /) -> int: ...
    def __new__(cls, /, model: Model, batch: SupportsIndex) -> KvCache:
        """
        An empty cache for `batch` rows of a model.
        """
    def append_attention_mask(self, /, mask: SupportsGetItem[int, SupportsGetItem[int, bool]]) -> list[list[bool]]:
        """
        Appends a mask for positions whose keys and values are appended by hand. Returns the whole mask.
        """
    @property
    def attention_mask(self, /) -> list[list[bool]]:
        """
        The attention mask of the cached positions, `[batch, pos]`.
        """
    def copy(self, /) -> KvCache:
        """
        A cache with the same content, which later grows independently of this one.
        """
    def entry(self, /, layer: SupportsIndex) -> tuple[Array, Array]:
        """
        Keys and values of a layer, `[batch, pos, head, d_head]`; keys are rotated.
        """
    def fork(self, /, count: SupportsIndex) -> KvCache:
        """
        Copies of the only row, as a cache of `count` rows that shares the memory of the cached positions.
        """
    def freeze(self, /) -> None:
        """
        Stops runs from appending to the cache.
        """
    @property
    def frozen(self, /) -> bool:
        """
        Whether the cache is frozen.
        """
    @property
    def n_layers(self, /) -> int:
        """
        Number of layers.
        """
    def truncate(self, /, len: SupportsIndex) -> None:
        """
        Drops all positions after the first `len`.
        """
    def unfreeze(self, /) -> None:
        """
        Lets runs append to the cache again.
        """

@final
class Labeled:
    """
    Numbers with named axes and labels.
    """
    def at(self, /, axis: str, index: SupportsIndex) -> Labeled:
        """
        The values at one index of an axis.
        """
    @property
    def axes(self, /) -> list[tuple[str, list[str]]]:
        """
        Names of the axes, and the label of each index.
        """
    def mean(self, /, axis: str) -> Labeled:
        """
        The mean over an axis.
        """
    def mimebundle(self, /) -> dict[str, str]: ...
    def to_csv(self, /) -> str:
        """
        One row per value, with the labels as columns.
        """
    @property
    def values(self, /) -> Incomplete:
        """
        The values as a new NumPy array of `float64`.
        """

@final
class Model:
    """
    A decoder model.
    """
    def accumulated_bias(self, /, layer: SupportsIndex, *, mlp_input: bool = False, include_mlp_biases: bool = True) -> Array:
        """
        Sum of the output biases before a layer, `[d_model]`.
        """
    def accumulated_resid(self, /, cache: Cache, place: Incomplete, sublayers: bool, apply_ln: bool) -> tuple[Array, list[str]]:
        """
        The stream before each layer; with `sublayers`, also between its sublayers.
        """
    def apply_ln(self, /, cache: Cache, place: Incomplete, vectors: Array) -> Array:
        """
        Divides vectors of the stream, `[component, batch, pos, d_model]`, by the scale of the norm that reads the
        stream.
        """
    def composition_scores(self, /, mode: str) -> Labeled:
        """
        Composition scores of all pairs of heads, `[writer, reader]`.
        """
    def config(self, /) -> str:
        """
        The configuration as JSON.
        """
    def decompose_resid(self, /, cache: Cache, place: Incomplete, only: str, include_embeddings: bool, apply_ln: bool) -> tuple[Array, list[str]]:
        """
        The contributions of each layer's attention and MLP to the stream. `only` is `all`, `attn` or `mlp`.
        """
    @staticmethod
    def default_config(n_layers: SupportsIndex, d_model: SupportsIndex, n_heads: SupportsIndex, d_vocab: SupportsIndex, n_ctx: SupportsIndex) -> str:
        """
        The configuration of a model with GPT-2's architecture and these sizes, as JSON.
        """
    @property
    def device(self, /) -> str:
        """
        The device, by name.
        """
    @property
    def dtype(self, /) -> str:
        """
        The element type of the activations.
        """
    @staticmethod
    def from_pretrained(name: str, *, processing: SupportsGetItem[int, str] = ..., dtype: str | None = None, device: str | None = None, adapter: str | PathLike[str] | None = None) -> Model:
        """
        Loads a model from a folder, a GGUF file or the hub, or an embedded model.
        """
    def full_resid_decomposition(self, /, cache: Cache, place: Incomplete, expand_neurons: bool, apply_ln: bool) -> tuple[Array, list[str]]:
        """
        The stream as a sum of heads, MLPs or neurons, embeddings and biases.
        """
    def generate(self, /, input: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, *, mask: SupportsGetItem[int, SupportsGetItem[int, bool]] | None = None, max_new_tokens: SupportsIndex = 10, sampling: Incomplete | None = None, seed: SupportsIndex = 0, stop_at_eos: bool = True, stop_tokens: SupportsGetItem[int, SupportsIndex] = ..., hooks: SupportsGetItem[int, Incomplete] = ..., kv_cache: KvCache | None = None) -> list[tuple[list[int], list[float], str | None]]:
        """
        Continues the input. Without `sampling`, takes the most likely token at each step.
        """
    @property
    def has_tokenizer(self, /) -> bool:
        """
        Whether the model has a tokenizer.
        """
    def head_labels(self, /) -> list[str]:
        """
        Labels of all heads: `L0H0`, ...
        """
    def heads_of(self, /, name: str) -> int:
        """
        Number of heads of an attention weight, such as `blocks.0.attn.W_K`.
        """
    def hook_points(self, /) -> list[tuple[str, bool, int | None]]:
        """
        Names of all hook points in firing order, whether each is computed only when it is named, and the index of the
        axis of positions, counted from the end.
        """
    def intervene(self, /, prompt: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, edits: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex, SupportsIndex, SupportsFloat | SupportsIndex]], *, transcoders: str | PathLike[str] | None = None, neurons: SupportsIndex | None = None) -> Array:
        """
        Logits of a run in which features are set: `(layer, position, unit, value)`.
        """
    def logit_attrs(self, /, cache: Cache, place: Incomplete, vectors: Array, tokens: SupportsIndex | str | SupportsGetItem[int, SupportsIndex] | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]], incorrect: SupportsIndex | str | SupportsGetItem[int, SupportsIndex] | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | None = None) -> Array:
        """
        Direct contribution of vectors of the stream, `[component, batch, pos, d_model]`, to the logits of tokens or to
        logit differences, `[component, batch, pos]`.
        """
    def matrix(self, /, name: str) -> Array | None:
        """
        One of `W_E`, `[d_vocab, d_model]`; `W_U`, `[d_model, d_vocab]`; `b_U`, `[d_vocab]`; or `W_pos`,
        `[n_ctx, d_model]`, which is `None` if positions are not learned.
        """
    def n_weights(self, /) -> int:
        """
        Number of weights.
        """
    def processed_where_allowed(self, /, steps: SupportsGetItem[int, str]) -> Model:
        """
        A copy with processed weights. Steps that would change this model's predictions are left out.
        """
    @staticmethod
    def random(config: str, seed: SupportsIndex) -> Model:
        """
        A model with random weights, from its configuration as JSON.
        """
    def run(self, /, input: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, *, mask: SupportsGetItem[int, SupportsGetItem[int, bool]] | None = None, hooks: SupportsGetItem[int, Incomplete] = ..., record: Incomplete | None = None, logits: bool = True, loss: bool = False, loss_per_token: bool = False, start_at_layer: SupportsIndex | None = None, stop_at_layer: SupportsIndex | None = None, tokens: SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | None = None, kv_cache: KvCache | None = None) -> RunOutput:
        """
        Runs the model.
        """
    def run_with_gradients(self, /, input: SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]], *, mask: SupportsGetItem[int, SupportsGetItem[int, bool]] | None = None, hooks: SupportsGetItem[int, Incomplete] = ..., record: Incomplete | None = None, gradient: Any | None = None) -> RunOutput:
        """
        Runs the model, then its backward pass from the gradient of a metric. `gradient` is called with the logits,
        `[batch, pos, d_vocab]`, and returns the metric's gradient with respect to them, an array of the same shape.
        Without `gradient`, the metric is the mean loss, which is returned too.
        """
    def save_pretrained(self, /, folder: str | PathLike[str]) -> None:
        """
        Writes the model's files to a folder.
        """
    def set_weight(self, /, name: str, value: Array) -> None:
        """
        Replaces a weight in this model. Recordings and runs that are in progress keep the old one.
        """
    def special_tokens(self, /) -> tuple[int | None, int | None, int | None]:
        """
        Ids of the beginning-of-sequence, end-of-sequence and padding tokens.
        """
    def splice(self, /, dictionary: Dictionary) -> Model:
        """
        A model with a dictionary spliced in. The dictionary's latents become hook points.
        """
    def stack_head_results(self, /, cache: Cache, place: Incomplete, remainder: bool, apply_ln: bool) -> tuple[Array, list[str]]:
        """
        The contribution of each head to the stream.
        """
    def stack_neuron_results(self, /, cache: Cache, place: Incomplete, remainder: bool, apply_ln: bool) -> tuple[Array, list[str]]:
        """
        The contribution of each neuron to the stream.
        """
    def stacked(self, /, name: str) -> Array:
        """
        A weight of all layers, `[layer, head, ..]`: `W_Q`, `b_O`, `W_in`, ...
        """
    def to_single_token(self, /, text: str) -> int:
        """
        The id of a text that is a single token.
        """
    def to_string(self, /, ids: SupportsGetItem[int, SupportsIndex]) -> str:
        """
        Text of token ids.
        """
    def to_tokens(self, /, texts: SupportsGetItem[int, str], *, prepend_bos: bool | None = None, padding_side: str | None = None, truncate: SupportsIndex | None = None) -> tuple[list[list[int]], list[list[bool]] | None]:
        """
        Token ids of texts, one row per text, with the mask of the padding.
        """
    def train_dictionary(self, /, prompts: SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]], hook_name: str, d_sae: SupportsIndex, *, k: SupportsFloat | SupportsIndex, tokens: SupportsIndex, batch_size: SupportsIndex, learning_rate: SupportsFloat | SupportsIndex | None = None, seed: SupportsIndex = 0, progress: Any | None = None) -> tuple[Dictionary, tuple[float, float, float] | None]:
        """
        Trains a sparse autoencoder on activations of the model on prompts of token ids.
        """
    def weight(self, /, name: str) -> Array:
        """
        A weight, as it is stored: matrices are `[in, out]`, with the heads side by side.
        """
    def weight_names(self, /) -> list[str]:
        """
        Names of all weights.
        """

@final
class NodeCircuit:
    """
    Heads, MLPs, neurons or latents that are kept while the others are ablated.
    """
    def __len__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...
    def complement(self, /) -> NodeCircuit:
        """
        The nodes that are not in the circuit.
        """
    def names(self, /) -> list[str]:
        """
        The names of the nodes.
        """
    def nodes(self, /) -> list[list[int]]:
        """
        The nodes, each as one index per axis.
        """
    def to_json(self, /) -> str: ...

@final
class NodeScores:
    """
    Nodes of one kind with the effect of ablating each.
    """
    def circuit(self, /, count: SupportsIndex, selection: str = "top") -> NodeCircuit:
        """
        The circuit of the best nodes: `top` by magnitude or `most-helpful` by sign.
        """
    def circuit_from_json(self, /, text: str) -> NodeCircuit:
        """
        Reads a circuit of these nodes.
        """
    @property
    def effects(self, /) -> Labeled:
        """
        Mean effects, with the axes of the nodes.
        """

@final
class PatchingTask:
    """
    A metric of a model on pairs of prompts.
    """
    def __new__(cls, /, model: Model, clean: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, corrupted: str | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | Array, metric: tuple[str, SupportsIndex | str | SupportsGetItem[int, SupportsIndex] | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]], SupportsIndex | str | SupportsGetItem[int, SupportsIndex] | SupportsGetItem[int, str] | SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | None] | Any) -> PatchingTask:
        """
        A task for pairs of prompts of equal length.
        """
    def __repr__(self, /) -> str: ...
    def acdc(self, /, threshold: SupportsFloat | SupportsIndex, ablation: str = "patching") -> Circuit:
        """
        The circuit that ACDC finds: removes edges one at a time if their ablation changes the metric by less than
        `threshold`.
        """
    def adversarial_ablation(self, /, circuit: Circuit, steps: SupportsIndex = 5, subsets: SupportsIndex = 20, ablation: str = "patching") -> tuple[float, float]:
        """
        Faithfulness with all edges outside a circuit ablated, and the worst faithfulness with only a subset of these
        edges ablated.
        """
    def attribution(self, /, sweep: str) -> tuple[Labeled, list[float] | None, list[float]]:
        """
        Estimates the effects of a sweep from one gradient.
        """
    def edges(self, /, method: str = "eap-ig", *, steps: SupportsIndex | None = None, ablation: str = "patching", keep: SupportsFloat | SupportsIndex = 0.05) -> EdgeScores:
        """
        Scores every edge between heads, MLPs, embeddings and logits.
        """
    def faithfulness(self, /, scores: EdgeScores, selection: str = "top", shares: SupportsGetItem[int, SupportsFloat | SupportsIndex] | None = None, ablation: str = "patching") -> tuple[list[float], list[float], float, float]:
        """
        Faithfulness of circuits with increasing fractions of the edges, and CPR and CMD as MIB defines them.
        """
    def node_scores(self, /, nodes: str, *, by_position: bool = False, method: str = "attribution", ablation: str = "patching") -> NodeScores:
        """
        The effect of ablating each node, estimated from one gradient or exact.
        """
    def run_circuits(self, /, circuits: SupportsGetItem[int, Circuit], ablation: str = "patching") -> list[tuple[float, tuple[float, float] | None]]:
        """
        Faithfulness of each circuit, with everything else ablated, and its 95 % interval over the examples if there is
        more than one.
        """
    def run_nodes(self, /, circuits: SupportsGetItem[int, NodeCircuit], ablation: str = "patching") -> list[tuple[float, tuple[float, float] | None]]:
        """
        Faithfulness of each circuit, with all other nodes of its kind ablated, and its 95 % interval over the examples if
        there is more than one.
        """
    def sweep(self, /, sweep: str, progress: Any | None = None) -> tuple[Labeled, list[float] | None, list[float]]:
        """
        Patches activations of the clean run into the corrupted run, one site at a time. `sweep` is one of
        TransformerLens's names without `get_act_patch_`.
        """

@final
class RunOutput:
    """
    Results of a run.
    """
    @property
    def cache(self, /) -> Cache:
        """
        The recording.
        """
    @property
    def loss(self, /) -> Array | None:
        """
        Mean loss per token, `[1]`.
        """
    @property
    def loss_per_token(self, /) -> Array | None:
        """
        Loss of each next-token prediction, `[batch, pos]`.
        """
    @property
    def output(self, /) -> Array | None:
        """
        Logits, `[batch, pos, d_vocab]`, or the residual stream at `stop_at_layer`.
        """

def after_fork_in_child() -> None:
    """
    Reports that this process was forked: threads of the parent do not exist here.
    """
