"""Kernels of the tile dialect: a block's program with its buffers and its grid, and its launch from the host."""

from __future__ import annotations

from xdsl.dialects import builtin
from xdsl.ir import BlockArgument, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    opt_operand_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

from ..kernel.mbarrier import CLUSTERS
from ..kernel.registers import verify_lanes
from ..layouts.linear import LANES
from ..payload import same_elements
from ..shapes.extents import Count, CountAttr, extents_in
from ..support.assembly import FormattedOp, PureOp
from .schedule import Schedule, ScheduleAttr


@irdl_op_definition
class KernelOp(FormattedOp):
    """A kernel: one program, run by every block of a grid.

    The body's arguments are the buffers, then one block index for each extent of the grid.

    ```
    tile.kernel @k0(%x: memref<16x64xf32>, %y: memref<16x64xf32>) blocks (%i, %j) in [4, 1] warps 4 {
      ...
    }
    ```
    An extent that depends on a size known only at run time is a quotient, rounded up: `in [#s0 / 64, 32]`. With
    `cluster N` behind the warps N blocks that are neighbours along the last index form a cluster. With
    `lanes 1` a block is a single thread, the program of a core.
    """

    name = "tile.kernel"
    sym_name = prop_def(builtin.SymbolNameConstraint())
    grid = prop_def(builtin.ArrayAttr[builtin.IntAttr | CountAttr])
    warps = prop_def(builtin.IntAttr)
    cluster = prop_def(builtin.IntAttr, default_value=builtin.IntAttr(1))
    lanes = prop_def(builtin.IntAttr, default_value=builtin.IntAttr(LANES))
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "$sym_name `` custom<Buffers>(ref($body)) `blocks` custom<Indices>(ref($body)) `in` custom<Counts>($grid)"
        " `warps` custom<Int>($warps) (`lanes` custom<Int>($lanes)^)?"
        " (`cluster` custom<Int>($cluster)^)? attr-dict-with-keyword custom<Body>($body)"
    )

    @property
    def cluster_size(self) -> int:
        """How many blocks a cluster has; 1 where there are none."""
        return self.cluster.data

    @property
    def schedule(self) -> Schedule:
        """The decisions by which the kernel is made; the plainest ones where it has none."""
        found = self.attributes.get("schedule")
        return found.data if isinstance(found, ScheduleAttr) else Schedule(())

    @property
    def buffers(self) -> tuple[BlockArgument, ...]:
        """The memref arguments, inputs before results."""
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.MemRefType))

    @property
    def blocks(self) -> tuple[SSAValue, ...]:
        """The block indices, one for each extent of the grid."""
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.IndexType))

    @property
    def grid_shape(self) -> tuple[Count, ...]:
        """The extents of the grid, some of which may be known only when it is launched."""
        return extents_in(self.grid)

    def verify_(self) -> None:
        types = [a.type for a in self.body.block.args]
        blocks = len(self.grid_shape)
        head, tail = types[: len(types) - blocks], types[len(types) - blocks :]
        if any(not isinstance(t, builtin.IndexType) for t in tail) or any(
            not isinstance(t, builtin.MemRefType) for t in head
        ):
            raise VerifyException("a kernel takes memrefs, then one block index for each extent of its grid")
        if self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"a block has 1, 2, 4, 8, 16 or 32 warps, not {self.warps.data}")
        verify_lanes(self.lanes.data, self.warps.data)
        if self.cluster_size not in CLUSTERS:
            raise VerifyException(f"a cluster has 1, 2, 4 or 8 blocks, not {self.cluster_size}")
        if self.cluster_size > 1 and not self.has_clusters_of(self.cluster_size):
            raise VerifyException(f"clusters of {self.cluster_size} blocks do not make up the last extent of the grid")

    def has_clusters_of(self, blocks: int) -> bool:
        """Whether groups of so many blocks that differ in the last index alone make up the grid."""
        last = next((n for n in reversed(self.grid_shape) if n != 1), 1)
        return isinstance(last, int) and last % blocks == 0


@irdl_op_definition
class LaunchOp(PureOp):
    """Run a kernel: its inputs are tensors, its results new tensors, one for each trailing buffer of the kernel. The
    kernel may see each in another shape.

    A kernel that combines into its result (`tile.atomic_rmw`) has one, which starts as the value `from`: what another
    launch gives.

    ```
    %y = tile.launch @k0(%x, %w) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
    %z = tile.launch @k1(%v, %i) from (%y : tensor<16x64xf32>) : (tensor<8xf32>, tensor<8xi64>) -> tensor<16x64xf32>
    ```
    """

    name = "tile.launch"
    kernel = prop_def(builtin.SymbolRefAttr)
    inputs = var_operand_def()
    start = opt_operand_def()
    res = var_result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$kernel `` `(` $inputs `)` (`from` `(` $start^ `:` type($start) `)`)? attr-dict"
        " `:` functional-type($inputs, $res)"
    )

    def verify_(self) -> None:
        root = self.get_toplevel_object()
        if not isinstance(root, builtin.ModuleOp):
            return  # still being built
        name = self.kernel.string_value()
        kernel = SymbolTable.lookup_symbol(root, name)
        if not isinstance(kernel, KernelOp):
            raise VerifyException(f"launches @{name}, which is no kernel of this module")
        given = [*self.inputs, *self.res]
        if len(kernel.buffers) != len(given) or any(
            not same_elements(b.type, v.type) for b, v in zip(kernel.buffers, given, strict=True)
        ):
            raise VerifyException(f"the buffers of @{name} are not the inputs and results of the launch")
        combines = any(use.operation.name == "tile.atomic_rmw" for b in kernel.buffers for use in b.uses)
        if combines != (self.start is not None):
            raise VerifyException(f"a launch starts from a value if @{name} combines into its result, and only then")
        if self.start is None:
            return
        if [self.start.type] != list(self.result_types):
            raise VerifyException(f"the result of @{name} starts as {self.start.type}")
        if not isinstance(self.start.owner, LaunchOp):
            raise VerifyException("a launch starts from a result of another one")
