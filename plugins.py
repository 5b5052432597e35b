"""Optional and third-party parts: what installed packages declare as entry points of our groups.

| group | each entry names |
|---|---|
| `deplodock.dialects` | a `Dialect` |
| `deplodock.passes` | a `ModulePass` |
| `deplodock.pipelines` | a string: pipeline text |
| `deplodock.insertions` | a string: passes and their place in the default pipeline, `my-pass:after=tile-select-mma` |
| `deplodock.operators` | a string: schemas of operators of `torch.library`, one a line |
| `deplodock.decompositions` | a module that enters decompositions with `@decomposes` |
| `deplodock.interpreters` | a class of `InterpreterFunctions`, made from a scalar domain and the sizes of the program |
| `deplodock.lowerings` | by the name of an operation: a function that lowers it to the kernel level |
| `deplodock.printers` | by the name of an operation: a function that prints it as C++ |
| `deplodock.commands` | a `click.Command`: `deplodock NAME` |
| `deplodock.sources` | a class of `Source` (`tools/modes.py`): a kind of FILE for `compile`, `run` and `tune` |
| `deplodock.emitters` | a function that makes a text of a `Compilation`: `compile --emit NAME` |
| `deplodock.policies` | a class of `Policy` (`frontend/tuning/trial.py`): `tune --policy NAME` |
| `deplodock.workers` | a class of `WorkerPool` (`frontend/tuning/trial.py`): `tune --NAME ADDRESS` |
| `deplodock.api` | a function or class: `deplodock.NAME` |

The packages of `extras/` are declared in these groups as well, by the project's own `pyproject.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import resolve_name
from typing import Any

from .errors import DeplodockError, MissingPackageError, PluginError, missing_package, raised_at


@cache
def _entries() -> Any:
    """Returns the entry points of all groups, for `select`: one look at all packages."""
    return entry_points()


def plugins(group: str, taken: Container[str], kind: str) -> dict[str, Callable[[], Any]]:
    """What plugins declare in `group`, by name, each as a function that imports it.

    A name in `taken`, or one that two plugins declare, is refused: PluginError names the `kind` of thing. What cannot
    be imported is a PluginError with the place in the plugin.
    """
    found: dict[str, Callable[[], Any]] = {}
    for entry in _entries().select(group=group):
        if entry.name in taken or entry.name in found:
            raise PluginError(f"plugin {entry.value!r} redefines the {kind} {entry.name!r}")
        found[entry.name] = partial(_load, entry)
    return found


def registry(group: str, places: Mapping[str, str], kind: str) -> dict[str, Callable[[], Any]]:
    """Returns the parts of the compiler at `places` and those that plugins declare.

    Args:
        group: group of the entry points of plugins, called like the package of the parts.
        places: name -> `module:object`, where a module may be relative to the package.
        kind: what a part is called in errors.

    Returns:
        name -> a function that imports the part.

    Raises:
        PluginError: a plugin takes a name that is in use.
    """
    parts = {name: EntryPoint(name, resolve_name(place, group), group).load for name, place in places.items()}
    return parts | plugins(group, parts, kind)


def plugin(group: str, name: str, kind: str) -> Any:
    """Returns what a plugin declares by a name. Raises PluginError if there is none."""
    loaders = plugins(group, (), kind)
    if name not in loaders:
        raise PluginError(f"no installed package has the {kind} {name!r}")
    return loaders[name]()


def rule_of(group: str, operation: str) -> Any | None:
    """Returns the function that a plugin declares in `group` for operations of that name, or None."""
    load = plugins(group, (), "rule of").get(operation)
    return None if load is None else load()


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except DeplodockError:
        raise
    except Exception as error:
        if (advice := missing_package(error)) is not None:
            raise MissingPackageError(advice) from None
        reason = f"{type(error).__name__}: {error} at {raised_at(error)}"
        raise PluginError(f"plugin {entry.value!r} cannot be imported: {reason}") from error
