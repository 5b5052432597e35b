"""Keys of kernels by structure: equal for the same computation in equal layers, or in equal steps of a recurrence."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from xdsl.dialects import func
from xdsl.ir import OpResult, SSAValue

from ....dialects import tensor
from ....dialects.shapes.affine import Form, Simplifier
from ....dialects.support.equivalence import structure
from ....dialects.tensor import ROOT
from .inline import in_memory

NEVER, ALWAYS = 0, -1
"""Masks of the values that are in memory, and of those that are no candidates."""


class KernelKeys:
    """Keys of the kernels of one function.

    Two kernels with equal keys apply the same operations in the same order to tensors of equal types, so that their
    graphs differ in names only, and in offsets: slices of a tensor in memory that begin elsewhere by the same distance
    are equal. A key is computed in one pass over the operations of the kernel.

    Args:
        function: Function that is planned.
        number: Number of every candidate of the search, which its bit in a mask has as well.
    """

    def __init__(self, function: func.FuncOp, number: Mapping[SSAValue, int]) -> None:
        block, kinds = function.body.block, dict[object, int]()
        values: list[SSAValue] = [*block.args, *(result for op in block.ops for result in op.results)]
        position: dict[SSAValue, int] = {value: i for i, value in enumerate(values)}
        self._candidates = [position[value] for value in number]
        self._loaded = [kinds.setdefault(value.type, len(kinds)) for value in values]
        """Kind of each value as a tensor in memory."""
        self._computed: list[int] = []
        """Kind of each value as the result of its operation."""
        self._operands: list[list[int]] = []
        self._masks: list[int] = []
        """Bit of each candidate; `NEVER` or `ALWAYS` of all other values: whether a kernel computes them."""
        self._slices: dict[int, tuple[int, list[int]]] = {}
        """Slice -> its kind without the offsets, and these."""
        self._guarding = set[int]()
        """Values that are computed under a condition on the indices."""
        for value in values:
            if in_memory(value) or not isinstance(value, OpResult):
                self._computed.append(0)
                self._operands.append([])
                self._masks.append(NEVER)
                continue
            op = value.op
            kind = (structure(op, {}, (ROOT,)), value.index)
            if isinstance(op, tensor.GatherOp) or (isinstance(op, tensor.IndexMapOp) and op.domain is not None):
                self._guarding.add(len(self._computed))
            elif isinstance(op, tensor.IndexMapOp) and (forms := _linear(op)):
                key = (tuple(f.terms for f in forms), value.type)
                self._slices[len(self._computed)] = kinds.setdefault(key, len(kinds)), [f.constant for f in forms]
            self._computed.append(kinds.setdefault(kind, len(kinds)))
            self._operands.append([position[v] for v in op.operands])
            self._masks.append(1 << number[value] if value in number else ALWAYS)

    def of(self, root: int, inlined: int) -> bytes:
        """Returns the key of the kernel that keeps `root` and computes `inlined` itself."""
        inlined |= 1 << root
        reached, order = {self._candidates[root]: 0}, [self._candidates[root]]
        key, begins, whole = list[int](), dict[int, list[int]](), set[int]()
        for value in order:
            if not inlined & self._masks[value]:
                key.append(self._loaded[value])
                continue
            operands = self._operands[value]
            if value in self._slices and not inlined & self._masks[operands[0]]:
                kind, offsets = self._slices[value]
                begin = begins.setdefault(operands[0], offsets)
                key.append(kind)
                key += [offset - first for offset, first in zip(offsets, begin, strict=True)]
            else:
                key.append(self._computed[value])
                whole.update(operands)
            for operand in operands:
                number = reached.get(operand)
                if number is None:
                    number = reached[operand] = len(order)
                    order.append(operand)
                key.append(number)
        guarded = not self._guarding.isdisjoint(order)
        for source, begin in begins.items():
            if guarded or source in whole:
                key += begin
        return array("q", key).tobytes()


def _linear(view: tensor.IndexMapOp) -> list[Form]:
    """Returns the coordinates that a view reads at, or nothing if there is a division in them."""
    forms = Simplifier().read_map(view.map.data)
    return [] if any(True for form in forms for _ in form.quotients()) else forms
