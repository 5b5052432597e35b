"""Section "Times": the time of each kernel, measured or predicted, and the roofline of the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...frontend.profile import Cost, Profile
from ...target.model import Target
from ...tools.tables import seconds, si
from .drawing import coordinate, drawing, label, shape
from .html import Html, element, joined, table
from .program import ReportedProgram
from .sections import Section

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 620.0, 300.0, 84.0, 22.0, 46.0
"""Pixels of the roofline: the area of the plot, and its margins."""

CLOSE = 20.0
"""Points that are at most this many pixels apart share a label."""

BAR_WIDTH, BAR_HEIGHT = 240.0, 14.0


@dataclass(frozen=True)
class Roof:
    """Horizontal roof of a roofline.

    Attributes:
        name: name of the limited units.
        rate: floating-point operations per second.
    """

    name: str
    rate: float


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for programs without times."""
    profile, target = program.profile, program.compilation.resolved
    if profile is None or not profile.costs or not target.rates.known:
        return None
    parts = [
        element("p", _sentence(profile), class_="note"),
        roofline(profile.costs, target, roofs_of(program)),
        _table(profile, target),
    ]
    return Section("times", "Times", joined(parts), data_of(profile, target))


def data_of(profile: Profile, target: Target) -> dict[str, Any]:
    """Returns the times as data: the profile, as `run --profile --json` prints it, and the rates of the roofs."""
    kernels = [{k: v for k, v in asdict(c).items() if k != "counters"} for c in profile.costs]
    rates = {"memory": target.rates.memory, "fp32": target.fp32, "tensor": target.tensor}
    return {"source": profile.source, "seconds": profile.seconds, "kernels": kernels, "rates": rates}


def roofs_of(program: ReportedProgram) -> list[Roof]:
    """Returns the compute roofs of the units that the kernels use."""
    target, kernels = program.compilation.resolved, program.kernels
    roofs = [Roof("f32", target.fp32)]
    if any(k.tensor_cores for k in kernels):
        roofs.append(Roof("tensor cores", target.tensor))
    return roofs


def _sentence(profile: Profile) -> str:
    text = f"Times are {profile.source}. " if profile.source.startswith("measured") else f"Times: {profile.source}. "
    if profile.call is not None:
        text += f"A call takes {seconds(profile.call)}, measured. "
    return text + (
        "A point is a kernel: its operations per byte that it must move, and its operations per second. The"
        " lines are the rates of the target in its model. The distance of a point to the line above it is the time that"
        " the kernel could save."
    )


def roofline(costs: Sequence[Cost], target: Target, roofs: Sequence[Roof]) -> Html:
    """Returns the kernels under the roofs of the target, on logarithmic axes.

    Args:
        costs: the kernels with their times.
        target: the target.
        roofs: the compute roofs.
    """
    points = [c for c in costs if c.bytes and c.flops and c.seconds]
    if not points:
        return element("p", "No kernel computes with floating-point numbers, so no roofline is drawn.", class_="note")
    memory, peak = target.rates.memory, max(r.rate for r in roofs)
    corners = [r.rate / memory for r in roofs]
    at = [c.flops / c.bytes for c in points]
    first, last = min([*at, *corners]) / 4, max([*at, *corners]) * 4
    lowest = min([c.flops / c.seconds for c in points] + [first * memory])
    low, high = lowest / 2, max([peak, *(c.flops / c.seconds for c in points)]) * 2

    def at_x(value: float) -> float:
        return LEFT + WIDTH * math.log(value / first) / math.log(last / first)

    def at_y(value: float) -> float:
        return TOP + HEIGHT * (1 - math.log(value / low) / math.log(high / low))

    bottom, end = TOP + HEIGHT, LEFT + WIDTH
    parts = [shape("path", d=f"M{LEFT:.0f} {TOP:.0f}V{bottom:.0f}H{end:.0f}", class_="axis")]
    for power in _powers(low, high):
        y = at_y(power)
        parts.append(shape("path", d=f"M{LEFT:.0f} {coordinate(y)}H{end:.0f}", class_="grid"))
        parts.append(label(LEFT - 6, y + 4, f"{si(power)}FLOP/s", "muted", "end"))
    for power in _powers(first, last):
        parts.append(label(at_x(power), bottom + 16, f"{power:g}", "muted", "middle"))
    parts.append(label(LEFT + WIDTH / 2, bottom + 34, "FLOP per byte", "muted", "middle"))
    slope = f"M{coordinate(at_x(first))} {coordinate(at_y(first * memory))}"
    slope += f"L{coordinate(at_x(peak / memory))} {coordinate(at_y(peak))}"
    parts.append(element("path", d=slope, class_="roof"))
    middle = math.sqrt(first * min(corners))
    name = f"memory {si(memory)}B/s"
    parts.append(label(at_x(middle) - 8, at_y(middle * memory) - 6, name, "muted", "end"))
    for roof, corner in zip(roofs, corners, strict=True):
        y = at_y(roof.rate)
        parts.append(element("path", d=f"M{coordinate(at_x(corner))} {coordinate(y)}H{end:.0f}", class_="roof"))
        parts.append(label(end, y - 5, f"{roof.name} {si(roof.rate)}FLOP/s", "muted", "end"))
    groups = list[tuple[float, float, list[str]]]()
    for c in points:
        x, y = at_x(c.flops / c.bytes), at_y(c.flops / c.seconds)
        tip = element("title", f"{c.name}: {seconds(c.seconds)}, {_share(c)} of its roof, limited by {c.limit}")
        parts.append(shape("circle", tip, cx=x, cy=y, r=4, class_="stored"))
        close = next((names for cx, cy, names in groups if math.hypot(cx - x, cy - y) < CLOSE), None)
        if close is None:
            groups.append((x, y, [c.name]))
        else:
            close.append(c.name)
    parts += [label(x - 8, y - 6, ", ".join(names), None, "end") for x, y, names in groups]
    return drawing(end + 14, bottom + BOTTOM, f"roofline of {target.card}", parts, "roofline")


def _powers(low: float, high: float) -> list[float]:
    """Returns the powers of ten between two positive numbers."""
    return [10.0**p for p in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _share(cost: Cost) -> str:
    return "" if cost.roofline is None else f"{cost.roofline:.0%}"


def _table(profile: Profile, target: Target) -> Html:
    """Returns a table of the kernels: a bar of the time, whose filled part the roofline needs."""
    longest = max(c.seconds for c in profile.costs) or 1.0
    kind = "measured" if profile.source.startswith("measured") else "predicted"
    rows = [
        [
            element("code", c.name + (f" × {c.launches}" if c.launches > 1 else "")),
            _bar(c, longest),
            c.limit,
            seconds(c.seconds),
            f"{c.share:.0%}",
            _share(c),
            f"{si(c.bytes / c.seconds)}B/s" if c.bytes and c.seconds else "",
            f"{si(c.flops / c.seconds)}FLOP/s" if c.flops and c.seconds else "",
        ]
        for c in profile.costs
    ]
    heads = ["kernel", "time, and the least time", "limit", kind, "share", "roof", "bytes", "operations"]
    note = (
        f"The filled part of a bar is the least time for the bytes and operations of the kernel, at the rates of"
        f" {target.card}; roof is its share. A share above 100 % means that the data came from the caches."
    )
    return joined([table(heads, rows, 3, class_="times"), element("p", note, class_="note")])


def _bar(cost: Cost, longest: float) -> Html:
    """Returns the time of a kernel as a bar. `longest`: seconds of a bar of full width."""
    width = BAR_WIDTH * cost.seconds / longest
    filled = min(width, width * (cost.roofline or 0.0))
    shapes = [
        shape("rect", x=0.5, y=1.5, width=max(width - 1, 0.5), height=BAR_HEIGHT - 3, class_="whole"),
        shape("rect", x=0.5, y=1.5, width=filled, height=BAR_HEIGHT - 3, class_="least"),
    ]
    size = {"width": coordinate(BAR_WIDTH), "height": coordinate(BAR_HEIGHT)}
    text = f"{seconds(cost.seconds)}, {_share(cost)} of the roof"
    return element("svg", *shapes, **size, class_="drawing bar", role="img", aria_label=text)
