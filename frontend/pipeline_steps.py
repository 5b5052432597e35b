"""Passes between two levels, from the named pipelines, the text of a schedule, or the text of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType

from ..errors import CompileError
from ..passes.pipelines import parse_passes, pipeline_text
from ..passes.verify_level import VerifyLevelPass

PIPELINE_TO = {
    "tensor": "torch-to-tensor",
    "loop": "tensor-to-loop",
    "tile": "loop-to-tile",
    "kernel": "tile-to-kernel",
}
"""Level -> named pipeline that lowers to it from the level above."""

Steps = Mapping[str, tuple[ModulePass, ...]]
"""Level -> passes that lower to it from the level above."""


def default_steps(levels: Sequence[str], options: dict[str, ParameterListType], insert: Sequence[str]) -> Steps:
    """Returns the passes of the named pipelines to each level.

    Args:
        levels: the levels, from the top down.
        options: options for every pass that has them and sets none itself.
        insert: passes in addition to the named pipelines (`read_insertion`).

    Raises:
        PipelineError: an option or an insertion is invalid.
    """
    return {level: parse_passes(PIPELINE_TO[level], options, insert) for level in levels}


def scheduled_steps(
    schedule: str, options: dict[str, ParameterListType], levels: Sequence[str], insert: Sequence[str]
) -> Steps:
    """Returns the passes to each level for a text of schedules. Each exact schedule becomes a `plan-schedules` pass.

    The other parts of the text set options of the passes of the named pipelines.

    Args:
        schedule: schedules, separated by `;`, as for `Compilation.schedule`.
        options: as for `default_steps`. The options of the text are added.
        levels: the levels, from the top down.
        insert: as for `default_steps`.

    Raises:
        CompileError: the text sets no option, or one of several schedules is not exact.
        PipelineError: an option or an insertion is invalid.
    """
    parts = [part.strip() for part in schedule.split(";")]
    fused = [part for part in parts if part.startswith("roots=")]
    decided = [_options("plan-schedules", part) for part in parts if part not in fused]
    for part in fused:
        options |= _options("tensor-plan-fusion", part)
    exact = [d for d in decided if "exact" in d]
    if len(decided) > 1 and len(exact) < len(decided):
        raise CompileError("several schedules have to be `exact`, each for its own `nest`", argument="schedule")
    first = [p for d in exact for p in parse_passes("plan-schedules", {**options, **d})]
    if decided and not exact:
        options |= decided[0]
    steps = default_steps(levels, options, insert)
    return {level: (*first, *passes) if level == "tile" else passes for level, passes in steps.items()}


def _options(name: str, text: str) -> Mapping[str, ParameterListType]:
    """Returns the options of the pass `name` that a part of the text of a schedule sets.

    Raises:
        CompileError: the part sets no option.
    """
    passes = parse_passes(f"{name}{{{_as_options(text)}}}")
    options = passes[0].spec().parameters if len(passes) == 1 else {}
    if not options:
        raise CompileError(
            f'expected key=value pairs such as "block=64,128 warps=4", but got "{text}"', argument="schedule"
        )
    return options


def _as_options(text: str) -> str:
    """Returns the text of a schedule as pass options: `<block = [8, 64], warps = 1>` -> `exact block=8,64 warps=1`.

    The IR and `--explain` print schedules in angle brackets. Other text has no `exact`. Brackets of lists are removed.
    """
    text = re.sub(r"\[([\d, ]*)\]", lambda m: m[1].replace(" ", ""), re.sub(r"\s*=\s*", "=", text))
    return re.sub(r"(?:#tile\.schedule)?<([^<>]*)>", lambda m: "exact " + re.sub(r",\s*(?=\w+=)", " ", m[1]), text)


def divided(passes: Sequence[ModulePass], levels: Sequence[str]) -> Steps:
    """Divides the passes of a pipeline after the last `verify-level` of each level.

    The pipeline may end at any of `levels`. It must reach the levels before that in order.

    Raises:
        CompileError: the pipeline reaches no level, or reaches them in another order.
    """
    ends = {p.level: i + 1 for i, p in enumerate(passes) if isinstance(p, VerifyLevelPass) and p.level in levels}
    expected = list(levels)[: len(ends)]
    if not ends or list(ends) != expected or list(ends.values()) != sorted(ends.values()):
        text = pipeline_text([p for p in passes if isinstance(p, VerifyLevelPass)]) or "nothing"
        needed = ", ".join(expected or levels[:1])
        reason = f"has to pass verify-level{{level=...}} at {needed} in this order; it passes {text}"
        raise CompileError(reason, argument="pipeline")
    ends[expected[-1]] = len(passes)
    starts = [0, *ends.values()]
    return {level: tuple(passes[start:end]) for (level, end), start in zip(ends.items(), starts, strict=False)}
