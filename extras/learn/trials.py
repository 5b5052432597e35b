"""Schedules of an answer, one a line, judged by the checks and the predicted times of the planner.

trials = Trials(program, target)
trials.judge(answer, most=10, par=1.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from ...dialects import make_context
from ...dialects.loop import NestOp
from ...dialects.loop.work import nest_work
from ...dialects.support.printing import quantity
from ...dialects.tile.schedule import PLAIN, ScheduleAttr
from ...errors import ScheduleError
from ...passes.planning.choose import Candidate, rank
from ...passes.planning.model import Model, Prediction, model_of
from ...passes.planning.nest_info import NestInfo
from ...passes.planning.plan_schedules import checked, fastest
from ...passes.planning.points import points_of
from ...target.attribute import target_of
from ...target.model import Target
from .answers import Answer
from .verdicts import Wrong

FULL = 0.75
"""Share of busy multiprocessors below which a verdict names idle ones. Set by hand."""

COMBINED = 0.2
"""Share of the time above which a verdict names the kernel that combines parts. Set by hand."""

NEAR = 1.15
"""Ratio to a lower bound up to which a time counts as reaching it. Set by hand."""


@dataclass(frozen=True)
class Trial:
    """A schedule of an answer, with its prediction or the reason why it is refused.

    Attributes:
        line: number of its line.
        schedule: the schedule; None if the line cannot be read.
        prediction: its predicted cost, or None if it is refused.
        refused: the reason, or an empty text.
    """

    line: int
    schedule: ScheduleAttr | None
    prediction: Prediction | None
    refused: str = ""


class Trials:
    """Planner of one nest, which judges schedules.

    Attributes:
        module: the program, at the loop level, with its target.
        nest: its only nest.
        target: the target.
        model: the planning model of the nest.
    """

    def __init__(self, module: ModuleOp) -> None:
        """Makes the model of the only nest of a program."""
        self.module = module
        self.nest = next(op for op in module.walk() if isinstance(op, NestOp))
        self.target: Target = target_of(module)
        self.model: Model = model_of(NestInfo(self.nest), self.target)

    @cached_property
    def pick(self) -> Candidate:
        """The planner's schedule."""
        return fastest(self.nest, self.target, rank(self.model.info, self.target)[0])

    @property
    def pick_seconds(self) -> float:
        """Predicted seconds of the planner's schedule."""
        assert self.pick.prediction is not None
        return self.pick.prediction.seconds

    def read(self, answer: Answer, most: int) -> list[Trial]:
        """Returns the schedules of an answer in the order of its lines.

        Args:
            answer: a text with one schedule a line. `#` begins a comment.
            most: largest number of schedules.

        Raises:
            Wrong: there are none, or more than `most`.
        """
        lines = [(n, line.partition("#")[0].strip()) for n, line in enumerate(answer.text.splitlines(), 1)]
        lines = [(n, text) for n, text in lines if text]
        if not lines:
            raise Wrong("the file has no schedule: write one a line, such as block=64,64 chunk=64 warps=4")
        if len(lines) > most:
            raise Wrong(
                f"the file has {len(lines)} schedules, and the budget is {most}: keep the most instructive ones"
            )
        return [self.trial(text, n) for n, text in lines]

    def trial(self, text: str, line: int) -> Trial:
        """Returns one schedule with its prediction.

        Args:
            text: decisions such as `block=64,64 warps=4`, or an attribute as it is printed.
            line: number of the line.
        """
        schedule = None
        try:
            schedule = checked(self.nest, read_schedule(text, self.target), self.target)
            (predictions,) = self.model.predict_all(*points_of([schedule.data]))
            prediction = predictions.at(0)
        except ScheduleError as error:
            reason = f"{error.argument}: {error.reason}" if error.argument else error.reason
            return Trial(line, schedule, None, reason)
        if predictions.spills[0]:
            reason = (
                "registers: a thread needs too many and would spill them; use more warps, or smaller tiles or chunks"
            )
            return Trial(line, schedule, None, reason)
        return Trial(line, schedule, prediction)

    def ratio(self, trial: Trial) -> float:
        """Returns the predicted time of a trial over the time of the planner's pick; infinity if it is refused."""
        return np.inf if trial.prediction is None else trial.prediction.seconds / self.pick_seconds

    def describe(self, trial: Trial) -> str:
        """Returns a line about a trial: its time and its limit, or the reason why it is refused."""
        if trial.prediction is None:
            return f"line {trial.line}: refused: {trial.refused}"
        p = trial.prediction
        assert trial.schedule is not None
        reason = limit_text(p, trial.schedule, self.target, nest_work(self.nest).flops)
        return f"line {trial.line}: {microseconds(p.seconds)}, {self.ratio(trial):.2f}x the planner's pick: {reason}"

    def judge(self, answer: Answer, most: int, par: float) -> str:
        """Requires that the fastest schedule of an answer takes at most `par` times the time of the planner's pick.

        Args:
            answer: the answer.
            most: largest number of schedules.
            par: largest ratio of the predicted times.

        Returns:
            A sentence about the fastest schedule, and one line for each schedule.

        Raises:
            Wrong: all schedules are slower or refused.
        """
        trials = self.read(answer, most)
        lines = "".join(f"\n  {self.describe(trial)}" for trial in trials)
        best = min(trials, key=self.ratio)
        if best.prediction is None:
            raise Wrong(f"no schedule can be carried out{lines}")
        best_text = f"the fastest is line {best.line}: {self.ratio(best):.2f}x the planner's pick"
        if self.ratio(best) > par:
            raise Wrong(f"{best_text} ({microseconds(self.pick_seconds)}), and par is {par}x{lines}")
        pick = str(self.pick.schedule).removeprefix("#tile.schedule")
        return f"{best_text}, {pick} ({quantity(len(trials), 'schedule')} of at most {most}){lines}"


def read_schedule(text: str, target: Target) -> ScheduleAttr:
    """Reads a schedule.

    Args:
        text: decisions such as `block=64,64 warps=4`, or a printed attribute: `<block = [64, 64], warps = 4>`.
        target: the target, which has the default of `lanes`.

    Raises:
        ScheduleError: a decision does not exist, or its value is not legal.
    """
    printed = text.removeprefix("#tile.schedule")
    try:
        if printed.startswith("<"):
            attribute = Parser(make_context(), f"#tile.schedule{printed}").parse_attribute()
            assert isinstance(attribute, ScheduleAttr)
            return attribute
        decisions = dict(map(_decision, text.split()))
        if "block" not in decisions:
            raise ScheduleError("expected a decision block, such as block=64,64")
        defaults = {"lanes": 1, "warps": 1} if target.lanes == 1 else {}
        return ScheduleAttr.get(**(defaults | decisions))
    except ParseError as error:
        raise ScheduleError(error.msg) from None
    except VerifyException as error:
        raise ScheduleError(str(error).removeprefix("schedule: ")) from None


def _decision(word: str) -> tuple[str, int | str | list[int]]:
    """Returns name and value of a decision `name=value`."""
    name, sign, value = word.partition("=")
    if name not in PLAIN or not sign:
        near = get_close_matches(name, PLAIN, 1)
        advice = f"did you mean {near[0]}?" if near and near[0] != name else "write decisions as block=64,64 warps=4"
        raise ScheduleError(f"there is no decision {word!r}: {advice}")
    if isinstance(PLAIN[name], str):
        return name, value
    numbers = value.split(",")
    if not all(n.strip().isdecimal() for n in numbers) or (len(numbers) > 1 and not isinstance(PLAIN[name], tuple)):
        kind = "numbers such as 64,64" if isinstance(PLAIN[name], tuple) else "a number"
        raise ScheduleError(f"{name}: expected {kind}, but got {value!r}")
    return name, [*map(int, numbers)] if isinstance(PLAIN[name], tuple) else int(value)


def limit_text(p: Prediction, schedule: ScheduleAttr, target: Target, flops: int) -> str:
    """Returns words for the resource that limits a schedule, with advice.

    Args:
        p: prediction of the schedule.
        schedule: the schedule.
        target: a GPU or a CPU.
        flops: floating-point operations of the nest.
    """
    text = _limit(p, schedule, target, flops)
    if p.limit != "memory" and target.core is None and (idle := _idle(p, target)):
        text = f"{text}; {idle}"
    if schedule.data.split_k > 1 and p.combine > COMBINED * p.seconds:
        text = f"{text}; combining the {schedule.data.split_k} parts takes {microseconds(p.combine)} of this"
    return text


def _limit(p: Prediction, schedule: ScheduleAttr, target: Target, flops: int) -> str:
    decided = schedule.data
    if p.limit == "memory":
        moved = p.read + p.written
        floor = moved / target.rates.memory
        if p.parts["memory"] > NEAR * floor:
            return f"memory, but at {floor / p.parts['memory']:.0%} of its rate: too few loads are in flight"
        return f"memory: {moved / 1e6:.0f} MB from and to device memory at its full rate"
    if p.limit == "cache":
        return (
            "cache: each tile of an operand is read from L2 by many blocks; larger tiles or clusters read it less often"
        )
    if p.limit == "latency":
        return "latency: each iteration waits for its loads; larger chunks, more stages or more blocks at once hide it"
    if p.limit == "shared memory":
        return "shared memory: the atoms read operands faster than shared memory delivers them"
    if p.limit == "other kernels":
        return "other kernels: they take longer than the nest itself"
    if p.limit == "compute" and target.core is None:
        faster = next((a for a in ("wgmma", "mma") if target.has(a)), "fma")
        if decided.atom != faster and p.times.compute > 0:
            return f"compute: atom={decided.atom} is slower than atom={faster}"
        peak = target.tensor if decided.atom != "fma" else target.fp32
        share = flops / peak / p.times.compute
        advice = "" if share > FULL else "; larger tiles keep them busier" if not _idle(p, target) else ""
        return f"compute: the arithmetic units work at {share:.0%} of their peak{advice}"
    return f"{p.limit}: {microseconds(p.parts[p.limit])}"


def _idle(p: Prediction, target: Target) -> str:
    """Returns words for multiprocessors without work, or an empty text."""
    if p.blocks < target.sms * FULL:
        return f"only {p.blocks} of {target.sms} multiprocessors have a block"
    rounds = -(-p.blocks // target.sms)
    if p.blocks / (rounds * target.sms) < FULL:
        return (
            f"wave quantisation: {p.blocks} blocks on {target.sms} multiprocessors take as long as"
            f" {rounds * target.sms} blocks"
        )
    return ""


def microseconds(seconds: float) -> str:
    """Returns a time as text in microseconds."""
    return f"{seconds * 1e6:.1f} us"
