"""Asynchronous staging in the tile dialect: tiles on their way from global to shared memory, as values.

No buffers and no slots: a tile in flight is a value like any other, may be carried around a loop, and becomes readable
by `tile.await`. So a pipeline is plain data flow, and scheduling it cannot change what is computed. Results go the
other way: parts of a tile, put into shared memory, leave as boxes. What all accesses to buffers have in common, and
which of them are boxes, is below.
"""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntAttr, MemRefType, TensorType, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    RangeOf,
    RangeVarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from ..layouts.attributes import LayoutAttr, SharedAttr
from ..payload import element_type, shape_of, with_element
from ..shapes.affine import DIM, Form, Simplifier, number_of
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import extents_of
from ..support.assembly import NUMBERS, SAME_TYPE, PureOp, WritingOp


@irdl_op_definition
class StageAsyncOp(PureOp):
    """A tile of a buffer, on its way to shared memory: element t is source[map(t)[symbols]] inside the domain, else 0.

    `by` says who copies what. `tile.commit` closes a group of copies, `tile.await` counts groups. Where the predicate
    is false nothing is copied, and the tile must never be read.

    ```
    %x = tile.stage_async %X[d0, d1 + %k * 32]
         where 0 <= d1 + %k * 32 < 200 if %more by #tile.layout<...>
         : memref<64x200xf32> -> tensor<64x32xf32, #tile.shared<...>>
    ```
    """

    name = "tile.stage_async"
    source = operand_def(MemRefType.constr(SAME_TYPE))
    map = prop_def(AffineMapAttr)
    symbols = var_operand_def(IndexType())
    domain = opt_prop_def(DomainAttr)
    predicate = opt_operand_def(i1)
    layout = prop_def(Attribute)
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$source `` custom<Access>($map, $symbols, type($symbols)) (`where` custom<Domain>($domain)^)?"
        " (`if` $predicate^)? `by` $layout attr-dict `:` type($source) `->` custom<Ranked>(type($result))"
    )

    def verify_(self) -> None:
        verify_places(self, self.source, self.result)
        if not isinstance(self.layout, LayoutAttr):
            raise VerifyException(f"who copies what is a tile.layout, not {self.layout}")
        if not is_in_shared(self.result.type):
            raise VerifyException(f"stages into shared memory, not as {self.result.type}")


@irdl_op_definition
class CommitOp(WritingOp):
    """Close a group: all copies since the last group.

    ```
    tile.commit
    ```
    """

    name = "tile.commit"
    assembly_format = "attr-dict"


@irdl_op_definition
class AwaitOp(PureOp):
    """The same tiles, readable: waits until all groups of copies have arrived but the `pending` newest.

    ```
    %a, %b = tile.await %x, %w pending 1 : tensor<64x32xf32, #tile.shared<...>>, tensor<32x64xf32, #tile.shared<...>>
    ```
    """

    name = "tile.await"
    T: ClassVar = RangeVarConstraint("T", RangeOf(AnyAttr()))
    tiles = var_operand_def(T)
    pending = prop_def(IntAttr)
    res = var_result_def(T)
    assembly_format = "$tiles `pending` custom<Int>($pending) attr-dict `:` type($tiles)"

    def verify_(self) -> None:
        if self.pending.data < 0:
            raise VerifyException(f"waits until {self.pending.data} groups are left")
        if not self.tiles or any(not is_in_shared(t.type) for t in self.tiles):
            raise VerifyException("awaits tiles that are on their way to shared memory")


@irdl_op_definition
class SliceOp(PureOp):
    """A part of a tile: element t is source[t + at], where `at` is a multiple of the part's extents. In registers:
    those that hold the part.

    ```
    %p = tile.slice %x at [0, 64] : tensor<128x256xf32> -> tensor<128x64xf32>
    ```
    """

    name = "tile.slice"
    source = operand_def(base(TensorType))
    at = prop_def(NUMBERS)
    result = result_def(base(TensorType))
    assembly_format = "$source `at` $at attr-dict `:` type($source) `->` type($result)"

    def verify_(self) -> None:
        whole, part, start = shape_of(self.source.type), shape_of(self.result.type), self.at.get_values()
        ranks = {len(whole), len(part), len(start)}
        if element_type(self.source.type) != element_type(self.result.type) or len(ranks) > 1:
            raise VerifyException(f"{self.result.type} is no part of {self.source.type}")
        if any(a < 0 or a % n or a + n > m for a, n, m in zip(start, part, whole, strict=True)):
            raise VerifyException(f"{list(part)} at {list(start)} is no part of {list(whole)}")
        if is_in_shared(self.source.type) or is_in_shared(self.result.type):
            raise VerifyException("parts are taken of tiles in registers")


@irdl_op_definition
class TmaStoreOp(WritingOp):
    """Write a tile in shared memory as a box of a buffer: buffer[map(t)[symbols]] = value[t] for the elements inside of
    the buffer. One thread (of each warpgroup that has a part of it) starts the copy, nobody waits for it.

    Every dimension of the tile runs along one dimension of the buffer, in steps of one; symbols say where it starts.

    ```
    tile.tma_store %s, %Y[d0, d1 + %j * 64]
        : tensor<128x64xbf16, #tile.shared<...>>, memref<128x512xbf16>
    ```
    """

    name = "tile.tma_store"
    value = operand_def(base(TensorType))
    target = operand_def(base(MemRefType))
    map = prop_def(AffineMapAttr)
    symbols = var_operand_def(IndexType())
    assembly_format = (
        "$value `,` $target `` custom<Access>($map, $symbols, type($symbols)) attr-dict"
        " `:` custom<Ranked>(type($value)) `,` type($target)"
    )

    def verify_(self) -> None:
        verify_places(self, self.target, self.value)
        if not is_in_shared(self.value.type):
            raise VerifyException(f"a box leaves from shared memory, not as {self.value.type}")
        verify_box(self.map.data)


def is_in_shared(t: Attribute) -> bool:
    """Whether a tile type says that the tile is in shared memory, or on its way there."""
    return isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr)


def verify_places(op: Any, memory: SSAValue, tile: SSAValue) -> None:
    """Check what moves `tile` from or to map(t)[symbols] in the buffer `memory`. Raises VerifyException."""
    shape, symbols = shape_of(tile.type), tuple[SSAValue, ...](op.symbols)
    verify_access(op, len(shape), len(symbols), len(extents_of(memory.type)), "a buffer")
    for s in symbols:
        if s.type != IndexType() and (not shape or s.type != with_element(tile.type, IndexType())):
            raise VerifyException(f"a symbol is an index or a tile of index of the tile's shape, not {s.type}")
    if element_type(tile.type) != element_type(memory.type):
        raise VerifyException("buffer and tile have one element type")


def verify_box(map: AffineMap) -> None:
    """Check that a tile whose elements are at the places `map` is a TMA box. Raises VerifyException."""
    if box_dimensions(map) is None:
        raise VerifyException("a dimension of a box runs along one dimension of the buffer, in steps of one")


def box_dimensions(map: AffineMap) -> tuple[int, ...] | None:
    """For each dimension of a tile the dimension of the buffer that it runs along; None if the tile is no box."""
    found: dict[int, int] = {}
    for number, form in enumerate(Simplifier().read_map(map)):
        moving = [(a, f) for a, f in form.terms if any(inner[0] == DIM for inner in Form(((a, 1),), 0).atoms())]
        if not moving:
            continue
        ((atom, factor), *others) = moving
        if others or factor != 1 or atom[0] != DIM or number_of(atom) in found:
            return None
        found[number_of(atom)] = number
    return tuple(found[d] for d in range(map.num_dims)) if len(found) == map.num_dims else None
