"""Fusion plans that differ from the planner's in one `fuse.root`: one value more, or one less, is materialised.

Another plan has other nests. Each nest is a task with its space of schedules (`space.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects.loop import NestOp
from ...dialects.loop.work import nest_work, operand_bytes
from ...dialects.payload import tensor_bytes
from ...dialects.support.calls import Call, main_function
from ...dialects.support.locations import line_text, location_text, operator_text
from ...dialects.support.printing import quantity, value_names
from ...errors import CompileError
from ...passes.convert.tensor_to_loop import lower_function
from ...passes.pass_manager import run_passes
from ...passes.pipelines import with_options
from ...passes.records import plan_key, roots_of
from ...passes.tensor.fusion.candidates import candidates, materialized, required_values
from ...passes.tensor.fusion.inline import deep_recursion
from ...passes.tensor.plan_fusion import PlanFusionPass
from ...progress import counted
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
    def launches(self) -> int:
        """Number of launches of a call."""
        return sum(task.launches for task in self.tasks)


@dataclass(frozen=True)
class FusedKernel:
    """Nest that fusion makes of one materialised tensor, before later passes fuse nests with each other.

    Attributes:
        root: printed name of the tensor that the nest stores, as in the text of the tensor level. Empty for a nest that
            copies an argument to a result.
        operation: name of the operation that defines the tensor, such as `math.exp2`.
        operator: operator of the source that the operation is a part of, such as `torch.softmax.int`, or None.
        location: source line, or None.
        computed: names of the other tensors that the nest computes, in program order.
        written: bytes that the nest writes.
        reads: name of each tensor that the nest loads -> bytes.
    """

    root: str
    operation: str
    operator: str | None
    location: str | None
    computed: tuple[str, ...]
    written: int
    reads: dict[str, int]


@dataclass(frozen=True)
class FusionCut:
    """Tensor that a fusion plan may materialise, with the predicted cost of the opposite decision.

    Attributes:
        name: printed name of the tensor, as in the text of the tensor level; it is the same in each compilation.
        position: position of the operation in `@main`.
        operation: name of the operation that defines the tensor, such as `math.exp2`.
        operator: operator of the source that the operation is a part of, such as `torch.softmax.int`, or None.
        location: source line, or None.
        materialized: whether the plan materialises the tensor.
        required: whether every legal plan materialises the tensor.
        written: bytes that the kernel of the tensor writes, if it is materialised.
        read: bytes of the tensor that other kernels read, if it is materialised; None if it was not priced.
        readers: number of these kernels.
        seconds: predicted seconds of the plan with the opposite decision, or None if there is none.
        launches: number of launches of a call with that plan.
        refusal: reason why there is no such plan, or an empty text.
        schedule: argument of `--schedule` for that plan.
    """

    name: str
    position: int
    operation: str
    operator: str | None
    location: str | None
    materialized: bool
    required: bool
    written: int
    read: int | None = None
    readers: int = 0
    seconds: float | None = None
    launches: int = 0
    refusal: str = ""
    schedule: str = ""


@dataclass(frozen=True)
class FusionPrices:
    """Fusion plan of a program, and the predicted cost of every plan that differs from it in one tensor.

    Attributes:
        seconds: predicted seconds of all launches with the plan.
        schedule: argument of `--schedule` for the plan.
        launches: number of launches of a call, after later passes have fused nests with each other.
        kernels: kernels of the plan in program order, one for each materialised tensor.
        functions: name of a function that `@main` calls -> its kernels.
        cuts: tensors that a plan may materialise, except results of the program, in program order.
    """

    seconds: float
    schedule: str
    launches: int
    kernels: tuple[FusedKernel, ...]
    functions: dict[str, tuple[FusedKernel, ...]]
    cuts: tuple[FusionCut, ...]


def fusions(compilation: Compilation) -> Iterator[Fusion]:
    """Yields the planner's plan, then every legal plan with one value more or less in memory.

    Plans whose program cannot be lowered to nests are skipped. A pipeline without `tensor-plan-fusion` has no plans.
    """
    space = _Space.of(compilation)
    if space is None:
        return
    yield space.chosen()
    for position in space.choices:
        try:
            yield space.opposite(position)
        except CompileError:
            continue


def fusion_prices(compilation: Compilation, most: int | None = None, partly: bool = False) -> FusionPrices | None:
    """Returns the fusion plan of a program with the price of each cut.

    Each price is the predicted time of a plan that differs in one tensor. So one price takes about as long as the
    lowering of the program to nests.

    Args:
        compilation: the program. Its options may set the plan (`schedule="roots=%3"`).
        most: largest number of tensors that are priced, or None. If there are more, no tensor is priced.
        partly: whether materialised tensors are priced even then.

    Returns:
        None for a pipeline without `tensor-plan-fusion`, or if no tensor may be materialised.

    Raises:
        ScheduleError: a nest of the chosen plan has no schedule.
    """
    space = _Space.of(compilation)
    if space is None or not space.choices and not space.required:
        return None
    times, chosen = dict[str, float](), space.chosen()
    kernels, base = fused_kernels(space.planned), _predict(chosen, times)
    cuts = {i: space.cut(i, kernels) for i in sorted((*space.required, *space.choices))}
    priced = [*space.choices]
    if most is not None and len(priced) > most:
        reason = f"not priced, because more than {most} values may be materialised"
        cuts |= {i: replace(cuts[i], refusal=reason) for i in priced}
        priced = [i for i in priced if partly and cuts[i].materialized]
    for i in counted("pricing fusion", priced, "values"):
        cuts[i] = _priced(space, replace(cuts[i], refusal=""), times)
    called = {name: fused_kernels(space.planned, name) for name in _functions(space.planned)}
    called.pop(main_function(space.planned).sym_name.data)
    return FusionPrices(base, space.schedule(chosen.roots), chosen.launches, kernels, called, tuple(cuts.values()))


def _priced(space: _Space, cut: FusionCut, times: dict[str, float]) -> FusionCut:
    """Returns a cut with the predicted time of the opposite decision. `times`: key of a nest -> predicted seconds."""
    roots = space.roots_without(cut.position)
    cut = replace(cut, schedule=space.schedule(roots))
    try:
        marked = space.marked(roots)
        if not cut.materialized:
            cut = replace(cut, **_reads(cut.name, fused_kernels(marked)))
        plan = space.opposite(cut.position, marked)
        return replace(cut, seconds=_predict(plan, times), launches=plan.launches)
    except CompileError as error:
        return replace(cut, refusal=error.reason, schedule="")


def _predict(plan: Fusion, times: dict[str, float]) -> float:
    """Returns the predicted seconds of a plan. Adds the seconds of new nests to `times`."""
    for task in plan.tasks:
        if task.key not in times:
            times[task.key] = task.expected
    return plan.seconds(times)


def _reads(name: str, kernels: Sequence[FusedKernel]) -> dict[str, Any]:
    """Returns the number of kernels that load the tensor `name`, and the bytes that they read of it."""
    read = [k.reads[name] for k in kernels if name in k.reads]
    return {"read": sum(read), "readers": len(read)}


@dataclass(frozen=True)
class _Space:
    """Fusion plans of a program that differ from the chosen one in one tensor.

    Attributes:
        compilation: the program.
        below: passes from the tensor to the loop level.
        planner: position of `tensor-plan-fusion` in `below`.
        planned: the program after that pass.
        names: operation of `@main` in `planned` -> printed name of its first result.
        choices: position in `@main` -> operation whose result may be materialised or not.
        required: the same for results that are materialised in every plan, except results of the program.
    """

    compilation: Compilation
    below: tuple[ModulePass, ...]
    planner: int
    planned: ModuleOp
    names: dict[Operation, str]
    choices: dict[int, Operation]
    required: dict[int, Operation]

    @staticmethod
    def of(compilation: Compilation) -> _Space | None:
        """Returns the plans of a program, or None if its pipeline has no `tensor-plan-fusion`."""
        tensors = compilation.at("tensor")
        below = compilation.passes_to("loop")[len(compilation.passes_to("tensor")) :]
        planner = next((i for i, p in enumerate(below) if isinstance(p, PlanFusionPass)), None)
        if planner is None:
            return None
        planned = tensors.clone()
        run_passes(compilation.ctx, planned, below[: planner + 1], verify=False)
        main = main_function(planned)
        names = dict[Operation, str]()
        for name, value in value_names(main).items():
            if isinstance(value.owner, Operation):
                names.setdefault(value.owner, name)
        returned = {*(main.body.block.last_op or main).operands}
        required = {v.owner for v in required_values(main)}
        worth = {v.owner for v in candidates(main)} - {v.owner for v in returned}
        ops = {i: op for i, op in enumerate(main.body.block.ops) if op in worth}
        choices = {i: op for i, op in ops.items() if op not in required}
        others = {i: op for i, op in ops.items() if op in required}
        return _Space(compilation, below, planner, planned, names, choices, others)

    @property
    def roots(self) -> tuple[int, ...]:
        """Positions of the operations whose results the chosen plan materialises."""
        return tuple(roots_of(main_function(self.planned)))

    @property
    def key(self) -> str:
        """Key of the program in records."""
        return f"{self.compilation.target}:{plan_key(main_function(self.planned))}"

    def roots_without(self, position: int) -> tuple[int, ...]:
        """Returns the roots of the plan with the opposite decision about the operation at `position`."""
        return tuple(sorted({*self.roots} ^ {position}))

    def schedule(self, roots: Sequence[int]) -> str:
        """Returns the argument of `--schedule` for a plan, with the printed names of its roots."""
        ops = [*main_function(self.planned).body.block.ops]
        return "roots=" + ",".join(self.names[ops[i]] for i in roots)

    def marked(self, roots: Sequence[int]) -> ModuleOp:
        """Returns the program after `tensor-plan-fusion` with another plan."""
        module = self.compilation.at("tensor").clone()
        run_passes(self.compilation.ctx, module, self._passes(roots)[: self.planner + 1])
        return module

    def _passes(self, roots: Sequence[int]) -> tuple[ModulePass, ...]:
        return with_options(self.below, ((PlanFusionPass.name, "roots", _positions(roots)),))

    def chosen(self) -> Fusion:
        """Returns the chosen plan."""
        return Fusion("", self.key, self.roots, tasks_of(self.compilation))

    def opposite(self, position: int, marked: ModuleOp | None = None) -> Fusion:
        """Returns the plan with the opposite decision about the operation at `position`.

        Args:
            position: position of the operation.
            marked: the program with this plan, if it exists already; it is lowered in place.

        Raises:
            CompileError: the program cannot be lowered with this plan.
        """
        roots = self.roots_without(position)
        module = marked or self.marked(roots)
        run_passes(self.compilation.ctx, module, self.below[self.planner + 1 :])
        change = _description(self.choices[position], materialized=position in roots)
        tasks = tasks_of(self.compilation, module)
        return Fusion(change, self.key, roots, [replace(t, fusion=(_positions(roots), change)) for t in tasks])

    def cut(self, position: int, kernels: Sequence[FusedKernel]) -> FusionCut:
        """Returns the cut at an operation without a price. `kernels`: kernels of the chosen plan."""
        required = position in self.required
        op = self.required[position] if required else self.choices[position]
        materialized, name = required or position in self.roots, self.names[op]
        size = sum(tensor_bytes(v.type) for v in op.results)
        cut = FusionCut(name, position, *_origin(op), materialized, required, size)
        return replace(cut, **_reads(name, kernels)) if materialized else cut


def _origin(op: Operation) -> tuple[str, str | None, str | None]:
    """Returns the name of an operation, the operator of the source that it is a part of, and the source line."""
    return op.name, operator_text(op.location), line_text(op.location)


def _positions(roots: Sequence[int]) -> str:
    return ",".join(map(str, roots))


def _functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Returns the functions of a module that have a body, by name."""
    return {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration}


def fused_kernels(planned: ModuleOp, function: str | None = None) -> tuple[FusedKernel, ...]:
    """Returns the kernels of a function in program order.

    Args:
        planned: the program at the tensor level with a fusion plan.
        function: name of the function, or None for `@main`.
    """
    copy = planned.clone()
    main = main_function(copy) if function is None else _functions(copy)[function]
    names, fused = {value: name for name, value in value_names(main).items()}, materialized(main)
    sites = {v: _origin(v.owner) for v in names if isinstance(v.owner, Operation)}
    order = {value: i for i, value in enumerate(names)}
    inner = {root: sorted(_computed(root, fused), key=lambda v: order[v]) for root in fused}
    with deep_recursion():
        stored = lower_function(main)
    root_of = {result: tensor for tensor, result in stored.items()}
    kernels = list[FusedKernel]()
    for nest in main.walk():
        if not isinstance(nest, NestOp):
            continue
        root = root_of.get(nest.res[0])
        if root is None:  # The nest computes operands of a scatter or copies a tensor, and is named after its user.
            root = next((r for use in nest.res[0].uses for r in use.operation.results if r in names), None)
        work, operands = nest_work(nest), operand_bytes(nest)
        reads = {names[root_of.get(v, v)]: size for v, size in operands.items()}
        if root is None:
            kernels.append(FusedKernel("", "func.return", None, None, (), work.written, reads))
        else:
            computed = tuple(names[v] for v in inner.get(root, ()))
            kernels.append(FusedKernel(names[root], *sites[root], computed, work.written, reads))
    return tuple(kernels)


def _computed(root: SSAValue, fused: Container[SSAValue]) -> set[SSAValue]:
    """Returns the tensors that the kernel of `root` computes in addition. `fused`: the materialised tensors."""
    values, todo = set[SSAValue](), [root]
    while todo:
        owner = todo.pop().owner
        for v in owner.operands if isinstance(owner, Operation) else ():
            if v not in values and v not in fused and not isinstance(v.owner, Call | Block):
                values.add(v)
                todo.append(v)
    return values


def fusion_head(prices: FusionPrices) -> str:
    """Returns the number of kernels of a plan and its predicted time as text."""
    return f"fusion: {quantity(prices.launches, 'kernel')}, {prices.seconds * 1e6:.2f} us predicted"


def explain_fusion(compilation: Compilation, most: int = 24) -> str:
    """Returns the values of a program that may be materialised, as text, or "" if there are none.

    For each value the text has the predicted cost of the opposite decision, and the argument of `--schedule` that
    makes it.

    Args:
        compilation: the program.
        most: largest number of values that are priced.
    """
    prices = fusion_prices(compilation, most)
    choices = [] if prices is None else [cut for cut in prices.cuts if not cut.required]
    if prices is None or not choices:
        return ""
    if len(choices) > most:
        return f"fusion: {len(choices)} values may be materialised; not priced, because there are more than {most}\n"
    lines = [f"{fusion_head(prices)}; names as in --ir tensor"]
    for cut in choices:
        if cut.seconds is not None:
            state = "is materialised" if cut.materialized else "is recomputed by its users"
            price = (cut.seconds - prices.seconds) * 1e6
            about = f"{cut.name} ({cut.operation}, {quantity(cut.written, 'byte')}) {state}"
            lines.append(f"  {about}; the other way {price:+.2f} us: --schedule '{cut.schedule}'")
    return "".join(f"{line}\n" for line in lines) if len(lines) > 1 else ""


def _description(op: Operation, materialized: bool) -> str:
    """Returns the decision about the result of an operation, as text."""
    place, name = location_text(op), op.results[0].name_hint
    where = (f"%{name} of " if name else "") + op.name + (f" ({place})" if place else "")
    return f"{where} is materialised" if materialized else f"{where} is recomputed by its users"
