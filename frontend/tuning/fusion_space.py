"""Fusing less, or more: plans of fusion that differ from the planner's in one `fuse.root`.

Another plan gives other nests, each a task with a space of its own (`space.py`).
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
    """A plan of fusion of a program.

    change  what is different from the planner's, for people; empty for its own
    key     what the program is called in records
    roots   positions of the operations whose results are kept in memory
    tasks   the nests that the program then has
    """

    change: str
    key: str
    roots: tuple[int, ...]
    tasks: list[Task]

    def seconds(self, times: Mapping[str, float]) -> float:
        """What all launches take together, by the times of nests by their keys."""
        return sum(task.launches * times[task.key] for task in self.tasks)

    @property
    def expected(self) -> float:
        """Seconds that the model predicts for all launches together."""
        return self.seconds({task.key: task.expected for task in self.tasks})


def fusions(compilation: Compilation) -> Iterator[Fusion]:
    """The planner's plan of a program, and every legal one with one value more or one less in memory. A plan whose
    program cannot be lowered to nests is left out; there is none where the pipeline does not plan."""
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
        change = _told(op, kept=position in changed)
        yield Fusion(change, key, tuple(changed), [replace(t, fusion=(text, change)) for t in tasks])


def explain_fusion(compilation: Compilation, most: int = 24) -> str:
    """Returns which values of a program may be kept in memory, as text: for each the price of the plan that differs in
    it from the planner's, and that plan as `--schedule` takes it. Empty where there is nothing to choose. With more
    than `most` values none are priced."""
    main = main_function(compilation.at("tensor"))
    names = {value.owner: name for name, value in value_names(main).items()}
    choices = {i: op for i, op in _choices(main)}
    if not choices:
        return ""
    if len(choices) > most:
        return f"fusion: {len(choices)} values may be kept in memory; not priced, as they are more than {most}\n"
    plans = list(fusions(compilation))
    ops = [*main.body.block.ops]
    lines: list[str] = []
    base = plans[0].expected if plans else 0.0
    for plan in plans[1:]:
        (position,) = {*plan.roots} ^ {*plans[0].roots}
        op, kept = choices[position], position not in plan.roots
        size = sum(tensor_bytes(v.type) for v in op.results)
        price = plan.expected - base
        roots = ",".join(names[ops[i]] for i in plan.roots)
        state = "is kept" if kept else "is computed where it is used"
        lines.append(
            f"  {names[op]} ({op.name}, {quantity(size, 'byte')}) {state}; the other way {price * 1e6:+.2f} us:"
            f" --schedule 'roots={roots}'"
        )
    if not lines:
        return ""
    head = f"fusion: {quantity(len(plans[0].tasks), 'kernel')}, {base * 1e6:.2f} us predicted; names as in --ir tensor"
    return "".join(f"{line}\n" for line in (head, *lines))


def _choices(function: FuncOp) -> Iterator[tuple[int, Operation]]:
    """The operations whose results may be kept or not, with their positions: all candidates that are not returned."""
    returned = {*(function.body.block.last_op or function).operands}
    worth = {v.owner for v in candidates(function)} - {v.owner for v in returned}
    return ((i, op) for i, op in enumerate(function.body.block.ops) if op in worth)


def _told(op: Operation, kept: bool) -> str:
    """What becomes of the result of an operation."""
    place, name = location_text(op), op.results[0].name_hint
    where = (f"%{name} of " if name else "") + op.name + (f" ({place})" if place else "")
    return f"{where} is kept in memory" if kept else f"{where} is computed where it is used"
