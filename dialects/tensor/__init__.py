"""The tensor dialect: whole tensors. With the payload on tensors it is the level every frontend lowers to.

An elementwise operator is the payload (`arith.addf %a, %b : tensor<16x64xf32>`, both operands of one shape), a
broadcast or any other view is an `index_map`, a reduction is a `reduce`; there are no named operators. A matrix
multiplication is two index maps, a product and a reduction.

Each kind of a reduction is one `Monoid` record, from which lowerings, interpreters and the printer derive the rest.
What combines two values is an operation of the payload, so a new kind is a member of `ReductionKind` and its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from xdsl import irdl
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AffineMapAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    SymbolRefAttr,
    TensorType,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Operation, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.traits import SymbolTable
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from ..payload import LogAddExpOp, element_type, is_float, is_low_precision
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import Extent, extents_of, tensor_of
from ..support.assembly import NO_NUMBERS, NUMBERS, SAME_TYPE, PureOp


class ReductionKind(StrEnum):
    """How a reduction combines: a commutative monoid on the element type.

    `max` and `min` propagate NaN (`arith.maximumf`); their identities are -inf and +inf, or the integer type's bounds.
    `and`, `or` and `xor` are bitwise; on `i1` the first two are "all" and "any". Only scans combine by
    `logaddexp`: sums of exponentials are reductions that use a maximum."""

    ADD = "add"
    MUL = "mul"
    MAX = "max"
    MIN = "min"
    AND = "and"
    OR = "or"
    XOR = "xor"
    LOGADDEXP = "logaddexp"


@irdl.irdl_attr_definition
class KindAttr(EnumAttribute[ReductionKind], SpacedOpaqueSyntaxAttribute):
    """`#tensor<kind add>`: used by the reductions of all levels."""

    name = "tensor.kind"


@dataclass(frozen=True)
class Monoid:
    """One reduction kind: the operations that combine two floats, two integers and two `i1` (None: no reduction of
    these), the identity among floats and among integers of some bits, and what CUDA calls the atomic operation on
    integers (None: a loop around `atomicCAS`), signed if it compares."""

    floats: Callable[..., Operation] | None
    integers: Callable[..., Operation] | None
    booleans: Callable[..., Operation] | None
    float_identity: float
    integer_identity: int | Callable[[int], int]
    atomic: str | None = None
    atomic_is_signed: bool = False

    def combiner(self, element: Attribute) -> Any:
        if is_float(element):
            return self.floats
        return self.booleans if element_type(element) == IntegerType(1) else self.integers


MONOIDS = {
    ReductionKind.ADD: Monoid(arith.AddfOp, arith.AddiOp, arith.AddiOp, 0, 0, "Add"),
    ReductionKind.MUL: Monoid(arith.MulfOp, arith.MuliOp, arith.MuliOp, 1, 1),
    ReductionKind.MAX: Monoid(
        arith.MaximumfOp, arith.MaxSIOp, arith.OrIOp, -inf, lambda w: -1 << w - 1 if w > 1 else 0, "Max", True
    ),
    ReductionKind.MIN: Monoid(
        arith.MinimumfOp, arith.MinSIOp, arith.AndIOp, inf, lambda w: (1 << max(w - 1, 1)) - 1, "Min", True
    ),
    ReductionKind.AND: Monoid(None, arith.AndIOp, arith.AndIOp, inf, lambda w: -1 if w > 1 else 1, "And"),
    ReductionKind.OR: Monoid(None, arith.OrIOp, arith.OrIOp, 0, 0, "Or"),
    ReductionKind.XOR: Monoid(None, arith.XOrIOp, arith.XOrIOp, 0, 0, "Xor"),
    ReductionKind.LOGADDEXP: Monoid(LogAddExpOp, None, None, -inf, 0),
}


def combine(kind: ReductionKind, lhs: SSAValue, rhs: SSAValue) -> Operation:
    """The operation that combines two partial results of a reduction, in whatever container they are."""
    return MONOIDS[kind].combiner(lhs.type)(lhs, rhs)


def identity(kind: ReductionKind, element: Attribute) -> float | int:
    """The neutral element of `kind` on the scalar type `element`, as a Python number."""
    monoid = MONOIDS[kind]
    if is_float(element):
        return monoid.float_identity
    if isinstance(monoid.integer_identity, int):
        return monoid.integer_identity
    if not isinstance(element, IntegerType):
        raise VerifyException(f"no identity of {kind.value} on {element}")
    return monoid.integer_identity(element.bitwidth)


def verify_kind(kind: ReductionKind, element: Attribute, scan: bool = False) -> None:
    """Refuse a kind, of a reduction or a `scan`, that has no meaning on `element`, or computes in a storage type."""
    if kind == ReductionKind.LOGADDEXP and not scan:
        raise VerifyException(f"reduction {kind.value}: only scans combine so")
    if is_low_precision(element):
        raise VerifyException(f"reduces {element}, a storage type: cast to f32 first")
    if MONOIDS[kind].combiner(element) is None:
        raise VerifyException(f"reduction {kind.value} of {element}")


def verify_atomic(kind: ReductionKind, element: Attribute) -> None:
    """Refuse to combine in memory what no atomic operation does: elements of other widths than 32 and 64 bits."""
    verify_kind(kind, element)
    if element not in (f32, f64, i32, i64):
        raise VerifyException(f"nothing combines {element} in memory: cast to 32 or 64 bits first")


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """A recurrence over the leading dimension of some tensors: carries = @step(carries, slices, shared), `count` times.

    `@step` takes the carries, then slice `t` (element `t` of the leading dimension) of every tensor in `each`, then
    the tensors in `with`, which stay the same; it gives the next carries. Every carry has one result: its last value,
    or, if its number is in `history`, the values after each of the steps, stacked. It is an operation of the host, like
    a call: it may stand at the tensor, loop and tile level, and becomes a loop of launches.

    ```
    %h, %c = tensor.scan @step 50 carry(%h0, %c0 : tensor<4x8xf32>, tensor<4x8xf32>) each(%x : tensor<50x4x32xf32>)
      with(%w : tensor<32x8xf32>) history [0] -> tensor<50x4x8xf32>, tensor<4x8xf32>
    ```
    """

    name = "tensor.scan"
    step = irdl.prop_def(SymbolRefAttr)
    count = irdl.prop_def(IntegerAttr.constr(i64))
    history = irdl.prop_def(NUMBERS, default_value=NO_NUMBERS)
    carries = irdl.var_operand_def(irdl.base(TensorType))
    each = irdl.var_operand_def(irdl.base(TensorType))
    shared = irdl.var_operand_def(irdl.base(TensorType))
    res = irdl.var_result_def(irdl.base(TensorType))
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$step $count `carry` `(` $carries `:` type($carries) `)` (`each` `(` $each^ `:` type($each) `)`)?"
        " (`with` `(` $shared^ `:` type($shared) `)`)? (`history` $history^)? attr-dict `->` type($res)"
    )

    def __init__(
        self,
        step: str,
        count: int,
        carries: Sequence[SSAValue],
        each: Sequence[SSAValue],
        shared: Sequence[SSAValue],
        history: Sequence[int] = (),
    ):
        res, steps = _result_types(carries, count, history), IntegerAttr(count, i64)
        super().__init__(step=step, count=steps, carries=carries, each=each, shared=shared, history=history, res=res)

    @property
    def steps(self) -> int:
        return self.count.value.data

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(int(i) for i in self.history.get_values())

    @property
    def step_types(self) -> list[Attribute]:
        """The types of the arguments that `@step` has to take."""
        slices = [tensor_of(element_type(v.type), extents_of(v.type)[1:]) for v in self.each]
        return [*(v.type for v in self.carries), *slices, *(v.type for v in self.shared)]

    def verify_(self) -> None:
        if self.steps < 1:
            raise VerifyException(f"a fold has at least one step, not {self.steps}")
        if not self.carries:
            raise VerifyException("a fold without carries computes nothing")
        for v in self.each:
            if not extents_of(v.type) or extents_of(v.type)[0] != self.steps:
                raise VerifyException(f"{v.type} has no slice for each of {self.steps} steps")
        kept = self.kept
        if list(kept) != sorted(set(kept)) or not all(0 <= i < len(self.carries) for i in kept):
            raise VerifyException(f"histories {list(kept)} are not distinct, ascending and below {len(self.carries)}")
        want = _result_types(self.carries, self.steps, kept)
        if len(self.res) != len(want):
            raise VerifyException(f"{len(self.res)} results of {len(want)} carries")
        for i, (result, type) in enumerate(zip(self.res, want, strict=True)):
            if result.type != type:
                raise VerifyException(f"result {i} is {type}, not {result.type}")
        self._verify_function()

    def _verify_function(self) -> None:
        root = self.get_toplevel_object()
        if not isinstance(root, ModuleOp):
            return  # still being built
        name = self.step.string_value()
        function = SymbolTable.lookup_symbol(root, name)
        if not isinstance(function, FuncOp):
            raise VerifyException(f"applies @{name}, which is no function of this module")
        takes, gives = list(function.function_type.inputs), list(function.function_type.outputs)
        if takes != self.step_types:
            raise VerifyException(f"@{name} does not take the carries, the slices and the shared tensors")
        if gives != [v.type for v in self.carries]:
            raise VerifyException(f"@{name} does not give the next carries")


def _result_types(carries: Sequence[SSAValue], steps: int, history: Sequence[int]) -> list[Attribute]:
    stacked = ([steps] if i in history else [] for i in range(len(carries)))
    return [tensor_of(element_type(v.type), [*n, *extents_of(v.type)]) for v, n in zip(carries, stacked, strict=True)]


ROOT = "fuse.root"
"""The attribute of tensor ops whose results are kept in memory: each is the result of one kernel."""


@irdl.irdl_op_definition
class IndexMapOp(PureOp):
    """A view: result[d] = source[map(d)] where d lies in the domain, else the fill value.

    Transposes, broadcasts, slices, flips, pads, rolls, reshapes and repeats are all index maps. The map is from result
    indices to source coordinates and may use floordiv and mod; inside the domain it must stay within the source.

    ```
    %b = tensor.index_map %bias[d1] : tensor<64xf32> -> tensor<16x64xf32>
    %p = tensor.index_map %x[d0 - 1] where 0 <= d0 - 1 < 5 else %zero
         : tensor<5xf32> -> tensor<7xf32>
    ```
    """

    name = "tensor.index_map"
    source = irdl.operand_def(TensorType.constr(SAME_TYPE))
    map = irdl.prop_def(AffineMapAttr)
    domain = irdl.opt_prop_def(DomainAttr)
    fill = irdl.opt_operand_def(SAME_TYPE)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = (
        "$source `` custom<View>($map) (`where` custom<Domain>($domain)^)? (`else` $fill^)? attr-dict"
        " `:` type($source) `->` custom<Ranked>(type($result))"
    )

    def __init__(
        self,
        source: SSAValue,
        map: AffineMap,
        shape: Sequence[Extent],
        domain: DomainAttr | None = None,
        fill: SSAValue | None = None,
    ):
        super().__init__(source, map, domain, fill, tensor_of(element_type(source.type), shape))

    def verify_(self) -> None:
        dims = len(extents_of(self.result.type))
        verify_access(self, dims, 0, len(extents_of(self.source.type)), "a source")
        e = element_type(self.source.type)
        if element_type(self.result.type) != e or (self.fill is not None and self.fill.type != e):
            raise VerifyException("source, fill and result have one element type")


@irdl.irdl_op_definition
class GatherOp(PureOp):
    """A data-dependent read: result[d] = source[map(d)[i0[d], i1[d], ...]].

    Every index tensor has the shape of the result; its element is a symbol of the map. A coordinate outside the source
    reads zero, so no index value can read foreign memory (a checked program asserts before that there is none).
    Negative indices are made positive before.

    ```
    %y = tensor.gather %table[%i, d1]
         : tensor<100x8xf32> -> tensor<5x8xf32>
    ```
    """

    name = "tensor.gather"
    source = irdl.operand_def(irdl.base(TensorType))
    indices = irdl.var_operand_def(irdl.base(TensorType))
    map = irdl.prop_def(AffineMapAttr)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = (
        "$source `` custom<Access>($map, $indices, type($indices)) attr-dict"
        " `:` type($source) `->` custom<Ranked>(type($result))"
    )

    def __init__(self, source: SSAValue, map: AffineMap, indices: Sequence[SSAValue]):
        super().__init__(source, map, indices, tensor_of(element_type(source.type), extents_of(indices[0].type)))

    def verify_(self) -> None:
        if not self.indices:
            raise VerifyException("a gather without index tensors is an index_map")
        _verify_indexed(self, self.source, self.result, "a source", "result's")
        if element_type(self.source.type) != element_type(self.result.type):
            raise VerifyException("source and result have one element type")


@irdl.irdl_op_definition
class ScatterOp(PureOp):
    """A data-dependent write, which combines: `init`, with values[d] combined into the element at map(d)[i0[d], ...].

    Every index tensor has the shape of the values; its element is a symbol of the map. The order is open, so a float
    sum is one in any order; of values that are to replace each other one scatters the numbers. A value whose coordinate
    lies outside is dropped. It is an operation of the host, as a call is: it may stand at the tensor and the loop
    level, where its values and indices are results of one nest, and becomes a kernel of atomic operations.

    ```
    %y = tensor.scatter add %v, %x[%i, d1]
         : tensor<5x8xf32>, tensor<100x8xf32>
    ```
    """

    name = "tensor.scatter"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(TensorType))
    kind = irdl.prop_def(KindAttr)
    init = irdl.operand_def(T)
    values = irdl.operand_def(irdl.base(TensorType))
    indices = irdl.var_operand_def(irdl.base(TensorType))
    map = irdl.prop_def(AffineMapAttr)
    result = irdl.result_def(T)
    assembly_format = (
        "$kind $values `,` $init `` custom<Access>($map, $indices, type($indices)) attr-dict"
        " `:` custom<Ranked>(type($values)) `,` type($init)"
    )

    def verify_(self) -> None:
        if not self.indices:
            raise VerifyException("a scatter has index tensors")
        _verify_indexed(self, self.init, self.values, "a result", "values'")
        if element_type(self.values.type) != element_type(self.init.type):
            raise VerifyException("init and values have one element type")
        verify_atomic(self.kind.data, element_type(self.init.type))


def _verify_indexed(op: GatherOp | ScatterOp, whole: SSAValue, elements: SSAValue, what: str, whose: str) -> None:
    shape = extents_of(elements.type)
    verify_access(op, len(shape), len(op.indices), len(extents_of(whole.type)), what)
    for i in op.indices:
        if extents_of(i.type) != shape or not isinstance(element_type(i.type), IntegerType):
            raise VerifyException(f"an index tensor is an integer tensor of the {whose} shape, not {i.type}")


@irdl.irdl_op_definition
class ReduceOp(PureOp):
    """Combine all elements along some dimensions, which disappear. An empty dimension gives the kind's identity.

    ```
    %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
    ```
    """

    name = "tensor.reduce"
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(irdl.base(TensorType))
    dims = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$kind $source `over` $dims attr-dict `:` type($source) `->` type($result)"

    def __init__(self, kind: str | ReductionKind, source: SSAValue, dims: Sequence[int]):
        shape = [n for i, n in enumerate(extents_of(source.type)) if i not in dims]
        super().__init__(kind, source, sorted(dims), tensor_of(element_type(source.type), shape))

    def verify_(self) -> None:
        shape = extents_of(self.source.type)
        dims = list(self.dims.get_values())
        if dims != sorted(set(dims)) or not all(0 <= d < len(shape) for d in dims):
            raise VerifyException(f"reduced dimensions {dims} are not distinct, ascending and below {len(shape)}")
        want = tensor_of(element_type(self.source.type), [n for i, n in enumerate(shape) if i not in dims])
        if self.result.type != want:
            raise VerifyException(f"reducing {dims} of {self.source.type} gives {want}, not {self.result.type}")
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl.irdl_op_definition
class PrefixScanOp(PureOp):
    """Inclusive scan: result[.., j, ..] combines source[.., 0, ..] to source[.., j, ..] along one dimension.

    ```
    %y = tensor.prefix_scan add %x along 1 : tensor<16x64xf32>
    ```
    """

    name = "tensor.prefix_scan"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(TensorType))
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(T)
    dim = irdl.prop_def(IntegerAttr.constr(i64))
    result = irdl.result_def(T)
    assembly_format = "$kind $source `along` $dim attr-dict `:` type($source)"

    def __init__(self, kind: str | ReductionKind, source: SSAValue, dim: int):
        super().__init__(kind, source, IntegerAttr(dim, i64))

    def verify_(self) -> None:
        if not 0 <= self.dim.value.data < len(extents_of(self.source.type)):
            raise VerifyException(f"dimension {self.dim.value.data} of {self.source.type}")
        verify_kind(self.kind.data, element_type(self.source.type), scan=True)


@irdl.irdl_op_definition
class IotaOp(PureOp):
    """The index along one dimension: result[d] = d[dim].

    ```
    %i = tensor.iota 1 : tensor<4x5xi64>
    ```
    """

    name = "tensor.iota"
    dim = irdl.prop_def(IntegerAttr.constr(i64))
    result = irdl.result_def(irdl.base(TensorType))

    assembly_format = "$dim attr-dict `:` type($result)"

    def __init__(self, dim: int, result_type: TensorType[Attribute]):
        super().__init__(IntegerAttr(dim, i64), result_type)

    def verify_(self) -> None:
        if not 0 <= self.dim.value.data < len(extents_of(self.result.type)):
            raise VerifyException(f"dimension {self.dim.value.data} of {self.result.type}")
        if not isinstance(element_type(self.result.type), IntegerType | IndexType):
            raise VerifyException(f"an iota of {element_type(self.result.type)}: only integers count")


Tensor = Dialect("tensor", [IndexMapOp, GatherOp, ScatterOp, ReduceOp, PrefixScanOp, IotaOp, ScanOp], [KindAttr])
