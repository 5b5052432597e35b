"""Equal layers of a model become one function, called several times."""

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
    """Returns the longest stretch of `ops` that repeats itself, cut into its repeats of `min_ops` ops or more.

    Ops look alike if name, arguments and types are equal; the caller compares the parts. The stretch is cut where the
    fewest values cross.
    """
    if len(ops) < 2 * min_ops:
        return []
    numbers: dict[object, int] = {}
    looks = ((op.name, frozenset(op.properties.items()), *op.operand_types, None, *op.result_types) for op in ops)
    start, period, length = _longest([numbers.setdefault(look, len(numbers)) for look in looks], min_ops)
    if not period:
        return []
    cuts = [start + s for s in range(period) if length - s >= 2 * period]
    crossings = _crossings(ops)
    at = min(cuts, key=lambda c: (crossings[c], c))
    count = (start + length - at) // period
    return [list(ops[at + i * period : at + (i + 1) * period]) for i in range(count)]


def _longest(colors: Sequence[int], min_period: int) -> tuple[int, int, int]:
    """Returns (start, period, length) of the longest stretch in which every color comes again after `period`; of
    stretches of equal length the one with the smallest period, and of those the first.

    Every period is tried, each by a few operations of NumPy: 0.03 s for 5,000 ops.
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
    """Returns for each position how many values that are computed before it are used from there on."""
    positions = {op: i for i, op in enumerate(ops)}
    steps = [0] * (len(ops) + 2)
    for at, op in enumerate(ops):
        for result in op.results:
            last = max((positions.get(use.operation, -1) for use in result.uses), default=-1)
            if last > at:
                steps[at + 1] += 1
                steps[last + 1] -= 1
    return list(accumulate(steps))


LAYER = "layer"
"""Attribute of ops: the repeated part of the program that they are in."""

MIN_OPS = 16
"""Ops of the smallest part that is worth a border, across which nothing is fused."""


@dataclass(frozen=True)
class OutlineLayersPass(ModulePass):
    """Find parts of a function that are equal but for what they read, and make one function of each kind.

    What: candidates are the runs of ops with one value of the attribute `layer`, which the frontend writes for modules
    in numbered lists; in a function without any, repeats are found in the text itself. Parts are equal if their ops,
    arguments, shapes and the order of what comes from outside are. Those that occur at least twice and are large
    enough are moved out; the attribute is removed everywhere.
    Why: a model of 28 layers costs every later pass the work of one.
    Why here: first of all passes, before ops are written out and fused. What it gives up is fusion across the border.

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
    """

    name = "torch-outline-layers"

    min_ops: int = MIN_OPS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.ops if isinstance(f, func.FuncOp) and not f.is_declaration]:
            ops = list(function.body.block.ops)[:-1]
            if len(ops) >= 2 * self.min_ops and not any(o.regions for o in ops):
                self._outline(op, function, ops)
        for inner in op.walk():
            inner.attributes.pop(LAYER, None)

    def _outline(self, module: ModuleOp, function: func.FuncOp, ops: Sequence[Operation]) -> None:
        if any(LAYER in o.attributes for o in ops):  # a layer in several pieces gives several runs
            runs = [list(run) for layer, run in groupby(ops, lambda o: o.attributes.get(LAYER)) if layer is not None]
        else:
            runs = find_repeats(ops, 2 * self.min_ops)
        kinds: dict[object, list[Part]] = {}
        for part in (Part(run) for run in runs if len(run) >= self.min_ops):
            kinds.setdefault(part.key(), []).append(part)
        for kind in kinds.values():
            if len(kind) > 1:
                taken = {f.sym_name.data for f in module.ops if isinstance(f, func.FuncOp)}
                names = (f"layer_{number}" if number else "layer" for number in count())
                name = next(name for name in names if name not in taken)
                # A kind outlined earlier has replaced values that these parts read.
                outline(module, function, [Part(part.ops) for part in kind], name)


class Part:
    """Neighbouring ops of a block. `inputs`: values from outside, in order of use. `outputs`: results used outside."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops, members, inside = ops, set(ops), {r for op in ops for r in op.results}
        self.inputs = list(dict.fromkeys(v for op in ops for v in op.operands if v not in inside))
        self.outputs = [r for op in ops for r in op.results if any(u.operation not in members for u in r.uses)]

    def key(self) -> object:
        """Equal for parts of which one may stand for another."""
        number = {value: i for i, value in enumerate(self.inputs)}
        types = tuple(v.type for v in self.inputs)
        ops = tuple(structure(op, number, (LAYER,)) for op in self.ops)
        return types, ops, tuple(number[v] for v in self.outputs)


def outline(module: ModuleOp, function: func.FuncOp, parts: Sequence[Part], name: str) -> None:
    """Makes the first of these equal parts a function `name` before `function`, and calls it in place of each.

    Args:
        module: the module of `function`.
        function: the function of the parts.
        parts: equal parts, in the order of the function.
        name: name of the new function.
    """
    first, location = parts[0], location_of(parts[0].ops[0])
    body = Block(arg_types=[v.type for v in first.inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(first.inputs, body.args, strict=True))
    for value, arg in values.items():  # without the number of the layer
        arg.name_hint = "_".join(word for word in (value.name_hint or "").split("_") if not word.isdigit()) or None
    body.add_ops([op.clone(values) for op in first.ops])
    end = func.ReturnOp(*(values[v] for v in first.outputs))
    body.add_op(end)
    types = [a.type for a in body.args], [v.type for v in first.outputs]
    outlined = func.FuncOp(name, types, Region(body), "private")
    constants = {*constant_arguments(function)}
    numbers = [i for i in range(len(first.inputs)) if constants.issuperset(p.inputs[i] for p in parts)]
    set_numbers(outlined, CONSTANTS, numbers)
    end.location = outlined.location = location
    module.body.block.insert_op_before(outlined, function)
    for part in reversed(parts):  # from the end, so that what a later part reads is still there
        call = func.CallOp(name, part.inputs, types[1])
        call.location = location_of(part.ops[0])
        function.body.block.insert_op_before(call, part.ops[0])
        for old, new in zip(part.outputs, call.results, strict=True):
            old.replace_all_uses_with(new)
            new.name_hint = old.name_hint
        erase(*reversed(part.ops))
