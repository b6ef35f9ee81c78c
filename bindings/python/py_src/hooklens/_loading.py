"""Loading models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native

if TYPE_CHECKING:
    from ._model import HookedTransformer

Self = TypeVar("Self", bound="LoadsModels")

# TransformerLens's default processing. Steps that would change the model's predictions are skipped.
_STANDARD = {
    "fold_ln": True,
    "center_writing_weights": True,
    "center_unembed": True,
    "fold_value_biases": True,
    "refactor_factored_attn_matrices": False,
}


class LoadsModels:
    """`from_pretrained` and related methods."""

    @classmethod
    def from_pretrained(
        cls: type[Self],
        model_name: str | Path,
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        refactor_factored_attn_matrices: bool = False,
        fold_value_biases: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
        adapter: str | Path | None = None,
        **unsupported: Any,
    ) -> Self:
        """Loads a model from a folder with `config.json` and weights, a GGUF file, a hub id such as `"gpt2"`, or an
        embedded model (`"embedded:ioi"`, `"embedded:induction"`).

        Norms are folded and weights are centered, as in TransformerLens, wherever that keeps the model's predictions;
        `from_pretrained_no_processing` keeps the weights as published.
        """
        padding_side = unsupported.pop("default_padding_side", None)
        prepend_bos = unsupported.pop("default_prepend_bos", None)
        torch_dtype = unsupported.pop("torch_dtype", None)
        if dtype is not None and torch_dtype is not None and _short(dtype) != _short(torch_dtype):
            raise ValueError(f"dtype is {dtype} and torch_dtype is {torch_dtype}; give one of them")
        dtype = torch_dtype if dtype is None else dtype
        for name, value in unsupported.items():
            _check_unsupported(name, value)
        steps = {
            "fold_ln": fold_ln,
            "center_writing_weights": center_writing_weights,
            "center_unembed": center_unembed,
            "fold_value_biases": fold_value_biases,
            "refactor_factored_attn_matrices": refactor_factored_attn_matrices,
        }
        standard = steps == _STANDARD
        def load(processing: list[str]) -> _native.Model:
            return _native.Model.from_pretrained(
                str(model_name),
                processing=processing,
                dtype=_short(dtype),
                device=None if device is None else str(device),
                adapter=None if adapter is None else str(adapter),
            )

        native = load(["standard"] if standard else [])
        if standard and json.loads(native.config())["positional"] == "Shortformer":
            # TransformerLens does not center these models.
            native, standard, steps = load([]), False, {"fold_value_biases": True}
        if not standard:
            native = native.processed_where_allowed([step for step, wanted in steps.items() if wanted])
        model = cls(native, name=str(model_name), padding_side=padding_side)  # type: ignore[call-arg]
        if prepend_bos is not None:
            model.cfg.default_prepend_bos = bool(prepend_bos)  # type: ignore[attr-defined]
        return model

    @classmethod
    def from_pretrained_no_processing(cls: type[Self], model_name: str | Path, **options: Any) -> Self:
        """Loads a model with its weights as published."""
        steps = dict.fromkeys(_STANDARD, False)
        return cls.from_pretrained(model_name, **{**steps, **options})


def _short(dtype: Any) -> str | None:
    """hooklens's name of an element type: `f32`, `bf16`, `f16`."""
    if dtype is None:
        return None
    name = str(dtype).rpartition(".")[2]
    return {"float32": "f32", "float": "f32", "bfloat16": "bf16", "float16": "f16", "half": "f16"}.get(name, name)


_REPLACED = {
    "hf_model": "save it with hf_model.save_pretrained(folder) and load the folder",
    "hf_config": "save it as config.json in the model's folder",
    "tokenizer": "save it with tokenizer.save_pretrained(folder) in the model's folder",
    "checkpoint_index": 'name a revision: "EleutherAI/pythia-70m@step1000"',
    "checkpoint_value": 'name a revision: "EleutherAI/pythia-70m@step1000"',
    "first_n_layers": "run the first layers only, with stop_at_layer",
    "n_devices": "models are on one device",
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1, or load a folder",
}
_IGNORED = {"move_to_device", "trust_remote_code"}


def _check_unsupported(name: str, value: Any) -> None:
    if name in _REPLACED:
        if value is not None and value is not False and (name, value) != ("n_devices", 1):
            raise NotImplementedError(f"from_pretrained has no argument {name}: {_REPLACED[name]}")
    elif name not in _IGNORED:
        raise TypeError(f"from_pretrained() got an unexpected keyword argument {name!r}")
