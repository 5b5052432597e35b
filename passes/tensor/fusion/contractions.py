"""Decides two questions about contractions in a fusion plan: is one repeated, and should an operand be materialised?

1. A contraction inside another reduction may be computed once for each of its iterations. Such a plan is illegal,
   unless later passes run the reductions as one staged reduction, as in attention (`contracts_once`).
2. A contraction that computes an operand itself, such as `norm(x)` in `norm(x) @ w`, computes it again in every block
   along the other operand, and no asynchronous copy can load it. The planning model predicts whether a kernel of its
   own for the operand is faster (`planned_seconds`).

The planning model is used only for kernels with computed operands, because ranking the schedules of one nest takes
about as long as the whole search.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.payload import CastOp, tensor_bytes
from ....dialects.tensor import IndexMapOp, ReduceOp, ReductionKind
from ....target.model import Target
from ...pass_manager import collect_remarks, lacking, words_of
from ...pipelines import parse_passes
from ...planning.choose import rank
from ...planning.nest_info import NestInfo
from .cost import Contraction, Kernel, reached
from .graph import Load, Reduce, make_nest
from .inline import in_memory

MERGING_PASSES = "loop-hoist-reduction-factors,loop-fuse-reductions"
"""Passes that decide which reductions become one staged reduction."""

LOWERING_PASSES = (
    "loop-separate-masks,loop-hoist-reduction-factors,loop-use-fast-math,cse,loop-fuse-reductions,"
    "loop-collapse-dimensions,cse,dce"
)
"""Passes that lower a nest, in a module of its own, to the form that the planning model expects."""


@contextmanager
def lowered(ctx: Context, kernel: Kernel, passes: str) -> Generator[loop.NestOp]:
    """Yields the nest of a kernel after some passes, in a temporary module that is erased afterwards.

    Args:
        ctx: Context of the passes.
        kernel: Kernel of a fusion plan.
        passes: Pipeline text.
    """
    nest = make_nest(kernel.graph, [kernel.root], kernel.variables)
    body = Region(Block([nest, func.ReturnOp(*nest.res)]))
    module = ModuleOp([func.FuncOp("main", ((), [kernel.output]), body)])
    words = words_of(module)
    with collect_remarks():  # They are dropped, because the plan may not be chosen.
        for step in parse_passes(passes):
            if not lacking(getattr(step, "needs", {}), words):
                step.apply(ctx, module)
    yield next(op for op in module.walk() if isinstance(op, loop.NestOp))
    module.erase()


def contracts_once(ctx: Context, kernel: Kernel, nested: Sequence[Contraction]) -> bool:
    """Returns true if no contraction of `kernel` is computed several times.

    A contraction nested in another one is repeated, because the outer one is divided among blocks. The exception is a
    chain: reductions over the same variables, where one uses the result of another. If `loop-fuse-reductions` merges
    the chain into one staged reduction, as in attention, the nested contraction is computed once.

    Args:
        ctx: Context of the passes.
        kernel: Kernel of a fusion plan.
        nested: Contractions of `kernel` that are inside other reductions.
    """
    merging = False
    for c in nested:
        innermost = {
            r for r, enclosing in kernel.reductions if r.bound & c.enclosing and c.enclosing == enclosing | r.bound
        }
        bound = {r.variables for r in innermost}
        outside = {enclosing for r, enclosing in kernel.reductions if r in innermost}
        group = {r for r, enclosing in kernel.reductions if r.variables in bound and enclosing in outside}
        if len(group) > 1 and any(_needs(r, group) for r in group):
            merging = True
        elif any(c.reduce in group for c in kernel.contractions):
            return False
    if not merging:
        return True
    with lowered(ctx, kernel, MERGING_PASSES) as nest:
        return _repeats_no_reduction(nest.body.block)


def _needs(reduce: Reduce, group: set[Reduce]) -> bool:
    """Returns true if the body of `reduce` uses the result of another reduction in `group`."""
    return any(node in group for node in reached(reduce.body, lambda node: node.children))


def _repeats_no_reduction(block: Block) -> bool:
    """Returns true if each body has at most one operation with reductions inside. Two such operations would each repeat
    the inner reductions."""
    holders = 0
    for op in block.ops:
        staged = isinstance(op, loop.StagedReduceOp)
        bodies = [stage.body.block for stage in op.stage_ops] if staged else [region.block for region in op.regions]
        holders += any(isinstance(o, loop.ReduceOp | loop.StagedReduceOp) for body in bodies for o in body.ops)
        if not all(map(_repeats_no_reduction, bodies)):
            return False
    return holders <= 1


def planned_seconds(ctx: Context, kernel: Kernel, target: Target, precision: str) -> float:
    """Returns the predicted seconds of `kernel` with its fastest schedule, or infinity if no schedule is legal.

    Args:
        ctx: Context of the passes.
        kernel: Kernel of a fusion plan.
        target: Target of the module.
        precision: Option `f32_matmul_precision` of `plan-schedules`.
    """
    with lowered(ctx, kernel, LOWERING_PASSES) as nest:
        prediction = rank(NestInfo(nest), target, precision)[0].prediction
        return inf if prediction is None else prediction.seconds


def computed_operands(
    function: func.FuncOp, number: Mapping[SSAValue, int], materialized: Container[int]
) -> dict[int, bool]:
    """Returns the candidates that hold operands of contractions, if the kernels of the contractions compute them.

    If such a candidate is materialised, the contraction loads its operand. Often several candidates hold the same
    operand, such as a tensor and its conversion to bf16: the smallest one is returned. Squared operands, as in the sum
    of squares of a norm, are returned too.

    Args:
        function: Function that is planned.
        number: Candidate -> its number.
        materialized: Numbers of the candidates that the plan materialises.

    Returns:
        Number of a candidate, in program order -> True if it is multiplied by another tensor, False if only by itself.
    """
    values = dict[int, bool]()
    for op in function.body.block.ops:
        if isinstance(op, ReduceOp) and op.kind.data == ReductionKind.ADD:
            product = op.source.owner
            while isinstance(product, IndexMapOp):
                product = product.source.owner
            if isinstance(product, MulfOp):
                for v in (v for operand in product.operands for v in _smallest_form(operand, number, materialized)):
                    values[v] = values.get(v, False) or product.lhs is not product.rhs
    return dict(sorted(values.items()))


def _smallest_form(operand: SSAValue, number: Mapping[SSAValue, int], materialized: Container[int]) -> list[int]:
    """Returns a list with the number of the smallest candidate that holds the elements of `operand`.

    Candidates are `operand` and the sources of its conversions and views; of equally small ones the nearest is taken.
    Returns an empty list if there is none, or if the plan materialises one, so that the operand is loaded already."""
    forms = list[tuple[int, int]]()
    while not in_memory(operand) and (form := number.get(operand, -1)) not in materialized:
        if form >= 0:
            forms.append((tensor_bytes(operand.type), form))
        op = operand.owner
        if not isinstance(op, IndexMapOp | CastOp):
            return [min(forms, key=lambda f: f[0])[1]] if forms else []
        operand = op.operands[0]
    return []


def contracts_flat(kernel: Kernel) -> bool:
    """Returns true if `kernel` has contractions, and none uses the result of another.

    If one uses another, as in attention, the operand of the later one is in registers, and materialising it would not
    help."""
    contractions = {c.reduce for c in kernel.contractions}
    inside = (reached(reduce.body, lambda node: node.children) for reduce in contractions)
    return bool(contractions) and contractions.isdisjoint(node for nodes in inside for node in nodes)


def read_bytes(kernel: Kernel) -> int:
    """Returns the total bytes of the distinct tensors that `kernel` loads from."""
    return sum({node.source: node.tensor_bytes for node, _ in kernel.visited if isinstance(node, Load)}.values())
