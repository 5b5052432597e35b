"""Section "Schedules": the candidates of each nest, with the parts of their predicted times, and text to paste."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...dialects.loop import NestOp
from ...dialects.shapes.extents import extents_text
from ...dialects.support.locations import line_text
from ...dialects.support.printing import quantity
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...frontend.compilation import Compilation
from ...frontend.tuning.building import parse_schedule
from ...frontend.tuning.search import Search
from ...frontend.tuning.task import PLANNER
from ...passes.pass_manager import collect_remarks, run_passes
from ...passes.planning.choose import Candidate, rank
from ...passes.planning.model import Prediction, model_of
from ...passes.planning.nest_info import NestInfo
from ...passes.planning.plan_schedules import options_of
from ...passes.records import plan_key
from ...target.attribute import on_cores
from ...target.model import Target
from ...tools.tables import seconds
from .drawing import coordinate, drawing, label, shape
from .html import Html, element, joined, table, to_paste
from .parts import bar, legend, shown_parts
from .program import ReportedProgram
from .sections import Section

SHOWN, LEAST_SHOWN, FEW_NESTS = 8, 3, 4
"""Number of candidates of a nest that are listed, as in `--explain`, and in programs with more nests than the last."""

POINTS, LEAST_POINTS, ALL_POINTS, CROSSES = 160, 24, 500, 16
"""Numbers of drawn candidates: largest and smallest of a nest, of a page, and of refused ones of a nest."""

MOST_REASONED = 300
"""Number of refused candidates of a nest whose reasons are counted."""

PLOT_WIDTH, PLOT_HEIGHT, LEFT, TOP, BOTTOM = 420.0, 220.0, 62.0, 14.0, 40.0


@dataclass(frozen=True)
class Shown:
    """A schedule of a nest on the page.

    Attributes:
        schedule: the schedule.
        prediction: its predicted cost, or None if it cannot be carried out.
        cost: seconds that candidates are ranked by, or None for a schedule that is not among the candidates.
        refused: reason why it cannot be carried out, or an empty text.
        spills: whether its registers would spill.
        measured: measured seconds, or None.
    """

    schedule: ScheduleAttr
    prediction: Prediction | None
    cost: float | None = None
    refused: str = ""
    spills: bool = False
    measured: float | None = None


@dataclass(frozen=True)
class NestCandidates:
    """Candidates of one nest.

    Attributes:
        name: name of the nest, such as `k0`.
        also: names of equal nests.
        nest: the nest.
        chosen: schedule that the program has.
        ranked: candidates of the planner, the best first.
        measured: text of a schedule -> seconds, from `tune`.
        several: whether the program has other nests.
    """

    name: str
    also: tuple[str, ...]
    nest: NestOp
    chosen: Shown
    ranked: Sequence[Candidate]
    measured: Mapping[str, float]
    several: bool

    @property
    def possible(self) -> list[Candidate]:
        return [c for c in self.ranked if not c.predictions.violated[c.row]]

    @property
    def refused(self) -> list[Candidate]:
        return [c for c in self.ranked if c.predictions.violated[c.row]]


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for programs without nests, or a target without rates."""
    compilation = program.compilation
    if "tile" not in program.levels or "loop" not in program.levels or not compilation.resolved.rates.known:
        return None
    nests = candidates_of(compilation, program.searches)
    if not nests:
        return None
    points = max(LEAST_POINTS, min(POINTS, ALL_POINTS // len(nests)))
    prefix, rows = paste_prefix(compilation), SHOWN if len(nests) <= FEW_NESTS else LEAST_SHOWN
    parts = [
        _introduction(compilation.resolved),
        legend(),
        *(_nest(n, compilation.resolved, points, rows, prefix) for n in nests),
    ]
    return Section("schedules", "Schedules", joined(parts), [data_of(n, rows) for n in nests])


def data_of(nest: NestCandidates, rows: int = SHOWN) -> dict[str, Any]:
    """Returns candidates as data: the text of the schedule, the cost, and the parts of the time.

    Args:
        nest: the nest.
        rows: number of candidates.
    """
    listed = [
        {
            "schedule": str(c.schedule),
            "cost": c.cost,
            "seconds": c.prediction.seconds,
            "parts": shown_parts(c.prediction.parts),
        }
        for c in nest.possible[:rows]
        if c.prediction is not None
    ]
    chosen = str(nest.chosen.schedule)
    return {"name": nest.name, "chosen": chosen, "schedules": len(nest.ranked), "candidates": listed}


def planned(compilation: Compilation) -> ModuleOp:
    """Returns the program at the loop level with the schedules that `plan-schedules` decides, before other passes."""
    module = compilation.at("loop").clone()
    below = compilation.passes_to("tile")[len(compilation.passes_to("loop")) :]
    planners = [*takewhile(lambda p: p.name == PLANNER, dropwhile(lambda p: p.name != PLANNER, below))]
    before = [*takewhile(lambda p: p.name != PLANNER, below)]
    with collect_remarks():
        run_passes(compilation.ctx, module, [*before, *planners], verify=False)
    return module


def candidates_of(compilation: Compilation, searches: Sequence[Search] = ()) -> list[NestCandidates]:
    """Returns the candidates of each nest of a program. Equal nests are listed once.

    Args:
        compilation: the program.
        searches: results of `tune`, whose measured times are added.
    """
    target, precision = compilation.resolved, compilation.f32_matmul_precision or "ieee"
    plain = [op for op in compilation.at("loop").walk() if isinstance(op, NestOp)]
    scheduled = [op for op in planned(compilation).walk() if isinstance(op, NestOp)]
    if len(plain) != len(scheduled):
        # A pipeline of the user has passes that create nests before it plans.
        plain = scheduled
    measured = {s.task.key: _measured(s) for s in searches if s.label == "measured"}
    groups = dict[tuple[str, str], list[int]]()
    for i, (nest, chosen) in enumerate(zip(plain, scheduled, strict=True)):
        groups.setdefault((plan_key(nest), str(chosen.attributes.get("schedule"))), []).append(i)
    nests = list[NestCandidates]()
    for (key, _), (first, *others) in groups.items():
        nest, schedule = plain[first], scheduled[first].attributes.get("schedule")
        if isinstance(schedule, ScheduleAttr):
            info, times = NestInfo(nest), measured.get(key, {})
            chosen = _chosen(info, schedule, target, times.get(str(schedule)))
            ranked = rank(info, target, precision)
            nests.append(
                NestCandidates(f"k{first}", tuple(f"k{i}" for i in others), nest, chosen, ranked, times, len(plain) > 1)
            )
    return nests


def _chosen(info: NestInfo, schedule: ScheduleAttr, target: Target, took: float | None) -> Shown:
    """Returns the schedule that a nest has, with its prediction if the model can predict it."""
    try:
        return Shown(schedule, model_of(info, target).predict(schedule), measured=took)
    except ScheduleError as error:
        return Shown(schedule, None, refused=error.reason, measured=took)


def _of_text(nest: NestCandidates, text: str, target: Target) -> Shown:
    """Returns a measured schedule of a nest with its prediction. `text`: the schedule."""
    return _chosen(NestInfo(nest.nest), parse_schedule(text), target, nest.measured.get(text))


def _measured(search: Search) -> dict[str, float]:
    """Returns the best measured seconds of each schedule of a search."""
    times = dict[str, float]()
    for _, trial in search.trials:
        if trial.seconds is not None:
            text = trial.candidate.schedule
            times[text] = min(trial.seconds, times.get(text, math.inf))
    return times


def paste_prefix(compilation: Compilation) -> str:
    """Returns the fusion plan that the user set, as the beginning of an argument of `--schedule`: `roots=%3; `.

    The names of nests depend on it.
    """
    parts = [part.strip() for part in (compilation.schedule or "").split(";")]
    return "".join(f"{part}; " for part in parts if part.startswith("roots="))


def schedule_argument(nest: NestCandidates, schedule: ScheduleAttr, prefix: str = "") -> str:
    """Returns the argument of `--schedule` for one schedule of a nest.

    Args:
        nest: the nest.
        schedule: the schedule.
        prefix: fusion plan, as `paste_prefix` returns it.
    """
    names = (nest.name, *nest.also) if nest.several else ("",)
    return prefix + "; ".join((f"nest={n} " if n else "") + options_of(schedule) for n in names)


def _introduction(target: Target) -> Html:
    text = (
        f"Each nest has candidates, whose times are predicted for {target.arch} ({target.card}); a point is one."
        " The ring is the schedule that the program has; filled points were measured by tune, crosses are refused,"
        " dashed points would spill registers. The parts of a time overlap: the predicted time (the mark on a bar) is"
        " start, the norm of the overlapping parts, epilogue, and other kernels. A line to paste fixes the schedule."
    )
    return element("p", text, class_="note")


def _nest(nest: NestCandidates, target: Target, points: int, rows: int, prefix: str) -> Html:
    """Returns the candidates of one nest.

    Args:
        nest: the nest.
        target: the target.
        points: number of candidates that are drawn.
        rows: number of candidates that are listed.
        prefix: fusion plan of lines to paste.
    """
    reduced = ", ".join(extents_text(group[0].sizes) for group in NestInfo(nest.nest).groups)
    where = line_text(nest.nest.location)
    title = f"{nest.name}: over {extents_text(nest.nest.sizes)}" + (f", sums over [{reduced}]" if reduced else "")
    title += f" · {where}" if where else ""
    title += f" · also {', '.join(nest.also)}" if nest.also else ""
    return joined(
        [
            element("h3", title),
            _plots(nest, target, points),
            _table(nest, target, rows, prefix),
            _refused(nest),
        ]
    )


def _plots(nest: NestCandidates, target: Target, points: int) -> Html:
    """Returns predicted times over the resources of a schedule as plots. Arguments as for `_nest`."""
    shown, left_out = _sample(nest, points, target)
    if not shown:
        return Html("")
    if on_cores(target.name):
        axes = [_Axis("tasks", lambda s, p: float(p.blocks))]
    else:
        axes = [
            _Axis("shared memory of a block, KiB", lambda s, p: p.shared / 1024),
            _Axis("occupancy, % of the threads of a multiprocessor", lambda s, p: _occupancy(s, p, target), True),
        ]
    refused = nest.refused[:CROSSES]
    note = f"{quantity(left_out, 'candidate')} more are not drawn." if left_out > 0 else ""
    plots = element("div", *(_plot(nest, shown, refused, axis) for axis in axes), class_="plots")
    return joined([plots, element("p", note, class_="note") if note else ""])


def _occupancy(schedule: ScheduleAttr, prediction: Prediction, target: Target) -> float:
    """Returns the resident threads of a multiprocessor in percent of its threads."""
    return 100 * prediction.resident * schedule.data.warps * target.lanes / target.threads_per_sm


@dataclass(frozen=True)
class _Axis:
    """Horizontal axis of a plot.

    Attributes:
        title: its text.
        value: function of a schedule and its prediction.
        is_second: true for the second plot of the same schedules.
    """

    title: str
    value: Callable[[ScheduleAttr, Prediction], float]
    is_second: bool = False


def _sample(nest: NestCandidates, most: int, target: Target) -> tuple[list[Shown], int]:
    """Returns candidates to draw, and the number of the others: the best, some slower ones, all measured ones."""
    possible = nest.possible
    best, others = possible[: most // 2], possible[most // 2 :]
    step = max(1, -(-len(others) // max(1, most - len(best))))
    drawn = [*best, *others[::step]]
    shown = [
        Shown(
            c.schedule, c.prediction, c.cost, "", bool(c.predictions.spills[c.row]), nest.measured.get(str(c.schedule))
        )
        for c in drawn
    ]
    texts = {str(s.schedule) for s in shown}
    shown += [_of_text(nest, text, target) for text in nest.measured if text not in texts]
    if str(nest.chosen.schedule) not in texts | nest.measured.keys():
        shown.append(nest.chosen)
    return shown, len(possible) - len(drawn)


def _plot(nest: NestCandidates, shown: Sequence[Shown], refused: Sequence[Candidate], axis: _Axis) -> Html:
    """Returns a plot of predicted and measured times.

    Args:
        nest: the nest.
        shown: the drawn schedules.
        refused: schedules that cannot be carried out; they have no time, and are drawn below the axis.
        axis: the horizontal axis.
    """
    points = [
        (axis.value(s.schedule, s.prediction), s.prediction.seconds, s) for s in shown if s.prediction is not None
    ]
    others = [(axis.value(c.schedule, c.predictions.all.at(c.row)), c) for c in refused]
    limit = max([x for x, *_ in points] + [x for x, _ in others if x <= 2 * max(x for x, *_ in points)] + [1e-9])
    times = [t for _, t, _ in points] + [s.measured for s in shown if s.measured is not None]
    low, high = min(times) / 1.05, max(times) * 1.05
    across = PLOT_WIDTH - LEFT - 14

    def at_x(value: float) -> float:
        return LEFT + across * min(value / limit, 1.02)

    def at_y(value: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - math.log(value / low) / math.log(high / low))

    bottom = TOP + PLOT_HEIGHT
    parts = [shape("path", d=f"M{LEFT:.0f} {TOP:.0f}V{bottom:.0f}H{PLOT_WIDTH:.0f}", class_="axis")]
    for tick in _ticks(low, high):
        y = at_y(tick)
        parts += [shape("path", d=f"M{LEFT:.0f} {coordinate(y)}h{across:.0f}", class_="grid")]
        parts += [label(LEFT - 6, y + 4, seconds(tick), "muted", "end")]
    for share in (0.0, 0.5, 1.0):
        parts.append(label(at_x(share * limit), bottom + 26, f"{share * limit:.3g}", "muted", "middle"))
    parts.append(label(LEFT + across / 2, bottom + 39, axis.title, "muted", "middle"))
    for x, c in others:
        tip = element("title", f"refused: {_plain(c.schedule)}")
        cx = coordinate(at_x(x))
        parts.append(element("path", tip, d=f"M{cx} {bottom + 6:.0f}m-3 -3l6 6m0 -6l-6 6", class_="refused-point"))
    chosen = str(nest.chosen.schedule)
    for x, t, s in reversed(points):
        parts.append(_point(at_x(x), at_y(t), t, s, str(s.schedule) == chosen, at_y, axis.is_second))
    title = f"{nest.name}: predicted time over {axis.title}, {quantity(len(points), 'candidate')}"
    return drawing(PLOT_WIDTH, bottom + BOTTOM + 4, title, parts, "plot")


def _point(
    x: float, y: float, time: float, s: Shown, chosen: bool, at_y: Callable[[float], float], brief: bool
) -> Html:
    """Returns the point of a schedule: a ring if it is chosen, filled and with a stem if it was measured.

    Args:
        x, y: position of its predicted time.
        time: predicted seconds.
        s: the schedule.
        chosen: whether the program has the schedule.
        at_y: vertical position of a time in seconds.
        brief: whether its tip leaves out the schedule.
    """
    text = f"{seconds(time)} predicted" + (f", {seconds(s.measured)} measured" if s.measured is not None else "")
    text += "; its registers would spill" if s.spills else ""
    text = f"{'chosen: ' if chosen else ''}{text}{'' if brief else f': {_plain(s.schedule)}'}"
    tip, parts = element("title", text), list[Html]()
    if s.measured is not None:
        end = at_y(s.measured)
        parts.append(shape("path", d=f"M{coordinate(x)} {coordinate(y)}V{coordinate(end)}", class_="stem"))
        parts.append(shape("circle", cx=x, cy=end, r=3.5, class_="stored"))
    if chosen:
        parts.append(shape("circle", cx=x, cy=y, r=7.5, class_="ring"))
    parts.append(shape("circle", tip, cx=x, cy=y, r=2.5, class_="spilling" if s.spills else None))
    return joined(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Returns a few round numbers between two positive numbers, for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(ticks) >= 3:
            return ticks
    return [low * (high / low) ** share for share in (0.1, 0.5, 0.9)]


def _plain(schedule: ScheduleAttr) -> str:
    return str(schedule).removeprefix("#tile.schedule")


def _table(nest: NestCandidates, target: Target, most: int, prefix: str) -> Html:
    """Returns a table of the best candidates with the parts of their times, and lines to paste.

    The fastest measured schedules come first. `most`: number of measured schedules, and of others. Other arguments as
    for `_nest`.
    """
    chosen, rows = str(nest.chosen.schedule), list[list[object]]()
    fastest = sorted(nest.measured, key=nest.measured.__getitem__)[:most]
    best = [
        Shown(c.schedule, c.prediction, c.cost, "", bool(c.predictions.spills[c.row])) for c in nest.possible[:most]
    ]
    by_text = {str(s.schedule): s for s in (*best, nest.chosen)}
    listed = [by_text[text] if text in by_text else _of_text(nest, text, target) for text in fastest]
    listed += [s for s in (nest.chosen, *best) if str(s.schedule) not in fastest]
    listed = [*{str(s.schedule): s for s in listed}.values()]
    widest = max([1e-12, *(sum(s.prediction.parts.values()) for s in listed if s.prediction is not None)])
    times = any(str(s.schedule) in nest.measured for s in listed)
    for number, s in enumerate(listed, 1):
        text, p = str(s.schedule), s.prediction
        name = f"{'◉ ' if text == chosen else ''}{number}"
        took = nest.measured.get(text)
        facts = "" if p is None else _resources(nest, p) + ("; its registers would spill" if s.spills else "")
        row: list[object] = [
            name,
            "" if p is None else bar(p.parts, widest, p.seconds),
            s.refused if p is None else p.limit,
            facts,
            to_paste(f"--schedule '{schedule_argument(nest, s.schedule, prefix)}'"),
            "" if p is None else seconds(p.seconds),
        ]
        rows.append([*row, "" if took is None else seconds(took)] if times else row)
    heads = ["", "parts of the time", "limit", "resources", "to paste", "predicted", *(["measured"] if times else [])]
    more = len(nest.possible) - len(best)
    note = f"{more} slower candidates are not listed." if more > 0 else ""
    return joined([table(heads, rows, 5, class_="candidates"), element("p", note, class_="note") if note else ""])


def _resources(nest: NestCandidates, prediction: Prediction) -> str:
    return nest.ranked[0].model.resources_text(prediction) if nest.ranked else ""


def _refused(nest: NestCandidates) -> Html:
    """Returns the reasons why candidates cannot be carried out, each with their number and one of them."""
    refused = nest.refused
    if not refused:
        return Html("")
    examples, counts = dict[str, Candidate](), Counter[str]()
    for c in refused[:MOST_REASONED]:
        examples.setdefault(c.refused, c)
        counts[c.refused] += 1
    lines = [
        element(
            "li",
            f"{reason}: {quantity(count, 'schedule')}, such as ",
            element("code", _plain(examples[reason].schedule)),
        )
        for reason, count in counts.most_common(SHOWN)
    ]
    more = len(counts) - len(lines)
    if more > 0:
        lines.append(element("li", f"and {quantity(more, 'other reason')}"))
    if len(refused) > MOST_REASONED:
        lines.append(element("li", f"only the first {MOST_REASONED} schedules are counted"))
    head = element("summary", f"{quantity(len(refused), 'schedule')} refused")
    return element("details", head, element("ul", *lines), class_="refusals")
