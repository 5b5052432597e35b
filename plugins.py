"""The entry points of installed packages by which third parties add to the compiler."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def plugins(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of `group` (`"deplodock.passes"`), looked up once a process."""
    return tuple(entry_points(group=group))
