"""The tile dialect: a block's program over tiles.

A tile is a value: `tensor<64x128xf32>`, later with a layout as its encoding; a tile of no dimensions is a scalar
(`f32`), the same in all threads of the block. The payload computes on tiles, `scf.for` loops over chunks. Buffers in
global memory are memrefs, the arguments of the kernel; results are its trailing arguments. A kernel never loads what it
writes, so loads are pure.
"""

# pyright: reportUnusedImport=false
# ruff: noqa: F401, F403, F405  the package offers everything that its files define

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl import irdl
from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntAttr, MemRefType, StringAttr, TensorType
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.traits import MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from ..layouts import LayoutAttr, SharedAttr
from ..payload import element_type, shape_of
from ..shapes.domain import DomainAttr, verify_access
from ..support.assembly import NUMBERS, SAME_TYPE, FormattedOp, OrderedOp, PureOp, WritingOp, definitions
from ..tensor import KindAttr, ReductionKind, verify_atomic, verify_kind
from .copies import *
from .dot import *
from .kernel import *
from .row_cache import *
from .schedule import ScheduleAttr


def tile_type(element: Attribute, shape: Sequence[int], encoding: Attribute | None = None) -> Attribute:
    """The type of a tile; the scalar itself for no dimensions."""
    if not shape:
        return element
    return TensorType(element, shape, encoding) if encoding is not None else TensorType(element, shape)


def encoding_of(t: Attribute) -> Attribute | None:
    """The layout of a tile type (`LayoutAttr` or `SharedAttr`), or None where none is assigned."""
    return t.encoding if isinstance(t, TensorType) and isinstance(t.encoding, LayoutAttr | SharedAttr) else None


@irdl.irdl_op_definition
class LoadOp(PureOp):
    """A tile of a buffer: element t is source[map(t)[symbols]] inside the domain, else the fill value.

    Dimensions of the map are the tile's; a symbol is an `index` (the same for the whole tile) or a tile of `index` of
    the result's shape (one for each element: a gather).

    ```
    %x = tile.load %X[d0 + %i * 64, d1]
         where 0 <= d0 + %i * 64 < 100 else %zero
         : memref<100x64xf32> -> tensor<64x64xf32>
    ```
    """

    name = "tile.load"
    source = irdl.operand_def(MemRefType.constr(SAME_TYPE))
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def()
    domain = irdl.opt_prop_def(DomainAttr)
    fill = irdl.opt_operand_def(SAME_TYPE)
    result = irdl.result_def()
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$source `` custom<Access>($map, $symbols, type($symbols)) (`where` custom<Domain>($domain)^)? (`else` $fill^)?"
        " attr-dict `:` type($source) `->` custom<Ranked>(type($result))"
    )

    def verify_(self) -> None:
        verify_places(self, self.source, self.result)


class _WriteOp(FormattedOp):
    """What writes a tile at places of a buffer."""

    value = irdl.operand_def()
    target = irdl.operand_def(irdl.base(MemRefType))
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def()
    domain = irdl.opt_prop_def(DomainAttr)
    assembly_format = (
        "$value `,` $target `` custom<Access>($map, $symbols, type($symbols)) (`where` custom<Domain>($domain)^)?"
        " attr-dict `:` custom<Ranked>(type($value)) `,` type($target)"
    )

    def verify_(self) -> None:
        verify_places(self, self.target, self.value)


@irdl.irdl_op_definition
class StoreOp(_WriteOp, WritingOp):
    """Write a tile: buffer[map(t)[symbols]] = value[t] for the elements inside the domain; no two go to one place.

    ```
    tile.store %v, %Y[d0 + %i * 64] : tensor<64xf32>, memref<128xf32>
    ```
    """

    name = "tile.store"


@irdl.irdl_op_definition
class AtomicRmwOp(_WriteOp, OrderedOp):
    """Combine a tile into a result, in any order: p = map(t)[symbols], buffer[p] = kind(buffer[p], value[t]) inside the
    domain.

    Several elements may go to one place, of one block or of many. The buffer holds what its launch starts `from`, and
    nothing else in the kernel reads or writes it.

    ```
    tile.atomic_rmw add %v, %Y[%i] where 0 <= %i < 100
      : tensor<64xf32>, memref<100xf32>
    ```
    """

    name = "tile.atomic_rmw"
    kind = irdl.prop_def(KindAttr)
    assembly_format = f"$kind {_WriteOp.assembly_format}"

    def verify_(self) -> None:
        super().verify_()
        verify_atomic(self.kind.data, element_type(self.value.type))
        others = [u.operation for u in self.target.uses if not isinstance(u.operation, AtomicRmwOp)]
        if others:
            raise VerifyException(f"{others[0].name} accesses a buffer that is combined into")


@irdl.irdl_op_definition
class AffineOp(PureOp):
    """The value of an affine expression at every element of a tile: result[t] = map(t)[symbols].

    ```
    %k = tile.affine d1 + %c * 32 : tensor<64x32xindex>
    ```
    """

    name = "tile.affine"
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def(IndexType())
    result = irdl.result_def()
    assembly_format = "custom<Expression>($map, $symbols, type($symbols)) attr-dict `:` custom<Ranked>(type($result))"

    def verify_(self) -> None:
        verify_access(self, len(shape_of(self.result.type)), len(self.symbols), 1, "an expression")
        if element_type(self.result.type) != IndexType():
            raise VerifyException(f"an affine expression is an index, not {element_type(self.result.type)}")


@irdl.irdl_op_definition
class BroadcastOp(PureOp):
    """Repeat a tile, or a scalar, along new dimensions: `along` are their positions in the result.

    ```
    %b = tile.broadcast %r along [1] : tensor<64xf32> -> tensor<64x128xf32>
    ```
    """

    name = "tile.broadcast"
    source = irdl.operand_def()
    along = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source `along` $along attr-dict `:` type($source) `->` type($result)"

    def verify_(self) -> None:
        along = set(self.along.get_values())
        kept = tuple(n for i, n in enumerate(shape_of(self.result.type)) if i not in along)
        if kept != shape_of(self.source.type) or element_type(self.source.type) != element_type(self.result.type):
            raise VerifyException(f"broadcasting {self.source.type} along {sorted(along)} is not {self.result.type}")


@irdl.irdl_op_definition
class ReduceOp(PureOp):
    """Combine a tile along some of its dimensions, which disappear (all of them: a scalar).

    ```
    %s = tile.reduce add %x over [1] : tensor<64x128xf32> -> tensor<64xf32>
    ```
    """

    name = "tile.reduce"
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(irdl.base(TensorType))
    dims = irdl.prop_def(NUMBERS)
    result = irdl.result_def()
    assembly_format = "$kind $source `over` $dims attr-dict `:` type($source) `->` type($result)"

    def __init__(
        self, kind: str | ReductionKind, source: SSAValue, dims: Sequence[int], encoding: Attribute | None = None
    ):
        shape = [n for i, n in enumerate(shape_of(source.type)) if i not in dims]
        super().__init__(kind, source, dims, tile_type(element_type(source.type), shape, encoding))

    def verify_(self) -> None:
        dims = set(self.dims.get_values())
        kept = tuple(n for i, n in enumerate(shape_of(self.source.type)) if i not in dims)
        if kept != shape_of(self.result.type) or element_type(self.source.type) != element_type(self.result.type):
            raise VerifyException(f"reducing {sorted(dims)} of {self.source.type} is not {self.result.type}")
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """Inclusive scan of a tile along a dimension: `init`, the result of the tile before it, combined with the elements
    up to each one. `carry` is the last element of the result, the `init` of the next tile.

    ```
    %s, %c = tile.scan add %x, %init along 1 : tensor<8x128xf32>, tensor<8xf32>
    ```
    """

    name = "tile.scan"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(TensorType))
    C: ClassVar = irdl.VarConstraint("C", irdl.AnyAttr())
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(T)
    init = irdl.operand_def(C)
    dim = irdl.prop_def(IntAttr)
    result = irdl.result_def(T)
    carry = irdl.result_def(C)
    assembly_format = "$kind $source `,` $init `along` custom<Int>($dim) attr-dict `:` type($source) `,` type($init)"

    def verify_(self) -> None:
        shape, dim = shape_of(self.source.type), self.dim.data
        if not 0 <= dim < len(shape):
            raise VerifyException(f"dimension {dim} of {self.source.type}")
        element = element_type(self.source.type)
        if shape_of(self.init.type) != (*shape[:dim], *shape[dim + 1 :]) or element_type(self.init.type) != element:
            raise VerifyException(f"{self.init.type} is not {self.source.type} without dimension {dim}")
        verify_kind(self.kind.data, element, scan=True)


WAYS = ("registers", "shuffles", "shared")
"""How a tile gets from one layout to another."""


@irdl.irdl_op_definition
class ConvertLayoutOp(PureOp):
    """The same tile, held by other threads and registers. `via` says how it gets there: by moves between the registers
    of a thread, by shuffles within warps, or through shared memory; left out, the cheapest way is taken.

    ```
    %y = tile.convert_layout %x via "shuffles" : tensor<64xf32, #tile.layout<...>> -> tensor<64xf32, #tile.layout<...>>
    ```
    """

    name = "tile.convert_layout"
    source = irdl.operand_def(irdl.base(TensorType))
    via = irdl.opt_prop_def(StringAttr)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source (`via` $via^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, layout: LayoutAttr, via: str | None = None):
        super().__init__(source, via, tile_type(element_type(source.type), shape_of(source.type), layout))

    def verify_(self) -> None:
        if self.via is not None and self.via.data not in WAYS:
            raise VerifyException(f"via {self.via.data}, which is none of {', '.join(WAYS)}")
        _verify_moved(self.source.type, self.result.type, LayoutAttr)


@irdl.irdl_op_definition
class StageOp(PureOp):
    """A tile in registers, put into shared memory; where and between which barriers is decided below this level.

    ```
    %s = tile.stage %x : tensor<64x16xf32, #tile.layout<...>> -> tensor<64x16xf32, #tile.shared<...>>
    ```
    """

    name = "tile.stage"
    source = irdl.operand_def(irdl.base(TensorType))
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, layout: SharedAttr):
        super().__init__(source, tile_type(element_type(source.type), shape_of(source.type), layout))

    def verify_(self) -> None:
        _verify_moved(self.source.type, self.result.type, SharedAttr)


def _verify_moved(source: Attribute, result: Attribute, target: type[Attribute]) -> None:
    """Source and result are one tile; the result's encoding is a `target`."""
    same = shape_of(source) == shape_of(result) and element_type(source) == element_type(result)
    if not same or not isinstance(encoding_of(result), target):
        raise VerifyException(f"{source} is not moved into {result}")


Tile = Dialect("tile", *definitions("tile", globals()))
