"""Which passes lead from each level to the next: the named pipelines, or one that the user wrote."""

from __future__ import annotations

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
"""The named pipeline that leads to each level from the one above."""

Steps = Mapping[str, tuple[ModulePass, ...]]
"""Level -> the passes that lead to it from the one above."""


def make_steps(
    options: Mapping[str, str | int | None], schedule: str | None = None, pipeline: str | None = None
) -> Steps:
    """The passes to each level. `options` go to every pass that has them and was not given others; those that are None
    go nowhere.

    `schedule` are options of `plan-schedules` as text (`block=64,128 warps=4`). `pipeline` is text as for `dl-opt -p`,
    from the torch level down, in place of the named pipelines; it reaches a level where it has
    `verify-level{level=...}` for the last time, and what comes behind the last one belongs to that level. Raises
    PipelineError, and CompileError for both at once or for levels in another order.
    """
    if schedule is not None and pipeline is not None:
        raise CompileError("belongs into the pipeline: plan-schedules{...}", argument="schedule")
    given: dict[str, ParameterListType] = {n: (v,) for n, v in options.items() if v is not None}
    if schedule is not None:
        given = {**given, **_schedule_options(schedule)}
    if pipeline is not None:
        return _divided(parse_passes(pipeline, given))
    return {level: parse_passes(name, given) for level, name in PIPELINE_TO.items()}


def _schedule_options(schedule: str) -> Mapping[str, ParameterListType]:
    """What the text of a schedule says, as options."""
    found = parse_passes(f"plan-schedules{{{schedule.strip()}}}")
    decided = found[0].spec().parameters if len(found) == 1 else {}
    if not decided:
        raise CompileError("decides nothing; it is text like block=64,128 warps=4", argument="schedule")
    return decided


def _divided(passes: Sequence[ModulePass]) -> Steps:
    """The passes of a pipeline, cut where it reaches the levels."""
    ends = {p.level: i + 1 for i, p in enumerate(passes) if isinstance(p, VerifyLevelPass) and p.level in PIPELINE_TO}
    wanted = list(PIPELINE_TO)[: len(ends)]
    if not ends or list(ends) != wanted or list(ends.values()) != sorted(ends.values()):
        text = pipeline_text([p for p in passes if isinstance(p, VerifyLevelPass)]) or "nothing"
        raise CompileError(
            f"has to pass verify-level{{level=...}} at {', '.join(wanted) or 'tensor'} in this order; it passes {text}",
            argument="pipeline",
        )
    ends[wanted[-1]] = len(passes)
    starts = [0, *ends.values()]
    return {level: tuple(passes[start:end]) for (level, end), start in zip(ends.items(), starts, strict=False)}
