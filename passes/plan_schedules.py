"""Deciding how every nest runs: `plan-schedules`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from ..backend.targets import Target, get_target
from ..dialects import loop
from ..dialects.locations import location_text
from ..dialects.schedule import NARROWS, ScheduleAttr
from ..errors import ScheduleError
from .planning.copies import plan_copies
from .planning.facts import Facts
from .planning.matrices import plan_matrix_products
from .planning.parts import choose_parts, with_parts
from .planning.products import find_products, plan_products
from .planning.rows import plan_elementwise, plan_rows
from .split_reductions import find_split
from .tiling.kernels import schedule_of

LARGEST_TILE = 1 << 18
"""Elements of a tile; more than the registers of a multiprocessor could hold several times over."""


MOST_STAGES = 8
"""Stages of a pipeline of copies: more groups than these are not told apart."""


@dataclass(frozen=True)
class PlanSchedulesPass(ModulePass):
    """Give every nest that has none a schedule.

    What: writes `schedule = #tile.schedule<...>` on each nest: the tile of every free index, the chunk of every
    reduction index, warps, the register tile of matrix products and how far ahead their factors are copied. There are
    three families: matrix products (tiles of the result, operands in chunks; on tensor cores where both factors were
    bf16 or f16), rows (reductions, as many elements of a row in registers as fit) and elementwise work (vectors of 16
    bytes). A schedule that is already there is checked and kept: it is the user's.
    `narrow = operands` permits it to round factors computed in f32 (the weights of attention) for tensor cores.
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

    target: str = "sm_90a"
    narrow: str = "never"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = get_target(self.target)
        if self.narrow not in NARROWS:
            raise ScheduleError(f"{self.narrow} is none of {', '.join(NARROWS)}", argument="narrow")
        for nest in op.walk():
            if isinstance(nest, loop.NestOp):
                if "schedule" not in nest.attributes:
                    nest.attributes["schedule"] = plan(nest, target, self.narrow)
                check_schedule(nest, target)


def plan(nest: loop.NestOp, target: Target, narrow: str = "never") -> ScheduleAttr:
    """A schedule for `nest` on `target`; `narrow` is the permission that it records for tensor cores."""
    facts = Facts(nest)
    products = find_products(facts)
    if products:
        schedule = plan_matrix_products(facts, target, products, narrow) or plan_products(facts, target, products)
    elif facts.reductions:
        schedule = plan_rows(facts, target)
    else:
        schedule = plan_elementwise(facts, target)
    parts = choose_parts(facts, schedule, target)
    schedule = with_parts(schedule, parts) if parts > 1 else schedule
    return plan_copies(facts, schedule, target, products)


def check_schedule(nest: loop.NestOp, target: Target) -> None:
    """Raise ScheduleError, saying why, if the schedule of `nest` cannot be carried out."""
    try:
        schedule = schedule_of(nest)
        _check(nest, schedule, target)
    except ScheduleError as error:
        error.operator = error.operator or nest.name
        error.location = error.location or location_text(nest)
        raise


def _check(nest: loop.NestOp, schedule: ScheduleAttr, target: Target) -> None:
    facts = Facts(nest)
    tile = dict(zip(facts.free, (b.data for b in schedule.block), strict=True))
    indices = [i for r in facts.reductions for i in r.indices]
    tile.update(zip(indices, (c.data for c in schedule.chunk), strict=True))
    for group in facts.groups:
        chunks = {tuple(tile[a] for a in op.body.block.args) for op in group}
        if len(chunks) > 1:
            raise ScheduleError("the stages of a staged reduction need equal chunks", argument="chunk")
    if len({s.data for s in schedule.serial}) != len(schedule.serial):
        raise ScheduleError("an index is listed twice", argument="serial")
    largest = _elements(tile, facts.free)
    for r in facts.reductions:
        if r.contraction is None:
            largest = max(largest, _elements(tile, r.around | set(r.indices)))
    if largest > LARGEST_TILE:
        raise ScheduleError(f"a tile of {largest} elements; at most {LARGEST_TILE} are possible", argument="block")
    if len(schedule.thread) not in (0, 2):
        raise ScheduleError("a register tile has rows and columns", argument="thread")
    if schedule.split_k.data > 1:
        find_split(nest, schedule.split_k.data)
    for atom in {"mma", "wgmma"} & {schedule.atom.data}:
        if not target.has(atom):
            raise ScheduleError(f"{target.name} has no {atom}", argument="atom")
    _check_copies(schedule, target)


def _check_copies(schedule: ScheduleAttr, target: Target) -> None:
    copy, stages = schedule.copy.data, schedule.stages.data
    if copy != "plain" and not target.has(copy):
        raise ScheduleError(f"{target.name} has no {copy}", argument="copy")
    if copy == "tma":
        raise ScheduleError("no pass carries out copies by TMA", argument="copy")
    if copy == "plain" and stages > 1:
        raise ScheduleError("plain copies do not run ahead: several stages need cp_async", argument="stages")
    if stages > MOST_STAGES:
        raise ScheduleError(f"{stages} stages; at most {MOST_STAGES} are possible", argument="stages")


def _elements(tile: dict[SSAValue, int], indices: Iterable[SSAValue]) -> int:
    return prod(tile[i] for i in indices)
