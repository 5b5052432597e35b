"""From tensors to loop nests: every materialised value becomes one nest."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects import tensor
from ...dialects.support.calls import Call
from ..rewriting import erase, insert_before
from ..tensor.fusion.candidates import materialized
from ..tensor.fusion.graph import Graph, make_nest
from ..tensor.fusion.inline import Pull, deep_recursion


@dataclass(frozen=True)
class ConvertTensorToLoopPass(ModulePass):
    """Makes one `loop.nest` of each materialised value.

    What: the materialised values are the results of the function and what is marked `fuse.root`. The nest of a value
    is its definition, pulled in at the nest's indices until other materialised values or arguments are reached: views
    become the maps and domains of loads, reductions nested `loop.reduce`s, everything else the payload on scalars.
    Each value is computed once, in the outermost body that knows its indices. Result values that are arguments, or
    the same as an earlier result, become nests that copy. Calls stay, and get what the nests compute; so do scatters,
    whose values and indices are results of one nest. Mechanical: what to fuse was decided before.
    Why here: after tensor-plan-fusion, before anything that looks at loops.

    ```mlir
    %b = tensor.index_map %bias[d1] : tensor<64xf32> -> tensor<16x64xf32>
    %s = arith.addf %x, %b : tensor<16x64xf32>
    %r = tensor.reduce add %s over [1] : tensor<16x64xf32> -> tensor<16xf32>
    ```
    becomes
    ```mlir
    %r = loop.nest (%i) in [16] -> tensor<16xf32> {
      %0 = loop.reduce add (%k) in [64] -> f32 {
        %1 = loop.load %x[%i, %k] : tensor<16x64xf32>
        %2 = loop.load %bias[%k] : tensor<64xf32>
        %3 = arith.addf %1, %2 : f32
        loop.yield %3 : f32
      }
      loop.yield %0 : f32
    }
    ```
    """

    name = "convert-tensor-to-loop"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    lower_function(function)


def lower_function(function: func.FuncOp) -> None:
    """Replaces the tensor-level body of `function` by nests."""
    end = function.body.block.last_op
    assert isinstance(end, func.ReturnOp)
    roots, nests = materialized(function), dict[SSAValue, SSAValue]()
    old = [op for op in function.body.block.ops if op is not end]
    pull = Pull(Graph(), dict.fromkeys(roots, 0))
    for op in old:
        if isinstance(op, tensor.ScatterOp):
            _place_scatter(op, pull, nests)
        for result in op.results:
            if result in roots:
                nests[result] = _place_nest(op, pull, result, nests)
    for position, value in enumerate(end.operands):
        result = value if isinstance(value.owner, Call) else nests.get(value)
        if isinstance(value.type, TensorType) and (result is None or result in end.operands[:position]):
            result = _place_nest(end, pull, result or value, nests)
        end.operands[position] = result or value
    for op in reversed(old):
        if isinstance(op, Call):
            op.operands = [nests.get(operand, operand) for operand in op.operands]
        elif not any(result.uses for result in op.results):
            erase(op)


def _place_scatter(op: tensor.ScatterOp, pull: Pull, nests: dict[SSAValue, SSAValue]) -> None:
    """Inserts a nest before `op` that computes its values and indices, and another one for its initial tensor."""
    computed = [op.values, *op.indices]
    at, variables = pull.element(op.values.type)
    nest = make_nest(pull.graph, [pull.value(v, at, ()) for v in computed], variables, nests)
    insert_before(op, nest)
    if op.init not in nests:
        op.operands[0] = _place_nest(op, pull, op.init, nests)
    for i, result in enumerate(nest.res):
        op.operands[1 + i] = result
        result.name_hint = computed[i].name_hint


def _place_nest(anchor: Operation, pull: Pull, value: SSAValue, nests: dict[SSAValue, SSAValue]) -> SSAValue:
    """Inserts the nest of the tensor `value` before `anchor`, and returns its result. Loads of a value in `nests` read
    what it maps to."""
    root, variables = pull.root(value)
    nest = make_nest(pull.graph, [root], variables, nests)
    nest.res[0].name_hint = value.name_hint
    insert_before(anchor, nest, source=value.owner if isinstance(value.owner, Operation) else None)
    return nest.res[0]
