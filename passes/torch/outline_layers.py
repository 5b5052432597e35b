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
    """The longest stretch of `ops` that repeats itself, cut into its repeats of `min_ops` ops or more, if there is one.

    Ops look alike if name, arguments and types are; whether the cut parts are really equal is for the caller to see.
    Of all places to cut, the one where the fewest values cross is taken.
    """
    if len(ops) < 2 * min_ops:
        return []
    colors = _colors(ops)
    start, period, length = _longest(colors, min_ops)
    if not period:
        return []
    cuts = [start + s for s in range(period) if length - s >= 2 * period]
    crossings = _crossings(ops)
    at = min(cuts, key=lambda c: (crossings[c], c))
    count = (start + length - at) // period
    return [list(ops[at + i * period : at + (i + 1) * period]) for i in range(count)]


def _colors(ops: Sequence[Operation]) -> list[int]:
    """A number for each op, the same for ops that look alike."""
    numbers: dict[object, int] = {}
    looks = ((op.name, frozenset(op.properties.items()), *op.operand_types, None, *op.result_types) for op in ops)
    return [numbers.setdefault(look, len(numbers)) for look in looks]


def _longest(colors: Sequence[int], min_period: int) -> tuple[int, int, int]:
    """(start, period, length) of the longest stretch in which every color comes again after `period`; of stretches of
    equal length the one with the smallest period, and of those the first.

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
    """For each position, how many values that are computed before it are used from there on."""
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
"""The attribute of ops that says in which repeated part of the program they are."""

MIN_OPS = 16
"""Smaller parts are not worth a border, across which nothing is fused."""


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
        taken = {f.sym_name.data for f in op.ops if isinstance(f, func.FuncOp)}
        for function in [f for f in op.ops if isinstance(f, func.FuncOp) and not f.is_declaration]:
            parts = [Part(ops) for ops in self._candidates(function)]
            kinds: dict[object, list[Part]] = {}
            for part in parts:
                kinds.setdefault(part.key(), []).append(part)
            for kind in kinds.values():
                if len(kind) > 1:
                    names = (f"layer_{number}" if number else "layer" for number in count())
                    name = next(name for name in names if name not in taken)
                    taken.add(name)
                    # A kind outlined earlier has replaced values that these parts read.
                    outline(op, function, [Part(part.ops) for part in kind], name)
            for inner in op.walk():
                inner.attributes.pop(LAYER, None)

    def _candidates(self, function: func.FuncOp) -> list[list[Operation]]:
        ops = list(function.body.block.ops)[:-1]
        if len(ops) < 2 * self.min_ops or any(o.regions for o in ops):
            return []  # no two parts, or not the torch level
        runs = _runs_of_layers(ops) if any(LAYER in o.attributes for o in ops) else find_repeats(ops, 2 * self.min_ops)
        return [run for run in runs if len(run) >= self.min_ops]


def _runs_of_layers(ops: Sequence[Operation]) -> list[list[Operation]]:
    """Neighbouring ops of one layer. A layer in several pieces gives several runs."""
    runs = groupby(ops, key=lambda op: op.attributes.get(LAYER))
    return [list(run) for layer, run in runs if layer is not None]


class Part:
    """Neighbouring ops of a block: what they read from outside, in order of use, and which results others use."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops = ops
        own, inside = set(self.ops), {r for op in self.ops for r in op.results}
        self.inputs = list(dict.fromkeys(v for op in self.ops for v in op.operands if v not in inside))
        self.outputs = [r for op in self.ops for r in op.results if any(u.operation not in own for u in r.uses)]

    def key(self) -> object:
        """Equal for equal parts: whatever `outline` keeps of one when another stands for it."""
        number = {value: i for i, value in enumerate(self.inputs)}
        types = tuple(v.type for v in self.inputs)
        ops = tuple(structure(op, number, (LAYER,)) for op in self.ops)
        return types, ops, tuple(number[v] for v in self.outputs)


def outline(module: ModuleOp, function: func.FuncOp, parts: Sequence[Part], name: str) -> None:
    """Make the first of these equal parts a function `name` in front of `function`, and call it in place of each."""
    first, location = parts[0], location_of(parts[0].ops[0])
    body = Block(arg_types=[v.type for v in first.inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(first.inputs, body.args, strict=True))
    for value, arg in values.items():
        arg.name_hint = _without_numbers(value.name_hint)
    body.add_ops([op.clone(values) for op in first.ops])
    end = func.ReturnOp(*(values[v] for v in first.outputs))
    body.add_op(end)
    types = [a.type for a in body.args], [v.type for v in first.outputs]
    outlined = func.FuncOp(name, types, Region(body), "private")
    constants = {*constant_arguments(function)}
    set_numbers(
        outlined, CONSTANTS, [i for i in range(len(first.inputs)) if constants.issuperset(p.inputs[i] for p in parts)]
    )
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


def _without_numbers(hint: str | None) -> str | None:
    """A hint without the number of the layer it came from."""
    return "_".join(word for word in (hint or "").split("_") if not word.isdigit()) or None
