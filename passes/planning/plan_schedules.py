"""`plan-schedules`: chooses a schedule for every nest."""

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
"""Number of candidates that `explain` prints for each nest."""

T = TypeVar("T")


class EqualNests:
    """Cache of planning results, shared by nests of equal structure with inputs of equal types.

    Attributes:
        several: whether the program has several nests; otherwise nothing is cached.
    """

    def __init__(self, several: bool) -> None:
        self.several = several
        self._results: dict[object, object] = {}
        self._constants: dict[object, set[SSAValue]] = {}

    def of(self, nest: loop.NestOp, find: Callable[[], T]) -> T:
        """Returns the cached result of a nest that is equal to `nest`, or calls `find`."""
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
    """Returns name, type and default of the option for a field of a schedule. The default decides nothing."""
    plain = PLAIN[name]
    if isinstance(plain, tuple):
        return name, tuple[int, ...], ()
    return name, int | None if isinstance(plain, int) else Literal[LEGAL[name]] | None, None  # pyright: ignore


DECISIONS = tuple(name for name in PLAIN if name != "f32_matmul_precision")
"""Fields of a schedule that have an option. `f32_matmul_precision` has one with another meaning: it is a permission."""

Decisions: Any = make_dataclass("Decisions", map(_option, DECISIONS), frozen=True)
"""Record of the options in `DECISIONS`."""


def options_of(schedule: ScheduleAttr) -> str:
    """Returns the options of `plan-schedules` that give a nest this schedule, as text."""
    changed: dict[str, Any] = {n: v for n, v in vars(schedule.data).items() if v != PLAIN[n]}
    texts = (f"{n}={','.join(map(str, v)) if isinstance(PLAIN[n], tuple) else v}" for n, v in changed.items())
    return " ".join(("exact", *texts))


@dataclass(frozen=True)
class PlanSchedulesPass(ModulePass, Decisions):
    """Writes a schedule on every nest that has none: all decisions about how the nest becomes a kernel.

    `plan-schedules{target=sm_90a}` turns

    ```mlir
    %y = loop.nest (%i, %j) in [32, 2048] -> tensor<32x2048xf32> { ... loop.reduce add (%k) in [2048] ... }
    ```
    into
    ```mlir
    %y = loop.nest (%i, %j) in [32, 2048] -> tensor<32x2048xf32>
           attributes {schedule = #tile.schedule<block = [1, 2048], chunk = [2048], warps = 4>} { ... }
    ```

    The model of the target (`passes/planning/model.py`) enumerates candidates, predicts the time of each, and the
    fastest is taken. Sources of a schedule, the first that exists: the text of the program, the options, the record,
    the model. Every schedule is checked. `docs/schedules.md` explains all fields.

    **Rationale**: all decisions are in one place and in the text. Later passes only carry them out.

    **Pipeline position**: on final nests, when reductions are grouped. Every later pass needs a schedule.

    **Options**:

    - Each field of a schedule (`block`, `chunk`, `warps`, `atom`, …) is an option. It replaces the decision of the
      planner, for the nest named by `nest` (`k0` is the first) or for all nests that it fits. It is an error if it fits
      none.
    - `nest`: the nest that the other options are for.
    - `exact`: the options are the whole schedule; missing fields have their default. With `nest`, other nests are left
      to the next `plan-schedules`.
    - `target`: replaces the target of the module (`#deplodock.target`), which is `sm_90a` by default.
    - `record`: file of schedules (`passes/record_file.py`). A nest without an entry is planned by the model.
    - `f32_matmul_precision`: permits tensor cores to round operands. `input_dtype` permits it for operands that are
      computed in f32, such as the weights of attention.
    - `strategy`: `simple` takes schedules by a rule (`passes/planning/simple.py`), and so does a target without rates.
    - `explain`: emits remarks about the candidates: their times, the parts of these, and the bottleneck.
    - `again`: plans the nests that `loop-split-k` and other passes created. Nothing is divided a second time.
    - `limit_memory`: whether `memory_limit` of `@main` limits the memory between the kernels of a nest. If the fastest
      schedule takes too much, the nest gets a `scratch_limit` in bytes and the fastest schedule within it. Options and
      schedules in the text may take more.
    - `cluster_sums`: whether to consider `cluster_k`. No GPU has confirmed the predicted times of such schedules yet.
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
        unplanned, equal = [nest for nest in free if nest not in planned], EqualNests(len(nests) > 1)
        if simple:
            planned |= {nest: simple_schedule(nest, target.lanes) for nest in unplanned}
        else:
            planned |= self._fastest(nests, unplanned, target, memory, equal)
        if decisions and not self.again and not self.exact:
            changed = self._decide(nests, target, planned, decisions)
            for nest in unplanned if self.blocks_per_sm is None and not simple else ():
                if nest in changed:
                    planned[nest] = with_residency(nest, changed[nest], target)
        for nest in nests.values():
            if nest in planned:
                # Planned schedules are checked already.
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
        """Returns the schedules that the model predicts to be fastest.

        Args:
            nests: name -> nest, of all nests.
            free: nests that need a schedule.
            target: the target.
            memory: returns the memory of the host program; None if memory is not limited.
            equal: cache of candidates.
        """
        ranked = dict[loop.NestOp, list[Candidate]]()
        with steps("scheduling", len(free), "kernels") as step:
            for nest in free:
                ranked[nest] = self._rank(nest, target, memory, equal)
                step()
        chosen = {nest: candidates[0] for nest, candidates in ranked.items()}
        chosen.update(model_class(target).together(ranked, target))
        if self.explain:
            self._explain(nests, ranked, chosen)
        return {nest: fastest(nest, target, candidate).schedule for nest, candidate in chosen.items()}

    def _check_names(self, op: ModuleOp, nests: Mapping[str, loop.NestOp]) -> None:
        """Raises ScheduleError if the program has no nest, or none with the name in the option `nest`."""
        if not nests and not self.again:
            raise ScheduleError("the program has no loop.nest to schedule", operator=NAME, location=location_text(op))
        if self.nest is not None and self.nest not in nests:
            reason, place = f"there is no {self.nest}, of {len(nests)} nests", location_text(next(iter(nests.values())))
            raise ScheduleError(reason, operator=NAME, argument="nest", location=place)

    def _rank(
        self, nest: loop.NestOp, target: Target, memory: Callable[[], HostMemory] | None, equal: EqualNests
    ) -> list[Candidate]:
        """Returns the ranked candidates of a nest.

        If the fastest one takes too much memory, the nest gets a `scratch_limit`, and is ranked again.
        """

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
        """Returns the schedules of `nests` that are in the record at `path`.

        A schedule that does not fit its nest is ignored, and a remark gives the reason.
        """
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
        """Writes the schedule in the options (`exact`) on the nest that they name, or on all nests that it fits."""
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
        """Changes planned schedules by the decisions of the options.

        Args:
            nests: name -> nest, of all nests.
            target: the target.
            planned: nest -> schedule; updated.
            decisions: decisions of the options.

        Returns:
            The schedules that were changed.

        Raises:
            ScheduleError: if the decisions fit no nest, or not the nest that the options name.
        """
        changed, refused = dict[loop.NestOp, ScheduleAttr](), list[ScheduleError]()
        for name, nest in nests.items():
            if nest not in planned or self.nest not in (None, name):
                continue
            if not self.exact:
                # Options may take more memory than the limit.
                nest.attributes.pop(SCRATCH_LIMIT, None)
            try:
                changed[nest] = decided(nest, planned[nest], decisions, target)
            except ScheduleError as error:
                if self.nest is not None:
                    raise
                refused.append(error)
                emit_remark(nest, NAME, f"the options do not fit {name}: {_reason(error)}")
        # Options that fit no nest are a mistake of the user.
        if refused and len(refused) == len(planned):
            raise refused[0]
        planned.update(changed)
        return changed

    def _explain(
        self,
        nests: Mapping[str, loop.NestOp],
        ranked: Mapping[loop.NestOp, Sequence[Candidate]],
        chosen: Mapping[loop.NestOp, Candidate],
    ) -> None:
        """Emits remarks about the best candidates of each nest."""
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
    """Returns a schedule with the decision `blocks_per_sm` that its prediction assumes.

    Args:
        nest: the nest.
        schedule: its schedule.
        target: the target.
    """
    model = model_of(NestInfo(nest), target)
    return model.with_residency(schedule, model.predict(schedule))


def decided(nest: loop.NestOp, schedule: ScheduleAttr, decisions: Mapping[str, Any], target: Target) -> ScheduleAttr:
    """Returns `schedule` with some decisions replaced. Decisions that depend on a replaced one get their default.

    For example, a synchronous copy has one stage, tensor cores have no register tile, and new tiles have no serial
    indices and no grid swizzle.

    Args:
        nest: the nest.
        schedule: its schedule.
        decisions: name of a field -> new value.
        target: the target.

    Raises:
        ScheduleError: if the result cannot be carried out.
    """
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
    """Returns `schedule` unchanged, after checking it for `nest`.

    Args:
        nest: the nest.
        schedule: the schedule.
        target: the target.

    Raises:
        ScheduleError: if the schedule cannot be carried out.
    """
    nest.attributes["schedule"] = schedule
    try:
        check_schedule(nest, target)
    finally:
        del nest.attributes["schedule"]
    return schedule


def plan(nest: loop.NestOp, target: Target, precision: str = "ieee") -> ScheduleAttr:
    """Returns the schedule of a nest that the model predicts to be fastest.

    Args:
        nest: the nest.
        target: the target.
        precision: the option `f32_matmul_precision`.

    Raises:
        ScheduleError: if no schedule can be carried out.
    """
    return fastest(nest, target, rank(NestInfo(nest), target, precision)[0]).schedule


def fastest(nest: loop.NestOp, target: Target, candidate: Candidate) -> Candidate:
    """Returns `candidate` unchanged, after checking that it can be carried out.

    Args:
        nest: the nest.
        target: the target.
        candidate: the candidate of the nest with the lowest predicted time.

    Raises:
        ScheduleError: if it was refused, as all others were.
    """
    if candidate.prediction is None:
        reason = f"no schedule can be carried out on {target.name}: {candidate.refused}"
        raise ScheduleError(reason, operator=nest.name, location=location_text(nest))
    return candidate


def check_schedule(nest: loop.NestOp, target: Target) -> None:
    """Raises ScheduleError, with the reason, if the schedule of `nest` cannot be carried out."""
    with blamed(nest):
        model_of(NestInfo(nest), target).check(schedule_of(nest))
