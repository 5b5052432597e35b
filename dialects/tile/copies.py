"""Asynchronous copies in the tile dialect: tiles on their way from global to shared memory, as values.

No buffers and no slots: a tile in flight is a value like any other, may be carried around a loop, and becomes readable
by `tile.await`. So a pipeline is plain data flow, and scheduling it cannot change what is computed. Results go the
other way: parts of a tile, put into shared memory, leave as boxes.

Or the warps of a block run different programs, a consumer and a producer, which hand each other tiles through rings.
A ring is a queue of groups of tiles in shared memory, with room for so many of them. One partition puts, one other
takes, in the same order, so what is computed does not depend on who is how fast: a mistake can only let everybody wait
for ever, or use a tile that was given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl import irdl
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IndexType, IntAttr, MemRefType, TensorType, UnitAttr, i1
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.ir.affine import AffineMap
from xdsl.parser import Parser
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from ..layouts import LayoutAttr, is_in_shared
from ..payload import element_type, shape_of
from ..shapes.affine import DIM, Form, Simplifier, number_of
from ..shapes.domain import DomainAttr
from ..support.assembly import NO_NUMBERS, NUMBERS, SAME_TYPE, DerivedTypes, OrderedOp, PureOp, WritingOp
from ..support.attribute_format import INT, TYPE, FormattedAttr, listed
from ..support.locations import enclosing
from .kernel import KernelOp, verify_places


@irdl.irdl_op_definition
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
    source = irdl.operand_def(MemRefType.constr(SAME_TYPE))
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def(IndexType())
    domain = irdl.opt_prop_def(DomainAttr)
    predicate = irdl.opt_operand_def(i1)
    layout = irdl.prop_def(Attribute)
    result = irdl.result_def()
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
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


@irdl.irdl_op_definition
class CommitOp(WritingOp):
    """Close a group: all copies since the last group.

    ```
    tile.commit
    ```
    """

    name = "tile.commit"
    assembly_format = "attr-dict"


@irdl.irdl_op_definition
class AwaitOp(PureOp):
    """The same tiles, readable: waits until all groups of copies have arrived but the `pending` newest.

    ```
    %a, %b = tile.await %x, %w pending 1 : tensor<64x32xf32, #tile.shared<...>>, tensor<32x64xf32, #tile.shared<...>>
    ```
    """

    name = "tile.await"
    T: ClassVar = irdl.RangeVarConstraint("T", irdl.RangeOf(irdl.AnyAttr()))
    tiles = irdl.var_operand_def(T)
    pending = irdl.prop_def(IntAttr)
    res = irdl.var_result_def(T)
    assembly_format = "$tiles `pending` custom<Int>($pending) attr-dict `:` type($tiles)"

    def verify_(self) -> None:
        if self.pending.data < 0:
            raise VerifyException(f"waits until {self.pending.data} groups are left")
        if not self.tiles or any(not is_in_shared(t.type) for t in self.tiles):
            raise VerifyException("awaits tiles that are on their way to shared memory")


@irdl.irdl_op_definition
class SliceOp(PureOp):
    """A part of a tile: element t is source[t + at], where `at` is a multiple of the part's extents. In registers:
    those that hold the part.

    ```
    %p = tile.slice %x at [0, 64] : tensor<128x256xf32> -> tensor<128x64xf32>
    ```
    """

    name = "tile.slice"
    source = irdl.operand_def(irdl.base(TensorType))
    at = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(TensorType))
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


@irdl.irdl_op_definition
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
    value = irdl.operand_def(irdl.base(TensorType))
    target = irdl.operand_def(irdl.base(MemRefType))
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def(IndexType())
    assembly_format = (
        "$value `,` $target `` custom<Access>($map, $symbols, type($symbols)) attr-dict"
        " `:` custom<Ranked>(type($value)) `,` type($target)"
    )

    def verify_(self) -> None:
        verify_places(self, self.target, self.value)
        if not is_in_shared(self.value.type):
            raise VerifyException(f"a box leaves from shared memory, not as {self.value.type}")
        verify_box(self.map.data)


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


@irdl.irdl_attr_definition
class RingType(FormattedAttr, TypeAttribute):
    """Room for `slots` groups of tiles in shared memory: `!tile.ring<4 of tensor<128x64xbf16, #shared>, ...>`."""

    name = "tile.ring"
    FORMAT = (INT, " of ", listed(TYPE))
    slots: IntAttr
    tiles: ArrayAttr[Attribute]

    @staticmethod
    def get(slots: int, tiles: Sequence[Attribute]) -> RingType:
        return RingType(IntAttr(slots), ArrayAttr(tiles))

    def verify(self) -> None:
        if self.slots.data < 1:
            raise VerifyException(f"a ring has at least one slot, not {self.slots.data}")
        if not len(self.tiles) or any(not is_in_shared(t) for t in self.tiles):
            raise VerifyException("a ring holds tiles in shared memory")


def tiles_of(ring: SSAValue) -> tuple[Attribute, ...]:
    assert isinstance(ring.type, RingType)
    return tuple(ring.type.tiles)


def slots_of(ring: SSAValue) -> int:
    assert isinstance(ring.type, RingType)
    return ring.type.slots.data


class RingTypes(DerivedTypes):
    """The type of a ring; those of the tiles in a slot follow from it."""

    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        return tuple(t.tiles) if isinstance(t, RingType) else parser.raise_error("expected a ring")


@irdl.irdl_op_definition
class RingOp(WritingOp):
    """A new ring, empty.

    ```
    %r = tile.ring : !tile.ring<4 of tensor<128x64xbf16, #shared>>
    ```
    """

    name = "tile.ring"
    result = irdl.result_def(irdl.base(RingType))
    assembly_format = "attr-dict `:` type($result)"


@irdl.irdl_op_definition
class TmaLoadOp(PureOp):
    """A box of a buffer, on its way to shared memory, started by one thread: element t is source[map(t)[symbols]], zero
    outside of the buffer.

    Every dimension of the tile runs along one dimension of the buffer, in steps of one; symbols say where it starts.

    ```
    %x = tile.tma_load %X[d0, d1 + %k * 64]
         : memref<128x512xbf16> -> tensor<128x64xbf16, #tile.shared<...>>
    ```
    `multicast` behind the symbols says that all blocks of the cluster need this box and load it together: each a part
    of it, for all of them.
    """

    name = "tile.tma_load"
    source = irdl.operand_def(irdl.base(MemRefType))
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def(IndexType())
    multicast = irdl.opt_prop_def(UnitAttr)
    result = irdl.result_def()
    assembly_format = (
        "$source `` custom<Access>($map, $symbols, type($symbols)) (`multicast` $multicast^)? attr-dict"
        " `:` type($source) `->` custom<Ranked>(type($result))"
    )

    def verify_(self) -> None:
        verify_places(self, self.source, self.result)
        if not is_in_shared(self.result.type):
            raise VerifyException(f"stages into shared memory, not as {self.result.type}")
        verify_box(self.map.data)
        kernel = enclosing(self, KernelOp)
        if self.multicast is not None and kernel is not None and kernel.cluster_size == 1:
            raise VerifyException("a box for all blocks of a cluster in a kernel without clusters")


@irdl.irdl_op_definition
class ProducerLoadOp(OrderedOp):
    """Wait for a free slot and let the tiles arrive in it.

    ```
    tile.producer_load %r, %a, %b : !tile.ring<4 of tensor<128x64xbf16, #a>, tensor<64x128xbf16, #b>>
    ```
    """

    name = "tile.producer_load"
    custom_directives = (RingTypes,)
    ring = irdl.operand_def(irdl.base(RingType))
    tiles = irdl.var_operand_def()
    assembly_format = "$ring `,` $tiles attr-dict `:` custom<RingTypes>(type($ring), type($tiles))"

    def verify_(self) -> None:
        if tuple(t.type for t in self.tiles) != tiles_of(self.ring):
            raise VerifyException(f"puts other tiles than those of {self.ring.type}")
        if any(not isinstance(t.owner, TmaLoadOp) for t in self.tiles):
            raise VerifyException("puts boxes on their way, each started by a tile.tma_load")


@irdl.irdl_op_definition
class ConsumerWaitOp(OrderedOp):
    """The next group of tiles, once it has arrived; to be used before the next `tile.consumer_release` of the ring.

    ```
    %a, %b = tile.consumer_wait %r : !tile.ring<4 of tensor<128x64xbf16, #a>, tensor<64x128xbf16, #b>>
    ```
    """

    name = "tile.consumer_wait"
    custom_directives = (RingTypes,)
    ring = irdl.operand_def(irdl.base(RingType))
    res = irdl.var_result_def()
    assembly_format = "$ring attr-dict `:` custom<RingTypes>(type($ring), type($res))"

    def __init__(self, ring: SSAValue):
        super().__init__(ring, list(tiles_of(ring)))

    def verify_(self) -> None:
        if tuple(r.type for r in self.res) != tiles_of(self.ring):
            raise VerifyException(f"takes other tiles than those of {self.ring.type}")


@irdl.irdl_op_definition
class ConsumerReleaseOp(OrderedOp):
    """Give the slot of the last group taken back; with `pending 1` that of the group before, and only where the
    condition holds: the tiles of the last are still read by contractions in flight.

    ```
    tile.consumer_release %r : !tile.ring<4 of tensor<128x64xbf16, #shared>, tensor<64x128xbf16, #shared>>
    tile.consumer_release %r pending 1 if %more : !tile.ring<4 of tensor<128x64xbf16, #shared>>
    ```
    """

    name = "tile.consumer_release"
    ring = irdl.operand_def(irdl.base(RingType))
    condition = irdl.opt_operand_def(i1)
    pending = irdl.opt_prop_def(IntAttr)
    assembly_format = "$ring (`pending` custom<Int>($pending)^)? (`if` $condition^)? attr-dict `:` type($ring)"

    @property
    def is_late(self) -> bool:
        return self.pending is not None

    def verify_(self) -> None:
        if self.pending is not None and (self.pending.data != 1 or slots_of(self.ring) < 2):
            raise VerifyException("at most one newer group stays taken, in a ring of two slots or more")


@irdl.irdl_op_definition
class WarpSpecializeOp(OrderedOp):
    """A consumer and a producer, who run at the same time.

    The consumer is the kernel's program; its warps are those that hold tiles, the kernel's. The producer has further
    warps, of which one thread works: it starts boxes and puts them into rings, and computes nothing but indices.
    With `registers` threads of either partition give registers up or take them, to have that many.

    ```
    tile.warp_specialize {
      ... %a, %b = tile.consumer_wait %r ... tile.consumer_release %r ...
    } producer warps 4 registers [232, 40] {
      ... tile.producer_load %r, %x, %y ...
    }
    ```
    """

    name = "tile.warp_specialize"
    consumer = irdl.region_def("single_block")
    producer = irdl.region_def("single_block")
    warps = irdl.prop_def(IntAttr)
    registers = irdl.prop_def(NUMBERS, default_value=NO_NUMBERS)
    traits = irdl.traits_def(NoTerminator())
    assembly_format = (
        "custom<Body>($consumer) `producer` `warps` custom<Int>($warps) (`registers` $registers^)?"
        " attr-dict-with-keyword custom<Body>($producer)"
    )

    def verify_(self) -> None:
        if self.warps.data < 1 or len(self.registers) not in (0, 2):
            raise VerifyException(f"{self.warps.data} warps with {len(self.registers)} numbers of registers")
        for region, wrong, what in (
            (self.consumer, ProducerLoadOp, "puts"),
            (self.producer, (ConsumerWaitOp, ConsumerReleaseOp), "takes"),
        ):
            if any(isinstance(o, wrong) for o in region.walk()):
                raise VerifyException(f"a partition that {what}, which is what the other one does")
