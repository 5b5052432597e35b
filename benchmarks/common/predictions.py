"""What the planning model expects of a case on a GPU that is not here, beside the time that no kernel can be faster
than."""

from __future__ import annotations

from typing import Any

import torch

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.profile import predicted
from deplodock.target.attribute import get_target

from .cases import Case
from .prepared import program

COPY = 4.3e12
"""Bytes a second of a copy on an H200, read and written."""

LAUNCH = 1.3e-6
"""Seconds of a launch inside a CUDA graph."""


def floor(case: Case) -> float:
    """Seconds that no program can do without: its operations, or its inputs and its result once through memory."""
    function, args = case.make()
    with torch.device("meta"):
        result = function(*[t.to("meta") for t in args])
    moved = sum(t.numel() * t.element_size() for t in (*args, result))
    return max(case.flops / case.group.rate, moved / COPY) + LAUNCH


def predict(case: Case, target: str) -> dict[str, Any]:
    """The row of a case: seconds, kernel by kernel, and what the compiler of CUDA says of them."""
    compilation = program(case, target, None, "reference").compilation
    found = predicted(compilation)
    spills = sum(use.spills for use in compile_cubin(compilation.cuda, target).kernels.values())
    kernels = [{"seconds": c.seconds, "limit": c.limit, "schedules": list(c.schedules)} for c in found.costs]
    seconds = found.seconds + get_target(target).rates.replay
    numbers = {"seconds": seconds, "floor": floor(case), "spills": spills, "kernels": kernels}
    return {"right": None, "predicted": found.source, **numbers}


def prediction_text(row: dict[str, Any]) -> str:
    """What is said of a row."""
    limits = ", ".join(dict.fromkeys(k["limit"] for k in row["kernels"]))
    spills = f", {row['spills']} B SPILLED" if row["spills"] else ""
    times = f"{row['seconds'] * 1e6:.1f} us, {row['seconds'] / row['floor']:.2f} of the floor"
    return f"{row['group']} {row['case']}: predicted {times}, limited by {limits}{spills}"
