"""Hook points and the hooks that a model keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union

from ._nearest import nearest

if TYPE_CHECKING:
    from ._model import HookedTransformer

Direction = Literal["fwd", "bwd"]
NamesFilter = Union[str, list[str], tuple[str, ...], Callable[[str], bool], None]


@dataclass
class Handle:
    """A hook function, and the hook points at which it is registered."""

    names: list[str]
    function: Callable[..., Any]
    dir: Direction
    is_permanent: bool = False
    level: int | None = None


class ReturnsGradient(Exception):
    """Raised when a backward hook that was assumed to only read returns a gradient."""

    def __init__(self, handle: Handle) -> None:
        super().__init__("a backward hook returned a gradient")
        self.handle = handle


class HookPoint:
    """A hook point of a model: its name, and a dictionary for hooks to keep state in.

    A hook is called as `hook_function(activation, hook=hook_point)`. It changes the activation in place, or returns a
    new one of the same shape, or returns None to leave it unchanged.
    """

    def __init__(self, model: HookedTransformer, name: str) -> None:
        self._model = model
        self.name = name
        self.ctx: dict[Any, Any] = {}

    def layer(self) -> int:
        """The layer of the hook point."""
        parts = self.name.split(".")
        if len(parts) < 3 or not parts[1].isdigit():
            raise ValueError(f"{self.name} is not in a layer")
        return int(parts[1])

    def add_hook(
        self,
        hook: Callable[..., Any],
        dir: Direction = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Adds a function, which runs in every run until it is removed."""
        self._model.add_hook(self.name, hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, hook: Callable[..., Any], dir: Direction = "fwd") -> None:
        """Adds a function that `reset_hooks` keeps."""
        self.add_hook(hook, dir, is_permanent=True)

    def remove_hooks(
        self, dir: Literal["fwd", "bwd", "both"] = "fwd", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """Removes the functions of this hook point."""
        self._model._hooks.remove(dir, including_permanent, level, self.name)

    def clear_context(self) -> None:
        """Empties `ctx`."""
        self.ctx.clear()

    def __repr__(self) -> str:
        return f"HookPoint({self.name})"


class Hooks:
    """The hook points of a model and the functions at them."""

    def __init__(self, model: HookedTransformer, points: list[tuple[str, bool, int | None]]) -> None:
        self.points = {name: HookPoint(model, name) for name, _, _ in points}
        self.on_request = {name for name, on_request, _ in points if on_request}
        # Index of the axis of positions, counted from the end.
        self.position_axes = {name: axis for name, _, axis in points}
        self.requested: set[str] = set()
        self.handles: list[Handle] = []

    def within(self, names: list[str], start: int | None, stop: int | None) -> list[str]:
        """The hook points that fire in a run from layer `start` to layer `stop`."""

        def fires(name: str) -> bool:
            parts = name.split(".")
            if parts[0] != "blocks":
                return stop is None if parts[0] == "ln_final" else start is None
            return (start or 0) <= int(parts[1]) and (stop is None or int(parts[1]) < stop)

        return [name for name in names if fires(name)]

    def default_names(self) -> list[str]:
        """The hook points that a run computes by default."""
        return [name for name in self.points if name not in self.on_request or name in self.requested]

    def resolve(self, names: NamesFilter) -> list[str]:
        """The full names that a filter selects, in firing order."""
        if names is None:
            return self.default_names()
        if callable(names):
            chosen = [name for name in self.default_names() if names(name)]
            if not chosen:
                raise ValueError("the filter selects no hook point; hook_names() lists them")
            return chosen
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            self.check(name)
        return [name for name in self.points if name in set(wanted)]

    def check(self, name: str) -> None:
        """Raises KeyError for a name that is not a hook point."""
        if name not in self.points:
            raise KeyError(f"the model has no hook point {name!r}; {nearest(name, list(self.points))}")

    def add(self, handle: Handle, prepend: bool = False) -> Handle:
        self.handles.insert(0 if prepend else len(self.handles), handle)
        return handle

    def remove(
        self,
        dir: Literal["fwd", "bwd", "both"],
        including_permanent: bool,
        level: int | None,
        name: str | None = None,
    ) -> None:
        """Removes handles or, with `name`, removes them from one hook point only."""

        def applies(handle: Handle) -> bool:
            return (
                dir in ("both", handle.dir)
                and (including_permanent or not handle.is_permanent)
                and (level is None or handle.level == level)
                and (name is None or name in handle.names)
            )

        kept = []
        for handle in self.handles:
            if applies(handle):
                handle.names = [] if name is None else [own for own in handle.names if own != name]
            if handle.names:
                kept.append(handle)
        self.handles = kept

    def has_backward(self) -> bool:
        return any(handle.dir == "bwd" for handle in self.handles)

    def forward_now(self) -> list[Handle]:
        """Copies of the forward handles, which later removals do not change."""
        return [replace(handle) for handle in self.handles if handle.dir == "fwd"]

    @contextmanager
    def with_forward(self, forward: list[Handle]) -> Iterator[None]:
        """Uses these forward handles, and the current backward ones, for the duration of a `with` block."""
        current = self.handles
        self.handles = forward + [handle for handle in current if handle.dir == "bwd"]
        try:
            yield
        finally:
            self.handles = current

    @contextmanager
    def added(self, handles: Iterable[Handle], remove: bool, clear_contexts: bool) -> Iterator[None]:
        """Adds handles for the duration of a `with` block."""
        mine = [self.add(handle) for handle in handles]
        try:
            yield
        finally:
            if remove:
                self.handles = [handle for handle in self.handles if all(handle is not own for own in mine)]
            if clear_contexts:
                for point in self.points.values():
                    point.clear_context()
