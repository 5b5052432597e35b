"""Draws the flowcharts of the pages, which are written in a part of Mermaid's language, as SVG.

Mermaid itself is a script that pages load from another host. The site has no script for that and no external request.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

_NODE = r'(\w+)(?:(\[|\(\[)"([^"]*)"(?:\]\)|\]))?'
_STATEMENT = re.compile(rf"{_NODE}(?: (<?-->) {_NODE})?$")
_CHARACTER, _LINE, _PADDING, _GAP, _LEVEL_GAP = 7.0, 18, 10, 24, 34
"""Width of a character, and height of a line, in pixels; space in a box, between boxes, and between their levels."""


@dataclass
class Box:
    """A node of a flowchart: lines of its label, whether its ends are round, its level, and its place in pixels."""

    lines: list[str]
    is_round: bool = False
    level: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        """Width in pixels."""
        return max(len(re.sub("<.*?>", "", line)) for line in self.lines) * _CHARACTER + 2 * _PADDING

    @property
    def height(self) -> float:
        """Height in pixels."""
        return len(self.lines) * _LINE + 2 * _PADDING


@dataclass
class Chart:
    """A flowchart: boxes by name, and edges (from, to, whether both ends have an arrow)."""

    horizontal: bool
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[tuple[str, str, bool]] = field(default_factory=list)


def parsed(text: str) -> Chart:
    """Reads a flowchart.

    Args:
        text: `flowchart TB` or `flowchart LR`, and lines such as `a["label"] --> b`.

    Raises:
        ValueError: for other statements of Mermaid.
    """
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    if first not in ("flowchart TB", "flowchart LR"):
        raise ValueError(f"expected flowchart TB or LR, but got {first!r}")
    chart = Chart(first.endswith("LR"))
    for line in filter(None, lines):
        match = _STATEMENT.match(line)
        if match is None:
            raise ValueError(f"cannot draw {line!r}; docs/site_builder/flowchart.py has the statements")
        ends: list[str] = []
        for name, bracket, label in (match.group(1, 2, 3), match.group(5, 6, 7)):
            if name:
                ends.append(name)
                box = chart.boxes.setdefault(name, Box([name]))
                if label is not None:
                    box.lines, box.is_round = label.split("<br/>"), bracket == "(["
        if match[4]:
            chart.edges.append((ends[0], ends[1], match[4] == "<-->"))
    return chart


def _place(chart: Chart) -> tuple[float, float]:
    """Sets levels and places of all boxes: a box follows the boxes with an edge to it. Returns the size in pixels."""
    for _ in chart.boxes:
        for start, end, _both in chart.edges:
            chart.boxes[end].level = max(chart.boxes[end].level, chart.boxes[start].level + 1)
    levels = [[b for b in chart.boxes.values() if b.level == n] for n in range(len(chart.boxes))]
    across = [
        sum((b.height if chart.horizontal else b.width) + _GAP for b in level) - _GAP for level in levels if level
    ]
    widest, along = max(across), 1.0
    for level, size in zip([level for level in levels if level], across, strict=True):
        depth = max(b.width if chart.horizontal else b.height for b in level)
        offset = 1 + (widest - size) / 2
        for box in level:
            if chart.horizontal:
                box.x, box.y, offset = along, offset, offset + box.height + _GAP
            else:
                box.x, box.y, offset = offset, along + (depth - box.height) / 2, offset + box.width + _GAP
        along += depth + _LEVEL_GAP
    along += 1 - _LEVEL_GAP
    return (along, widest + 2) if chart.horizontal else (widest + 2, along)


def drawn(text: str) -> str:
    """Returns a flowchart as SVG. Raises ValueError for statements that cannot be drawn."""
    chart = parsed(text)
    width, height = _place(chart)
    parts = [
        f'<svg class="flowchart" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" xmlns="http://www.w3.org/2000/svg">',
        "<title>Flowchart</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for start, end, both in chart.edges:
        a, b = chart.boxes[start], chart.boxes[end]
        if chart.horizontal:
            line = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
        else:
            line = a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y
        arrows = ' marker-start="url(#arrow)"' * both + ' marker-end="url(#arrow)"'
        x1, y1, x2, y2 = (f"{v:.0f}" for v in line)
        parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"{arrows}/>')
    for box in chart.boxes.values():
        radius = box.height / 2 if box.is_round else 4
        size = f'width="{box.width:.0f}" height="{box.height:.0f}" rx="{radius:.0f}"'
        parts.append(f'<rect x="{box.x:.0f}" y="{box.y:.0f}" {size}/>')
        for number, line in enumerate(box.lines):
            bold = ' class="title"' if line.startswith("<b>") else ""
            label = html.escape(html.unescape(re.sub("<.*?>", "", line)))
            y = box.y + _PADDING + (number + 0.72) * _LINE
            parts.append(f'<text x="{box.x + box.width / 2:.0f}" y="{y:.0f}"{bold}>{label}</text>')
    return "".join([*parts, "</svg>"])


class drawing(nodes.General, nodes.Element):  # noqa: N801
    """Node of the document tree with the text of a flowchart."""


class Flowchart(SphinxDirective):
    """The directive `mermaid`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Returns the drawing. A flowchart that cannot be drawn is an error of the page."""
        try:
            return [drawing("", svg=drawn("\n".join(self.content)))]
        except ValueError as error:
            raise self.error(str(error)) from error


def visit_html(translator: HTML5Translator, node: drawing) -> None:
    """Writes the SVG, in a box that scrolls if it is wider than the page."""
    translator.body.append(f'<div class="flowchart-box">{node["svg"]}</div>')


def depart_html(translator: HTML5Translator, node: drawing) -> None:
    """Writes nothing."""
