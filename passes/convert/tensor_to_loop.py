"""`convert-tensor-to-loop`: lowers each materialised tensor to one loop nest."""

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
    """Lowers each materialised tensor to one `loop.nest`, which also computes the fused operations.

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

    Materialised are the operations marked `fuse.root`, the results of the function, and other required values
    (`required_values` in `fusion/candidates.py`). The nest computes the definition of the tensor at its indices, back
    to other materialised tensors and arguments:

    - views become the maps and domains of loads;
    - reductions become nested `loop.reduce` operations;
    - all other operations become scalar payload, each in the outermost body that has its indices.

    A result that is an argument, or equals an earlier result, becomes a nest that copies. Calls and scatters remain.
    The values and indices of a scatter are computed by one nest.

    **Rationale**: mechanical, because `tensor-plan-fusion` has made all decisions.

    **Pipeline position**: after `tensor-plan-fusion`, before all passes on loops.
    """

    name = "convert-tensor-to-loop"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    lower_function(function)


def lower_function(function: func.FuncOp) -> dict[SSAValue, SSAValue]:
    """Replaces the operations on tensors in `function` by loop nests.

    Returns:
        Materialised tensor -> result of its nest. The tensors are no longer in the function.
    """
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
    return nests


def _place_scatter(op: tensor.ScatterOp, pull: Pull, nests: dict[SSAValue, SSAValue]) -> None:
    """Inserts a nest before a scatter that computes its values and indices, and one for its initial tensor if
    needed."""
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
    """Inserts the nest of `value` before `anchor` and returns its result.

    `nests` maps tensors to the results of their nests, which the new nest loads instead."""
    root, variables = pull.root(value)
    nest = make_nest(pull.graph, [root], variables, nests)
    nest.res[0].name_hint = value.name_hint
    insert_before(anchor, nest, source=value.owner if isinstance(value.owner, Operation) else None)
    return nest.res[0]
