"""Bars of the parts of a predicted time. A part has a colour and a pattern, so bars are readable without colour."""

from __future__ import annotations

from collections.abc import Mapping

from .drawing import coordinate, shape
from .html import Html, element

PARTS = ("memory", "cache", "shared memory", "compute", "latency", "start", "epilogue", "other kernels")
"""Parts of a time in the order of `--explain`. The position of a part is the number of its pattern."""

BAR_WIDTH, BAR_HEIGHT = 220.0, 14.0


def shown_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the parts of a predicted time that `--explain` prints: those that take time."""
    return {name: float(seconds) for name, seconds in parts.items() if seconds > 0}


def bar(parts: Mapping[str, float], longest: float, total: float | None = None) -> Html:
    """Returns the parts of a predicted time as a stacked bar.

    Args:
        parts: seconds by cause.
        longest: seconds of a bar of full width.
        total: predicted seconds, which get a mark, or None for no mark.
    """
    x, shapes, scale = 0.0, list[Html](), BAR_WIDTH / longest
    for name, value in shown_parts(parts).items():
        width = value * scale
        if name in PARTS and width >= 0.3:
            tip, number = element("title", f"{name}: {value * 1e6:.2f} us"), PARTS.index(name)
            shapes.append(shape("rect", tip, x=x, y=1.0, width=width, height=BAR_HEIGHT - 2, class_=f"part{number}"))
        x += width
    if total is not None:
        at = coordinate(min(total * scale, BAR_WIDTH - 1))
        shapes.append(shape("path", d=f"M{at} 0V{coordinate(BAR_HEIGHT)}", class_="total"))
    size = {"width": coordinate(BAR_WIDTH), "height": coordinate(BAR_HEIGHT)}
    return element("svg", *shapes, **size, class_="drawing bar", role="img", aria_label="parts of the time")


def legend() -> Html:
    """Returns the patterns of the parts of a time."""
    keys = [
        element(
            "span",
            element("svg", shape("rect", width=22, height=12, class_=f"part{i}"), width=22, height=12),
            f" {name} ",
        )
        for i, name in enumerate(PARTS)
    ]
    return element("p", *keys, class_="legend")


def patterns() -> Html:
    """Returns patterns that distinguish the parts without colour. `drawings.css` has their colours."""
    marks = {
        1: "M0 6L6 0",
        2: "M0 0L6 6",
        3: "M0 3H6",
        4: "M3 0V6",
        5: "M0 6L6 0M0 0L6 6",
        6: "M3 2V4",
        7: "M0 3H6M3 0V6",
    }
    shapes = [
        element(
            "pattern",
            element("rect", width=6, height=6, class_=f"fill{i}"),
            element("path", d=marks[i], class_="mark") if i in marks else "",
            id=f"part{i}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        for i in range(len(PARTS))
    ]
    return element("svg", element("defs", *shapes), width=0, height=0, class_="patterns", aria_hidden="true")
