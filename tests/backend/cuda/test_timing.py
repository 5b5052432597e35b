"""Device times are measured in CUDA graphs. The error for an arm that cannot be captured says why."""

from __future__ import annotations

import time

import torch

from deplodock.backend.cuda.runtime.timing import on_device
from deplodock.backend.host.timing import by_clock


def test_a_long_call_is_timed_once() -> None:
    """A single sample is the median and both percentiles."""
    (found,) = by_clock({"wait": lambda: time.sleep(0.03)}, seconds=0.0, least=1).values()
    assert found.repetitions == 1
    assert 0.03 <= found.p20 == found.median == found.p80


def test_a_machine_that_becomes_slower_does_not_take_for_ever() -> None:
    """The number of calls per sample is estimated from the first calls, but a sample ends after a fixed time."""
    calls = 0

    def slower() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.0001 if calls < 5 else 0.01)

    found = by_clock({"slower": slower}, seconds=0.0, least=3)["slower"]
    assert found.repetitions == 3
    assert found.median >= 0.01
    assert calls < 100  # and not 600


def test_arms_are_captured_unless_they_wait(stub_cuda) -> None:
    x = torch.ones(4, device="cuda")
    times = on_device({"sum": lambda: x.sum(), "item": lambda: x.sum().item()}, repetitions=3)
    assert {name: (t.graph, t.repetitions) for name, t in times.items()} == {"sum": (True, 3), "item": (False, 3)}
    assert times["sum"].why is None
    assert "synchronizing" in (times["item"].why or "")
    assert stub_cuda.may_wait
    assert stub_cuda.capturing is None


def test_no_warning_about_the_mode_that_finds_waiting(stub_cuda, recwarn) -> None:
    on_device({"sum": lambda: torch.ones(4, device="cuda").sum()}, repetitions=3)
    assert stub_cuda.warned
    assert not [w for w in recwarn if "Synchronization" in str(w.message)]
