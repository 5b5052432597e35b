"""Results of blocks in the tile dialect: parts of a tile, and tiles in shared memory that leave as boxes."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IndexType, MemRefType, TensorType, i64
from xdsl.irdl import base, irdl_op_definition, operand_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type, shape_of
from ..support.assembly import FormattedOp, PureOp
from .access import is_in_shared, verify_box, verify_places


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
    at = prop_def(DenseArrayBase.constr(i64))
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
class TmaStoreOp(FormattedOp):
    """Write a tile in shared memory as a box of a buffer: buffer[map(t)[symbols]] = value[t] for the elements inside of
    the buffer. One thread (of each warpgroup that has a part of it) starts the copy, nobody waits for it.

    Every dimension of the tile runs along one dimension of the buffer, in steps of one; symbols say where it starts.

    ```
    tile.tma_store %s, %Y[affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 64)>](%j)
        : tensor<128x64xbf16, #tile.shared<...>>, memref<128x512xbf16>, index
    ```
    """

    name = "tile.tma_store"
    value = operand_def(base(TensorType))
    target = operand_def(base(MemRefType))
    map = prop_def(AffineMapAttr)
    symbols = var_operand_def(IndexType())
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `,` $target `` `[` $map `]` `` `(` $symbols `)` attr-dict"
        " `:` type($value) `,` type($target) (`,` type($symbols)^)?"
    )

    def verify_(self) -> None:
        verify_places(self, self.target, self.value)
        if not is_in_shared(self.value.type):
            raise VerifyException(f"a box leaves from shared memory, not as {self.value.type}")
        verify_box(self.map.data)
