"""Deciding how every nest runs: `plan-schedules`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from ...dialects import loop, payload
from ...dialects.layouts.linear import LANES
from ...dialects.support.calls import CONSTANTS
from ...dialects.support.equivalence import structure, structure_with_inputs
from ...dialects.support.locations import blamed, location_text
from ...dialects.tile.schedule import PLAIN, ScheduleAttr
from ...errors import ScheduleError
from ...progress import steps
from ...target.attribute import target_of
from ...target.model import REGISTERS_PER_SM, Target
from ..analysis.host_memory import SCRATCH_LIMIT, HostMemory
from ..analysis.nest_schedule import schedule_of
from ..analysis.packed_operands import constant_values
from ..remarks import emit_remark
from .choose import Candidate, rank
from .cost_model import Model, Prediction
from .horizontal_fusion import fusible_pairs, together
from .legality import limit_scratch
from .nest_info import NestInfo
from .simple import simple_schedule
from .staging import operand_loads

T = TypeVar("T")


class EqualNests:
    """What planning finds for nests, once for those of equal structure on inputs of equal types."""

    def __init__(self) -> None:
        self._found: dict[object, object] = {}
        self._constants: dict[func.FuncOp, set[SSAValue]] = {}

    def of(self, nest: loop.NestOp, find: Callable[[], T]) -> T:
        """Returns what `find` returned for the first nest that is equal to `nest`."""
        key = self._key(nest)
        if key not in self._found:
            self._found[key] = find()
        return cast(T, self._found[key])

    def _key(self, nest: loop.NestOp) -> object:
        what, inputs = structure_with_inputs(nest)
        function = nest.parent_op()
        if isinstance(function, func.FuncOp) and function not in self._constants:
            self._constants[function] = constant_values(function) if CONSTANTS in function.attributes else set()
        constants = self._constants[function] if isinstance(function, func.FuncOp) else ()
        numbers = [structure(v.owner, {}) if isinstance(v.owner, payload.ConstantOp) else None for v in inputs]
        return what, tuple((v.type, v in constants, n) for v, n in zip(inputs, numbers, strict=True))


@dataclass(frozen=True)
class ScheduleOverrides:
    """Decisions as options of a pass: an empty list or None is none."""

    block: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    serial: tuple[int, ...] = ()
    pack: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warps: int | None = None
    lanes: int | None = None
    stages: int | None = None
    split_k: int | None = None
    cluster_k: int | None = None
    group_m: int | None = None
    num_ctas: int | None = None
    cluster: int | None = None
    blocks_per_sm: int | None = None
    promotion_interval: int | None = None
    atom: Literal["fma", "mma", "wgmma"] | None = None
    copy: Literal["sync", "cp_async", "tma"] | None = None
    promotion_memory: Literal["registers", "shared"] | None = None
    cache_rows: Literal["registers", "shared"] | None = None

    def decisions(self) -> dict[str, Any]:
        """What was decided, by name."""
        names = [n for n in PLAIN if n in ScheduleOverrides.__dataclass_fields__]
        return {n: v for n in names if (v := getattr(self, n)) not in (None, ())}

    def apply_to(self, schedule: ScheduleAttr) -> ScheduleAttr:
        """`schedule` with these decisions. What depends on one that changed goes with it: without an asynchronous copy
        there is one stage, on tensor cores there is no register tile, serial indices and the grid swizzle are those of
        the old tiles, and how many blocks fit on a multiprocessor was said of the old schedule."""
        reset = {"blocks_per_sm"}
        if self.copy == "sync":
            reset.add("stages")
        if self.atom in ("mma", "wgmma"):
            reset.add("thread")
        if self.block:
            reset |= {"serial", "pack", "split_k", "cluster_k", "group_m", "num_ctas", "cache_rows", "cluster"}
        return schedule.changed(**({n: PLAIN[n] for n in reset} | self.decisions()))


def options_of(schedule: ScheduleAttr) -> str:
    """The options of `plan-schedules` that give this schedule to a nest, whatever the planner would choose."""
    texts = ["exact"]
    for name in (*ScheduleOverrides.__dataclass_fields__, "f32_matmul_precision"):
        value: Any = vars(schedule.data)[name]
        if value != PLAIN[name]:
            texts.append(f"{name}={','.join(map(str, value)) if isinstance(PLAIN[name], tuple) else value}")
    return " ".join(texts)


NAME = "plan-schedules"

SPARE_REGISTERS = 16
"""Registers of a thread beyond the estimate that launch bounds leave to a kernel with partial sums."""

SHOWN = 8
"""How many candidates `explain` tells of."""


@dataclass(frozen=True)
class PlanSchedulesPass(ModulePass, ScheduleOverrides):
    """Give every nest that has none a schedule.

    What: writes `schedule = #tile.schedule<...>` on each nest: the tile of every free index, the chunk of every
    reduction index, warps, the register tile of matmuls and how far ahead their operands are copied. Candidates are the
    points of a space: for matmuls tiles of the result, chunks of the sums and an atom (`planning/matmul_space.py`), for
    other reductions elements of a row in a block (`planning/row_space.py`), for elementwise work vectors of 16 bytes,
    with each way to copy and to divide; for the cores of a CPU tiles for single threads (`planning/core_space.py`). The
    model (`planning/cost_model.py`) predicts the time of all of them, and the
    fastest is taken; of nests that could share a launch, the fastest two with which they can, if that is worth it.
    `explain` tells of the candidates in remarks: their times, what these consist of, what limits. A schedule that is
    already there is checked and kept: it is the user's. The options `block`, `chunk`, `serial`, `pack`, `thread`,
    `warps`, `lanes`, `stages`, `split_k`, `cluster_k`, `group_m`, `num_ctas`, `cluster`, `blocks_per_sm`, `atom`,
    `copy`, `promotion_interval`, `promotion_memory` and `cache_rows` decide in the planner's place, for the nest that
    `nest` names (`k0` is the first) or for all that they fit; if that is none, it is an error. How many blocks a
    product counts on at once on a multiprocessor (`blocks_per_sm`) follows from what is decided, unless it is
    decided, too. With `exact` the options are the whole schedule: what is not among them has the plainest value,
    not the planner's, and with `nest` other nests are left to the next `plan-schedules`. `record` names a file of
    schedules (`records.py`): a nest that is in it gets that schedule, checked, the others the model's. Where
    several speak, what is in the text comes first, then the options, the record, the model. The target is that of the
    module (`#deplodock.target`), `sm_90a` where it has none; the option `target` writes another one there. A record has
    entries for each number of multiprocessors (`sm_90a:114` is an H100 PCIe). `again` plans what `loop-split-k` made:
    the options have decided by then, and nothing is divided twice. `f32_matmul_precision = input_dtype` permits it to
    round factors computed in f32 (the weights of attention) for tensor cores.
    Where `@main` has a `memory_limit`, a nest whose fastest schedule puts more between its kernels than is left of that
    gets a `scratch_limit`, in bytes, and the fastest schedule within it; a record that takes more is refused, options
    and schedules in the text are not. `limit_memory=false` lifts this. The `strategy` `simple` takes one schedule by a
    rule in place of the model's (`planning/simple.py`). With `cluster_sums` the planner also considers schedules with
    `cluster_k`; the default is false, as no GPU has confirmed their predicted times.
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
        nests = [nest for nest in op.walk() if isinstance(nest, loop.NestOp)]
        names = [f"k{i}" for i in range(len(nests))]
        if not nests and not self.again and (self.nest is not None or self.decisions()):
            raise ScheduleError("the program has no loop.nest to schedule", operator=NAME, location=location_text(op))
        if self.nest is not None and self.nest not in names:
            reason = f"there is no {self.nest}, of {len(nests)} nests"
            raise ScheduleError(reason, operator=NAME, argument="nest", location=location_text(nests[0]))
        if self.exact and not self.again:
            self._exactly(dict(zip(names, nests, strict=True)), target)
            if self.nest is not None:
                return
        free = [nest for nest in nests if "schedule" not in nest.attributes]
        if self.again and not free:
            return
        simple = self.strategy == "simple"
        limited = self.limit_memory and not self.again and not simple
        memory = cache(lambda: HostMemory(op, target)) if limited else None
        chosen = {} if self.record is None else self._recorded(ctx, free, target, memory, self.record)
        ranks: dict[loop.NestOp, list[Candidate]] = {}
        equal = EqualNests()
        if simple:
            chosen = {nest: simple_schedule(nest, target.core is not None) for nest in free} | chosen
        with steps("scheduling", len(free), "kernels") as step:
            for nest in free:
                if nest not in chosen:
                    ranks[nest] = self._rank(nest, target, memory, equal)
                step()
        chosen.update((nest, ranked[0].schedule) for nest, ranked in ranks.items())
        for pair in fusible_pairs(list(ranks)) if target.core is None and len(ranks) > 1 else ():
            chosen.update(zip(pair, together(ranks[pair[0]], ranks[pair[1]], target) or (), strict=False))
        refused: list[ScheduleError] = []
        for name, nest in zip(names, nests, strict=True):
            if nest in ranks:
                if self.explain:
                    self._tell(nest, name, ranks[nest], chosen[nest])
                fastest(nest, target, ranks[nest])
            if nest in chosen:  # which is checked
                decides = not (self.again or self.exact) and self.nest in (None, name) and self.decisions()
                schedule = self._decide(nest, target, name, chosen[nest], refused) if decides else chosen[nest]
                fits = nest in ranks and self.blocks_per_sm is None
                nest.attributes["schedule"] = with_residency(nest, schedule, target) if fits else schedule
            else:
                equal.of(nest, lambda nest=nest: check_schedule(nest, target))
        if refused and len(refused) == len(chosen):
            raise refused[0]  # what fits nowhere is a mistake

    def _rank(
        self, nest: loop.NestOp, target: Target, memory: Callable[[], HostMemory] | None, equal: EqualNests
    ) -> list[Candidate]:
        """The candidates for `nest`; where the fastest takes too much memory, those that don't come first. They are
        those of the first nest that is equal."""
        info = NestInfo(nest)

        def ranked() -> list[Candidate]:
            return rank(info, target, self.f32_matmul_precision, not self.again, self.cluster_sums)

        candidates = equal.of(nest, ranked)
        if memory is not None and limit_scratch(info, candidates[0].schedule, memory):
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
        """The schedules of `nests` that are in the record. One that does not fit its nest is left to the planner, and a
        remark says why."""
        found: dict[loop.NestOp, ScheduleAttr] = {}
        from ..record_file import read_record

        record = read_record(path, target.card)
        for nest in nests:
            try:
                schedule = record.schedule_for(ctx, nest, target)
                if schedule is not None:
                    if memory is not None:
                        limit_scratch(NestInfo(nest), schedule, memory)
                    found[nest] = checked(nest, schedule, target)
            except ScheduleError as error:
                why = f"the schedule of {record.path} is refused, and the planner's is taken: {_reason(error)}"
                emit_remark(nest, NAME, why)
        return found

    def _exactly(self, nests: dict[str, loop.NestOp], target: Target) -> None:
        """Give the schedule that the options are to the nest that is meant, or to all that it fits. Raises
        ScheduleError if it fits none."""
        left = {name: nest for name, nest in nests.items() if "schedule" not in nest.attributes}
        refused: list[ScheduleError] = []
        for name, nest in left.items():
            if self.nest in (None, name):
                try:
                    plain = ScheduleAttr.get([], f32_matmul_precision=self.f32_matmul_precision)
                    nest.attributes["schedule"] = decided(nest, plain, self, target)
                except ScheduleError as error:
                    refused.append(error)
                    emit_remark(nest, NAME, f"the options do not fit {name}: {_reason(error)}")
        if refused and (self.nest is not None or len(refused) == len(left)):
            raise refused[0]

    def _tell(self, nest: loop.NestOp, name: str, ranked: list[Candidate], chosen: ScheduleAttr) -> None:
        """Say what was considered, if that was asked for."""
        for i, candidate in enumerate(ranked[:SHOWN]):
            emit_remark(nest, NAME, f"{name}, candidate {i + 1} of {len(ranked)}: {candidate}")
        if chosen != ranked[0].schedule:
            emit_remark(nest, NAME, f"{name} is to share a launch: {str(chosen).removeprefix('#tile.schedule')}")

    def _decide(
        self, nest: loop.NestOp, target: Target, name: str, chosen: ScheduleAttr, refused: list[ScheduleError]
    ) -> ScheduleAttr:
        """`chosen`, or what the options make of it; where they don't fit, that goes to `refused`."""
        nest.attributes.pop(SCRATCH_LIMIT, None)  # who decides may take more
        try:
            return decided(nest, chosen, self, target)
        except ScheduleError as error:
            if self.nest is not None:
                raise
            refused.append(error)
            emit_remark(nest, NAME, f"the options do not fit {name}: {_reason(error)}")
            return chosen


def _reason(error: ScheduleError) -> str:
    """Why a schedule is refused, with the decision that this is about."""
    return error.reason if error.argument in (None, "record") else f"{error.argument}: {error.reason}"


def with_residency(nest: loop.NestOp, schedule: ScheduleAttr, target: Target) -> ScheduleAttr:
    """`schedule`, saying how many blocks it counts on at once on a multiprocessor; see `counted_on`."""
    model = Model(NestInfo(nest), target)
    return counted_on(model, schedule, model.predict(schedule))


def counted_on(model: Model, schedule: ScheduleAttr, prediction: Prediction) -> ScheduleAttr:
    """`schedule`, saying how many blocks it counts on at once on a multiprocessor, if these are several and work on
    tensor cores: grids and pipelines are made for that many. Of other kernels more may fit, if the compiler is free.
    Accumulators that wait for partial sums ptxas would spill for the sake of more blocks: then the number leaves it
    registers to spare, and is 1 where addresses or other operands need some as well."""
    chosen, info = schedule.data, model.info
    if chosen.atom != "fma":
        return schedule.changed(blocks_per_sm=prediction.resident) if prediction.resident > 1 else schedule
    if not chosen.promotion_interval:
        return schedule
    if len(info.loads) > len(operand_loads(model.found)) or len(info.reduction_indices) > 1:
        return schedule.changed(blocks_per_sm=1)
    blocks = REGISTERS_PER_SM // (LANES * chosen.warps * (prediction.registers + SPARE_REGISTERS))
    return schedule.changed(blocks_per_sm=min(blocks, prediction.resident)) if blocks > 1 else schedule


def decided(nest: loop.NestOp, chosen: ScheduleAttr, overrides: ScheduleOverrides, target: Target) -> ScheduleAttr:
    """`chosen` with the decisions that are given; raises ScheduleError, saying why, if they do not fit."""
    try:
        schedule = overrides.apply_to(chosen)
    except VerifyException as error:
        reason = str(error).removeprefix("schedule: ")
        raise ScheduleError(reason, operator=nest.name, location=location_text(nest)) from None
    return checked(nest, schedule, target)


def checked(nest: loop.NestOp, schedule: ScheduleAttr, target: Target) -> ScheduleAttr:
    """`schedule`, which `nest` has not yet; raises ScheduleError, saying why, if it cannot be carried out."""
    nest.attributes["schedule"] = schedule
    try:
        check_schedule(nest, target)
    finally:
        del nest.attributes["schedule"]
    return schedule


def plan(nest: loop.NestOp, target: Target, precision: str = "ieee") -> ScheduleAttr:
    """The schedule for `nest` on `target` that the model predicts to be fastest; `f32_matmul_precision` is the
    permission that it records for tensor cores. Raises ScheduleError if none can be carried out."""
    return fastest(nest, target, rank(NestInfo(nest), target, precision))


def fastest(nest: loop.NestOp, target: Target, ranked: list[Candidate]) -> ScheduleAttr:
    """The first of ranked candidates; raises ScheduleError if it cannot be carried out."""
    if ranked[0].prediction is None:
        reason = f"no schedule can be carried out on {target.name}: {ranked[0].refused}"
        raise ScheduleError(reason, operator=nest.name, location=location_text(nest))
    return ranked[0].schedule


def check_schedule(nest: loop.NestOp, target: Target) -> None:
    """Raise ScheduleError, saying why, if the schedule of `nest` cannot be carried out."""
    with blamed(nest):
        Model(NestInfo(nest), target).predict(schedule_of(nest))
