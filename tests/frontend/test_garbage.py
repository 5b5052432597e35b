"""Garbage collection is rare while programs are compiled, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import deplodock
from deplodock.frontend import RARE_COLLECTIONS
from deplodock.frontend.compilation import one_at_a_time
from deplodock.passes import OWN_PASSES

SEEN = list[tuple[int, int, int]]()


class Look(ModulePass):
    name = "look"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        SEEN.append(gc.get_threshold())


@contextmanager
def thresholds(*now: int) -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*now)
    try:
        yield
        assert gc.get_threshold() == (*now, *before[len(now) :])
    finally:
        gc.set_threshold(*before)


def test_passes_and_capture_collect_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN_PASSES, "look", f"{__name__}:Look")

    def look(x: torch.Tensor) -> torch.Tensor:
        SEEN.append(gc.get_threshold())
        return x + 1

    SEEN.clear()
    with thresholds(700, 10, 10):
        deplodock.compile(look, (torch.ones(4),), insert="look:after=convert-torch-to-tensor")
    assert len(SEEN) >= 2
    assert all(seen == RARE_COLLECTIONS for seen in SEEN)


def test_nested_and_failing_users_restore_the_thresholds() -> None:
    def fail() -> None:
        with one_at_a_time():
            with one_at_a_time():
                pass
            assert gc.get_threshold() == RARE_COLLECTIONS
            raise KeyError("fail")

    with thresholds(700, 10, 10), pytest.raises(KeyError, match="fail"):
        fail()


def test_a_process_without_collections_stays_without() -> None:
    with thresholds(0), one_at_a_time():
        assert gc.get_threshold()[0] == 0
