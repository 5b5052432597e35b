"""Partitions and rings in the tile dialect: warps of one block that run different programs, and what they hand each
other.

A ring is a queue of groups of tiles in shared memory, with room for so many of them. One partition puts, one other
takes, in the same order, so what is computed does not depend on who is how fast: a mistake can only let everybody wait
for ever, or use a tile that was given back.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import builtin
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from ..support.assembly import NO_NUMBERS, NUMBERS, DerivedTypes, OrderedOp, PureOp, WritingOp
from ..support.attribute_format import INT, TYPE, FormattedAttr, listed
from ..support.locations import enclosing
from .async_copy import is_in_shared, verify_box, verify_places
from .kernel import KernelOp


@irdl_attr_definition
class RingType(FormattedAttr, TypeAttribute):
    """Room for `slots` groups of tiles in shared memory: `!tile.ring<4 of tensor<128x64xbf16, #shared>, ...>`."""

    name = "tile.ring"
    FORMAT = (INT, " of ", listed(TYPE))
    slots: builtin.IntAttr
    tiles: builtin.ArrayAttr[Attribute]

    @staticmethod
    def get(slots: int, tiles: Sequence[Attribute]) -> RingType:
        """The ring of groups of `tiles`."""
        return RingType(builtin.IntAttr(slots), builtin.ArrayAttr(tiles))

    def verify(self) -> None:
        if self.slots.data < 1:
            raise VerifyException(f"a ring has at least one slot, not {self.slots.data}")
        if not len(self.tiles) or any(not is_in_shared(t) for t in self.tiles):
            raise VerifyException("a ring holds tiles in shared memory")


def tiles_of(ring: SSAValue) -> tuple[Attribute, ...]:
    """The types of the tiles in one slot of a ring."""
    assert isinstance(ring.type, RingType)
    return tuple(ring.type.tiles)


def slots_of(ring: SSAValue) -> int:
    """How many groups of tiles a ring has room for."""
    assert isinstance(ring.type, RingType)
    return ring.type.slots.data


class RingTypes(DerivedTypes):
    """The type of a ring; those of the tiles in a slot follow from it."""

    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        return tuple(t.tiles) if isinstance(t, RingType) else parser.raise_error("expected a ring")


@irdl_op_definition
class RingOp(WritingOp):
    """A new ring, empty.

    ```
    %r = tile.ring : !tile.ring<4 of tensor<128x64xbf16, #shared>>
    ```
    """

    name = "tile.ring"
    result = result_def(base(RingType))
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
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
    source = operand_def(base(builtin.MemRefType))
    map = prop_def(builtin.AffineMapAttr)
    symbols = var_operand_def(builtin.IndexType())
    multicast = opt_prop_def(builtin.UnitAttr)
    result = result_def()
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


@irdl_op_definition
class ProducerLoadOp(OrderedOp):
    """Wait for a free slot and let the tiles arrive in it.

    ```
    tile.producer_load %r, %a, %b : !tile.ring<4 of tensor<128x64xbf16, #a>, tensor<64x128xbf16, #b>>
    ```
    """

    name = "tile.producer_load"
    custom_directives = (RingTypes,)
    ring = operand_def(base(RingType))
    tiles = var_operand_def()
    assembly_format = "$ring `,` $tiles attr-dict `:` custom<RingTypes>(type($ring), type($tiles))"

    def verify_(self) -> None:
        if tuple(t.type for t in self.tiles) != tiles_of(self.ring):
            raise VerifyException(f"puts other tiles than those of {self.ring.type}")
        if any(not isinstance(t.owner, TmaLoadOp) for t in self.tiles):
            raise VerifyException("puts boxes on their way, each started by a tile.tma_load")


@irdl_op_definition
class ConsumerWaitOp(OrderedOp):
    """The next group of tiles, once it has arrived; to be used before the next `tile.consumer_release` of the ring.

    ```
    %a, %b = tile.consumer_wait %r : !tile.ring<4 of tensor<128x64xbf16, #a>, tensor<64x128xbf16, #b>>
    ```
    """

    name = "tile.consumer_wait"
    custom_directives = (RingTypes,)
    ring = operand_def(base(RingType))
    res = var_result_def()
    assembly_format = "$ring attr-dict `:` custom<RingTypes>(type($ring), type($res))"

    def __init__(self, ring: SSAValue):
        super().__init__(ring, list(tiles_of(ring)))

    def verify_(self) -> None:
        if tuple(r.type for r in self.res) != tiles_of(self.ring):
            raise VerifyException(f"takes other tiles than those of {self.ring.type}")


@irdl_op_definition
class ConsumerReleaseOp(OrderedOp):
    """Give the slot of the last group taken back; with `pending 1` that of the group before, and only where the
    condition holds: the tiles of the last are still read by contractions in flight.

    ```
    tile.consumer_release %r : !tile.ring<4 of tensor<128x64xbf16, #shared>, tensor<64x128xbf16, #shared>>
    tile.consumer_release %r pending 1 if %more : !tile.ring<4 of tensor<128x64xbf16, #shared>>
    ```
    """

    name = "tile.consumer_release"
    ring = operand_def(base(RingType))
    condition = opt_operand_def(builtin.i1)
    pending = opt_prop_def(builtin.IntAttr)
    assembly_format = "$ring (`pending` custom<Int>($pending)^)? (`if` $condition^)? attr-dict `:` type($ring)"

    @property
    def is_late(self) -> bool:
        """Whether a newer group stays taken."""
        return self.pending is not None

    def verify_(self) -> None:
        if self.pending is not None and (self.pending.data != 1 or slots_of(self.ring) < 2):
            raise VerifyException("at most one newer group stays taken, in a ring of two slots or more")


@irdl_op_definition
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
    consumer = region_def("single_block")
    producer = region_def("single_block")
    warps = prop_def(builtin.IntAttr)
    registers = prop_def(NUMBERS, default_value=NO_NUMBERS)
    traits = traits_def(NoTerminator())
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
