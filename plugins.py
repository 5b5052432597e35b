"""Plugins: parts of the compiler that installed packages declare as Python entry points.

| group | value of each entry |
|---|---|
| `deplodock.dialects` | a `Dialect` |
| `deplodock.passes` | a `ModulePass` |
| `deplodock.pipelines` | a string: pipeline text |
| `deplodock.insertions` | a string: passes with a position in the default pipeline: `my-pass:after=tile-select-mma` |
| `deplodock.operators` | a string: schemas of operators of `torch.library`, one a line |
| `deplodock.decompositions` | a module that enters decompositions with `@decomposes` |
| `deplodock.package_operators` | by a namespace of operators: a dict of overload -> decomposition by tensor functions |
| `deplodock.interpreters` | a class of `InterpreterFunctions`, made from a scalar domain and the sizes of the program |
| `deplodock.lowerings` | by the name of an operation: a function that lowers it to the kernel level |
| `deplodock.printers` | by the name of an operation: a function that prints it as C++ |
| `deplodock.commands` | a `click.Command`: `deplodock NAME` |
| `deplodock.sources` | a class of `Source` (`tools/modes.py`): a kind of FILE for `compile`, `run` and `tune` |
| `deplodock.emitters` | a function that makes a text of a `Compilation`: `compile --emit NAME` |
| `deplodock.extensions` | a class of `Extension` (`tools/modes.py`): options of `compile`, `run` and `tune` |
| `deplodock.displays` | by kind (`program`, `text`, `kernels`): a function that returns its HTML for notebooks |
| `deplodock.shells` | a function that adds magics or completions to a shell of IPython: `%load_ext deplodock` |
| `deplodock.policies` | a class of `Policy` (`frontend/tuning/trial.py`): `tune --policy NAME` |
| `deplodock.workers` | a class of `WorkerPool` (`frontend/tuning/trial.py`): `tune --NAME ADDRESS` |
| `deplodock.api` | a function or class: `deplodock.NAME` |

The packages of `extras/` are declared in these groups as well, by the project's own `pyproject.toml`. A script or a
notebook declares parts for its own process (`declare`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import resolve_name
from typing import Any

from .errors import DeplodockError, MissingPackageError, PluginError, missing_package, raised_at


@cache
def _entries() -> Any:
    """Returns the entry points of all groups. The cache makes one scan of the installed packages enough."""
    return entry_points()


_DECLARED: dict[str, dict[str, Any]] = {}
"""Group -> name -> part that this process has declared."""


def declare(group: str, name: str, part: Any) -> None:
    """Declares a part of the compiler for this process, as an entry point of an installed package does.

    A second declaration of a name replaces the first. Operators and decompositions are read when the compiler first
    needs them, so they are declared before.

    Args:
        group: group of entry points, such as `deplodock.passes`.
        name: name of the part.
        part: the part itself.

    Example:
        >>> declare("deplodock.insertions", "lower-mine", "lower-mine:after=convert-torch-to-tensor")
        >>> plugin("deplodock.insertions", "lower-mine", "insertion")
        'lower-mine:after=convert-torch-to-tensor'
        >>> _DECLARED.clear()
    """
    _DECLARED.setdefault(group, {})[name] = part


def declared_parts(group: str | None = None) -> list[Any]:
    """Returns the parts that this process has declared, in a group or in all."""
    groups = _DECLARED if group is None else {group: _DECLARED.get(group, {})}
    return [part for parts in groups.values() for part in parts.values()]


@contextmanager
def declarations() -> Generator[None]:
    """Withdraws at its end all declarations of its body."""
    before = {group: dict(parts) for group, parts in _DECLARED.items()}
    try:
        yield
    finally:
        _DECLARED.clear()
        _DECLARED.update(before)


def plugins(group: str, taken: Container[str], kind: str) -> dict[str, Callable[[], Any]]:
    """Returns the objects that packages and this process declare in a group.

    Args:
        group: group of entry points.
        taken: names that plugins must not use.
        kind: word for an object of the group in error messages.

    Returns:
        name -> a function that imports the object. It raises PluginError if the import fails.

    Raises:
        PluginError: a plugin uses a name in `taken`, or two plugins use the same name.
    """
    loaders: dict[str, Callable[[], Any]] = {}
    for entry in _entries().select(group=group):
        if entry.name in taken or entry.name in loaders:
            raise PluginError(f"plugin {entry.value!r} redefines the {kind} {entry.name!r}")
        loaders[entry.name] = partial(_load, entry)
    for name, part in _DECLARED.get(group, {}).items():
        if name in taken or name in loaders:
            raise PluginError(f"the {kind} {name!r} exists already: declare another name")
        loaders[name] = partial(_same, part)
    return loaders


def registry(group: str, places: Mapping[str, str], kind: str) -> dict[str, Callable[[], Any]]:
    """Returns the parts of the compiler that `places` lists and those that plugins declare.

    Args:
        group: group of entry points of plugins. Its name is also the name of the package of the parts.
        places: name -> `module:object`, where a module may be relative to the package.
        kind: word for a part in error messages.

    Returns:
        name -> a function that imports the part.

    Raises:
        PluginError: a plugin takes a name that is in use.
    """
    parts = {name: EntryPoint(name, resolve_name(place, group), group).load for name, place in places.items()}
    return parts | plugins(group, parts, kind)


def plugin(group: str, name: str, kind: str) -> Any:
    """Imports and returns the object that a plugin declares.

    Args:
        group: group of entry points.
        name: name of the entry point.
        kind: word for the object in error messages.

    Raises:
        PluginError: no plugin declares the name, or the import fails.
    """
    loaders = plugins(group, (), kind)
    if name not in loaders:
        raise PluginError(f"no installed package has the {kind} {name!r}")
    return loaders[name]()


def rule_of(group: str, operation: str) -> Any | None:
    """Returns the function that a plugin declares for an operation in `group` (lowerings or printers), or None."""
    load = plugins(group, (), "rule of").get(operation)
    return None if load is None else load()


def _same(part: Any) -> Any:
    return part


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
