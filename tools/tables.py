"""Tables of times, numbers with units, and bars and curves as SVG files.

Rich fits tables to the terminal. SVG files are written without a library, so that equal numbers give equal files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ..errors import CompileError
from .terminal import write_file

if TYPE_CHECKING:
    from ..frontend.bench import Measurement
    from ..frontend.profile import Profile
    from ..frontend.tuning.fusion_space import FusionCut, FusionPrices


def si(value: float) -> str:
    """Returns a number with a decimal prefix: `4.19 M` for 4190000."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} P"


def seconds(value: float) -> str:
    """Returns seconds with a unit: `5.41 us`, `12.3 ms`."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if value < 999.5 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def bench_table(measurement: Measurement, width: int | None) -> str:
    """Returns a table with one row per arm, a compared program.

    For each regime (cold cache, hot cache, call) it has the median, the 20th to 80th percentile, the noise, and the
    time divided by deplodock's. The last column is the error.
    """
    from ..frontend.bench import OURS, REGIMES

    several = len(measurement.times) > 1
    rows: list[list[str]] = []
    for arm in next(iter(measurement.times.values())):
        row = [arm]
        for times in measurement.times.values():
            t = times[arm]
            spread = [] if several else [f"{seconds(t.p20)} .. {seconds(t.p80)}"]
            row += [seconds(t.median), *spread, f"+-{t.noise:.1%}", f"{t.median / times[OURS].median:.2f}"]
        rows.append([*row, f"{measurement.errors[arm]:.1e}" if arm in measurement.errors else "-"])
    heads = [h for r in measurement.times for h in (REGIMES[r], *([] if several else ["20 .. 80 %"]), "+-", "by ours")]
    return text_table(["", *heads, "error"], rows, width)


def profile_table(profile: Profile, width: int | None) -> str:
    """Returns a table with one row per kernel, then the schedules and Python lines of the kernels."""
    from .terminal import fitted

    counted = any(c.counters for c in profile.costs)
    rows = [
        [
            c.name + (f" x {c.launches}" if c.launches > 1 else ""),
            seconds(c.seconds),
            f"{c.share:.0%}",
            f"{si(c.bytes / c.seconds)}B/s" if c.bytes else "",
            f"{si(c.flops / c.seconds)}FLOP/s" if c.flops else "",
            "" if c.roofline is None else f"{c.roofline:.0%}",
            *([f"{c.counters.memory:.0%}", f"{c.counters.compute:.0%}"] if c.counters else [""] * 2 * counted),
            c.limit,
        ]
        for c in profile.costs
    ]
    busy = ["DRAM", "SM"] if counted else []
    text = text_table(["kernel", "time", "share", "bytes", "operations", "roof", *busy, "limit"], rows, width)
    lines = [f"{c.name}: {' '.join([*c.schedules, *by_file(c.lines)])}\n" for c in profile.costs if c.schedules]
    return text + fitted("".join(lines), width)


def fusion_tables(prices: FusionPrices, width: int | None) -> str:
    """Returns the kernels of a fusion plan, its cuts with both prices, and for each cut the text of the other plan.

    Args:
        prices: the plan.
        width: columns of the terminal, or None.
    """
    from .terminal import fitted

    kernels = [
        [
            kernel.root or "result",
            _origin(kernel.operation, kernel.operator),
            kernel.location or "",
            f"{si(kernel.written)}B",
            ", ".join(f"{name} {si(size)}B" for name, size in kernel.reads.items()),
            str(len(kernel.computed)),
        ]
        for kernel in prices.kernels
    ]
    text = text_table(["kernel of", "operation", "line", "writes", "reads", "further values"], kernels, width)
    cuts = [
        [
            cut.name,
            _origin(cut.operation, cut.operator),
            cut.location or "",
            "required" if cut.required else "kept" if cut.materialized else "fused",
            f"{si(cut.written)}B",
            "" if cut.read is None else f"{si(cut.read)}B by {cut.readers}",
            *_prices(cut, prices.seconds),
        ]
        for cut in prices.cuts
    ]
    if not cuts:
        return text
    heads = ["value", "operation", "line", "now", "writes", "reads", "if kept", "if fused", "change"]
    text += text_table(heads, cuts, width)
    for cut in prices.cuts:
        if cut.schedule:
            text += f"  {'fuse' if cut.materialized else 'keep'} {cut.name}: --schedule '{cut.schedule}'\n"
        elif cut.refusal:
            text += fitted(f"  {cut.name} cannot be {'fused' if cut.materialized else 'kept'}: {cut.refusal}\n", width)
    return text


def _origin(operation: str, operator: str | None) -> str:
    return f"{operation} of {operator}" if operator else operation


def _prices(cut: FusionCut, base: float) -> list[str]:
    """Returns the times of the plans with and without a cut, and the change of the other plan, as texts.

    `base`: seconds of the chosen plan."""
    if cut.seconds is None:
        return [seconds(base), "-", ""] if cut.materialized else ["-", seconds(base), ""]
    both = [base, cut.seconds] if cut.materialized else [cut.seconds, base]
    return [*map(seconds, both), f"{(cut.seconds - base) * 1e6:+.2f} us"]


def comparison_table(profiles: Mapping[str, Profile], width: int | None) -> str:
    """Returns a table of the times of kernels with a column for each version, and the schedules of other versions.

    Args:
        profiles: version -> its profile. Ratios are to the first version.
        width: columns of the terminal, or None.
    """
    from .terminal import fitted

    first, *others = profiles
    times = {name: {c.name: c.seconds for c in profile.costs} for name, profile in profiles.items()}
    names = dict.fromkeys(kernel for column in times.values() for kernel in column)
    rows = [
        [kernel, *_time_columns(first, others, {n: column.get(kernel) for n, column in times.items()})]
        for kernel in names
    ]
    totals = {name: profile.seconds for name, profile in profiles.items()}
    rows.append(["all kernels", *_time_columns(first, others, totals)])
    heads = [head for name in others for head in (name, "by the first")]
    text = text_table(["kernel", first, *heads], rows, width)
    lines = [
        f"{name}: {c.name}: {' '.join(c.schedules)}\n"
        for name in others
        for c in profiles[name].costs
        if c.schedules and c.schedules not in [k.schedules for k in profiles[first].costs if k.name == c.name]
    ]
    return text + fitted("".join(lines), width)


def _time_columns(first: str, others: Sequence[str], times: Mapping[str, float | None]) -> list[str]:
    """Returns the time of the first version, then the time and the ratio of each other version, as texts."""
    base, texts = times[first], list[str]()
    for name in others:
        time = times[name]
        texts += ["-" if time is None else seconds(time), f"{time / base:.2f}" if time and base else "-"]
    return ["-" if base is None else seconds(base), *texts]


def by_file(lines: Sequence[str]) -> list[str]:
    """Joins the lines of a file: `model.py:3,5,9` for `model.py:3`, `model.py:5`, `model.py:9`."""
    files: dict[str, list[int]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number))
    return [f"{file}:{','.join(map(str, sorted(numbers)))}" for file, numbers in files.items()]


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Returns a table; the first column is aligned to the left, the others to the right.

    Args:
        heads: texts of the head.
        rows: texts of the rows.
        width: columns of the terminal, or None.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    stream = StringIO()
    Console(file=stream, width=width or 200, highlight=False, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines() if line.strip())


BAR, GAP, LEFT, WIDTH, RIGHT = 16, 6, 260, 480, 120
COLORS = {"eager": "#c0c7d0", "torch.compile": "#8fa8c8", "max-autotune": "#6487b5", "deplodock": "#d9822b"}


@dataclass(frozen=True)
class Bar:
    """Bar of a horizontal bar chart.

    Attributes:
        label: text to the left.
        value: length.
        low, high: ends of the error bar.
        text: text to the right.
        arm: key of `COLORS`.
    """

    label: str
    value: float
    low: float
    high: float
    text: str
    arm: str = "deplodock"


def write_plot(path: str, svg: str) -> None:
    """Writes an SVG to the file of `--plot`. Raises CompileError if the name has another suffix, or on failure."""
    if not path.endswith(".svg"):
        raise CompileError(f"plots are SVG files: {path} does not end in .svg", argument="--plot")
    write_file(path, svg, "--plot")


def bars(title: str, shown: Sequence[Bar]) -> str:
    """Returns a chart of horizontal bars as SVG."""
    height = 40 + len(shown) * (BAR + GAP)
    svg = _page(title, LEFT + WIDTH + RIGHT, height)
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
    """Returns a chart of polylines with a legend as SVG. Both axes start at 0."""
    drawn = {name: points for name, points in lines.items() if points}
    svg = _page(title, WIDTH + 120, 60 + SIDE + ROW * len(drawn))
    most_x = max((x for points in drawn.values() for x, _ in points), default=1.0)
    most_y = max((y for points in drawn.values() for _, y in points), default=1.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{60 + WIDTH * x / most_x:.1f},{40 + SIDE * (1 - y / most_y):.1f}"

    for tick in (0.25, 0.5, 0.75, 1.0):
        _add(svg, "text", f"{tick * most_y:.3g}", x=52, y=44 + SIDE * (1 - tick), text_anchor="end")
        _add(svg, "text", f"{tick * most_x:.3g}", x=60 + WIDTH * tick, y=54 + SIDE, text_anchor="middle")
    _add(svg, "polyline", points=f"{at(0, most_y)} {at(0, 0)} {at(most_x, 0)}", fill="none", stroke="black")
    for number, (name, points) in enumerate(drawn.items()):
        color, y = LINE_COLORS[number % len(LINE_COLORS)], 64 + SIDE + ROW * number
        _add(svg, "polyline", points=" ".join(at(*p) for p in points), fill="none", stroke=color, stroke_width=2)
        _add(svg, "rect", x=60, y=y, width=12, height=4, fill=color)
        _add(svg, "text", name, x=78, y=y + 7)
    return _text(svg)


def _page(title: str, width: int, height: int) -> ElementTree.Element:
    """Returns an SVG with a white background and a title."""
    size = {"width": str(width), "height": str(height), "font-family": "sans-serif", "font-size": "12"}
    svg = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    _add(svg, "rect", width="100%", height="100%", fill="white")
    _add(svg, "text", title, x=8, y=20, font_size=14)
    return svg


def _text(svg: ElementTree.Element) -> str:
    ElementTree.indent(svg, " ")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _add(svg: ElementTree.Element, name: str, text: str = "", **attributes: object) -> None:
    element = ElementTree.SubElement(svg, name, {k.replace("_", "-"): str(v) for k, v in attributes.items()})
    element.text = text or None
