"""A fold on buffers: a loop of the host that calls the step, with the carries in rows of buffers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import kernel, tensor
from ....dialects.kernel.host import padded_row
from ....dialects.payload import ConstantOp, element_type
from ....dialects.shapes.extents import extents_of, memref_of

_STEP = AffineExpr.dimension(0)
_READ, _WRITTEN = _STEP % 2, (_STEP + 1) % 2
"""The row of a carry that a step reads, and the one that it writes, where only the last value is asked for."""


def buffer_type(t: Attribute) -> MemRefType[Attribute]:
    """The buffer that holds a tensor."""
    return memref_of(element_type(t), extents_of(t))


def lower_fold(block: Block, op: tensor.ScanOp, buffers: dict[SSAValue, SSAValue]) -> None:
    """Append to `block` what computes `op`; `buffers` has those of its operands and results.

    The first step reads the initial carries and the last one writes the results where they belong, so nothing is
    copied; the steps between are a loop. A history is its own memory; of other carries two rows take turns.
    """
    rings: dict[int, SSAValue] = {}
    if op.steps > 1:
        for i, carry in enumerate(op.carries):
            if i not in op.kept:
                alloc = kernel.AllocOp(memref_of(element_type(carry.type), [2, *padded_row(carry.type)]))
                alloc.result.name_hint = carry.name_hint
                rings[i] = append(block, alloc, op).results[0]
    _Steps(op, buffers, rings).lower(block)


@dataclass
class _Steps:
    """Makes the calls of a fold."""

    op: tensor.ScanOp
    buffers: dict[SSAValue, SSAValue]
    rings: dict[int, SSAValue]

    def lower(self, block: Block) -> None:
        """The first step, a loop over those between, and the last where it is special."""
        steps = self.op.steps
        self._call(block, _number(block, 0, self.op), first=True, last=steps == 1)
        end = steps - 1 if self.rings else steps
        if end > 1:
            start, stop, by = (_number(block, n, self.op) for n in (1, end, 1))
            body = Block(arg_types=[IndexType()])
            body.args[0].name_hint = "t"
            self._call(body, body.args[0], first=False, last=False)
            append(body, scf.YieldOp(), self.op)
            append(block, scf.ForOp(start, stop, by, [], Region(body)), self.op)
        if end < steps:
            self._call(block, _number(block, steps - 1, self.op), first=False, last=True)

    def _call(self, block: Block, t: SSAValue, *, first: bool, last: bool) -> None:
        op = self.op
        reads, writes = list[SSAValue](), list[SSAValue]()
        for i, (carry, result) in enumerate(zip(op.carries, op.res, strict=True)):
            kept, t_ = self.rings.get(i), buffer_type(carry.type)
            memory = self.buffers[result] if kept is None else kept
            before, after = (_STEP - 1, _STEP) if kept is None else (_READ, _WRITTEN)
            reads.append(self.buffers[carry] if first else self._row(block, memory, before, t, t_))
            in_place = last and i not in op.kept
            writes.append(self.buffers[result] if in_place else self._row(block, memory, after, t, t_))
        slices = [
            self._row(block, self.buffers[v], _STEP, t, memref_of(element_type(v.type), extents_of(v.type)[1:]))
            for v in op.each
        ]
        shared = [self.buffers[v] for v in op.shared]
        append(block, func.CallOp(op.step.string_value(), [*reads, *slices, *shared, *writes], []), op)

    def _row(self, block: Block, memory: SSAValue, row: AffineExpr, t: SSAValue, type: Attribute) -> SSAValue:
        found = append(block, kernel.SliceOp(memory, AffineMap(1, 0, (row,)), t, type), self.op).results[0]
        found.name_hint = memory.name_hint
        return found


def _number(block: Block, value: int, source: Operation) -> SSAValue:
    return append(block, ConstantOp(value, IndexType()), source).results[0]


def append(block: Block, op: Operation, source: Operation) -> Operation:
    """Append `op`, which comes from where `source` does."""
    op.location = source.location
    block.add_op(op)
    return op
