"""Kernels of the tile dialect: a block's program with its buffers and its grid, and its launch from the host."""

from __future__ import annotations

from xdsl import irdl
from xdsl.dialects import builtin
from xdsl.ir import BlockArgument, SSAValue
from xdsl.traits import SymbolTable
from xdsl.utils.exceptions import VerifyException

from ..kernel import BlockProgramOp
from ..payload import same_elements
from ..support.assembly import PureOp
from .schedule import Schedule, ScheduleAttr


@irdl.irdl_op_definition
class KernelOp(BlockProgramOp):
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
    assembly_format = (
        "$sym_name `` custom<Buffers>(ref($body)) `blocks` custom<Indices>(ref($body)) `in` custom<Counts>($grid)"
        " `warps` custom<Int>($warps) (`lanes` custom<Int>($lanes)^)?"
        " (`cluster` custom<Int>($cluster)^)? attr-dict-with-keyword custom<Body>($body)"
    )

    @property
    def schedule(self) -> Schedule:
        """The decisions by which the kernel is made; the plainest ones where it has none."""
        found = self.attributes.get("schedule")
        return found.data if isinstance(found, ScheduleAttr) else Schedule(())

    @property
    def buffers(self) -> tuple[BlockArgument, ...]:
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.MemRefType))

    @property
    def blocks(self) -> tuple[SSAValue, ...]:
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.IndexType))

    def verify_(self) -> None:
        if (*self.body.block.args,) != (*self.buffers, *self.blocks) or len(self.blocks) != len(self.grid_shape):
            raise VerifyException("a kernel takes memrefs, then one block index for each extent of its grid")
        self.verify_warps()
        super().verify_()
        if self.cluster_size > 1 and not self.has_clusters_of(self.cluster_size):
            raise VerifyException(f"clusters of {self.cluster_size} blocks do not make up the last extent of the grid")

    def has_clusters_of(self, blocks: int) -> bool:
        """Whether groups of so many blocks that differ in the last index alone make up the grid."""
        last = next((n for n in reversed(self.grid_shape) if n != 1), 1)
        return isinstance(last, int) and last % blocks == 0


@irdl.irdl_op_definition
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
    kernel = irdl.prop_def(builtin.SymbolRefAttr)
    inputs = irdl.var_operand_def()
    start = irdl.opt_operand_def()
    res = irdl.var_result_def()
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
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
