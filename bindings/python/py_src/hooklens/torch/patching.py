"""The same functions as `hooklens.patching`."""

from ..patching import *  # noqa: F403
