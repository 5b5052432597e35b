"""The kernel dialect: the program of one thread, in hardware primitives.

A value `vector<8xf32>` is eight registers of each thread, with the numbers 0 to 7. Bit b of a register's number is
register bit b of the layout of the tile that it is lowered from (see `dialects/layouts`). The payload computes on
vectors. Loops are `scf.for`, with the same bounds in all threads of a partition.

```
kernel.func @k0(%x: memref<32x128xf32>, %y: memref<32x128xf32>) grid [32] warps 1 {
  %i = kernel.id block
  %lane = kernel.id lane
  ...
  %v = kernel.load %x[%i, %k] regs [[0, 1], [0, 2]] vec 4 : memref<32x128xf32> -> vector<4xf32>
  kernel.store %v, %y[%i, %k] regs [[0, 1], [0, 2]] vec 4 : memref<32x128xf32>, vector<4xf32>
}
```

Accesses are n-dimensional: the address of a register is a base coordinate plus a constant for each set bit of its
number. Shared memory is `memref<..., "shared">`. The host program, `func.func @main`, is a list of allocations,
launches, and loops of launches on slices of buffers.

`memory.py` has loads and stores, `registers.py` operations on registers and lanes, `mma.py` and `wgmma.py` tensor
cores, `copies.py` asynchronous copies, `barriers.py` mbarriers, warp specialisation and clusters, `prints.py` printing.
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
from ..payload.rows import ALIGNMENT, static_product
from ..shapes.extents import Count, CountAttr, Extent, SymbolAttr, extents_in, extents_of, fixed, most_tiles, static
from ..support.assembly import FormattedOp, OrderedOp, PureOp, definitions
from .barriers import *
from .copies import *
from .memory import *
from .mma import *
from .prints import PrintOp
from .registers import *
from .wgmma import *

MOST_THREADS = 2048
"""Maximum number of resident threads of a multiprocessor, over all targets (CUDA C++ Programming Guide, compute
capabilities)."""


class Id(StrEnum):
    """Index of a thread or of its block.

    BLOCK: block in the grid. RANK: block in its cluster. THREAD: thread in the block. LANE: thread in the warp. WARP:
    warp in the block.
    """

    BLOCK = "block"
    RANK = "rank"
    THREAD = "thread"
    LANE = "lane"
    WARP = "warp"


@irdl.irdl_attr_definition
class IdAttr(EnumAttribute[Id], SpacedOpaqueSyntaxAttribute):
    """Kind of index that `kernel.id` returns: `#kernel<id lane>`."""

    name = "kernel.id"


class BlockProgramOp(FormattedOp):
    """Base class of kernels at the tile and the kernel level: a program that each block of a grid runs.

    grid: blocks along each dimension.
    warps: warps of a block.
    cluster: blocks of a cluster, 1 without clusters.
    lanes: threads of a warp: 32, or 1 for a block of one thread on the CPU.
    """

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
        """Returns the extents of the grid; some may be known only at the launch."""
        return extents_in(self.grid)

    def verify_(self) -> None:
        warps, lanes = self.warps.data, self.lanes.data
        if lanes != LANES and (lanes, warps) != (1, 1):
            raise VerifyException(
                f"expected warps of {LANES} lanes, or one warp of one lane, but got {warps} warps of {lanes} lanes"
            )
        if self.cluster_size not in CLUSTERS:
            raise VerifyException(f"expected a cluster of 1, 2, 4 or 8 blocks, but got {self.cluster_size}")

    def verify_warps(self, subject: str = "a block") -> None:
        """Checks that the number of warps is a power of two up to 32. `subject` names the op in the message."""
        if self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"expected 1, 2, 4, 8, 16 or 32 warps in {subject}, but got {self.warps.data}")


@irdl.irdl_op_definition
class FuncOp(BlockProgramOp):
    """Defines a kernel: the program of every thread of a one-dimensional grid of blocks.

    ```
    kernel.func @k0(%x: memref<32x128xf32>, %y: memref<32x128xf32>) grid [32] warps 1 {
      %i = kernel.id block
      %lane = kernel.id lane
      %four = payload.constant 4 : index
      %k = arith.muli %lane, %four : index
      %v = kernel.load %x[%i, %k] regs [[0, 1], [0, 2]] vec 4 : memref<32x128xf32> -> vector<4xf32>
      %e = math.exp %v : vector<4xf32>
      kernel.store %e, %y[%i, %k] regs [[0, 1], [0, 2]] vec 4 : memref<32x128xf32>, vector<4xf32>
    }
    ```

    The arguments are buffers in global memory.

    Attributes:
        sym_name: name of the kernel.
        grid: counts whose product is the number of blocks, such as `[#s0 / 64, 32]`; symbols are known at the launch.
        warps: warps of a block.
        lanes: threads of a warp, 32 by default; 1 for a block of a single thread, on the CPU.
        cluster: number of blocks, with consecutive numbers, that form a cluster (see `barriers.py`).
        blocks_per_sm: minimum number of blocks that a multiprocessor must hold at once, which limits the registers of a
            thread (second argument of CUDA's `__launch_bounds__`).
        shared: bytes of shared memory of a block, after allocation.

    Regions:
        body: program of a thread.

    Constraints: all arguments are memrefs; at most one `kernel.warp_specialize`, whose partitions have all warps; the
    product of the grid's numbers (symbolic counts left out) is a multiple of the cluster.
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
        """Returns the minimum number of resident blocks of a multiprocessor, or 0 if there is no minimum."""
        return 0 if self.blocks_per_sm is None else self.blocks_per_sm.data

    @property
    def threads(self) -> int:
        """Returns the number of threads of a block."""
        return self.lanes.data * self.warps.data

    @property
    def partitions(self) -> WarpSpecializeOp | None:
        """Returns the `kernel.warp_specialize` of the kernel, or None if all warps run the same program."""
        return next((op for op in self.body.block.ops if isinstance(op, WarpSpecializeOp)), None)

    @property
    def blocks(self) -> int:
        """Returns the number of blocks. Raises ExtentError if it is known only at run time."""
        return prod(static(c if isinstance(c, int) else c.symbol for c in self.grid_shape))

    @property
    def most_blocks(self) -> int:
        """Returns the largest possible number of blocks."""
        return prod(map(most_tiles, self.grid_shape))

    def verify_(self) -> None:
        for a in self.body.block.args:
            if not isinstance(a.type, MemRefType):
                raise VerifyException(f"expected memrefs as the arguments of a kernel, but got {a.type}")
        partitions = self.partitions
        if (count := sum(isinstance(op, WarpSpecializeOp) for op in self.body.block.ops)) > 1:
            raise VerifyException(f"expected at most one kernel.warp_specialize in a kernel, but got {count}")
        if partitions is not None:
            if sum(partitions.partition_warps) != self.warps.data:
                raise VerifyException(
                    f"expected partitions of {self.warps.data} warps together, but got {partitions.partition_warps}"
                )
            if not 1 <= self.warps.data <= 32:
                raise VerifyException(f"expected 1 to 32 warps, but got {self.warps.data}")
        else:
            self.verify_warps("a block without partitions")
        super().verify_()
        fixed = prod(c for c in self.grid_shape if isinstance(c, int))
        # The launch checks counts that depend on symbols.
        if fixed < 1 or fixed >= 2**31:
            raise VerifyException(f"expected a grid of 1 to 2^31 - 1 blocks, but got {fixed}")
        if self.blocks_per_sm is not None and not 1 <= self.resident <= MOST_THREADS // self.threads:
            raise VerifyException(
                f"expected at most {MOST_THREADS} threads of resident blocks, but got {self.resident} blocks of"
                f" {self.threads} threads"
            )
        if fixed % self.cluster_size:
            grid = " * ".join(map(str, self.grid_shape))
            raise VerifyException(
                f"expected a grid of whole clusters of {self.cluster_size} blocks, but got {grid} blocks"
            )


def symbols_in(func: FuncOp) -> tuple[SymbolAttr, ...]:
    """Returns the symbolic sizes that a kernel needs, in a fixed order: the parameters after its buffers.

    Buffers are row-major, so no address depends on the first extent of a buffer. It is a parameter only if a bound or a
    `payload.extent` uses it.
    """
    extents = [extent for argument in func.body.block.args for extent in extents_of(argument.type)[1:]]
    for op in func.walk():
        if isinstance(op, ExtentOp):
            extents.append(op.symbol)
        elif isinstance(op, MemoryAccess):
            extents += extents_in(op.upper)
    return tuple(dict.fromkeys(e for e in extents if isinstance(e, SymbolAttr)))


@irdl.irdl_op_definition
class IdOp(PureOp):
    """Returns an index of this thread: its block, rank, thread, lane or warp (`Id`).

    ```
    %lane = kernel.id lane
    ```

    Attributes:
        kind: the index to return.
    """

    name = "kernel.id"
    kind = irdl.prop_def(IdAttr)
    result = irdl.result_def(IndexType())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str | Id):
        super().__init__(kind)
        self.result.name_hint = self.kind.data.value


class _Allocates(MemoryEffect):
    """Memory effect of an operation that allocates its result: it is erased if the result is unused."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


@irdl.irdl_op_definition
class SharedOp(FormattedOp):
    """Allocates a buffer in the shared memory of the block.

    ```
    %s = kernel.shared at 1024 : memref<8xf32, "shared">
    %t = kernel.shared at 2048 warp_group_private 4 : memref<8xf32, "shared">
    ```

    In a loop, every iteration allocates a new buffer with undefined contents.

    Attributes:
        offset: byte offset (`at`), set by `kernel-allocate-shared`.
        warp_group_private: number of warps. Each group of that many consecutive warps accesses a part of its own, so
            the buffer needs no barrier between groups.

    Constraints: the result is a memref in space "shared"; `warp_group_private` is positive.
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
            raise VerifyException(f'expected a memref in space "shared", but got {self.result.type}')
        if self.warp_group_private is not None and self.warp_group_private.data < 1:
            raise VerifyException(f"expected groups of at least one warp, but got {self.warp_group_private.data}")


@irdl.irdl_op_definition
class BarrierOp(OrderedOp):
    """Synchronises all threads of the block (`__syncthreads`). Accesses to shared memory before it are visible after
    it.

    ```
    kernel.barrier
    ```
    """

    name = "kernel.barrier"


@irdl.irdl_op_definition
class AllocOp(FormattedOp):
    """Host operation: allocates a buffer in global memory.

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
    """Host operation: launches a kernel on buffers, after all earlier launches.

    ```
    kernel.launch @k0(%x, %t) : memref<32x2048xf32>, memref<32x2048xf32>
    ```

    Operands:
        buffers: arguments of the kernel.

    Attributes:
        kernel: name of the kernel.
    """

    name = "kernel.launch"
    kernel = irdl.prop_def(SymbolRefAttr)
    buffers = irdl.var_operand_def(irdl.base(MemRefType))
    assembly_format = "$kernel `` `(` $buffers `)` attr-dict `:` type($buffers)"


def kernel_names(module: ModuleOp) -> dict[str, str]:
    """Returns symbol -> printed name of each kernel of a module: `k0`, `k1` … in the order of the text."""
    funcs = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return {op.sym_name.data: f"k{number}" for number, op in enumerate(funcs)}


def tensor_maps(func: FuncOp) -> list[TensorMapOp]:
    """Returns the tensor maps of a kernel, in the order of the kernel parameters, which follow the buffers."""
    return [op for op in func.walk() if isinstance(op, TensorMapOp)]


def is_written(memory: SSAValue) -> bool:
    """Returns true if a kernel writes to its argument `memory`, by stores, atomics or TMA stores."""
    for use in memory.uses:
        op = use.operation
        if isinstance(op, StoreOp | AtomicRmwOp) and op.memory is memory:
            return True
        if isinstance(op, TensorMapOp) and any(isinstance(u.operation, TmaStoreOp) for u in op.result.uses):
            return True
    return False


BUFFER_ALIGNMENT = 256
"""Alignment in bytes of the buffers of intermediate results."""


def aligned(size: Any) -> Any:
    """Rounds a size in bytes (a number or an array) up to `BUFFER_ALIGNMENT`."""
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


@irdl.irdl_op_definition
class SliceOp(PureOp):
    """Host operation: a row of a buffer, or its first elements, as a buffer in the same memory.

    ```
    %row = kernel.slice %h[%t mod 2] : memref<2x64xf32> -> memref<3x5xf32>
    ```

    The row is element map(index) of the leading dimension. The result has the first elements of the row, in the
    shape of the result type.

    Operands:
        source: buffer whose leading dimension numbers the rows.
        index: value from which the map computes the row.

    Attributes:
        map: number of the row, as an expression of the index.

    Constraints: source and result have one element type; the result is not larger than a row; a row is a multiple of 16
    bytes, which kernels rely on, unless there is only one.
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
            raise VerifyException(f"expected a row map of one index and one result, but got {map}")
        source, result = self.source.type, self.result.type
        if not extents_of(source):
            raise VerifyException(f"expected a buffer with rows, but got {source}")
        if element_type(source) != element_type(result):
            raise VerifyException(f"expected a slice with the element type of {source}, but got {result}")
        row, part = self.row_extents, extents_of(result)
        if part != row and prod(static(part)) > prod(static(row)):
            raise VerifyException(f"expected a slice no larger than a row of {source}, but got {result}")
        size = static_product(row) * element_bytes(element_type(source))
        if self.rows > 1 and size % ALIGNMENT:
            raise VerifyException(f"expected rows of a multiple of {ALIGNMENT} bytes, but got {size}")


Kernel = Dialect("kernel", *definitions("kernel", globals()))
