"""The same functions as `hooklens.head_detector`."""

from ..head_detector import *  # noqa: F403
