"""Fusion plans that differ from the planner's in one `fuse.root`: one value more, or one less, is materialised.

Another plan has other nests. Each nest is a task with its space of schedules (`space.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects.payload import tensor_bytes
from ...dialects.support.calls import main_function
from ...dialects.support.locations import location_text
from ...dialects.support.printing import quantity, value_names
from ...errors import CompileError
from ...passes.pass_manager import run_passes
from ...passes.pipelines import with_options
from ...passes.records import plan_key, roots_of
from ...passes.tensor.fusion.candidates import candidates
from ...passes.tensor.plan_fusion import PlanFusionPass
from ..compilation import Compilation
from .task import Task, tasks_of


@dataclass(frozen=True)
class Fusion:
    """Fusion plan of a program.

    Attributes:
        change: difference from the planner's plan, as text; empty for the planner's plan.
        key: key of the program in records.
        roots: positions of the operations whose results are materialised.
        tasks: nests of the program with this plan.
    """

    change: str
    key: str
    roots: tuple[int, ...]
    tasks: list[Task]

    def seconds(self, times: Mapping[str, float]) -> float:
        """Returns the seconds of all launches, for the seconds of nests by their keys."""
        return sum(task.launches * times[task.key] for task in self.tasks)

    @property
    def expected(self) -> float:
        """Predicted seconds of all launches."""
        return self.seconds({task.key: task.expected for task in self.tasks})


def fusions(compilation: Compilation) -> Iterator[Fusion]:
    """Yields the planner's plan, then every legal plan with one value more or less in memory.

    Plans whose program cannot be lowered to nests are skipped. A pipeline without `tensor-plan-fusion` has no plans.
    """
    tensors = compilation.at("tensor")
    below = compilation.passes_to("loop")[len(compilation.passes_to("tensor")) :]
    planner = next((i for i, p in enumerate(below) if isinstance(p, PlanFusionPass)), None)
    if planner is None:
        return
    planned = tensors.clone()
    run_passes(compilation.ctx, planned, below[: planner + 1], verify=False)
    main = main_function(planned)
    key, roots = f"{compilation.target}:{plan_key(main)}", roots_of(main)
    yield Fusion("", key, tuple(roots), tasks_of(compilation))
    for position, op in _choices(main):
        changed = sorted({*roots} ^ {position})
        text = ",".join(map(str, changed))
        module = tensors.clone()
        try:
            run_passes(compilation.ctx, module, with_options(below, ((PlanFusionPass.name, "roots", text),)))
            tasks = tasks_of(compilation, module)
        except CompileError:
            continue
        change = _description(op, materialized=position in changed)
        yield Fusion(change, key, tuple(changed), [replace(t, fusion=(text, change)) for t in tasks])


def explain_fusion(compilation: Compilation, most: int = 24) -> str:
    """Returns the values of a program that may be materialised, as text, or "" if there are none.

    For each value the text has the predicted cost of the opposite decision, and the argument of `--schedule` that
    makes it.

    Args:
        compilation: the program.
        most: largest number of values that are priced.
    """
    main = main_function(compilation.at("tensor"))
    names = {value.owner: name for name, value in value_names(main).items()}
    choices = {i: op for i, op in _choices(main)}
    if not choices:
        return ""
    if len(choices) > most:
        return f"fusion: {len(choices)} values may be materialised; not priced, because there are more than {most}\n"
    plans = list(fusions(compilation))
    ops = [*main.body.block.ops]
    lines: list[str] = []
    base = plans[0].expected if plans else 0.0
    for plan in plans[1:]:
        (position,) = {*plan.roots} ^ {*plans[0].roots}
        op, materialized = choices[position], position not in plan.roots
        size = sum(tensor_bytes(v.type) for v in op.results)
        price = plan.expected - base
        roots = ",".join(names[ops[i]] for i in plan.roots)
        state = "is materialised" if materialized else "is recomputed by its users"
        lines.append(
            f"  {names[op]} ({op.name}, {quantity(size, 'byte')}) {state}; the other way {price * 1e6:+.2f} us:"
            f" --schedule 'roots={roots}'"
        )
    if not lines:
        return ""
    head = f"fusion: {quantity(len(plans[0].tasks), 'kernel')}, {base * 1e6:.2f} us predicted; names as in --ir tensor"
    return "".join(f"{line}\n" for line in (head, *lines))


def _choices(function: FuncOp) -> Iterator[tuple[int, Operation]]:
    """Yields the operations whose results may be materialised or not, with their positions."""
    returned = {*(function.body.block.last_op or function).operands}
    worth = {v.owner for v in candidates(function)} - {v.owner for v in returned}
    return ((i, op) for i, op in enumerate(function.body.block.ops) if op in worth)


def _description(op: Operation, materialized: bool) -> str:
    """Returns the decision about the result of an operation, as text."""
    place, name = location_text(op), op.results[0].name_hint
    where = (f"%{name} of " if name else "") + op.name + (f" ({place})" if place else "")
    return f"{where} is materialised" if materialized else f"{where} is recomputed by its users"
