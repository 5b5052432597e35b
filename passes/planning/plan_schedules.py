"""Deciding how every nest runs: `plan-schedules`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from ...dialects import loop, payload
from ...dialects.support.calls import CONSTANTS
from ...dialects.support.equivalence import structure, structure_with_inputs
from ...dialects.support.locations import blamed, location_text
from ...dialects.tile.schedule import LEGAL, PLAIN, ScheduleAttr
from ...errors import ScheduleError
from ...progress import steps
from ...target.attribute import target_of
from ...target.model import Target
from ..analysis.host_memory import SCRATCH_LIMIT, HostMemory
from ..analysis.nest_schedule import schedule_of
from ..analysis.operands import constant_values
from ..pass_manager import emit_remark
from .choose import Candidate, rank
from .legality import limit_scratch
from .model import model_class, model_of
from .nest_info import NestInfo
from .simple import simple_schedule

NAME = "plan-schedules"

SHOWN = 8
"""Candidates that `explain` prints."""

T = TypeVar("T")


class EqualNests:
    """Results of planning, one for all nests of equal structure on inputs of equal types, if there are `several`."""

    def __init__(self, several: bool) -> None:
        self.several = several
        self._results: dict[object, object] = {}
        self._constants: dict[object, set[SSAValue]] = {}

    def of(self, nest: loop.NestOp, find: Callable[[], T]) -> T:
        """Returns the result of `find` for the first nest that is equal to `nest`."""
        if not self.several:
            return find()
        key = self._key(nest)
        if key not in self._results:
            self._results[key] = find()
        return cast(T, self._results[key])

    def _key(self, nest: loop.NestOp) -> object:
        text, inputs = structure_with_inputs(nest)
        function = nest.parent_op()
        if function not in self._constants:
            calls = isinstance(function, func.FuncOp) and CONSTANTS in function.attributes
            self._constants[function] = constant_values(cast(func.FuncOp, function)) if calls else set()
        constants = self._constants[function]
        numbers = [structure(v.owner, {}) if isinstance(v.owner, payload.ConstantOp) else None for v in inputs]
        return text, tuple((v.type, v in constants, n) for v, n in zip(inputs, numbers, strict=True))


def _option(name: str) -> tuple[str, Any, Any]:
    """Returns the option of a pass that decides on a field of a schedule: an empty list or None decides nothing."""
    plain = PLAIN[name]
    if isinstance(plain, tuple):
        return name, tuple[int, ...], ()
    return name, int | None if isinstance(plain, int) else Literal[LEGAL[name]] | None, None  # pyright: ignore


DECISIONS = tuple(name for name in PLAIN if name != "f32_matmul_precision")
"""The fields of a schedule that have an option of their own; `f32_matmul_precision` is a permission."""

Decisions: Any = make_dataclass("Decisions", map(_option, DECISIONS), frozen=True)
"""Decisions as options of a pass."""


def options_of(schedule: ScheduleAttr) -> str:
    """Returns the options of `plan-schedules` with which a nest gets this schedule."""
    changed: dict[str, Any] = {n: v for n, v in vars(schedule.data).items() if v != PLAIN[n]}
    texts = (f"{n}={','.join(map(str, v)) if isinstance(PLAIN[n], tuple) else v}" for n, v in changed.items())
    return " ".join(("exact", *texts))


@dataclass(frozen=True)
class PlanSchedulesPass(ModulePass, Decisions):
    """Give every nest that has none a schedule.

    What: writes `schedule = #tile.schedule<...>` on each nest: the tile of every free index, the chunk of every
    reduction index, warps, the register tile of matmuls and how far ahead their operands are copied. Candidates are the
    points of a space: for matmuls tiles of the result, chunks of the sums and an atom, for other reductions elements of
    a row in a block, for elementwise work vectors of 16 bytes, with each way to copy and to divide
    (`planning/gpu/space.py`); for the cores of a CPU tiles for one thread (`planning/cpu/model.py`). The model of the
    kind of target (`planning/model.py`) predicts all times, and the fastest is taken; of nests that could share a
    launch, the fastest two with which they can, if that is worth it. `explain` tells of the candidates in remarks:
    their times, what these consist of, what limits. A schedule that is already there is checked and kept: it is the
    user's. The options `block`, `chunk`, `serial`, `pack`, `thread`, `warps`, `lanes`, `stages`, `split_k`,
    `cluster_k`, `group_m`, `num_ctas`, `cluster`, `blocks_per_sm`, `atom`, `copy`, `promotion_interval`,
    `promotion_memory` and `cache_rows` decide in the planner's place, for the nest that `nest` names (`k0` is the
    first) or for all that they fit; if that is none, it is an error. How many blocks a product counts on at once on a
    multiprocessor (`blocks_per_sm`) follows from what is decided, unless it is decided, too. With `exact` the options
    are the whole schedule: what is not among them has the plainest value, not the planner's, and with `nest` other
    nests are left to the next `plan-schedules`. `record` names a file of schedules (`records.py`): a nest that is in it
    gets that schedule, checked, the others the model's. Where several speak, what is in the text comes first, then the
    options, the record, the model. The target is that of the module (`#deplodock.target`), `sm_90a` where it has none;
    the option `target` writes another one there. A record has entries for each number of multiprocessors (`sm_90a:114`
    is an H100 PCIe). `again` plans what `loop-split-k` made: the options have decided by then, and nothing is divided
    twice. `f32_matmul_precision = input_dtype` permits it to round factors computed in f32 (the weights of attention)
    for tensor cores. Where `@main` has a `memory_limit`, a nest whose fastest schedule puts more between its kernels
    than is left of that gets a `scratch_limit`, in bytes, and the fastest schedule within it; a record that takes more
    is refused, options and schedules in the text are not. `limit_memory=false` lifts this. The `strategy` `simple`
    takes one schedule by a rule in place of the model's (`planning/simple.py`), as does a target without rates. With
    `cluster_sums` the planner also considers schedules with `cluster_k`; the default is false, as no GPU has confirmed
    their predicted times.
    Why: all decisions are in one place and in the text; every pass below carries out what it reads.
    Why here: it needs the final nests, with reductions merged, and nothing below may be without it.

    `plan-schedules{target=sm_90a}` turns

    ```mlir
    %y = loop.nest (%i, %j) in [32, 2048] -> tensor<32x2048xf32> { ... loop.reduce add (%k) in [2048] ... }
    ```
    into
    ```mlir
    %y = loop.nest (%i, %j) in [32, 2048] -> tensor<32x2048xf32>
           attributes {schedule = #tile.schedule<block = [1, 2048], chunk = [2048], warps = 4>} { ... }
    ```
    """

    name = "plan-schedules"

    target: str | None = None
    f32_matmul_precision: Literal["ieee", "input_dtype", "bf16x3", "bf16x3_presplit", "tf32"] = "ieee"
    explain: bool = False
    nest: str | None = None
    record: str | None = None
    exact: bool = False
    again: bool = False
    limit_memory: bool = True
    strategy: Literal["model", "simple"] = "model"
    cluster_sums: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op, self.target)
        nests = {f"k{i}": nest for i, nest in enumerate(o for o in op.walk() if isinstance(o, loop.NestOp))}
        decisions = {n: v for n in DECISIONS if (v := getattr(self, n)) not in (None, ())}
        if self.nest is not None or decisions:
            self._check_names(op, nests)
        if self.exact and not self.again:
            self._exactly(nests, target, decisions)
            if self.nest is not None:
                return
        free = [nest for nest in nests.values() if "schedule" not in nest.attributes]
        if self.again and not free:
            return
        simple = self.strategy == "simple" or not target.rates.known
        limited = self.limit_memory and not self.again and not simple
        memory = cache(lambda: HostMemory(op, target)) if limited else None
        planned = {} if self.record is None else self._recorded(ctx, free, target, memory, self.record)
        rest, equal = [nest for nest in free if nest not in planned], EqualNests(len(nests) > 1)
        if simple:
            planned |= {nest: simple_schedule(nest, target.lanes) for nest in rest}
        else:
            planned |= self._fastest(nests, rest, target, memory, equal)
        if decisions and not self.again and not self.exact:
            changed = self._decide(nests, target, planned, decisions)
            for nest in rest if self.blocks_per_sm is None and not simple else ():
                if nest in changed:
                    planned[nest] = with_residency(nest, changed[nest], target)
        for nest in nests.values():
            if nest in planned:  # checked already
                nest.attributes["schedule"] = planned[nest]
            else:
                equal.of(nest, lambda nest=nest: check_schedule(nest, target))

    def _fastest(
        self,
        nests: Mapping[str, loop.NestOp],
        free: Sequence[loop.NestOp],
        target: Target,
        memory: Callable[[], HostMemory] | None,
        equal: EqualNests,
    ) -> dict[loop.NestOp, ScheduleAttr]:
        """Returns the schedules of `free` nests that the model predicts to be fastest."""
        ranked = dict[loop.NestOp, list[Candidate]]()
        with steps("scheduling", len(free), "kernels") as step:
            for nest in free:
                ranked[nest] = self._rank(nest, target, memory, equal)
                step()
        chosen = {nest: candidates[0] for nest, candidates in ranked.items()}
        chosen.update(model_class(target).together(ranked, target))
        if self.explain:
            self._tell(nests, ranked, chosen)
        return {nest: fastest(nest, target, candidate).schedule for nest, candidate in chosen.items()}

    def _check_names(self, op: ModuleOp, nests: Mapping[str, loop.NestOp]) -> None:
        """Raises ScheduleError if the options are for a nest that does not exist."""
        if not nests and not self.again:
            raise ScheduleError("the program has no loop.nest to schedule", operator=NAME, location=location_text(op))
        if self.nest is not None and self.nest not in nests:
            reason, place = f"there is no {self.nest}, of {len(nests)} nests", location_text(next(iter(nests.values())))
            raise ScheduleError(reason, operator=NAME, argument="nest", location=place)

    def _rank(
        self, nest: loop.NestOp, target: Target, memory: Callable[[], HostMemory] | None, equal: EqualNests
    ) -> list[Candidate]:
        """Returns the candidates for `nest`, which are those of the first nest that is equal. Where the fastest takes
        too much memory, others come first."""

        def ranked() -> list[Candidate]:
            return rank(NestInfo(nest), target, self.f32_matmul_precision, not self.again, self.cluster_sums)

        candidates = equal.of(nest, ranked)
        if memory is not None and limit_scratch(nest, candidates[0].schedule, memory):
            return equal.of(nest, ranked)
        return candidates

    def _recorded(
        self,
        ctx: Context,
        nests: list[loop.NestOp],
        target: Target,
        memory: Callable[[], HostMemory] | None,
        path: str,
    ) -> dict[loop.NestOp, ScheduleAttr]:
        """Returns the schedules of `nests` that are in the record. One that does not fit its nest is left to the
        planner, and a remark says why."""
        from ..record_file import read_record

        schedules: dict[loop.NestOp, ScheduleAttr] = {}
        record = read_record(path, target.card)
        for nest in nests:
            try:
                schedule = record.schedule_for(ctx, nest, target)
                if schedule is not None:
                    if memory is not None:
                        limit_scratch(nest, schedule, memory)
                    schedules[nest] = checked(nest, schedule, target)
            except ScheduleError as error:
                why = f"the schedule of {record.path} is refused, and the planner's is taken: {_reason(error)}"
                emit_remark(nest, NAME, why)
        return schedules

    def _exactly(self, nests: Mapping[str, loop.NestOp], target: Target, decisions: Mapping[str, Any]) -> None:
        """Gives the schedule that the options are to the nest that they name, or to all that it fits."""
        plain = ScheduleAttr.get([], f32_matmul_precision=self.f32_matmul_precision)
        free = {nest: plain for nest in nests.values() if "schedule" not in nest.attributes}
        for nest, schedule in self._decide(nests, target, free, decisions).items():
            nest.attributes["schedule"] = schedule

    def _decide(
        self,
        nests: Mapping[str, loop.NestOp],
        target: Target,
        planned: dict[loop.NestOp, ScheduleAttr],
        decisions: Mapping[str, Any],
    ) -> dict[loop.NestOp, ScheduleAttr]:
        """Puts the decisions of the options into the `planned` schedules that they fit, and returns these. Raises
        ScheduleError if the decisions fit no nest, or not the nest that the options name."""
        changed, refused = dict[loop.NestOp, ScheduleAttr](), list[ScheduleError]()
        for name, nest in nests.items():
            if nest not in planned or self.nest not in (None, name):
                continue
            if not self.exact:  # options may take more
                nest.attributes.pop(SCRATCH_LIMIT, None)
            try:
                changed[nest] = decided(nest, planned[nest], decisions, target)
            except ScheduleError as error:
                if self.nest is not None:
                    raise
                refused.append(error)
                emit_remark(nest, NAME, f"the options do not fit {name}: {_reason(error)}")
        if refused and len(refused) == len(planned):
            raise refused[0]  # options that fit nowhere are a mistake
        planned.update(changed)
        return changed

    def _tell(
        self,
        nests: Mapping[str, loop.NestOp],
        ranked: Mapping[loop.NestOp, Sequence[Candidate]],
        chosen: Mapping[loop.NestOp, Candidate],
    ) -> None:
        """Emits remarks about the considered schedules."""
        for name, nest in nests.items():
            candidates = ranked.get(nest, ())
            for i, candidate in enumerate(candidates[:SHOWN]):
                emit_remark(nest, NAME, f"{name}, candidate {i + 1} of {len(candidates)}: {candidate}")
            if candidates and chosen[nest] is not candidates[0]:
                text = str(chosen[nest].schedule).removeprefix("#tile.schedule")
                emit_remark(nest, NAME, f"{name} is to share a launch: {text}")


def _reason(error: ScheduleError) -> str:
    return error.reason if error.argument in (None, "record") else f"{error.argument}: {error.reason}"


def with_residency(nest: loop.NestOp, schedule: ScheduleAttr, target: Target) -> ScheduleAttr:
    """Returns a schedule with the number of blocks that it counts on at once on a multiprocessor."""
    model = model_of(NestInfo(nest), target)
    return model.counted_on(schedule, model.predict(schedule))


def decided(nest: loop.NestOp, schedule: ScheduleAttr, decisions: Mapping[str, Any], target: Target) -> ScheduleAttr:
    """Returns `schedule` with some decisions. Decisions that depend on a changed one become the plainest: without an
    asynchronous copy there is one stage, on tensor cores no register tile, and serial indices and the grid swizzle are
    those of the old tiles. Raises ScheduleError if the result cannot be carried out."""
    reset = {"blocks_per_sm"}
    if decisions.get("copy") == "sync":
        reset.add("stages")
    if decisions.get("atom") in ("mma", "wgmma"):
        reset.add("thread")
    if "block" in decisions:
        reset |= {"serial", "pack", "split_k", "cluster_k", "group_m", "num_ctas", "cache_rows", "cluster"}
    try:
        schedule = schedule.changed(**({n: PLAIN[n] for n in reset} | {**decisions}))
    except VerifyException as error:
        reason = str(error).removeprefix("schedule: ")
        raise ScheduleError(reason, operator=nest.name, location=location_text(nest)) from None
    return checked(nest, schedule, target)


def checked(nest: loop.NestOp, schedule: ScheduleAttr, target: Target) -> ScheduleAttr:
    """Returns `schedule`, which `nest` does not have yet. Raises ScheduleError if it cannot be carried out."""
    nest.attributes["schedule"] = schedule
    try:
        check_schedule(nest, target)
    finally:
        del nest.attributes["schedule"]
    return schedule


def plan(nest: loop.NestOp, target: Target, precision: str = "ieee") -> ScheduleAttr:
    """Returns the schedule that the model predicts to be fastest, with the permission `f32_matmul_precision`. Raises
    ScheduleError if none can be carried out."""
    return fastest(nest, target, rank(NestInfo(nest), target, precision)[0]).schedule


def fastest(nest: loop.NestOp, target: Target, candidate: Candidate) -> Candidate:
    """Returns the first of ranked candidates. Raises ScheduleError if it cannot be carried out."""
    if candidate.prediction is None:
        reason = f"no schedule can be carried out on {target.name}: {candidate.refused}"
        raise ScheduleError(reason, operator=nest.name, location=location_text(nest))
    return candidate


def check_schedule(nest: loop.NestOp, target: Target) -> None:
    """Raises ScheduleError, with the reason, if the schedule of `nest` cannot be carried out."""
    with blamed(nest):
        model_of(NestInfo(nest), target).check(schedule_of(nest))
