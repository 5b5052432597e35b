"""Third-party parts: what installed packages declare as entry points of our groups.

| group | each entry names |
|---|---|
| `deplodock.dialects` | a `Dialect` |
| `deplodock.passes` | a `ModulePass` |
| `deplodock.pipelines` | a string: pipeline text |
| `deplodock.insertions` | a string: passes and their place in the default pipeline, `my-pass:after=tile-select-mma` |
| `deplodock.operators` | a string: schemas of operators of `torch.library`, one a line |
| `deplodock.decompositions` | a module that enters decompositions with `@decomposes` |
| `deplodock.interpreters` | a class of `InterpreterFunctions`, made from a scalar domain and the sizes of the program |
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import DeplodockError, PluginError, raised_at


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def plugins(group: str, taken: Container[str], kind: str) -> dict[str, Callable[[], Any]]:
    """What plugins declare in `group`, by name, each as a function that imports it.

    A name in `taken`, or one that two plugins declare, is refused: PluginError names the `kind` of thing. What cannot
    be imported is a PluginError with the place in the plugin.
    """
    found: dict[str, Callable[[], Any]] = {}
    for entry in _entries(group):
        if entry.name in taken or entry.name in found:
            raise PluginError(f"plugin {entry.value!r} redefines the {kind} {entry.name!r}")
        found[entry.name] = partial(_load, entry)
    return found


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except DeplodockError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error} at {raised_at(error)}"
        raise PluginError(f"plugin {entry.value!r} cannot be imported: {reason}") from error
