"""Progress reports of long tasks, in units such as passes, kernels, launches or weights.

A long task wraps its loop in `steps` or `counted`. The command line installs a listener on a terminal; without one a
report costs one look-up of a context variable. The module imports neither torch nor xDSL.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Step(Protocol):
    """Callback of a task: reports that `count` more units are done. `detail`: name of the next unit."""

    def __call__(self, count: int = 1, detail: str = "") -> None: ...


Listener = Callable[[str, int | None, str], AbstractContextManager[Step]]
"""Function called with a task's name, its number of units (None if unknown) and the word for a unit.

It returns a context manager for the duration of the task, which yields the callback."""

listener: ContextVar[Listener | None] = ContextVar("deplodock_progress", default=None)
"""Listener of the present context, or None. Hot loops read it themselves instead of calling `steps`."""


def _ignore(count: int = 1, detail: str = "") -> None:
    """Does nothing: the callback if there is no listener."""


def steps(task: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Step]:
    """Returns a context manager for a task. The body of `with` calls the yielded callback after each unit.

    Args:
        task: name of the task.
        total: number of units, or None if unknown.
        unit: word for the units.
    """
    hear = listener.get()
    return nullcontext(_ignore) if hear is None else hear(task, total, unit)


def counted(task: str, items: Sequence[Item], unit: str) -> Iterator[Item]:
    """Yields the items of a task. Each item is a unit, which is done when the caller requests the next item.

    Args:
        task: name of the task.
        items: the items.
        unit: word for the items.
    """
    with steps(task, len(items), unit) as step:
        for item in items:
            yield item
            step()


@contextmanager
def listen(hear: Listener) -> Generator[None]:
    """Installs `hear` as the listener for the duration of the `with` block."""
    token = listener.set(hear)
    try:
        yield
    finally:
        listener.reset(token)
