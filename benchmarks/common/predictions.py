"""Predictions for a GPU that is not present: the planning model's time for a case, and a lower bound of it.

The lower bound is called the floor: the case's operations at the GPU's highest rate, or its inputs and result once
through memory, whichever takes longer, and one launch.
"""

from __future__ import annotations

from typing import Any

import torch

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.profile import predicted
from deplodock.target.attribute import get_target

from .cases import Case
from .prepared import program

COPY_BYTES_PER_SECOND = 4.3e12
"""Memory bandwidth of a copy on an H200 in bytes per second, reads and writes together."""

LAUNCH_SECONDS = 1.3e-6
"""Time of one launch inside a CUDA graph."""


def floor(case: Case) -> float:
    """Returns the floor of a case in seconds: the lower bound of its time on a GPU."""
    function, args = case.make()
    with torch.device("meta"):
        result = function(*[t.to("meta") for t in args])
    moved = sum(t.numel() * t.element_size() for t in (*args, result))
    return max(case.flops / case.group.rate, moved / COPY_BYTES_PER_SECOND) + LAUNCH_SECONDS


def predict(case: Case, target: str) -> dict[str, Any]:
    """Returns the row of a case without running it.

    The row has the predicted seconds of the program and of each kernel, the floor, and the bytes of registers that
    NVRTC spills.
    """
    compilation = program(case, target, None, "reference").compilation
    prediction = predicted(compilation)
    spills = sum(use.spills for use in compile_cubin(compilation.cuda, target).kernels.values())
    kernels = [{"seconds": c.seconds, "limit": c.limit, "schedules": list(c.schedules)} for c in prediction.costs]
    seconds = prediction.seconds + get_target(target).rates.replay
    numbers = {"seconds": seconds, "floor": floor(case), "spills": spills, "kernels": kernels}
    return {"right": None, "predicted": prediction.source, **numbers}


def prediction_text(row: dict[str, Any]) -> str:
    """Returns the line that is printed for a predicted row."""
    limits = ", ".join(dict.fromkeys(k["limit"] for k in row["kernels"]))
    spills = f", {row['spills']} B SPILLED" if row["spills"] else ""
    times = f"{row['seconds'] * 1e6:.1f} us, {row['seconds'] / row['floor']:.2f} of the floor"
    return f"{row['group']} {row['case']}: predicted {times}, limited by {limits}{spills}"
