"""Rare garbage collection while many objects are made that stay: IR, and what PyTorch traces.

The collector looks at all objects of the process whenever a quarter more of them are alive, and at the newest after
each 700: a quarter of the time of the passes of a model, in a process in which PyTorch is loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

RARE = (50_000, 20, 20)
"""Thresholds of `gc.set_threshold`, in new objects and in collections of the younger generation."""

_lock = Lock()
_users = 0
_before = (0, 0, 0)


@contextmanager
def rare_collections() -> Generator[None]:
    """Collects garbage rarely as long as it is open, in any thread; not at all if the process has switched that off."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.get_threshold()
            if _before[0]:
                gc.set_threshold(*map(max, _before, RARE))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_before)
