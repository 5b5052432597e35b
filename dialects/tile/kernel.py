"""Kernels of the tile dialect, their launches, and the operations of a block's program on tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl import irdl
from xdsl.dialects import builtin
from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntAttr, MemRefType, StringAttr, TensorType, bf16, f16, f32
from xdsl.ir import Attribute, BlockArgument, SSAValue
from xdsl.traits import SymbolTable
from xdsl.utils.exceptions import VerifyException

from ..kernel import BlockProgramOp
from ..kernel.mma import mma_atom
from ..layouts import LayoutAttr, SharedAttr, encoding_of
from ..payload import element_type, same_elements, shape_of, with_element
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import extents_of
from ..support.assembly import NUMBERS, SAME_TYPE, FormattedOp, OrderedOp, PureOp, WritingOp
from ..tensor import KindAttr, ReductionKind, verify_atomic, verify_kind
from .schedule import LEGAL, Schedule, ScheduleAttr


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


def tile_type(element: Attribute, shape: Sequence[int], encoding: Attribute | None = None) -> Attribute:
    """The type of a tile; the scalar itself for no dimensions."""
    if not shape:
        return element
    return TensorType(element, shape, encoding) if encoding is not None else TensorType(element, shape)


def verify_places(op: Any, memory: SSAValue, tile: SSAValue) -> None:
    """Check what moves `tile` from or to map(t)[symbols] in the buffer `memory`. Raises VerifyException."""
    shape, symbols = shape_of(tile.type), tuple[SSAValue, ...](op.symbols)
    verify_access(op, len(shape), len(symbols), len(extents_of(memory.type)), "a buffer")
    for s in symbols:
        if s.type != IndexType() and (not shape or s.type != with_element(tile.type, IndexType())):
            raise VerifyException(f"a symbol is an index or a tile of index of the tile's shape, not {s.type}")
    if element_type(tile.type) != element_type(memory.type):
        raise VerifyException("buffer and tile have one element type")


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


NARROW = (bf16, f16)
"""What tensor cores multiply exactly."""


def verify_contraction(lhs: Attribute, rhs: Attribute, acc: Attribute, atom: str | None) -> None:
    a, b, c = shape_of(lhs), shape_of(rhs), shape_of(acc)
    if not (len(a) == len(b) == len(c) == 2 and a[1] == b[0] and c == (a[0], b[1])):
        raise VerifyException(f"no contraction of {lhs} and {rhs} into {acc}")
    if atom is not None and atom not in LEGAL["atom"]:
        raise VerifyException(f"atom {atom} is none of {', '.join(map(str, LEGAL['atom']))}")
    if atom is None:
        return
    types, able = tuple(element_type(t) for t in (lhs, rhs, acc)), mma_atom(lhs)
    if able is None or types != (able.element, able.element, able.accumulator) or (atom == "wgmma" and types[2] != f32):
        more = "" if atom == "wgmma" else ", or f64 into f64"
        raise VerifyException(f"atom {atom} multiplies bf16, f16 or f32 into f32{more}, not {types}")


@irdl.irdl_op_definition
class DotOp(PureOp):
    """A contraction: acc[m, n] + sum over k of a[m, k] * b[k, n], in the accumulator's type.

    `atom` names the hardware's product that computes it: `mma` and `wgmma` take bf16 or f16, and sum in f32. Factors
    in f32 are multiplied as tf32: `mma` rounds them to the nearest, `wgmma` leaves out the last 13 bits; `mma` also
    takes f64 and sums in f64. Without an atom it is scalar multiply-adds of one type.

    ```
    %c = tile.dot %a, %b, %acc : tensor<64x16xf32>, tensor<16x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    ```
    """

    name = "tile.dot"
    lhs = irdl.operand_def(irdl.base(TensorType))
    rhs = irdl.operand_def(irdl.base(TensorType))
    acc = irdl.operand_def(irdl.base(TensorType))
    atom = irdl.opt_prop_def(StringAttr)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = (
        "$lhs `,` $rhs `,` $acc (`atom` $atom^)? attr-dict"
        " `:` type($lhs) `,` type($rhs) `,` type($acc) `->` type($result)"
    )

    def __init__(self, lhs: SSAValue, rhs: SSAValue, acc: SSAValue):
        super().__init__(lhs, rhs, acc, result=acc.type)

    @property
    def is_wgmma(self) -> bool:
        """Whether warpgroups compute it, asynchronously."""
        return self.atom is not None and self.atom.data == "wgmma"

    def verify_(self) -> None:
        if self.acc.type != self.result.type:
            raise VerifyException("the result has the accumulator's type")
        atom = None if self.atom is None else self.atom.data
        verify_contraction(self.lhs.type, self.rhs.type, self.acc.type, atom)


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
