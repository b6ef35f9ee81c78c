"""Tensors of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._native import Array
from ._names import FULL as _FULL


class Weight(torch.Tensor):
    """A copy of a weight. Changes in place would not reach the model, so they raise."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        changes = name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))
        if changes and isinstance(args[0], cls) and name != "requires_grad_":
            raise RuntimeError(
                "weights cannot be changed in place: use model.set_weight(name, value), or work on weight.clone()"
            )
        with torch._C.DisableTorchFunctionSubclass():  # type: ignore[no-untyped-call]
            made = func(*args, **(kwargs or {}))
        if isinstance(made, np.ndarray):
            made.flags.writeable = False
        if isinstance(made, torch.Tensor) and isinstance(args[0], cls) and made.numel():
            with torch._C.DisableTorchFunctionSubclass():  # type: ignore[no-untyped-call]
                shares = made.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
                return made.as_subclass(cls) if shares else made
        return made


class Torch:
    """See `Framework`."""

    name = "torch"

    def shared(self, array: Array) -> Any:
        # The capsule is unversioned, because a versioned one marks the memory as read-only, and torch warns about that.
        return torch.utils.dlpack.from_dlpack(array.__dlpack__())

    def weight(self, array: Array) -> Any:
        # A copy, because torch has no read-only memory.
        return self.shared(array).clone().as_subclass(Weight)

    def writable(self, array: Array) -> Any:
        return self.shared(array)

    def copies(self, array: Array) -> bool:
        return False

    def to_native(self, value: Any, like: Array | None = None) -> Array:
        if not isinstance(value, torch.Tensor):
            value = torch.as_tensor(np.asarray(value))
        value = value.detach().cpu()
        if like is not None:
            value = value.to(getattr(torch, like.dtype))
        value = value.contiguous()
        if value.dtype == torch.bfloat16:
            return Array.copy_of(value.view(torch.int16).numpy().view(np.uint16), bf16=True)
        return Array.copy_of(value.numpy())

    def dtype(self, name: str) -> Any:
        return getattr(torch, _FULL.get(name, name))

    def tokens(self, rows: list[list[int]]) -> Any:
        return torch.tensor(rows, dtype=torch.int64)

    def stack(self, values: list[Any]) -> Any:
        return torch.stack(values)

    def from_numpy(self, values: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    def svd(self, matrix: Any) -> tuple[Any, Any, Any]:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        return u, s, vh

    def log_softmax(self, logits: Any) -> Any:
        return torch.log_softmax(logits, -1)

    def at_ids(self, values: Any, ids: Any) -> Any:
        return values.gather(-1, ids[..., None])[..., 0]

    def eigenvalues(self, matrix: Any) -> Any:
        return torch.linalg.eigvals(matrix)


FRAMEWORK = Torch()
