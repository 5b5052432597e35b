"""The kernel dialect: one thread's program in hardware primitives.

Registers are SSA vectors: `vector<8xf32>` is eight registers of each thread, whose number's bits are the register bits
of the tile layout it came from. The payload computes on them; `scf.for` with the same bounds in all threads loops.
Accesses stay n-dimensional; a register's place is the base coordinate plus a constant for every set bit of its number.
Shared memory is `memref<..., "shared">`. The host side, `func.func @main`, is a list of allocations, launches, and
loops of launches on slices of buffers.
"""

# pyright: reportUnusedImport=false
# ruff: noqa: F401, F403, F405  the package offers everything that its files define

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl import irdl
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    IndexType,
    IntAttr,
    MemRefType,
    ModuleOp,
    SymbolNameConstraint,
    SymbolRefAttr,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Operation, SpacedOpaqueSyntaxAttribute
from xdsl.traits import (
    EffectInstance,
    IsolatedFromAbove,
    MemoryEffect,
    MemoryEffectKind,
    NoTerminator,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from ..layouts.linear import LANES
from ..payload import ExtentOp, element_bytes, element_type
from ..shapes.extents import Count, CountAttr, Extent, SymbolAttr, extents_in, extents_of, fixed, most_tiles, static
from ..support.assembly import FormattedOp, OrderedOp, PureOp, definitions
from .barriers import *
from .copies import *
from .memory import *
from .mma import *
from .registers import *
from .wgmma import *

MOST_THREADS = 2048
"""Threads that a multiprocessor runs at once, of the targets that have most."""


class Id(StrEnum):
    """Who a thread is: its block in the grid, its block in the cluster, itself in the block, its lane in the warp, its
    warp in the block."""

    BLOCK = "block"
    RANK = "rank"
    THREAD = "thread"
    LANE = "lane"
    WARP = "warp"


@irdl.irdl_attr_definition
class IdAttr(EnumAttribute[Id], SpacedOpaqueSyntaxAttribute):
    """`#kernel<id lane>`"""

    name = "kernel.id"


class BlockProgramOp(FormattedOp):
    """A kernel of any level: a program that each block of a grid runs."""

    sym_name = irdl.prop_def(SymbolNameConstraint())
    grid = irdl.prop_def(ArrayAttr[IntAttr | CountAttr])
    warps = irdl.prop_def(IntAttr)
    cluster = irdl.prop_def(IntAttr, default_value=IntAttr(1))
    lanes = irdl.prop_def(IntAttr, default_value=IntAttr(LANES))
    body = irdl.region_def("single_block")
    traits = irdl.traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    @property
    def cluster_size(self) -> int:
        return self.cluster.data

    @property
    def grid_shape(self) -> tuple[Count, ...]:
        """The extents of the grid, some of which may be known only when it is launched."""
        return extents_in(self.grid)

    def verify_(self) -> None:
        warps, lanes = self.warps.data, self.lanes.data
        if lanes != LANES and (lanes, warps) != (1, 1):
            raise VerifyException(f"{warps} warps of {lanes} lanes; a warp has {LANES}, or a block is one thread")
        if self.cluster_size not in CLUSTERS:
            raise VerifyException(f"a cluster has 1, 2, 4 or 8 blocks, not {self.cluster_size}")

    def verify_warps(self, what: str = "a block") -> None:
        """Raise VerifyException unless the number of warps is one that layouts know; messages say `what` has it."""
        if self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"{what} has 1, 2, 4, 8, 16 or 32 warps, not {self.warps.data}")


@irdl.irdl_op_definition
class FuncOp(BlockProgramOp):
    """A kernel: the program of every thread of a one-dimensional grid of blocks.

    ```
    kernel.func @k0(%x: memref<32x2048xf32>, %y: memref<32x2048xf32>) grid [32] warps 8 {
      %lane = kernel.id lane
      ...
    }
    ```
    `shared N` says how many bytes of shared memory a block has, once they are allocated. A grid that depends on sizes
    known only at run time is a product of counts: `grid [#s0 / 64, 32]`. With `cluster N` so many blocks with
    consecutive numbers form a cluster (see `barriers.py`); the grid is a multiple of it. With `blocks_per_sm N`
    at least N blocks fit on a multiprocessor at once: the compiler divides its registers by them (the second number of
    CUDA's `__launch_bounds__`); without, it takes as many registers as it likes. With `lanes 1` a block is a single
    thread, which a core runs.
    """

    name = "kernel.func"
    shared = irdl.opt_prop_def(IntAttr)
    blocks_per_sm = irdl.opt_prop_def(IntAttr)
    assembly_format = (
        "$sym_name `` custom<Arguments>(ref($body)) `grid` custom<Counts>($grid) `warps` custom<Int>($warps)"
        " (`lanes` custom<Int>($lanes)^)?"
        " (`cluster` custom<Int>($cluster)^)? (`blocks_per_sm` custom<Int>($blocks_per_sm)^)?"
        " (`shared` custom<Int>($shared)^)? attr-dict-with-keyword custom<Body>($body)"
    )

    @property
    def resident(self) -> int:
        """How many blocks have to fit on a multiprocessor at once; 0 where nobody asks for a number."""
        return 0 if self.blocks_per_sm is None else self.blocks_per_sm.data

    @property
    def threads(self) -> int:
        return self.lanes.data * self.warps.data

    @property
    def partitions(self) -> WarpSpecializeOp | None:
        """The parts of the block's warps, if they run different programs."""
        return next((op for op in self.body.block.ops if isinstance(op, WarpSpecializeOp)), None)

    @property
    def blocks(self) -> int:
        """How many blocks there are. Raises ExtentError if that is known only at run time."""
        return prod(static(c if isinstance(c, int) else c.symbol for c in self.grid_shape))

    @property
    def most_blocks(self) -> int:
        return prod(map(most_tiles, self.grid_shape))

    def verify_(self) -> None:
        if any(not isinstance(a.type, MemRefType) for a in self.body.block.args):
            raise VerifyException("the arguments of a kernel are memrefs")
        partitions = self.partitions
        if sum(isinstance(op, WarpSpecializeOp) for op in self.body.block.ops) > 1:
            raise VerifyException("the warps of a block part once")
        if partitions is not None:
            if sum(partitions.partition_warps) != self.warps.data:
                raise VerifyException(
                    f"partitions of {partitions.partition_warps} warps in a block of {self.warps.data}"
                )
            if not 1 <= self.warps.data <= 32:
                raise VerifyException(f"a block has at most 32 warps, not {self.warps.data}")
        else:
            self.verify_warps("a block without partitions")
        super().verify_()
        fixed = prod(c for c in self.grid_shape if isinstance(c, int))
        if fixed < 1 or fixed >= 2**31:  # those that depend on symbols are checked at the launch
            raise VerifyException(f"a grid has 1 to 2^31 - 1 blocks, not {fixed}")
        if self.blocks_per_sm is not None and not 1 <= self.resident <= MOST_THREADS // self.threads:
            raise VerifyException(f"{self.resident} blocks of {self.threads} threads do not fit on a multiprocessor")
        if fixed % self.cluster_size:
            grid = " * ".join(map(str, self.grid_shape))
            raise VerifyException(f"clusters of {self.cluster_size} do not make up a grid of {grid} blocks")


def symbols_in(func: FuncOp) -> tuple[SymbolAttr, ...]:
    """The sizes known only at run time that a kernel computes with, in a fixed order: they are passed to it after its
    buffers. The first extent of a buffer is in no address."""
    extents = [extent for argument in func.body.block.args for extent in extents_of(argument.type)[1:]]
    for op in func.walk():
        if isinstance(op, ExtentOp):
            extents.append(op.symbol)
        elif isinstance(op, MemoryAccess):
            extents += extents_in(op.upper)
    return tuple(dict.fromkeys(e for e in extents if isinstance(e, SymbolAttr)))


@irdl.irdl_op_definition
class IdOp(PureOp):
    """Who this thread is.

    ```
    %lane = kernel.id lane
    ```
    """

    name = "kernel.id"
    kind = irdl.prop_def(IdAttr)
    result = irdl.result_def(IndexType())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str | Id):
        super().__init__(kind)
        self.result.name_hint = self.kind.data.value


class _Allocates(MemoryEffect):
    """The operation allocates its result: unused, it disappears."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


@irdl.irdl_op_definition
class SharedOp(FormattedOp):
    """A buffer in the block's shared memory; `at` is its byte offset, once allocated.

    Inside a loop it is a new buffer, with undefined contents, in every iteration. `warp_group_private` says that groups
    of so many consecutive warps keep to a part of their own each, so none of them waits for another one because of it.

    ```
    %s = kernel.shared at 1024 : memref<8xf32, "shared">
    %t = kernel.shared at 2048 warp_group_private 4 : memref<8xf32, "shared">
    ```
    """

    name = "kernel.shared"
    offset = irdl.opt_prop_def(IntAttr)
    warp_group_private = irdl.opt_prop_def(IntAttr)
    result = irdl.result_def(irdl.base(MemRefType))
    traits = irdl.traits_def(_Allocates())
    assembly_format = (
        "(`at` custom<Int>($offset)^)? (`warp_group_private` custom<Int>($warp_group_private)^)?"
        " attr-dict `:` type($result)"
    )

    def __init__(self, element: Attribute, size: int, *, warp_group_private: int | None = None):
        super().__init__(None, warp_group_private, SHARED.buffer(element, [size]))

    def verify_(self) -> None:
        if not is_shared(self.result.type):
            raise VerifyException(f'a shared buffer is a memref in space "shared", not {self.result.type}')
        if self.warp_group_private is not None and self.warp_group_private.data < 1:
            raise VerifyException(f"groups of {self.warp_group_private.data} warps")


@irdl.irdl_op_definition
class BarrierOp(OrderedOp):
    """All threads of the block wait for each other (`__syncthreads`); shared accesses before are seen after."""

    name = "kernel.barrier"


@irdl.irdl_op_definition
class AllocOp(FormattedOp):
    """Host: a buffer in global memory.

    ```
    %t = kernel.alloc : memref<32x2048xf32>
    ```
    """

    name = "kernel.alloc"
    result = irdl.result_def(irdl.base(MemRefType))
    traits = irdl.traits_def(_Allocates())
    assembly_format = "attr-dict `:` type($result)"


@irdl.irdl_op_definition
class LaunchOp(OrderedOp):
    """Host: run a kernel on buffers, after everything launched before.

    ```
    kernel.launch @k0(%x, %t) : memref<32x2048xf32>, memref<32x2048xf32>
    ```
    """

    name = "kernel.launch"
    kernel = irdl.prop_def(SymbolRefAttr)
    buffers = irdl.var_operand_def(irdl.base(MemRefType))
    assembly_format = "$kernel `` `(` $buffers `)` attr-dict `:` type($buffers)"


def kernel_names(module: ModuleOp) -> dict[str, str]:
    """Returns the printed name of each kernel of a module by its symbol: `k0`, `k1` ... in the order of the text."""
    funcs = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return {op.sym_name.data: f"k{number}" for number, op in enumerate(funcs)}


def tensor_maps(func: FuncOp) -> list[TensorMapOp]:
    """Returns the tensor maps of a kernel: its parameters behind the buffers, in this order."""
    return [op for op in func.walk() if isinstance(op, TensorMapOp)]


def is_written(memory: SSAValue) -> bool:
    """Whether a kernel writes the buffer that is its argument `memory`, itself or through a tensor map."""
    for use in memory.uses:
        op = use.operation
        if isinstance(op, StoreOp | AtomicRmwOp) and op.memory is memory:
            return True
        if isinstance(op, TensorMapOp) and any(isinstance(u.operation, TmaStoreOp) for u in op.result.uses):
            return True
    return False


BUFFER_ALIGNMENT = 256
"""Bytes to which a buffer between arguments and results is aligned."""

ALIGNMENT = 16
"""Bytes to which the start of every buffer that a kernel gets is aligned: its widest access."""


def aligned(size: Any) -> Any:
    """What a buffer of so many bytes, a number or a column of numbers, takes between arguments and results."""
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


@irdl.irdl_op_definition
class SliceOp(PureOp):
    """Host: one row of a buffer, or the beginning of it, as a buffer of its own, in the same memory.

    The row is element map(index) of the leading dimension; the slice is its first elements in memory, as many as its
    type has. Kernels rely on the alignment of buffers, so a row's size is a multiple of 16 bytes unless it is the only
    one.

    ```
    %row = kernel.slice %h[%t mod 2] : memref<2x64xf32> -> memref<3x5xf32>
    ```
    """

    name = "kernel.slice"
    source = irdl.operand_def(irdl.base(MemRefType))
    map = irdl.prop_def(AffineMapAttr)
    index = irdl.operand_def(IndexType())
    result = irdl.result_def(irdl.base(MemRefType))
    assembly_format = "$source `` custom<Row>($map, $index) attr-dict `:` type($source) `->` type($result)"

    @property
    def rows(self) -> int:
        return fixed(extents_of(self.source.type)[0])

    @property
    def row_extents(self) -> tuple[Extent, ...]:
        return extents_of(self.source.type)[1:]

    def row(self, index: int) -> int:
        return self.map.data.eval([index], [])[0]

    def verify_(self) -> None:
        map = self.map.data
        if (map.num_dims, map.num_symbols, len(map.results)) != (1, 0, 1):
            raise VerifyException(f"the row is one expression of one index, not {map}")
        source, result = self.source.type, self.result.type
        if not extents_of(source):
            raise VerifyException(f"{source} has no rows")
        if element_type(source) != element_type(result):
            raise VerifyException(f"a slice of {source} has its element type, not that of {result}")
        row, part = self.row_extents, extents_of(result)
        if part != row and prod(static(part)) > prod(static(row)):
            raise VerifyException(f"{result} is larger than a row of {source}")
        size = _known(row) * element_bytes(element_type(source))
        if self.rows > 1 and size % ALIGNMENT:
            raise VerifyException(f"rows of {size} bytes: not a multiple of {ALIGNMENT}")


def padded_row(t: Attribute) -> tuple[Extent, ...]:
    """The shortest row that a buffer of the tensor type `t` fits into, as `SliceOp` needs rows: its own shape if that
    is one, else all of its elements with a gap behind them; with a size known at run time, a gap at the end of each
    line. Raises ExtentError where the last dimension is such a size."""
    size, shape = element_bytes(element_type(t)), extents_of(t)
    if _known(shape) * size % ALIGNMENT == 0:
        return shape
    *outer, last = shape if any(isinstance(e, SymbolAttr) for e in shape) else [prod(static(shape))]
    step = ALIGNMENT // size
    return (*outer, -(-fixed(last) // step) * step)


def _known(shape: Sequence[Extent]) -> int:
    """The product of the extents that are numbers: what the product of all of them is a multiple of."""
    return prod(e for e in shape if isinstance(e, int))


Kernel = Dialect("kernel", *definitions("kernel", globals()))
