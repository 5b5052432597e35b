"""Telling how far a long task is, in the units it is made of: passes, kernels, launches, weights.

Whatever takes long wraps its loop in `steps`; that costs one context-variable look-up unless somebody listens, which
the command line does on a terminal. Nothing here imports torch or xDSL, so any part of the compiler may tell.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Step(Protocol):
    """Called when `count` more are done; `detail` names what comes next."""

    def __call__(self, count: int = 1, detail: str = "") -> None: ...


Listener = Callable[[str, int | None, str], AbstractContextManager[Step]]
"""Takes what is done, how many there are (None: not known) and what they are called."""

listener: ContextVar[Listener | None] = ContextVar("deplodock_progress", default=None)
"""The listener of the context, or None. A task that costs less than a look-up asks it before `steps`."""


def _untold(count: int = 1, detail: str = "") -> None:
    """What is called where nobody listens."""


def steps(what: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Step]:
    """A task `what` of `total` units, done in the `with` block, which calls what it gets after each of them."""
    hear = listener.get()
    return nullcontext(_untold) if hear is None else hear(what, total, unit)


def counted(what: str, items: Sequence[Item], unit: str) -> Iterator[Item]:
    """The items of a task `what`, one after the other; each is a unit, done when the next one is asked for."""
    with steps(what, len(items), unit) as step:
        for item in items:
            yield item
            step()


@contextmanager
def listen(hear: Listener) -> Generator[None]:
    """Calls `hear` for every task inside the `with` block."""
    token = listener.set(hear)
    try:
        yield
    finally:
        listener.reset(token)
