"""Exercises of chapter 11: pipelines of asynchronous copies."""

from __future__ import annotations

from .....dialects.tile.schedule import ScheduleAttr
from .....errors import ScheduleError
from .....passes.planning.model import Prediction
from .....target.attribute import get_target
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import parsed, require_equal
from ...numbers import Quantity, require_numbers
from ...trials import Trials, limit_text, microseconds
from ..c10_schedules.programs import matmul
from .groups import follow, require_pipeline

TRIPS, OPERANDS = 8, 2
"""Iterations of the loop in the programs of the chapter, and tiles that an iteration reads."""


def judge_flight(answer: Answer) -> str:
    """Compares numbers with Little's law for an H200."""
    bandwidth, latency, multiprocessors, stage = 4.8e12, 800e-9, 132, 16384
    total = bandwidth * latency
    share = total / multiprocessors
    stages = -(-share // stage)
    require_numbers(
        answer,
        {
            "bytes_in_flight": Quantity(
                total,
                "multiply the bytes that arrive in a second by the seconds that one byte is under way",
                {bandwidth * 800: "800 ns are 800e-9 s", bandwidth / latency: "multiply, do not divide"},
            ),
            "of_a_multiprocessor": Quantity(share, "132 multiprocessors share the bytes in flight equally", {}),
            "copies": Quantity(
                stages,
                "divide the bytes of a multiprocessor by 16384 and round up",
                {share / stage: "a part of a chunk cannot be copied: round up", stages - 1: "round up, not down"},
            ),
            "stages": Quantity(
                stages + 1,
                "the chunk that is computed is in shared memory, too",
                {stages: "these are the chunks in flight; the one that is computed needs a stage of its own"},
            ),
            "one_stage_share": Quantity(
                100 * stage / (stage + share),
                "in one period the block waits for the latency, and then copies and computes nothing else: a chunk of"
                " 16384 bytes takes 800 ns plus its bytes over the multiprocessor's share of the bandwidth",
                {
                    100 * stage / share: "the period is the latency plus the time in which the bytes arrive",
                    stage / (stage + share): "that is the share; multiply by 100 for percent",
                },
            ),
        },
    )
    return (
        f"right: an H200 needs {total / 1e6:.2f} MB in flight, {share / 1024:.0f} KiB on each multiprocessor; with one"
        f" stage of 16 KiB it reaches {stage / (stage + share):.0%} of its bandwidth"
    )


def judge_repair(answer: Answer) -> str:
    """Judges a pipeline of three stages."""
    return _judged(answer, 3)


def judge_pipeline(answer: Answer) -> str:
    """Judges a pipeline of two stages."""
    return _judged(answer, 2)


def _judged(answer: Answer, stages: int) -> str:
    program = answer.program()
    groups = follow(program)
    require_equal(program, parsed(CHAPTER.exercises[2].solution))
    require_pipeline(groups, stages, TRIPS, OPERANDS)
    return (
        f"right: {sum(c.issued for c in groups.copies.values())} copies; groups outstanding while tile.dot computes:"
        f" {', '.join(map(str, groups.outstanding))}"
    )


STAGES = {
    "a": ("sm_80", ScheduleAttr.get((128, 128), (64,), warps=4, atom="mma", copy="cp_async")),
    "b": ("sm_80", ScheduleAttr.get((64, 64), (32,), warps=4, atom="mma", copy="cp_async")),
    "c": ("sm_90a", ScheduleAttr.get((128, 256), (64,), warps=8, atom="wgmma", copy="tma")),
}
"""Name -> target and schedule of a matmul of 4096x4096x4096, without its number of stages."""


def judge_stages(answer: Answer) -> str:
    """Judges the numbers of stages of three schedules by predicted times and shared memory."""
    names: dict[str, Quantity] = {}
    right: list[str] = []
    for name, (target, schedule) in STAGES.items():
        trials = Trials(matmul(4096, 4096, 4096, "f16", get_target(target)))
        all_stages = {s: _predicted(trials, schedule.changed(stages=s)) for s in range(1, 9)}
        possible = {s: p for s, p in all_stages.items() if isinstance(p, Prediction)}
        shortest = min(p.seconds for p in possible.values())
        best = min(s for s, p in possible.items() if p.seconds <= 1.001 * shortest)
        words: dict[float, str] = {
            s: _stage_text(trials, schedule, s, p, possible[best]) for s, p in all_stages.items()
        }
        names[name] = Quantity(best, "expected a number of stages from 1 to 8", words)
        right.append(f"{name}: {best} stages, {microseconds(shortest)}, {possible[best].shared} bytes")
    require_numbers(answer, names)
    return f"right: {'; '.join(right)}"


def _predicted(trials: Trials, schedule: ScheduleAttr) -> Prediction | str:
    try:
        return trials.model.predict(schedule)
    except ScheduleError as error:
        return f"refused: {error.reason}"


def _stage_text(trials: Trials, schedule: ScheduleAttr, stages: int, p: Prediction | str, best: Prediction) -> str:
    """Returns words about a number of stages that is not the best."""
    if isinstance(p, str):
        return p
    if p.seconds <= 1.001 * best.seconds:
        return f"{p.shared} bytes for {microseconds(p.seconds)}; fewer bytes are enough for the same time"
    if p.resident < best.resident:
        return (
            f"a block takes {p.shared} bytes, so {p.resident} instead of {best.resident} run on a multiprocessor:"
            f" {microseconds(p.seconds)}"
        )
    text = limit_text(p, schedule.changed(stages=stages), trials.target, 2 * 4096**3)
    return f"{microseconds(p.seconds)}: {text}"


CHAPTER = Chapter(
    __package__ or "",
    "A pipeline",
    [
        Exercise(
            "flight",
            "Bytes in flight",
            ".txt",
            judge_flight,
            (
                "A pipe that delivers B bytes a second, each of which is under way for L seconds, holds B * L bytes.",
                "If fewer bytes are in flight, the memory is idle for a part of the time.",
                "one_stage_share: a block copies 16384 bytes, waits 800 ns for the first of them, and only then begins"
                " the next copy. Its share of the bandwidth is 4.8e12 / 132 bytes a second.",
            ),
        ),
        Exercise(
            "repair",
            "Repair a pipeline of three stages",
            ".mlir",
            judge_repair,
            (
                "Write down, for the first two iterations, which groups are closed when `tile.await` is executed.",
                "`pending N` must let only those groups be outstanding that are newer than the one of this iteration.",
                "Each iteration must close a group, also the last ones, in which the predicate is false. Otherwise the"
                " counts of later waits are wrong.",
            ),
        ),
        Exercise(
            "pipeline",
            "From one stage to two",
            ".mlir",
            judge_pipeline,
            (
                "Copy chunk 0 before the loop, and let the loop carry its two tiles: `iter_args(%acc = %zero, %x = %x0,"
                " %y = %y0) -> (!C, !A, !B)`.",
                "In iteration k: wait for the carried tiles, issue the copies of chunk k + 1, commit, compute, and"
                " yield the new tiles.",
                "`%next = arith.addi %k, %c1 : index` and `%more = payload.cmp lt %next, %c8 : index` give a predicate:"
                " `tile.stage_async %a[d0, d1 + %next * 16] if %more by #rows : !a -> !A`.",
            ),
        ),
        Exercise(
            "stages",
            "As few stages as needed",
            ".txt",
            judge_stages,
            (
                "`deplodock learn check` names the time and the limit of each number that is not the best. Begin with"
                " 1.",
                "More stages take more shared memory, and all blocks of a multiprocessor share its shared memory.",
            ),
        ),
    ],
)
