"""Which boxes the blocks of a cluster load together: those that all of them need alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.kernel.tma import SWIZZLED_ALIGNMENT
from ...dialects.payload import element_bytes, shape_of
from ...dialects.shapes import affine
from ...dialects.shapes.affine import DIV, MOD, SYM, Simplifier, number_of, symbol
from ...dialects.shapes.ranges import constant_index
from ..remarks import emit_remark
from .tma_tiles import Box


@dataclass(frozen=True)
class Common:
    """A value that is the same in all blocks of a cluster, and a multiple of `factor`; 0 is one of 0."""

    factor: int = 1


@dataclass(frozen=True)
class Ranked:
    """A value that is N * x + rank in clusters of N, with x the same in all blocks."""


Form = Common | Ranked | None
"""How a value differs among the blocks of a cluster; None: in some other way."""


@dataclass
class Alike:
    """The forms of the index values of `kernel`, for clusters of `size` blocks along its last index."""

    kernel: tile.KernelOp
    size: int

    def of(self, value: SSAValue) -> Form:
        """The form of an index value."""
        number = constant_index(value)
        if number is not None:
            return Common(number)
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        operands = [self.of(v) if _is_index(v.type) else None for v in op.operands]
        if isinstance(op, tile.AffineOp) and _is_index(op.result.type):
            symbols = [symbol(i) for i in range(len(operands))]
            return self._form(Simplifier().read(op.map.data.results[0], (), symbols), operands)
        pure = payload.is_payload(op) and all(isinstance(f, Common) for f in operands)
        return Common() if pure and _is_index(value.type) else None

    def same(self, value: SSAValue) -> bool:
        """Whether `value` is the same in all blocks of a cluster."""
        return isinstance(self.of(value), Common)

    def same_trips(self, loop: scf.ForOp) -> bool:
        """Whether all blocks of a cluster go through a loop equally often."""
        return all(self.same(v) for v in (loop.lb, loop.ub, loop.step)) or self._strides(loop)

    def _strides(self, loop: scf.ForOp) -> bool:
        """Whether a loop starts at N * x + rank and walks in multiples of N up to one: it then ends alike."""
        up_to, step = self.of(loop.ub), self.of(loop.step)
        return isinstance(self.of(loop.lb), Ranked) and all(
            isinstance(f, Common) and f.factor % self.size == 0 for f in (up_to, step)
        )

    def _argument(self, value: BlockArgument) -> Form:
        parent = value.owner.parent_op()
        if parent is self.kernel and _is_index(value.type):
            grid = dict(zip(self.kernel.blocks, self.kernel.grid_shape, strict=True))
            last = [b for b, n in grid.items() if n != 1][-1:]
            return Ranked() if value in last else Common()
        if not isinstance(parent, scf.ForOp) or value.index:
            return None
        if self._strides(parent):
            return Ranked()
        lower, step = self.of(parent.lb), self.of(parent.step)
        if not isinstance(lower, Common) or not isinstance(step, Common):
            return None
        return Common(math.gcd(lower.factor, step.factor))

    def _form(self, form: affine.Form, symbols: list[Form]) -> Form:
        """How an affine expression of values that differ like `symbols` does."""
        ranked, factor = False, form.constant
        for atom, coefficient in form.terms:
            own = self._atom(atom, symbols)
            if isinstance(own, Common):
                factor = math.gcd(factor, coefficient * own.factor)
            elif own is None or ranked or coefficient != 1:
                return None
            else:
                ranked = True
        if not ranked:
            return Common(factor)
        return Ranked() if factor % self.size == 0 else None

    def _atom(self, atom: affine.Atom, symbols: list[Form]) -> Form:
        if atom[0] == SYM:
            return symbols[number_of(atom)]
        inner, divisor = self._form(affine.Form(atom[1], atom[2]), symbols), atom[3]
        if isinstance(inner, Ranked) and divisor % self.size == 0:
            return Common() if atom[0] == DIV else inner
        if not isinstance(inner, Common):
            return None
        if atom[0] == MOD:
            return Common(math.gcd(inner.factor, divisor))
        return Common(inner.factor // divisor if inner.factor % divisor == 0 else 1)


def _is_index(t: Attribute) -> bool:
    return isinstance(t, IndexType)


def share(kernel: tile.KernelOp, boxes: Sequence[Box], blocks: int, name: str) -> list[Box]:
    """The boxes, some of them to be loaded together by clusters of so many blocks, which `kernel` then has; if there
    are none, remarks in the name of the pass `name` say why."""
    if not kernel.has_clusters_of(blocks):
        emit_remark(kernel, name, f"the last extent of the grid is no multiple of clusters of {blocks}")
        return list(boxes)
    alike = Alike(kernel, blocks)
    found: list[Box] = []
    for box in boxes:
        why = _unshared(kernel, alike, box, blocks)
        if why is not None:
            emit_remark(box.stage, name, why)
        found.append(replace(box, multicast=why is None))
    if any(b.multicast for b in found):
        kernel.cluster = IntAttr(blocks)
    return found


def _unshared(kernel: tile.KernelOp, alike: Alike, box: Box, blocks: int) -> str | None:
    """Why the blocks of a cluster cannot load a box together."""
    if not all(alike.same(s) for s in box.load.symbols):
        return "the blocks of a cluster need different boxes"
    around = box.stage.parent_op()
    while around is not None and around is not kernel:
        if isinstance(around, scf.ForOp) and not alike.same_trips(around):
            return "the blocks of a cluster need the box in different iterations"
        around = around.parent_op()
    shape = shape_of(box.stage.result.type)
    row_bytes = box.boxes.row * element_bytes(box.stage.result.type)
    if not divides(shape[1 - box.boxes.fast], row_bytes, blocks):
        return f"a box of {shape[1 - box.boxes.fast]} rows has no {blocks} parts that start where its swizzle does"
    return None


def divides(rows: int, row_bytes: int, blocks: int) -> bool:
    """Whether boxes of so many rows split into equal parts for the blocks of a cluster: each has to start where the
    exclusive or of the swizzle starts over."""
    return rows % blocks == 0 and rows // blocks * row_bytes % SWIZZLED_ALIGNMENT == 0
