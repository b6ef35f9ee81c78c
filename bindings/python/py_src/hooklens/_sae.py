"""Sparse autoencoders and transcoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._frameworks import framework_of
from ._frameworks.numpy import FRAMEWORK as NUMPY

if TYPE_CHECKING:
    from ._model import HookedTransformer


class HeldOut(NamedTuple):
    """Metrics of a trained dictionary on tokens after the training data."""

    explained_variance: float
    l0: float
    dead: float


class SAE:
    """A sparse autoencoder or transcoder of any published format. Results are arrays of the caller's kind: NumPy, torch
    or JAX.

    >>> from hooklens import SAE, HookedTransformer
    >>> model, sae = HookedTransformer.from_pretrained("embedded:ioi"), SAE.from_pretrained("embedded:ioi-sae")
    >>> _, cache = model.run_with_cache("When Mary and John went to the store, John gave a drink to")
    >>> sae.encode(cache[sae.hook_name]).shape
    (1, 15, 256)
    """

    def __init__(self, native: _native.Dictionary) -> None:
        self._native = native
        self.held_out: HeldOut | None = None

    @classmethod
    def from_pretrained(cls, path: str | Path) -> SAE:
        """Opens a folder, a file, or an embedded dictionary. The format is recognized from the files."""
        return cls(_native.Dictionary.open(path))

    @classmethod
    def train(
        cls,
        model: HookedTransformer,
        texts: Iterable[str],
        hook_name: str,
        *,
        d_sae: int,
        k: float = 32,
        tokens: int = 1_000_000,
        batch_size: int = 2048,
        learning_rate: float | None = None,
        seed: int = 0,
        progress: Callable[[int, float, float], None] | None = None,
    ) -> SAE:
        """Trains a BatchTopK autoencoder of a hook point on texts. `progress` gets the number of tokens seen, the
        explained variance and the mean number of active latents. Ctrl-C stops after the current step."""
        prompts = [model._rows(text)[0][0] for text in texts]
        native, held_out = model._native.train_dictionary(
            prompts, hook_name, d_sae, k=k, tokens=tokens, batch_size=batch_size, learning_rate=learning_rate,
            seed=seed, progress=progress,
        )
        made = cls(native)
        made.held_out = None if held_out is None else HeldOut(*held_out)
        return made

    @property
    def d_sae(self) -> int:
        """Number of latents."""
        return self._native.d_sae

    @property
    def d_in(self) -> int:
        """Width of the input."""
        return self._native.d_in

    @property
    def hook_name(self) -> str | None:
        """The hook point that the dictionary reads, if its files record it."""
        return self._native.hook_name

    @property
    def W_enc(self) -> Any:
        """Encoder, `[d_in, d_sae]`."""
        return NUMPY.weight(self._native.weight("W_enc"))

    @property
    def b_enc(self) -> Any:
        """Bias of the encoder, `[d_sae]`."""
        return NUMPY.weight(self._native.weight("b_enc"))

    @property
    def W_dec(self) -> Any:
        """Decoder, `[d_sae, d_in]`."""
        return NUMPY.weight(self._native.weight("W_dec"))

    @property
    def b_dec(self) -> Any:
        """Bias of the decoder, `[d_in]`."""
        return NUMPY.weight(self._native.weight("b_dec"))

    @property
    def cfg(self) -> SimpleNamespace:
        """The sizes, the architecture and the hook point, under SAELens's names: `cfg.d_in`, `cfg.d_sae`,
        `cfg.architecture()`, `cfg.metadata.hook_name`."""
        architecture, metadata = self._native.architecture, SimpleNamespace(hook_name=self.hook_name)
        return SimpleNamespace(d_in=self.d_in, d_sae=self.d_sae, architecture=lambda: architecture, metadata=metadata)

    @property
    def threshold(self) -> Any:
        """Thresholds of a JumpReLU dictionary, `[d_sae]`: latents are active where their pre-activation exceeds them."""
        found = self._native.threshold
        if found is None:
            raise AttributeError(f"a dictionary of the architecture {self._native.architecture} has no threshold")
        return NUMPY.weight(found)

    def _applied(self, function: Callable[[_native.Array], _native.Array], x: Any) -> Any:
        framework = framework_of(x)
        return framework.shared(function(framework.to_native(x)))

    def encode(self, x: Any) -> Any:
        """Activations of the latents, `[.., d_sae]`."""
        return self._applied(self._native.encode, x)

    def decode(self, feature_acts: Any) -> Any:
        """The reconstruction from activations, `[.., d_in]`."""
        return self._applied(self._native.decode, feature_acts)

    def __call__(self, x: Any) -> Any:
        """The reconstruction of an input, `[.., d_in]`."""
        return self._applied(self._native.forward, x)

    def without_error_term(self) -> SAE:
        """A copy of the dictionary. If it is spliced into a model, the reconstruction error is not added."""
        return SAE(self._native.with_error_term(False))

    def save_model(self, folder: str | Path) -> None:
        """Writes a folder that SAELens loads."""
        self._native.save(folder)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._native.mimebundle()

    def __repr__(self) -> str:
        return f"SAE({self._native.name}: {self.d_in} to {self.d_sae})"
