"""`torch-outline-layers`: outlines equal layers of a model as one function that is called for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, groupby

import numpy as np
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects.support.calls import CONSTANTS, constant_arguments, set_numbers
from ...dialects.support.equivalence import structure
from ...dialects.support.locations import location_of
from ..rewriting import erase


def find_repeats(ops: Sequence[Operation], min_ops: int) -> list[list[Operation]]:
    """Returns the repetitions in the longest periodic range of `ops`, each of `min_ops` operations or more.

    Operations match if their names, properties and types are equal; the caller compares how they are connected. The
    boundaries of the repetitions are where the fewest values are live. Returns an empty list without repetitions.
    """
    if len(ops) < 2 * min_ops:
        return []
    numbers: dict[object, int] = {}
    keys = ((op.name, frozenset(op.properties.items()), *op.operand_types, None, *op.result_types) for op in ops)
    start, period, length = _longest_repetition([numbers.setdefault(look, len(numbers)) for look in keys], min_ops)
    if not period:
        return []
    cuts = [start + s for s in range(period) if length - s >= 2 * period]
    crossings = _crossings(ops)
    offset = min(cuts, key=lambda c: (crossings[c], c))
    count = (start + length - offset) // period
    return [list(ops[offset + i * period : offset + (i + 1) * period]) for i in range(count)]


def _longest_repetition(colors: Sequence[int], min_period: int) -> tuple[int, int, int]:
    """Returns (start, period, length) of the longest periodic range of `colors`: each color recurs after `period`.

    Of equally long ranges, the one with the smallest period is returned, then the first. All periods are tried, each
    with a few NumPy operations: 0.03 s for 5,000 colors.
    """
    best, numbers = (0, 0, 0), np.array(colors)
    for period in range(min_period, len(numbers) // 2 + 1):
        same = np.pad(numbers[:-period] == numbers[period:], 1)
        starts, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        lengths = ends - starts
        if lengths.max(initial=0) >= max(period, best[2] - period + 1):
            at = int(lengths.argmax())
            best = int(starts[at]), period, int(lengths[at]) + period
    return best


def _crossings(ops: Sequence[Operation]) -> list[int]:
    """Returns, for each position, the number of live values: computed before it and used at or after it."""
    positions = {op: i for i, op in enumerate(ops)}
    changes = [0] * (len(ops) + 2)
    for position, op in enumerate(ops):
        for result in op.results:
            last = max((positions.get(use.operation, -1) for use in result.uses), default=-1)
            if last > position:
                changes[position + 1] += 1
                changes[last + 1] -= 1
    return list(accumulate(changes))


LAYER = "layer"
"""Name of the attribute with the path of an operation's layer, such as `layers.0`."""

MIN_OPS = 16
"""Minimum operations of a layer that is outlined. Nothing is fused across its boundary."""


@dataclass(frozen=True)
class OutlineLayersPass(ModulePass):
    """Outlines layers that differ only in their inputs as one function, which is called for each layer.

    ```mlir
    %1 = torch.mul.Tensor(self = %x, other = %w) {layer = "layers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = torch.mul.Tensor(self = %1, other = %v) {layer = "layers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ```
    becomes, with `min_ops=1`,
    ```mlir
    func.func private @layer(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {...}
    %1 = func.call @layer(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = func.call @layer(%1, %v) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ```

    A layer is a run of operations with the same attribute `layer`, which the frontend sets for modules in numbered
    lists. In a function without the attribute, the longest repetition of operations is used. Layers are equal if their
    operations, properties and types are equal and connected in the same way. The attribute is removed.

    **Rationale**: a model of 28 equal layers costs each later pass the time of one. In return, nothing is fused across
    the boundaries of layers.

    **Pipeline position**: first, before operators are decomposed and fused.

    **Options**: `min_ops`: minimum operations of a layer. `containing`: name of an operation that a layer must contain.
    `repeats`: minimum number of equal layers.
    """

    name = "torch-outline-layers"

    min_ops: int = MIN_OPS
    containing: str = ""
    repeats: int = 2

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, func.FuncOp) and not f.is_declaration]:
            ops = list(function.body.block.ops)[:-1]
            if len(ops) >= 2 * self.min_ops and not any(o.regions for o in ops):
                self._outline(op, function, ops)
        for inner in op.walk():
            inner.attributes.pop(LAYER, None)

    def _outline(self, module: ModuleOp, function: func.FuncOp, ops: Sequence[Operation]) -> None:
        # The operations of one layer may be interrupted by others, and are several runs then.
        if any(LAYER in o.attributes for o in ops):
            runs = [list(run) for layer, run in groupby(ops, lambda o: o.attributes.get(LAYER)) if layer is not None]
        else:
            runs = find_repeats(ops, 2 * self.min_ops)
        kinds: dict[object, list[Layer]] = {}
        if self.containing:
            runs = [run for run in runs if any(o.name == self.containing for o in run)]
        for layer in (Layer(run) for run in runs if len(run) >= self.min_ops):
            kinds.setdefault(layer.key(), []).append(layer)
        for kind in kinds.values():
            if len(kind) >= self.repeats:
                taken = {f.sym_name.data for f in module.ops if isinstance(f, func.FuncOp)}
                names = (f"layer_{number}" if number else "layer" for number in count())
                name = next(name for name in names if name not in taken)
                # The layers are built again: calls to functions outlined before may have replaced values that they use.
                outline(module, function, [Layer(layer.ops) for layer in kind], name)


class Layer:
    """Consecutive operations of a block that may become a function.

    `inputs`: values from outside, in order of first use; the arguments of the function. `outputs`: results with users
    outside; the results of the function."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops, members, inside = ops, set(ops), {r for op in ops for r in op.results}
        self.inputs = list(dict.fromkeys(v for op in ops for v in op.operands if v not in inside))
        self.outputs = [r for op in ops for r in op.results if any(u.operation not in members for u in r.uses)]

    def key(self) -> object:
        """Returns a key that is equal for layers that can be calls of the same function."""
        number = {value: i for i, value in enumerate(self.inputs)}
        types = tuple(v.type for v in self.inputs)
        ops = tuple(structure(op, number, (LAYER,)) for op in self.ops)
        return types, ops, tuple(number[v] for v in self.outputs)


def outline(module: ModuleOp, function: func.FuncOp, layers: Sequence[Layer], name: str) -> None:
    """Inserts a function with the operations of a layer before `function`, and replaces all equal layers by calls.

    Args:
        module: Module of `function`.
        function: Function that contains the layers.
        layers: Equal layers, in program order.
        name: Name of the new function.
    """
    first, location = layers[0], location_of(layers[0].ops[0])
    body = Block(arg_types=[v.type for v in first.inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(first.inputs, body.args, strict=True))
    # The names of the arguments lose the number of the layer.
    for value, arg in values.items():
        arg.name_hint = "_".join(word for word in (value.name_hint or "").split("_") if not word.isdigit()) or None
    body.add_ops([op.clone(values) for op in first.ops])
    end = func.ReturnOp(*(values[v] for v in first.outputs))
    body.add_op(end)
    types = [a.type for a in body.args], [v.type for v in first.outputs]
    outlined = func.FuncOp(name, types, Region(body), "private")
    constants = {*constant_arguments(function)}
    numbers = [i for i in range(len(first.inputs)) if constants.issuperset(p.inputs[i] for p in layers)]
    set_numbers(outlined, CONSTANTS, numbers)
    end.location = outlined.location = location
    module.body.block.insert_op_before(outlined, function)
    # Layers are replaced from the last to the first, so that the inputs of later layers still exist.
    for layer in reversed(layers):
        call = func.CallOp(name, layer.inputs, types[1])
        call.location = location_of(layer.ops[0])
        function.body.block.insert_op_before(call, layer.ops[0])
        for old, new in zip(layer.outputs, call.results, strict=True):
            old.replace_all_uses_with(new)
            new.name_hint = old.name_hint
        erase(*reversed(layer.ops))
