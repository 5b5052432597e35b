"""Kernels of the tile dialect, their launches, and the synchronous operations on tiles: loads, stores, reductions,
dots."""

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
    """Defines a kernel: a program that every block of a grid runs.

    ```
    tile.kernel @k0(%x: memref<16x64xf32>, %y: memref<16x64xf32>) blocks (%i, %j) in [4, 1] warps 4 {
      %a = tile.load %x[d0 + %i * 4, d1 + %j * 64] : memref<16x64xf32> -> tensor<4x64xf32>
      %e = math.exp %a : tensor<4x64xf32>
      tile.store %e, %y[d0 + %i * 4, d1 + %j * 64] : tensor<4x64xf32>, memref<16x64xf32>
    }
    ```

    The body's arguments are the buffers, then one block index for each extent of the grid.

    Attributes:
        sym_name: name of the kernel.
        grid: extents of the grid. One that depends on a symbolic size is a rounded-up quotient: `in [#s0 / 64, 32]`.
        warps: warps of a block.
        lanes: threads of a warp, 32 by default; 1 for a block of a single thread, on the CPU.
        cluster: number of blocks, adjacent along the last index of the grid, that form a cluster.

    Regions:
        body: program of a block.

    Constraints: memrefs precede the block indices; warps are a power of two up to 32; clusters divide the last extent
    of the grid that is not 1.
    """

    name = "tile.kernel"
    assembly_format = (
        "$sym_name `` custom<Buffers>(ref($body)) `blocks` custom<Indices>(ref($body)) `in` custom<Counts>($grid)"
        " `warps` custom<Int>($warps) (`lanes` custom<Int>($lanes)^)?"
        " (`cluster` custom<Int>($cluster)^)? attr-dict-with-keyword custom<Body>($body)"
    )

    @property
    def schedule(self) -> Schedule:
        """Returns the schedule of the kernel, or the default schedule if it has none."""
        attribute = self.attributes.get("schedule")
        return attribute.data if isinstance(attribute, ScheduleAttr) else Schedule(())

    @property
    def buffers(self) -> tuple[BlockArgument, ...]:
        """Returns the arguments that are buffers."""
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.MemRefType))

    @property
    def blocks(self) -> tuple[SSAValue, ...]:
        """Returns the block indices."""
        return tuple(a for a in self.body.block.args if isinstance(a.type, builtin.IndexType))

    def verify_(self) -> None:
        if (*self.body.block.args,) != (*self.buffers, *self.blocks) or len(self.blocks) != len(self.grid_shape):
            raise VerifyException(
                f"expected memrefs, then {len(self.grid_shape)} block indices, one for each extent of the grid, but got"
                f" ({', '.join(str(a.type) for a in self.body.block.args)})"
            )
        self.verify_warps()
        super().verify_()
        if self.cluster_size > 1 and not self.has_clusters_of(self.cluster_size):
            raise VerifyException(
                f"expected a last extent of the grid of whole clusters of {self.cluster_size} blocks, but got the grid"
                f" [{', '.join(map(str, self.grid_shape))}]"
            )

    def has_clusters_of(self, blocks: int) -> bool:
        """Returns true if `blocks` divides the last extent of the grid that is not 1.

        Then the blocks of a cluster differ only in that index.
        """
        last = next((n for n in reversed(self.grid_shape) if n != 1), 1)
        return isinstance(last, int) and last % blocks == 0


@irdl.irdl_op_definition
class LaunchOp(PureOp):
    """Launches a kernel on tensors. The results are new tensors, one for each trailing buffer of the kernel.

    ```
    %y = tile.launch @k0(%x, %w) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
    %z = tile.launch @k1(%v, %i) from (%y : tensor<16x64xf32>) : (tensor<8xf32>, tensor<8xi64>) -> tensor<16x64xf32>
    ```

    A buffer may have another shape than its tensor, with as many elements. A kernel that combines into its result
    (`tile.atomic_rmw`) has one result, which starts with the values of `from`.

    Operands:
        inputs: tensors for the leading buffers.
        start: initial values of the result (`from`).

    Attributes:
        kernel: name of the kernel.

    Constraints: the buffers match inputs and results; `from` is present if and only if the kernel combines into its
    result, and is a result of another launch.
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
            # The op is not in a module yet.
            return
        name = self.kernel.string_value()
        kernel = SymbolTable.lookup_symbol(root, name)
        if not isinstance(kernel, KernelOp):
            raise VerifyException(f"expected a kernel of this module, but got @{name}")
        operands = [*self.inputs, *self.res]
        if len(kernel.buffers) != len(operands) or any(
            not same_elements(b.type, v.type) for b, v in zip(kernel.buffers, operands, strict=True)
        ):
            raise VerifyException(
                f"expected inputs and results that match the buffers of @{name},"
                f" ({', '.join(str(b.type) for b in kernel.buffers)}), but got"
                f" ({', '.join(str(v.type) for v in operands)})"
            )
        combines = any(use.operation.name == "tile.atomic_rmw" for b in kernel.buffers for use in b.uses)
        if combines != (self.start is not None):
            raise VerifyException(
                f"expected `from` with initial values, because @{name} combines into its result, but got none"
                if combines
                else f"expected no `from`, because @{name} does not combine into its result, but got one"
            )
        if self.start is None:
            return
        if [self.start.type] != list(self.result_types):
            raise VerifyException(f"expected initial values of the result type of @{name}, but got {self.start.type}")
        if not isinstance(self.start.owner, LaunchOp):
            raise VerifyException("expected a result of another launch after `from`, but got another value")


def tile_type(element: Attribute, shape: Sequence[int], encoding: Attribute | None = None) -> Attribute:
    """Returns the type of a tile: a tensor, or the scalar type if there are no dimensions.

    Args:
        element: scalar type.
        shape: extents.
        encoding: layout attribute, or None.
    """
    if not shape:
        return element
    return TensorType(element, shape, encoding) if encoding is not None else TensorType(element, shape)


def verify_places(op: Any, memory: SSAValue, tile: SSAValue) -> None:
    """Checks an access of the elements map(t)[symbols] of a buffer for every element t of a tile.

    Args:
        op: the access.
        memory: the buffer.
        tile: the tile that is read or written.

    Raises:
        VerifyException: ranks, symbols or element types do not match.
    """
    shape, symbols = shape_of(tile.type), tuple[SSAValue, ...](op.symbols)
    verify_access(op, len(shape), len(symbols), len(extents_of(memory.type)), "a buffer")
    for s in symbols:
        if s.type != IndexType() and (not shape or s.type != with_element(tile.type, IndexType())):
            raise VerifyException(
                f"expected an index or a tile of index of the tile's shape as a symbol, but got {s.type}"
            )
    if element_type(tile.type) != element_type(memory.type):
        raise VerifyException(
            f"expected one element type of buffer and tile, but got {element_type(memory.type)} and"
            f" {element_type(tile.type)}"
        )


@irdl.irdl_op_definition
class LoadOp(PureOp):
    """Loads a tile from a buffer: element t is source[map(t)[symbols]] inside the domain, else the fill value.

    ```
    %x = tile.load %X[d0 + %i * 64, d1]
         where 0 <= d0 + %i * 64 < 100 else %zero
         : memref<100x64xf32> -> tensor<64x64xf32>
    ```

    Operands:
        source: the buffer.
        symbols: an `index` (the same for the whole tile), or a tile of `index` with the shape of the result (a gather).
        fill: value outside of the domain (`else`).

    Attributes:
        map: buffer coordinates for each element of the tile.
        domain: elements that are read (`where`).

    Constraints: the map takes the dimensions of the tile to coordinates of the buffer; element types match; a fill
    value if and only if there is a domain.
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
    """Base class of operations that write the elements of a tile to a buffer.

    value: tile to write.
    target: the buffer.
    symbols: an `index` (the same for the whole tile), or a tile of `index` with the shape of the value (a scatter).
    map: buffer coordinates for each element of the tile.
    domain: elements that are written (`where`).
    """

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
    """Stores a tile: buffer[map(t)[symbols]] = value[t] for the elements t inside the domain.

    ```
    tile.store %v, %Y[d0 + %i * 64] : tensor<64xf32>, memref<128xf32>
    ```

    No two elements may be stored to one location.
    """

    name = "tile.store"


@irdl.irdl_op_definition
class AtomicRmwOp(_WriteOp, OrderedOp):
    """Combines the elements of a tile into a buffer atomically, in an unspecified order.

    ```
    tile.atomic_rmw add %v, %Y[%i] where 0 <= %i < 100
      : tensor<64xf32>, memref<100xf32>
    ```

    For each element t inside the domain, buffer[p] = kind(buffer[p], value[t]) with p = map(t)[symbols]. Several
    elements, of one or many blocks, may have the same p. The launch specifies the initial values of the buffer
    (`from`).

    Attributes:
        kind: reduction kind that combines a value with an element.

    Constraints: kind and element type are ones that atomics support; no other operation in the kernel accesses the
    buffer.
    """

    name = "tile.atomic_rmw"
    kind = irdl.prop_def(KindAttr)
    assembly_format = f"$kind {_WriteOp.assembly_format}"

    def verify_(self) -> None:
        super().verify_()
        verify_atomic(self.kind.data, element_type(self.value.type))
        others = [u.operation for u in self.target.uses if not isinstance(u.operation, AtomicRmwOp)]
        if others:
            raise VerifyException(
                f"expected only tile.atomic_rmw on a buffer that is combined into, but got {others[0].name}"
            )


@irdl.irdl_op_definition
class AffineOp(PureOp):
    """Evaluates an affine expression at every element of a tile: result[t] = map(t)[symbols].

    ```
    %k = tile.affine d1 + %c * 32 : tensor<64x32xindex>
    ```

    Operands:
        symbols: values of type `index`, the same for the whole tile.

    Attributes:
        map: expression of the tile's dimensions and the symbols.

    Constraints: the map has one result; the element type is index.
    """

    name = "tile.affine"
    map = irdl.prop_def(AffineMapAttr)
    symbols = irdl.var_operand_def(IndexType())
    result = irdl.result_def()
    assembly_format = "custom<Expression>($map, $symbols, type($symbols)) attr-dict `:` custom<Ranked>(type($result))"

    def verify_(self) -> None:
        verify_access(self, len(shape_of(self.result.type)), len(self.symbols), 1, "an expression")
        if element_type(self.result.type) != IndexType():
            raise VerifyException(f"expected a tile of index, but got {element_type(self.result.type)}")


@irdl.irdl_op_definition
class BroadcastOp(PureOp):
    """Repeats a tile or a scalar along new dimensions, `along` in the result.

    ```
    %b = tile.broadcast %r along [1] : tensor<64xf32> -> tensor<64x128xf32>
    ```

    Attributes:
        along: dimensions of the result that the source lacks.

    Constraints: the result without the dimensions `along` has the shape of the source.
    """

    name = "tile.broadcast"
    source = irdl.operand_def()
    along = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source `along` $along attr-dict `:` type($source) `->` type($result)"

    def verify_(self) -> None:
        along = set(self.along.get_values())
        source_shape = tuple(n for i, n in enumerate(shape_of(self.result.type)) if i not in along)
        if source_shape != shape_of(self.source.type) or element_type(self.source.type) != element_type(
            self.result.type
        ):
            raise VerifyException(
                f"expected {self.source.type} with new dimensions {sorted(along)}, but got {self.result.type}"
            )


@irdl.irdl_op_definition
class ReduceOp(PureOp):
    """Reduces a tile over some of its dimensions, which are removed. Over all dimensions the result is a scalar.

    ```
    %s = tile.reduce add %x over [1] : tensor<64x128xf32> -> tensor<64xf32>
    ```

    Attributes:
        kind: reduction kind.
        dims: reduced dimensions (`over`).
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
        remaining = tuple(n for i, n in enumerate(shape_of(self.source.type)) if i not in dims)
        if remaining != shape_of(self.result.type) or element_type(self.source.type) != element_type(self.result.type):
            raise VerifyException(
                f"expected {self.source.type} without the dimensions {sorted(dims)}, but got {self.result.type}"
            )
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """Scans a tile inclusively along a dimension.

    ```
    %s, %c = tile.scan add %x, %init along 1 : tensor<8x128xf32>, tensor<8xf32>
    ```

    Operands:
        source: tile to scan.
        init: value that is combined with all elements, the `carry` of the previous tile.

    Attributes:
        kind: reduction kind.
        dim: scanned dimension (`along`).

    Results:
        result: element j combines `init` and the elements 0 to j.
        carry: last element of the result, the `init` of the next tile.

    Constraints: `init` has the shape of the source without the scanned dimension.
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
            raise VerifyException(f"expected a dimension of {self.source.type}, but got {dim}")
        element = element_type(self.source.type)
        if shape_of(self.init.type) != (*shape[:dim], *shape[dim + 1 :]) or element_type(self.init.type) != element:
            raise VerifyException(
                f"expected {self.source.type} without dimension {dim} as the initial values, but got {self.init.type}"
            )
        verify_kind(self.kind.data, element, scan=True)


NARROW = (bf16, f16)
"""Element types whose products tensor cores compute exactly."""


def verify_contraction(lhs: Attribute, rhs: Attribute, acc: Attribute, atom: str | None) -> None:
    """Checks the types of a dot.

    Args:
        lhs: type of the left operand [m, k].
        rhs: type of the right operand [k, n].
        acc: type of the accumulator [m, n].
        atom: `mma`, `wgmma`, or None for scalar multiply-adds.

    Raises:
        VerifyException: shapes do not match, or the atom does not support the element types.
    """
    a, b, c = shape_of(lhs), shape_of(rhs), shape_of(acc)
    if not (len(a) == len(b) == len(c) == 2 and a[1] == b[0] and c == (a[0], b[1])):
        raise VerifyException(
            f"expected operands [m, k] and [k, n] and an accumulator [m, n], but got {lhs}, {rhs} and {acc}"
        )
    if atom is not None and atom not in LEGAL["atom"]:
        raise VerifyException(f"expected an atom of {', '.join(map(str, LEGAL['atom']))}, but got {atom}")
    if atom is None:
        return
    types, able = tuple(element_type(t) for t in (lhs, rhs, acc)), mma_atom(lhs)
    if able is None or types != (able.element, able.element, able.accumulator) or (atom == "wgmma" and types[2] != f32):
        more = "" if atom == "wgmma" else " (or all f64)"
        raise VerifyException(
            f"expected bf16, f16 or f32 operands with an f32 accumulator{more}, for atom {atom}, but got"
            f" {', '.join(map(str, types))}"
        )


@irdl.irdl_op_definition
class DotOp(PureOp):
    """Computes a contraction: acc[m, n] + sum over k of lhs[m, k] * rhs[k, n], in the accumulator's type.

    ```
    %c = tile.dot %a, %b, %acc : tensor<64x16xf32>, tensor<16x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    ```

    Operands:
        lhs: left operand [m, k].
        rhs: right operand [k, n].
        acc: accumulator [m, n].

    Attributes:
        atom: tensor-core instruction. `mma` and `wgmma` multiply bf16 or f16 and accumulate in f32. They multiply f32
            as tf32: `mma` rounds to nearest, `wgmma` drops the last 13 bits. `mma` also multiplies f64 in f64. Without
            an atom the dot is computed by scalar multiply-adds.

    Constraints: the shapes match; the atom supports the element types; the result has the accumulator's type.
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
        """Returns true if warpgroups compute the dot asynchronously."""
        return self.atom is not None and self.atom.data == "wgmma"

    def verify_(self) -> None:
        if self.acc.type != self.result.type:
            raise VerifyException(
                f"expected the accumulator's type as the result type, {self.acc.type}, but got {self.result.type}"
            )
        atom = None if self.atom is None else self.atom.data
        verify_contraction(self.lhs.type, self.rhs.type, self.acc.type, atom)


CONVERSION_METHODS = ("registers", "shuffles", "shared")
"""Methods of `tile.convert_layout`, from the cheapest: register moves, shuffles, shared memory."""


@irdl.irdl_op_definition
class ConvertLayoutOp(PureOp):
    """Converts a tile to another register layout.

    ```
    #from = #tile.layout<reg = [[1]], lane = [[2], [4], [8], [16], [32]], warp = []>
    #to = #tile.layout<reg = [[32]], lane = [[1], [2], [4], [8], [16]], warp = []>
    %y = tile.convert_layout %x via "shuffles" : tensor<64xf32, #from> -> tensor<64xf32, #to>
    ```

    Attributes:
        via: `registers` (moves within a thread), `shuffles` (within warps) or `shared` (through shared memory); by
            default the cheapest method.

    Constraints: shapes and element types are equal; the result has a register layout.
    """

    name = "tile.convert_layout"
    source = irdl.operand_def(irdl.base(TensorType))
    via = irdl.opt_prop_def(StringAttr)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source (`via` $via^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, layout: LayoutAttr, via: str | None = None):
        super().__init__(source, via, tile_type(element_type(source.type), shape_of(source.type), layout))

    def verify_(self) -> None:
        if self.via is not None and self.via.data not in CONVERSION_METHODS:
            raise VerifyException(f"expected via one of {', '.join(CONVERSION_METHODS)}, but got {self.via.data}")
        _verify_moved(self.source.type, self.result.type, LayoutAttr)


@irdl.irdl_op_definition
class StageOp(PureOp):
    """Copies a tile from registers to shared memory. Lower levels choose the buffer and insert the barriers.

    ```
    #registers = #tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
    #shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>
    %s = tile.stage %x : tensor<8x8xf32, #registers> -> tensor<8x8xf32, #shared>
    ```

    Constraints: shapes and element types are equal; the result has a shared layout.
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
    """Checks that two types differ in the layout only.

    Args:
        source: tile type before the conversion.
        result: tile type after it.
        target: class of the result's layout attribute.
    """
    same = shape_of(source) == shape_of(result) and element_type(source) == element_type(result)
    if not same or not isinstance(encoding_of(result), target):
        raise VerifyException(
            f"expected the shape and element type of {source} with #{target.name}<...>, but got {result}"
        )
