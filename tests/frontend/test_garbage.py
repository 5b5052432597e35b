"""Garbage is collected rarely while programs are captured and passes run, and as before afterwards."""

from __future__ import annotations

import gc

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from deplodock.frontend.capture.export import capture
from deplodock.garbage import RARE, rare_collections
from deplodock.passes.pass_manager import run_passes

SEEN = list[tuple[int, int, int]]()


class Look(ModulePass):
    name = "look"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        SEEN.append(gc.get_threshold())


def test_passes_and_capture_collect_rarely() -> None:
    before = gc.get_threshold()

    def look(x: torch.Tensor) -> torch.Tensor:
        SEEN.append(gc.get_threshold())
        return x + 1

    SEEN.clear()
    run_passes(Context(), ModuleOp([]), [Look()])
    capture(look, (torch.ones(4),))
    assert len(SEEN) >= 2
    assert all(seen >= RARE for seen in SEEN)
    assert gc.get_threshold() == before


def test_nested_and_failing_users_restore_the_thresholds() -> None:
    before = gc.get_threshold()

    @rare_collections()
    def fail() -> None:
        with rare_collections():
            pass
        assert gc.get_threshold() >= RARE
        raise KeyError("fail")

    with pytest.raises(KeyError, match="fail"):
        fail()
    assert gc.get_threshold() == before


def test_a_process_without_collections_stays_without() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with rare_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
