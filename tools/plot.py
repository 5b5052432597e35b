"""Bars and curves as SVG files: no library is needed, and the same numbers are the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ..errors import CompileError
from .terminal import write_file

BAR, GAP, LEFT, WIDTH, RIGHT = 16, 6, 260, 480, 120
COLORS = {"eager": "#c0c7d0", "torch.compile": "#8fa8c8", "max-autotune": "#6487b5", "deplodock": "#d9822b"}


@dataclass(frozen=True)
class Bar:
    """`value` as a bar, with a line from `low` to `high`, behind `label` and in front of `text`."""

    label: str
    value: float
    low: float
    high: float
    text: str
    arm: str = "deplodock"


def write_plot(path: str, svg: str) -> None:
    """Write bars or curves to the file of `--plot`. Raises CompileError if that is no .svg, or cannot be written."""
    if not path.endswith(".svg"):
        raise CompileError(f"plots are SVG files: {path} does not end in .svg", argument="--plot")
    write_file(path, svg, "--plot")


def bars(title: str, shown: Sequence[Bar]) -> str:
    """Bars one below the other, as SVG."""
    height = 40 + len(shown) * (BAR + GAP)
    svg = _titled(title, LEFT + WIDTH + RIGHT, height)
    most = max((max(b.value, b.high) for b in shown), default=1.0) or 1.0

    def x(value: float) -> float:
        return round(LEFT + WIDTH * value / most, 1)

    for i, b in enumerate(shown):
        top = 34 + i * (BAR + GAP)
        _add(svg, "text", b.label, x=LEFT - 6, y=top + 12, text_anchor="end")
        color = COLORS.get(b.arm, "#777777")
        _add(svg, "rect", x=LEFT, y=top, width=round(x(b.value) - LEFT, 1), height=BAR, fill=color)
        _add(svg, "line", x1=x(b.low), x2=x(b.high), y1=top + 8, y2=top + 8, stroke="black")
        _add(svg, "text", b.text, x=x(max(b.value, b.high)) + 6, y=top + 12)
    return _text(svg)


SIDE, ROW = 420, 18
LINE_COLORS = ("#d9822b", "#6487b5", "#5a9e6f", "#a05195", "#7a7a7a", "#c44e52", "#8c7a3d", "#3d8c8c")


def curves(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines through points, each with its name below, as SVG; both axes begin at 0."""
    known = {name: points for name, points in lines.items() if points}
    svg = _titled(title, WIDTH + 120, 60 + SIDE + ROW * len(known))
    most_x = max((x for points in known.values() for x, _ in points), default=1.0)
    most_y = max((y for points in known.values() for _, y in points), default=1.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{60 + WIDTH * x / most_x:.1f},{40 + SIDE * (1 - y / most_y):.1f}"

    for tick in (0.25, 0.5, 0.75, 1.0):
        _add(svg, "text", f"{tick * most_y:.3g}", x=52, y=44 + SIDE * (1 - tick), text_anchor="end")
        _add(svg, "text", f"{tick * most_x:.3g}", x=60 + WIDTH * tick, y=54 + SIDE, text_anchor="middle")
    _add(svg, "polyline", points=f"{at(0, most_y)} {at(0, 0)} {at(most_x, 0)}", fill="none", stroke="black")
    for number, (name, points) in enumerate(known.items()):
        color, y = LINE_COLORS[number % len(LINE_COLORS)], 64 + SIDE + ROW * number
        _add(svg, "polyline", points=" ".join(at(*p) for p in points), fill="none", stroke=color, stroke_width=2)
        _add(svg, "rect", x=60, y=y, width=12, height=4, fill=color)
        _add(svg, "text", name, x=78, y=y + 7)
    return _text(svg)


def _titled(title: str, width: int, height: int) -> ElementTree.Element:
    """A white page with a title."""
    size = {"width": str(width), "height": str(height), "font-family": "sans-serif", "font-size": "12"}
    svg = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    _add(svg, "rect", width="100%", height="100%", fill="white")
    _add(svg, "text", title, x=8, y=20, font_size=14)
    return svg


def _text(svg: ElementTree.Element) -> str:
    ElementTree.indent(svg, " ")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _add(svg: ElementTree.Element, name: str, text: str = "", **attributes: object) -> None:
    found = ElementTree.SubElement(svg, name, {k.replace("_", "-"): str(v) for k, v in attributes.items()})
    found.text = text or None
