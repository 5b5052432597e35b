"""SVG of the page. Colours come from classes in `drawings.css`, so a drawing fits light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .html import Html, element

ROW, CHARACTER = 17.0, 6.7
"""Pixels of a line of text, and of a character of the code font at 11 pixels."""

LABEL_LINE, SMALL_CHARACTER = 11.0, 6.0
"""Pixels of a line of labels, and of a character at 10 pixels."""


def coordinate(x: float) -> str:
    """Returns a coordinate as text with at most one decimal."""
    return f"{x:.1f}".removesuffix(".0")


def shape(name: str, *parts: object, **attributes: object) -> Html:
    """Returns a shape. Numbers have at most one decimal.

    Args:
        name: name of the element.
        parts: its contents, such as a `title`.
        attributes: its attributes, as for `element`.
    """
    texts = {k: coordinate(v) if isinstance(v, float) else v for k, v in attributes.items()}
    return element(name, *parts, **texts)


def label(x: float, y: float, text: str, class_: str | None = None, anchor: str | None = None) -> Html:
    """Returns a line of text.

    Args:
        x, y: point of the base line that `anchor` specifies.
        text: the text.
        class_: class of the text, or None.
        anchor: `middle` or `end` of the text, or None for its start.
    """
    return shape("text", text, x=x, y=y, class_=class_, text_anchor=anchor)


def edge_labels(ends: Sequence[tuple[float, float]], texts: Sequence[str]) -> list[Html]:
    """Returns a label above the end of each edge, in a further line above if it would overlap another one.

    Args:
        ends: end of each edge.
        texts: text of each edge.
    """
    labels, taken = list[Html](), list[tuple[float, float, float]]()
    for (x, y), text in sorted(zip(ends, texts, strict=True)):
        half, base = len(text) * SMALL_CHARACTER / 2 + 2, y - 5
        while any(row == base and abs(x - center) < half + other for center, row, other in taken):
            base -= LABEL_LINE
        taken.append((x, base, half))
        labels.append(label(x, base, text, "bytes", "middle"))
    return labels


def path(points: Sequence[tuple[float, float]], class_: str) -> Html:
    """Returns a smooth line through points, which starts, passes each point and ends vertically."""
    (x, y), *others = points
    text = f"M{coordinate(x)} {coordinate(y)}"
    for nx, ny in others:
        if nx == x:
            text += f"V{coordinate(ny)}"
        else:
            middle = coordinate((y + ny) / 2)
            text += f"C{coordinate(x)} {middle} {coordinate(nx)} {middle} {coordinate(nx)} {coordinate(ny)}"
        x, y = nx, ny
    return element("path", d=text, class_=class_)


def drawing(width: float, height: float, title: str, parts: Iterable[object], class_: str = "") -> Html:
    """Returns an SVG in a box that scrolls sideways where the page is narrower.

    Args:
        width, height: size in pixels.
        title: description of the drawing as text.
        parts: shapes.
        class_: additional class of the SVG.
    """
    w, h = coordinate(width), coordinate(height)
    names = f"drawing {class_}".strip()
    svg = element("svg", *parts, width=w, height=h, viewBox=f"0 0 {w} {h}", class_=names, role="img", aria_label=title)
    return element("div", svg, class_="scroll")


def shortened(text: str, most: int) -> str:
    """Returns a text of at most `most` characters; a longer one ends in an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"
