"""Hook points. `HookedRootModule`, for models of your own, raises an error that names a replacement."""

from __future__ import annotations

from typing import Any

from .._hook_points import HookPoint

__all__ = ["HookPoint", "HookedRootModule"]


class HookedRootModule:
    """Not available: hooklens adds hooks only to the models that it runs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError(
            "HookedRootModule hooks torch modules of your own, which hooklens does not run. Use torch's "
            "register_forward_hook, or write the model in Rust with hooklens-hooks: docs/own_models.md"
        )
