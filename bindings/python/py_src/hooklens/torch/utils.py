"""The same functions as `hooklens.utils`."""

from __future__ import annotations

from typing import Any

import torch

from .. import utils
from ..utils import *  # noqa: F403


class Slice(utils.Slice):  # type: ignore[no-redef]
    """Like `hooklens.utils.Slice`, with indices as a tensor."""

    def indices(self, max_ctx: int) -> Any:
        return torch.tensor(super().indices(max_ctx))
