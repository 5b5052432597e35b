"""The kernel dialect: one thread's program in hardware primitives.

Registers are SSA vectors: `vector<8xf32>` is eight registers of each thread, whose number's bits are the register bits
of the tile layout it came from. The payload computes on them; `scf.for` with the same bounds in all threads loops.
Accesses stay n-dimensional; a register's place is the base coordinate plus a constant for every set bit of its number.
Shared memory is `memref<..., "shared">`. The host side, `func.func @main`, is a list of allocations, launches, and
loops of launches on slices of buffers.
"""

# pyright: reportUnusedImport=false
# ruff: noqa: F401  what is imported is what the package offers, and the operations of the dialect

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import (
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
from xdsl.irdl import (
    base,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
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
from ..payload import ExtentOp
from ..shapes.extents import Count, CountAttr, SymbolAttr, extents_in, extents_of, most_tiles, static
from ..support.assembly import FormattedOp, OrderedOp, PureOp, definitions
from .cp_async import AsyncCommitOp, AsyncWaitOp, CopyAsyncOp, SubviewOp
from .host import SliceOp
from .mbarrier import (
    CLUSTERS,
    AdvanceOp,
    ClusterBarrierOp,
    FenceMbarInitOp,
    GroupBarrierOp,
    MapaOp,
    MbarArriveOp,
    MbarExpectOp,
    MbarInitOp,
    MbarrierType,
    MbarWaitOp,
)
from .memory import SHARED, AtomicRmwOp, LoadOp, MemoryAccess, StoreOp, is_shared
from .mma import LdMatrixOp, MmaOp, StMatrixOp
from .registers import (
    ExtractOp,
    IndicesOp,
    OuterFmaOp,
    PanelFmaOp,
    PermuteRegistersOp,
    ReduceRegistersOp,
    ScanRegistersOp,
    ShuffleOp,
    ShuffleRegistersOp,
    ShuffleXorOp,
    SplatOp,
    verify_lanes,
)
from .tma import BulkCommitOp, BulkWaitOp, FenceAsyncOp, TensorMapOp, TensorMapType, TmaLoadOp, TmaStoreOp
from .warp_specialize import WarpSpecializeOp
from .wgmma import AccumulatorsOp, AsyncAccumulatorsType, WgmmaCommitOp, WgmmaFenceOp, WgmmaOp, WgmmaWaitOp

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


@irdl_attr_definition
class IdAttr(EnumAttribute[Id], SpacedOpaqueSyntaxAttribute):
    """`#kernel<id lane>`"""

    name = "kernel.id"


@irdl_op_definition
class FuncOp(FormattedOp):
    """A kernel: the program of every thread of a one-dimensional grid of blocks.

    ```
    kernel.func @k0(%x: memref<32x2048xf32>, %y: memref<32x2048xf32>) grid [32] warps 8 {
      %lane = kernel.id lane
      ...
    }
    ```
    `shared N` says how many bytes of shared memory a block has, once they are allocated. A grid that depends on sizes
    known only at run time is a product of counts: `grid [#s0 / 64, 32]`. With `cluster N` so many blocks with
    consecutive numbers form a cluster (see `cluster.py`); the grid is a multiple of it. With `blocks_per_sm N`
    at least N blocks fit on a multiprocessor at once: the compiler divides its registers by them (the second number of
    CUDA's `__launch_bounds__`); without, it takes as many registers as it likes. With `lanes 1` a block is a single
    thread, which a core runs.
    """

    name = "kernel.func"
    sym_name = prop_def(SymbolNameConstraint())
    grid = prop_def(ArrayAttr[IntAttr | CountAttr])
    warps = prop_def(IntAttr)
    shared = opt_prop_def(IntAttr)
    cluster = prop_def(IntAttr, default_value=IntAttr(1))
    blocks_per_sm = opt_prop_def(IntAttr)
    lanes = prop_def(IntAttr, default_value=IntAttr(LANES))
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "$sym_name `` custom<Arguments>(ref($body)) `grid` custom<Counts>($grid) `warps` custom<Int>($warps)"
        " (`lanes` custom<Int>($lanes)^)?"
        " (`cluster` custom<Int>($cluster)^)? (`blocks_per_sm` custom<Int>($blocks_per_sm)^)?"
        " (`shared` custom<Int>($shared)^)? attr-dict-with-keyword custom<Body>($body)"
    )

    @property
    def cluster_size(self) -> int:
        """How many blocks a cluster has; 1 where there are none."""
        return self.cluster.data

    @property
    def resident(self) -> int:
        """How many blocks have to fit on a multiprocessor at once; 0 where nobody asks for a number."""
        return 0 if self.blocks_per_sm is None else self.blocks_per_sm.data

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.lanes.data * self.warps.data

    @property
    def partitions(self) -> WarpSpecializeOp | None:
        """The parts of the block's warps, if they run different programs."""
        return next((op for op in self.body.block.ops if isinstance(op, WarpSpecializeOp)), None)

    @property
    def factors(self) -> tuple[Count, ...]:
        """The numbers whose product is the number of blocks."""
        return extents_in(self.grid)

    @property
    def blocks(self) -> int:
        """How many blocks there are. Raises ExtentError if that is known only at run time."""
        return prod(static(c if isinstance(c, int) else c.symbol for c in self.factors))

    @property
    def most_blocks(self) -> int:
        """How many blocks there are at most."""
        return prod(map(most_tiles, self.factors))

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
        elif self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"a block without partitions has 1, 2, 4, 8, 16 or 32 warps, not {self.warps.data}")
        verify_lanes(self.lanes.data, self.warps.data)
        fixed = prod(c for c in self.factors if isinstance(c, int))
        if fixed < 1 or fixed >= 2**31:  # those that depend on symbols are checked at the launch
            raise VerifyException(f"a grid has 1 to 2^31 - 1 blocks, not {fixed}")
        if self.blocks_per_sm is not None and not 1 <= self.resident <= MOST_THREADS // self.threads:
            raise VerifyException(f"{self.resident} blocks of {self.threads} threads do not fit on a multiprocessor")
        if self.cluster_size not in CLUSTERS:
            raise VerifyException(f"a cluster has 1, 2, 4 or 8 blocks, not {self.cluster_size}")
        if fixed % self.cluster_size:
            grid = " * ".join(map(str, self.factors))
            raise VerifyException(f"clusters of {self.cluster_size} do not make up a grid of {grid} blocks")


def symbols_in(func: FuncOp) -> tuple[SymbolAttr, ...]:
    """The sizes known only at run time that a kernel computes with, in a fixed order: they are passed to it after its
    buffers. The first extent of a buffer is in no address."""
    found = dict[SymbolAttr, None]()
    for argument in func.body.block.args:
        for extent in extents_of(argument.type)[1:]:
            if isinstance(extent, SymbolAttr):
                found[extent] = None
    for op in func.walk():
        if isinstance(op, ExtentOp):
            found[op.symbol] = None
        elif isinstance(op, MemoryAccess):
            found.update({hi: None for _, hi in op.bounds if isinstance(hi, SymbolAttr)})
    return tuple(found)


@irdl_op_definition
class IdOp(PureOp):
    """Who this thread is.

    ```
    %lane = kernel.id lane
    ```
    """

    name = "kernel.id"
    kind = prop_def(IdAttr)
    result = result_def(IndexType())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str | Id):
        super().__init__(kind)
        self.result.name_hint = self.kind.data.value


class _Allocates(MemoryEffect):
    """The operation allocates its result: unused, it disappears."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


@irdl_op_definition
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
    offset = opt_prop_def(IntAttr)
    warp_group_private = opt_prop_def(IntAttr)
    result = result_def(base(MemRefType))
    traits = traits_def(_Allocates())
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


@irdl_op_definition
class BarrierOp(OrderedOp):
    """All threads of the block wait for each other (`__syncthreads`); shared accesses before are seen after."""

    name = "kernel.barrier"


@irdl_op_definition
class AllocOp(FormattedOp):
    """Host: a buffer in global memory.

    ```
    %t = kernel.alloc : memref<32x2048xf32>
    ```
    """

    name = "kernel.alloc"
    result = result_def(base(MemRefType))
    traits = traits_def(_Allocates())
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
class LaunchOp(OrderedOp):
    """Host: run a kernel on buffers, after everything launched before.

    ```
    kernel.launch @k0(%x, %t) : memref<32x2048xf32>, memref<32x2048xf32>
    ```
    """

    name = "kernel.launch"
    kernel = prop_def(SymbolRefAttr)
    buffers = var_operand_def(base(MemRefType))
    assembly_format = "$kernel `` `(` $buffers `)` attr-dict `:` type($buffers)"


def kernel_names(module: ModuleOp) -> dict[str, str]:
    """Returns the printed name of each kernel of a module by its symbol: `k0`, `k1` ... in the order of the text."""
    funcs = [op for op in module.body.ops if isinstance(op, FuncOp)]
    return {op.sym_name.data: f"k{number}" for number, op in enumerate(funcs)}


def tensor_maps(func: FuncOp) -> list[TensorMapOp]:
    """Returns the tensor maps of a kernel: its parameters behind the buffers, in this order."""
    return [op for op in func.walk() if isinstance(op, TensorMapOp)]


Kernel = Dialect("kernel", *definitions("kernel", globals()))
