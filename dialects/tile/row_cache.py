"""Row cache of a block, and collective operations of the blocks of a cluster.

A *row buffer* keeps the tiles of a row in shared memory between several loops over the row. It has one place for each
tile. The block that stores a tile loads it as often as needed, in any order:

```
%r = tile.row_buffer : !tile.row_buffer<13 of tensor<4096xf32>>
tile.row_buffer_store %x, %r[%k] : ...     (first loop)
%y = tile.row_buffer_load %r[%k] : ...     (second loop)
```

The collective operations exchange tiles between the blocks of a cluster through distributed shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl import irdl
from xdsl.dialects.builtin import IndexType, IntAttr, TensorType
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.traits import MemoryReadEffect
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type, shape_of
from ..support.assembly import FormattedOp, PureOp, WritingOp
from ..support.attribute_format import INT, TYPE, FormattedAttr
from ..support.locations import enclosing
from ..tensor import KindAttr, ReductionKind, verify_kind
from .kernel import KernelOp


@irdl.irdl_attr_definition
class RowBufferType(FormattedAttr, TypeAttribute):
    """Type of a buffer for `places` tiles in shared memory: `!tile.row_buffer<13 of tensor<4096xf32>>`.

    places: number of tiles.
    tile: type of one tile. It has no layout: the layouts of the tiles in registers are chosen later.

    Constraints: at least one place; the tile has dimensions and no layout.
    """

    name = "tile.row_buffer"
    FORMAT = (INT, " of ", TYPE)
    places: IntAttr
    tile: Attribute

    @staticmethod
    def get(places: int, tile: Attribute) -> RowBufferType:
        """Returns the type of a buffer for `places` tiles of the shape and element type of `tile`."""
        return RowBufferType(IntAttr(places), TensorType(element_type(tile), shape_of(tile)))

    def verify(self) -> None:
        if self.places.data < 1:
            raise VerifyException(f"expected at least one place, but got {self.places.data}")
        if shape_of(self.tile) == () or self.tile != TensorType(element_type(self.tile), self.shape):
            raise VerifyException(f"expected a row of tiles without a layout, but got {self.tile}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of one tile."""
        return shape_of(self.tile)


@irdl.irdl_op_definition
class RowBufferOp(WritingOp):
    """Creates a row buffer with undefined contents.

    ```
    %r = tile.row_buffer : !tile.row_buffer<13 of tensor<4096xf32>>
    ```
    """

    name = "tile.row_buffer"
    result = irdl.result_def(irdl.base(RowBufferType))
    assembly_format = "attr-dict `:` type($result)"


@irdl.irdl_op_definition
class RowBufferStoreOp(WritingOp):
    """Stores a tile to a place of a row buffer.

    ```
    tile.row_buffer_store %x, %r[%k] : tensor<4096xf32>, !tile.row_buffer<13 of tensor<4096xf32>>
    ```

    Operands:
        row: row buffer.
        place: number of the tile in the row.

    Constraints: shape and element type match the buffer's tiles.
    """

    name = "tile.row_buffer_store"
    value = irdl.operand_def(irdl.base(TensorType))
    row = irdl.operand_def(irdl.base(RowBufferType))
    place = irdl.operand_def(IndexType())
    assembly_format = "$value `,` $row `` `[` $place `]` attr-dict `:` type($value) `,` type($row)"

    def verify_(self) -> None:
        _verify_tile(self.row.type, self.value.type)


@irdl.irdl_op_definition
class RowBufferLoadOp(FormattedOp):
    """Loads the tile in a place of a row buffer, which must have been stored before.

    ```
    %y = tile.row_buffer_load %r[%k] : !tile.row_buffer<13 of tensor<4096xf32>> -> tensor<4096xf32>
    ```

    Operands:
        row: row buffer.
        place: number of the tile in the row.

    Constraints: shape and element type match the buffer's tiles.
    """

    name = "tile.row_buffer_load"
    row = irdl.operand_def(irdl.base(RowBufferType))
    place = irdl.operand_def(IndexType())
    result = irdl.result_def(irdl.base(TensorType))
    traits = irdl.traits_def(MemoryReadEffect())
    assembly_format = "$row `` `[` $place `]` attr-dict `:` type($row) `->` type($result)"

    def verify_(self) -> None:
        _verify_tile(self.row.type, self.result.type)


def _verify_tile(row: Attribute, tile: Attribute) -> None:
    assert isinstance(row, RowBufferType)
    if (shape_of(tile), element_type(tile)) != (row.shape, element_type(row.tile)):
        raise VerifyException(f"expected a tile of {row}, but got {tile}")


@irdl.irdl_op_definition
class ClusterAllGatherOp(PureOp):
    """Gathers tiles from every block of the cluster, along a new first dimension, the rank.

    ```
    %all = tile.cluster_allgather %m : f32 -> tensor<4xf32>
    %ms, %ls = tile.cluster_allgather %m, %l : f32, f32 -> tensor<4xf32>, tensor<4xf32>
    ```

    All blocks of the cluster must execute it equally often.

    Operands:
        tiles: tiles of this block.

    Results:
        res: tiles of all blocks, in the order of ranks.

    Constraints: one result for each operand; the first extent of the results is the cluster size.
    """

    name = "tile.cluster_allgather"
    tiles = irdl.var_operand_def()
    res = irdl.var_result_def(irdl.base(TensorType))
    assembly_format = "$tiles attr-dict `:` type($tiles) `->` type($res)"

    def __init__(self, tiles: Sequence[SSAValue], ranks: int):
        super().__init__(tiles, [TensorType(element_type(t.type), (ranks, *shape_of(t.type))) for t in tiles])

    @property
    def ranks(self) -> int:
        """Returns the number of blocks of the cluster."""
        return shape_of(self.res[0].type)[0]

    def verify_(self) -> None:
        if not self.tiles or len(self.tiles) != len(self.res):
            raise VerifyException(
                f"expected at least one tile and as many results, but got {len(self.tiles)} and {len(self.res)}"
            )
        for tile, result in zip(self.tiles, self.res, strict=True):
            shape, element = shape_of(result.type), element_type(result.type)
            if shape[1:] != shape_of(tile.type) or element != element_type(tile.type) or shape[0] != self.ranks:
                raise VerifyException(
                    f"expected {tile.type} with a new first dimension of {self.ranks} ranks, but got {result.type}"
                )
        _verify_ranks(self, self.ranks)


@irdl.irdl_op_definition
class ClusterReduceScatterOp(PureOp):
    """Reduces tiles over the blocks of the cluster, elementwise in the order of ranks; each block gets one part.

    ```
    %s = tile.cluster_reduce_scatter add %acc along 0 : tensor<64x128xf32> -> tensor<16x128xf32>
    ```

    The block with rank r gets part r of the result along the dimension. All blocks of the cluster must execute it
    equally often.

    Attributes:
        kind: reduction kind.
        dim: dimension that is divided among the blocks (`along`).

    Constraints: the result has the extent of the source divided by the cluster size along the dimension, and equal
    extents otherwise.
    """

    name = "tile.cluster_reduce_scatter"
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(irdl.base(TensorType))
    dim = irdl.prop_def(IntAttr)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$kind $source `along` custom<Int>($dim) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, kind: ReductionKind, source: SSAValue, dim: int, ranks: int):
        shape = [n // ranks if d == dim else n for d, n in enumerate(shape_of(source.type))]
        super().__init__(kind, source, dim, TensorType(element_type(source.type), shape))

    @property
    def part(self) -> int:
        """Returns the extent of a block's part along the dimension."""
        return shape_of(self.result.type)[self.dim.data]

    @property
    def ranks(self) -> int:
        """Returns the number of blocks of the cluster."""
        return shape_of(self.source.type)[self.dim.data] // self.part

    def verify_(self) -> None:
        whole, part, dim = shape_of(self.source.type), shape_of(self.result.type), self.dim.data
        if not 0 <= dim < len(whole):
            raise VerifyException(f"expected a dimension of {self.source.type}, but got {dim}")
        others = whole[:dim] == part[:dim] and whole[dim + 1 :] == part[dim + 1 :] and len(whole) == len(part)
        if not others or element_type(self.source.type) != element_type(self.result.type) or whole[dim] % part[dim]:
            raise VerifyException(
                f"expected an equal part of {self.source.type} along dimension {dim}, but got {self.result.type}"
            )
        verify_kind(self.kind.data, element_type(self.source.type))
        _verify_ranks(self, self.ranks)


def _verify_ranks(op: ClusterAllGatherOp | ClusterReduceScatterOp, ranks: int) -> None:
    kernel = enclosing(op, KernelOp)
    if kernel is not None and kernel.cluster_size != ranks:
        raise VerifyException(
            f"expected tiles of the {kernel.cluster_size} blocks of a cluster of the kernel, but got {ranks}"
        )
