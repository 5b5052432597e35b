"""Fusing less, or more: plans of fusion that differ from the planner's in one `fuse.root`, and a program's time then.

Another plan gives other nests, each with a space of its own (`space.py`). The time of a program is the sum of the best
known times of its kernels: what was measured, or the model's prediction where nothing was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects.loop import NestOp
from ...dialects.support.locations import location_text
from ...dialects.support.parsing import make_context
from ...dialects.target import Target
from ...dialects.tensor import ROOT
from ...errors import CompileError
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes
from ...passes.planning.choose import rank
from ...passes.planning.nest_info import NestInfo
from ...passes.records import plan_key
from ...passes.tensor.plan_fusion import candidates

PLAN = "tensor-plan-fusion"


@dataclass(frozen=True)
class Fusion:
    """A plan of fusion: what is different from the planner's (empty for its own), as positions of operations by
    function for records, with the program at the loop level and its seconds."""

    change: str
    kept: dict[str, list[int]]
    module: ModuleOp
    seconds: float


def fusions(
    tensors: ModuleOp, target: Target, precision: str = "ieee", known: Callable[[str], float | None] = lambda key: None
) -> Iterator[Fusion]:
    """The planner's plan of a program at the tensor level, and every legal one with one value more or one less in
    memory. `known` has the best measured seconds of a nest by its key. A plan whose program cannot be lowered to
    nests, or with a nest that has no schedule, is left out."""
    planned = tensors.clone()
    run_passes(make_context(), planned, parse_passes(PLAN), verify=False)
    seen: dict[str, float] = {}

    def seconds(nest: NestOp) -> float:
        key = plan_key(nest)
        if key not in seen:
            measured = known(key)
            seen[key] = _predicted(nest, target, precision) if measured is None else measured
        return seen[key]

    for number in (None, *range(_changes(planned))):
        module = planned.clone()
        change = "" if number is None else _change(module, number)
        kept = {f.sym_name.data: _kept(f) for f in _functions(module)}
        try:
            run_passes(make_context(), module, parse_passes("tensor-to-loop", {"strategy": ("keep",)}))
            total = sum(seconds(op) for op in module.walk() if isinstance(op, NestOp))
        except CompileError:
            continue
        yield Fusion(change, kept, module, total)


def _predicted(nest: NestOp, target: Target, precision: str) -> float:
    """What the model expects of the planner's pick. Raises CompileError where there is none."""
    first = rank(NestInfo(nest), target, precision)[0]
    if first.prediction is None:
        raise CompileError(f"no schedule can be carried out on {target.name}: {first.refused}", operator=nest.name)
    return float(first.prediction.seconds)


def _kept(function: FuncOp) -> list[int]:
    return [i for i, op in enumerate(function.body.block.ops) if ROOT in op.attributes]


def _functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.body.block.ops if isinstance(op, FuncOp) and not op.is_declaration]


def _worth(module: ModuleOp) -> list[Operation]:
    """The operations whose results may be kept or not: all candidates that are not returned."""
    found: dict[Operation, None] = {}
    for function in _functions(module):
        returned = {*(function.body.block.last_op or function).operands}
        values = [v for v in candidates(function) if v not in returned]
        found.update((v.owner, None) for v in values if isinstance(v.owner, Operation))
    return [*found]


def _changes(module: ModuleOp) -> int:
    """How many plans there are beside this one."""
    return len(_worth(module))


def _change(module: ModuleOp, number: int) -> str:
    """Keep what is not kept, or the reverse; returns that in words."""
    op = _worth(module)[number]
    name = op.results[0].name_hint or f"result {number}"
    place = location_text(op)
    where = f"%{name} of {op.name}" + (f" ({place})" if place else "")
    if ROOT in op.attributes:
        del op.attributes[ROOT]
        return f"{where} is computed where it is used"
    op.attributes[ROOT] = UnitAttr()
    return f"{where} is kept in memory"
