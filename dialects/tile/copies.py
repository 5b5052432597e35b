"""Asynchronous copies of tiles between global and shared memory, and warp specialisation.

A tile whose copy is outstanding is an ordinary SSA value. It may be carried by a loop, and `tile.await` returns the
readable tile:

```
%x = tile.stage_async %X[d0, d1] by #tile.layout<...> : memref<64x200xf32> -> tensor<64x32xf32, #tile.shared<...>>
tile.commit
%a = tile.await %x pending 0 : tensor<64x32xf32, #tile.shared<...>>
```

There are no buffers and no stages at this level. A software pipeline is plain data flow, so scheduling cannot change
its results. Results are stored by TMA in the other direction: parts of a tile in shared memory are written as boxes.

With warp specialisation, a consumer and a producer partition run different programs and communicate through *rings*. A
ring is a queue in shared memory, with room for `slots` groups of tiles. One partition enqueues groups, another dequeues
them in the same order. So results do not depend on timing. Only a deadlock or the use of a released group is possible.
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
    """Starts the copy of a tile to shared memory: element t is source[map(t)[symbols]] inside the domain, else 0.

    ```
    #registers = #tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %x = tile.stage_async %X[d0, d1 + %k * 8]
         where 0 <= d1 + %k * 8 < 100 if %more by #registers
         : memref<8x100xf32> -> tensor<8x8xf32, #shared>
    ```

    Operands:
        symbols: values of type `index`, the same for the whole tile.
        source: buffer in global memory.
        predicate: if false, nothing is copied and the tile must not be read.

    Attributes:
        map: buffer coordinates for each element of the tile.
        domain: elements that are copied (`where`); the others become zero.
        layout: register layout that specifies which thread copies which element (`by`).

    `tile.commit` closes a group of copies, and `tile.await` counts groups.

    Constraints: `by` is a register layout; the result has a shared layout.
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
            raise VerifyException(f"expected a #tile.layout after `by`, but got {self.layout}")
        if not is_in_shared(self.result.type):
            raise VerifyException(f"expected a result in shared memory, but got {self.result.type}")


@irdl.irdl_op_definition
class CommitOp(WritingOp):
    """Closes a group: all copies since the last group.

    ```
    tile.commit
    ```
    """

    name = "tile.commit"
    assembly_format = "attr-dict"


@irdl.irdl_op_definition
class AwaitOp(PureOp):
    """Waits until at most the `pending` newest groups of copies are outstanding, and returns the readable tiles.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %a, %b = tile.await %x, %w pending 1 : tensor<8x8xf32, #shared>, tensor<8x8xf32, #shared>
    ```

    Operands:
        tiles: tiles whose copies may be outstanding.

    Attributes:
        pending: number of newest groups that may stay outstanding.

    Constraints: there is at least one tile; all have shared layouts; `pending` is not negative.
    """

    name = "tile.await"
    T: ClassVar = irdl.RangeVarConstraint("T", irdl.RangeOf(irdl.AnyAttr()))
    tiles = irdl.var_operand_def(T)
    pending = irdl.prop_def(IntAttr)
    res = irdl.var_result_def(T)
    assembly_format = "$tiles `pending` custom<Int>($pending) attr-dict `:` type($tiles)"

    def verify_(self) -> None:
        if self.pending.data < 0:
            raise VerifyException(
                f"expected a number of pending groups that is not negative, but got {self.pending.data}"
            )
        if not self.tiles or any(not is_in_shared(t.type) for t in self.tiles):
            raise VerifyException(
                f"expected tiles whose copies to shared memory are outstanding, but got"
                f" {', '.join(str(t.type) for t in self.tiles) or 'none'}"
            )


@irdl.irdl_op_definition
class SliceOp(PureOp):
    """Returns a part of a tile in registers: element t is source[t + at].

    ```
    %p = tile.slice %x at [0, 64] : tensor<128x256xf32> -> tensor<128x64xf32>
    ```

    Attributes:
        at: offset of the part in the tile.

    Constraints: `at` is a multiple of the part's extents; the part is inside the tile; neither is in shared memory.
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
            raise VerifyException(
                f"expected a part of {self.source.type} and one offset for each dimension, but got {self.result.type}"
                f" at {list(start)}"
            )
        if any(a < 0 or a % n or a + n > m for a, n, m in zip(start, part, whole, strict=True)):
            raise VerifyException(
                f"expected a part inside of {list(whole)}, at multiples of its extents, but got {list(part)} at"
                f" {list(start)}"
            )
        if is_in_shared(self.source.type) or is_in_shared(self.result.type):
            raise VerifyException(
                f"expected source and part in registers, but got {self.source.type} and {self.result.type}"
            )


@irdl.irdl_op_definition
class TmaStoreOp(WritingOp):
    """Starts the copy of a tile in shared memory to a box of a buffer: buffer[map(t)[symbols]] = value[t].

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    tile.tma_store %s, %Y[d0, d1 + %j * 8]
        : tensor<8x8xbf16, #shared>, memref<8x512xbf16>
    ```

    Elements outside of the buffer are not written. One thread (of each warpgroup that holds a part) starts the copy; no
    operation waits for it.

    Operands:
        value: tile in shared memory.
        target: buffer in global memory.
        symbols: values of type `index`, the same for the whole tile.

    Attributes:
        map: buffer coordinates for each element of the tile.

    Constraints: the tile has a shared layout; every dimension of the tile runs along one dimension of the buffer with
    stride one, at an offset that the symbols determine.
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
            raise VerifyException(f"expected a tile in shared memory, but got {self.value.type}")
        verify_box(self.map.data)


def verify_box(map: AffineMap) -> None:
    """Checks that a tile with the coordinates `map` is a TMA box. Raises VerifyException."""
    if box_dimensions(map) is None:
        raise VerifyException(
            f"expected every dimension of a box to run along one dimension of the buffer with stride one, but got {map}"
        )


def box_dimensions(map: AffineMap) -> tuple[int, ...] | None:
    """Returns, for each dimension of a tile, the buffer dimension that it runs along, or None if the tile is not a
    box."""
    buffer_dimensions: dict[int, int] = {}
    for number, form in enumerate(Simplifier().read_map(map)):
        moving = [(a, f) for a, f in form.terms if any(inner[0] == DIM for inner in Form(((a, 1),), 0).atoms())]
        if not moving:
            continue
        ((atom, factor), *others) = moving
        if others or factor != 1 or atom[0] != DIM or number_of(atom) in buffer_dimensions:
            return None
        buffer_dimensions[number_of(atom)] = number
    return tuple(buffer_dimensions[d] for d in range(map.num_dims)) if len(buffer_dimensions) == map.num_dims else None


@irdl.irdl_attr_definition
class RingType(FormattedAttr, TypeAttribute):
    """Type of a queue in shared memory with room for `slots` groups of tiles.

    ```
    !tile.ring<4 of tensor<4x2xbf16, #tile.shared<offset = [[0, 1], [1, 0], [2, 0]]>>>
    ```

    slots: number of groups.
    tiles: types of the tiles of a group.

    Constraints: at least one slot and one tile; all tiles have shared layouts.
    """

    name = "tile.ring"
    FORMAT = (INT, " of ", listed(TYPE))
    slots: IntAttr
    tiles: ArrayAttr[Attribute]

    @staticmethod
    def get(slots: int, tiles: Sequence[Attribute]) -> RingType:
        """Returns the type of a ring of `slots` groups of tiles."""
        return RingType(IntAttr(slots), ArrayAttr(tiles))

    def verify(self) -> None:
        if self.slots.data < 1:
            raise VerifyException(f"expected at least one slot, but got {self.slots.data}")
        if not len(self.tiles) or any(not is_in_shared(t) for t in self.tiles):
            raise VerifyException(
                f"expected a ring of tiles in shared memory, but got {', '.join(map(str, self.tiles)) or 'no tiles'}"
            )


def tiles_of(ring: SSAValue) -> tuple[Attribute, ...]:
    """Returns the types of the tiles in a group of a ring."""
    assert isinstance(ring.type, RingType)
    return tuple(ring.type.tiles)


def slots_of(ring: SSAValue) -> int:
    """Returns the number of groups that a ring has room for."""
    assert isinstance(ring.type, RingType)
    return ring.type.slots.data


class RingTypes(DerivedTypes):
    """Assembly directive: prints the type of a ring and derives the types of the tiles in a group."""

    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        return tuple(t.tiles) if isinstance(t, RingType) else parser.raise_error(f"expected a ring, but got {t}")


@irdl.irdl_op_definition
class RingOp(WritingOp):
    """Creates an empty ring.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %r = tile.ring : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    ```
    """

    name = "tile.ring"
    result = irdl.result_def(irdl.base(RingType))
    assembly_format = "attr-dict `:` type($result)"


@irdl.irdl_op_definition
class TmaLoadOp(PureOp):
    """Starts the TMA copy of a box to shared memory: element t is source[map(t)[symbols]], zero outside of the buffer.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %x = tile.tma_load %X[d0, d1 + %k * 8]
         : memref<8x512xbf16> -> tensor<8x8xbf16, #shared>
    ```

    Operands:
        source: buffer in global memory.
        symbols: values of type `index`, the same for the whole tile.

    Attributes:
        map: buffer coordinates for each element of the tile.
        multicast: all blocks of the cluster need the box. Each loads a part of it, for all of them.

    Constraints: every dimension of the tile runs along one dimension of the buffer with stride one, at an offset that
    the symbols determine; the result has a shared layout; `multicast` needs a kernel with clusters.
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
            raise VerifyException(f"expected a result in shared memory, but got {self.result.type}")
        verify_box(self.map.data)
        kernel = enclosing(self, KernelOp)
        if self.multicast is not None and kernel is not None and kernel.cluster_size == 1:
            raise VerifyException("expected a kernel with clusters for `multicast`, but got one without")


@irdl.irdl_op_definition
class ProducerLoadOp(OrderedOp):
    """Waits for a free slot of a ring, and enqueues tiles whose copies arrive in it.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %a = tile.tma_load %X[d0, d1 + %k * 8] : memref<8x512xbf16> -> tensor<8x8xbf16, #shared>
    %b = tile.tma_load %W[d0 + %k * 8, d1] : memref<512x8xbf16> -> tensor<8x8xbf16, #shared>
    tile.producer_load %r, %a, %b : !tile.ring<4 of tensor<8x8xbf16, #shared>, tensor<8x8xbf16, #shared>>
    ```

    Operands:
        tiles: tiles of one group, whose copies are outstanding.

    Constraints: the tiles have the types of the ring's groups; each is the result of a `tile.tma_load`.
    """

    name = "tile.producer_load"
    custom_directives = (RingTypes,)
    ring = irdl.operand_def(irdl.base(RingType))
    tiles = irdl.var_operand_def()
    assembly_format = "$ring `,` $tiles attr-dict `:` custom<RingTypes>(type($ring), type($tiles))"

    def verify_(self) -> None:
        if tuple(t.type for t in self.tiles) != tiles_of(self.ring):
            types = ", ".join(str(t.type) for t in self.tiles)
            raise VerifyException(f"expected the tiles of {self.ring.type}, but got {types}")
        if any(not isinstance(t.owner, TmaLoadOp) for t in self.tiles):
            raise VerifyException("expected tiles that are each the result of a tile.tma_load, but got another tile")


@irdl.irdl_op_definition
class ConsumerWaitOp(OrderedOp):
    """Dequeues the next group of tiles, after it has arrived.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %a, %b = tile.consumer_wait %r : !tile.ring<4 of tensor<8x8xbf16, #shared>, tensor<8x8xbf16, #shared>>
    ```

    The tiles must not be used after the next `tile.consumer_release` of the ring.

    Constraints: the results have the types of the ring's groups.
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
            types = ", ".join(str(r.type) for r in self.res)
            raise VerifyException(f"expected the tiles of {self.ring.type}, but got {types}")


@irdl.irdl_op_definition
class ConsumerReleaseOp(OrderedOp):
    """Releases the slot of the last dequeued group.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    tile.consumer_release %r : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    tile.consumer_release %r pending 1 if %more : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    ```

    With `pending 1` it releases the group before the last one, because dots in flight still read the last one. Then the
    release may have a condition; without effect if that is false.

    Operands:
        condition: without effect if it is false (`if`).

    Attributes:
        pending: 1 to release the group before the last one.

    Constraints: `pending` is 1, in a ring of at least two slots.
    """

    name = "tile.consumer_release"
    ring = irdl.operand_def(irdl.base(RingType))
    condition = irdl.opt_operand_def(i1)
    pending = irdl.opt_prop_def(IntAttr)
    assembly_format = "$ring (`pending` custom<Int>($pending)^)? (`if` $condition^)? attr-dict `:` type($ring)"

    @property
    def is_late(self) -> bool:
        """Returns true if the release is for the group before the last one."""
        return self.pending is not None

    def verify_(self) -> None:
        if self.pending is not None and (self.pending.data != 1 or slots_of(self.ring) < 2):
            raise VerifyException(
                f"expected pending 1, in a ring of at least two slots, but got pending {self.pending.data} and"
                f" {slots_of(self.ring)} slots"
            )


@irdl.irdl_op_definition
class WarpSpecializeOp(OrderedOp):
    """Runs a consumer and a producer partition at the same time.

    ```
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %r = tile.ring : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    tile.warp_specialize {
      %a = tile.consumer_wait %r : !tile.ring<4 of tensor<8x8xbf16, #shared>>
      tile.consumer_release %r : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    } producer warps 4 registers [232, 40] {
      %x = tile.tma_load %X[d0, d1] : memref<8x8xbf16> -> tensor<8x8xbf16, #shared>
      tile.producer_load %r, %x : !tile.ring<4 of tensor<8x8xbf16, #shared>>
    }
    ```

    The consumer runs on the kernel's warps, which hold the tiles. The producer has additional warps. One of its threads
    starts boxes and enqueues them; it computes only indices.

    Attributes:
        warps: warps of the producer.
        registers: registers per thread of consumer and producer, which threads acquire or release; empty to leave them
            unchanged.

    Regions:
        consumer: program of the kernel's warps.
        producer: program of the additional warps.

    Constraints: the consumer contains no `tile.producer_load`, the producer no `tile.consumer_wait` and
    `tile.consumer_release`.
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
            raise VerifyException(
                "expected at least one producer warp, and two numbers of registers or none, but got"
                f" {self.warps.data} and {len(self.registers)}"
            )
        for region, wrong, partition in (
            (self.consumer, ProducerLoadOp, "producer"),
            (self.producer, (ConsumerWaitOp, ConsumerReleaseOp), "consumer"),
        ):
            for o in region.walk():
                if isinstance(o, wrong):
                    raise VerifyException(f"expected {o.name} in the {partition}, but got it in the other partition")
