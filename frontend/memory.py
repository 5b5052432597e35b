"""How much memory eager PyTorch takes for a program, which is the limit of what ours may take."""

from __future__ import annotations

from ..backend.host.launch_plan import Buffer, LaunchPlan


def beyond(plan: LaunchPlan, most: int) -> str:
    """Where a plan takes more than `most` bytes beside its arguments: the step that has most between arguments and
    results, and the largest of that; empty if it does not."""
    if plan.program is not None or plan.peak_bytes <= most:
        return ""
    text = f"{plan.peak_bytes} bytes of results and in between, where {most} are allowed"
    step, largest = fullest_step(plan)
    if largest is None:
        return text
    shown = f"{largest.name}, {largest.dtype}{list(largest.shape)} of {largest.bytes} bytes"
    return f"{text}: most of it in step {step}, with {shown}"


def fullest_step(plan: LaunchPlan) -> tuple[int, Buffer | None]:
    """The step that has most between arguments and results, and the largest of that; -1 where there is nothing."""
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0]
    held = [[b for b in scratch if b.first <= n <= b.last] for n in range(len(plan.steps))]
    step = max(range(len(held)), key=lambda n: sum(b.bytes for b in held[n]), default=-1)
    return (step, max(held[step], key=lambda b: b.bytes)) if scratch else (-1, None)
