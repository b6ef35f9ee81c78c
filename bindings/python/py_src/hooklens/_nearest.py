"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib


def nearest(name: str, names: list[str]) -> str:
    """A hint that lists the names that resemble or contain `name`, or else some of the existing names."""
    near = [own for own in names if name in own][:3] or difflib.get_close_matches(name, names, 3)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"it has {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
