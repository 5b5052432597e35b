"""The tensor dialect: operations on whole tensors. All frontends lower to it, together with the payload.

There are no named operators. Elementwise operators are payload on tensors of one shape (`arith.addf %a, %b :
tensor<16x64xf32>`), broadcasts and other views are `tensor.index_map`, reductions are `tensor.reduce`. A matmul is two
index maps, a multiplication and a reduction:

```
%l = tensor.index_map %a[d0, d2] : tensor<16x64xf32> -> tensor<16x8x64xf32>
%r = tensor.index_map %b[d2, d1] : tensor<64x8xf32> -> tensor<16x8x64xf32>
%p = arith.mulf %l, %r : tensor<16x8x64xf32>
%c = tensor.reduce add %p over [2] : tensor<16x8x64xf32> -> tensor<16x8xf32>
```

Each kind of reduction has a `Monoid` record, from which lowerings, interpreters and printers derive their code. The
combining operation is payload. So a new kind needs a member of `ReductionKind` and a record.
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
    """Kind of a reduction: a commutative monoid on the element type.

    `max` and `min` propagate NaN (`arith.maximumf`); their identities are -inf and +inf, or the bounds of the integer
    type. `and`, `or` and `xor` are bitwise; on `i1`, `and` is "all" and `or` is "any". `logaddexp` is for scans only:
    reductions of exponentials use a maximum instead.
    """

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
    """Attribute of a reduction kind, at all levels: `#tensor<kind add>`."""

    name = "tensor.kind"


@dataclass(frozen=True)
class Monoid:
    """Properties of a reduction kind.

    floats, integers, booleans: operation that combines two floats, integers or `i1`; None if the kind does not support
        them.
    float_identity: identity on floats.
    integer_identity: identity on integers, or a function of the bit width.
    atomic: suffix of the CUDA atomic function on integers, such as `Add`; None for a loop around `atomicCAS`.
    atomic_is_signed: whether that function must use signed integers.
    """

    floats: Callable[..., Operation] | None
    integers: Callable[..., Operation] | None
    booleans: Callable[..., Operation] | None
    float_identity: float
    integer_identity: int | Callable[[int], int]
    atomic: str | None = None
    atomic_is_signed: bool = False

    def combiner(self, element: Attribute) -> Any:
        """Returns the operation class that combines two values of `element` type, or None if the kind does not support
        it."""
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
"""Reduction kind -> its properties."""


def combine(kind: ReductionKind, lhs: SSAValue, rhs: SSAValue) -> Operation:
    """Returns the operation that combines two partial results: tensors, tiles, scalars or vectors.

    Args:
        kind: reduction kind.
        lhs: first partial result.
        rhs: second partial result.
    """
    return MONOIDS[kind].combiner(lhs.type)(lhs, rhs)


def identity(kind: ReductionKind, element: Attribute) -> float | int:
    """Returns the identity of `kind` on the scalar type `element`, as a Python number."""
    monoid = MONOIDS[kind]
    if is_float(element):
        return monoid.float_identity
    if isinstance(monoid.integer_identity, int):
        return monoid.integer_identity
    if not isinstance(element, IntegerType):
        raise VerifyException(f"expected a float or integer type for the identity of {kind.value}, but got {element}")
    return monoid.integer_identity(element.bitwidth)


def verify_kind(kind: ReductionKind, element: Attribute, scan: bool = False) -> None:
    """Checks that a kind supports an element type.

    Args:
        kind: reduction kind.
        element: element type, or a type that contains it.
        scan: whether a scan uses the kind.

    Raises:
        VerifyException: the kind is not defined on the type, or the type is narrower than f32, for storage only.
    """
    if kind == ReductionKind.LOGADDEXP and not scan:
        raise VerifyException(f"expected a scan for the kind {kind.value}, but got a reduction")
    if is_low_precision(element):
        raise VerifyException(f"expected a type to compute in, but got {element}, a storage type; cast to f32 first")
    if MONOIDS[kind].combiner(element) is None:
        raise VerifyException(f"expected a type that the kind {kind.value} supports, but got {element}")


def verify_atomic(kind: ReductionKind, element: Attribute) -> None:
    """Checks that an atomic operation combines elements by `kind`: 32-bit or 64-bit ones. Raises VerifyException."""
    verify_kind(kind, element)
    if element not in (f32, f64, i32, i64):
        raise VerifyException(
            f"expected f32, f64, i32 or i64 elements to combine atomically, but got {element}; cast to 32 or 64 bits"
            " first"
        )


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """Computes a recurrence over the leading dimension of tensors: carries = @step(carries, slices, shared).

    ```
    %h, %c = tensor.scan @step 50 carry(%h0, %c0 : tensor<4x8xf32>, tensor<4x8xf32>) each(%x : tensor<50x4x32xf32>)
      with(%w : tensor<32x8xf32>) history [0] -> tensor<50x4x8xf32>, tensor<4x8xf32>
    ```

    The operation is like a call on the host. It may occur at the tensor, loop and tile level, and becomes a loop of
    launches.

    Operands:
        carries: initial values (`carry`), the first arguments of `@step`, which returns their next values.
        each: tensors with a leading dimension of `count`; step t receives element t of that dimension.
        shared: tensors that every step receives unchanged (`with`).

    Attributes:
        step: function of one step.
        count: number of steps.
        history: numbers of the carries whose result is the stacked values after all steps; other results are the last
            value.

    Results:
        res: the last value of each carry, or with `history` its values after all steps.

    Constraints: at least one step and one carry; `@step` has matching types; `history` is ascending.
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
        """Returns the number of steps."""
        return self.count.value.data

    @property
    def stacked(self) -> tuple[int, ...]:
        """Returns the numbers of the carries with a history."""
        return tuple(int(i) for i in self.history.get_values())

    @property
    def step_types(self) -> list[Attribute]:
        """Returns the types of the arguments that `@step` must have."""
        slices = [tensor_of(element_type(v.type), extents_of(v.type)[1:]) for v in self.each]
        return [*(v.type for v in self.carries), *slices, *(v.type for v in self.shared)]

    def verify_(self) -> None:
        if self.steps < 1:
            raise VerifyException(f"expected at least one step, but got {self.steps}")
        if not self.carries:
            raise VerifyException("expected at least one carry, but got none")
        for v in self.each:
            if not extents_of(v.type) or extents_of(v.type)[0] != self.steps:
                raise VerifyException(
                    f"expected a leading dimension of {self.steps}, one slice for each step, but got {v.type}"
                )
        stacked = self.stacked
        if list(stacked) != sorted(set(stacked)) or not all(0 <= i < len(self.carries) for i in stacked):
            raise VerifyException(
                f"expected distinct, ascending numbers below {len(self.carries)} as history, but got {list(stacked)}"
            )
        expected = _result_types(self.carries, self.steps, stacked)
        if len(self.res) != len(expected):
            raise VerifyException(f"expected {len(expected)} results, one for each carry, but got {len(self.res)}")
        for i, (result, type) in enumerate(zip(self.res, expected, strict=True)):
            if result.type != type:
                raise VerifyException(f"expected {type} as result {i}, but got {result.type}")
        self._verify_function()

    def _verify_function(self) -> None:
        root = self.get_toplevel_object()
        if not isinstance(root, ModuleOp):
            # The op is not in a module yet.
            return
        name = self.step.string_value()
        function = SymbolTable.lookup_symbol(root, name)
        if not isinstance(function, FuncOp):
            raise VerifyException(f"expected a function of this module, but got @{name}")
        takes, gives = list(function.function_type.inputs), list(function.function_type.outputs)
        if takes != self.step_types:
            raise VerifyException(
                f"expected @{name} to take the carries, the slices and the shared tensors"
                f" ({_types_text(self.step_types)}),"
                f" but got ({_types_text(takes)})"
            )
        if gives != [v.type for v in self.carries]:
            raise VerifyException(f"expected @{name} to return the next carries, but got ({_types_text(gives)})")


def _types_text(types: Sequence[Attribute]) -> str:
    return ", ".join(map(str, types))


def _result_types(carries: Sequence[SSAValue], steps: int, history: Sequence[int]) -> list[Attribute]:
    stacked = ([steps] if i in history else [] for i in range(len(carries)))
    return [tensor_of(element_type(v.type), [*n, *extents_of(v.type)]) for v, n in zip(carries, stacked, strict=True)]


ROOT = "fuse.root"
"""Attribute of tensor ops whose results are materialised: each is the result of one kernel."""


@irdl.irdl_op_definition
class IndexMapOp(PureOp):
    """Returns a view: result[d] = source[map(d)] for d inside the domain, else the fill value.

    ```
    %b = tensor.index_map %bias[d1] : tensor<64xf32> -> tensor<16x64xf32>
    %p = tensor.index_map %x[d0 - 1] where 0 <= d0 - 1 < 5 else %zero
         : tensor<5xf32> -> tensor<7xf32>
    ```

    Transposes, broadcasts, slices, flips, pads, rolls, reshapes and repeats are index maps. The map takes result
    indices to source coordinates and may use floordiv and mod. Inside the domain, coordinates must be inside the
    source.

    Operands:
        fill: value outside of the domain (`else`).

    Attributes:
        map: source coordinates for each result index.
        domain: result indices that read the source (`where`).

    Constraints: the map has one coordinate for each dimension of the source; a fill value if and only if there is a
    domain; element types are equal.
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
            raise VerifyException(
                "expected one element type of source, fill and result, but got"
                f" {e}, {'no fill' if self.fill is None else self.fill.type} and {element_type(self.result.type)}"
            )


@irdl.irdl_op_definition
class GatherOp(PureOp):
    """Reads elements at data-dependent coordinates: result[d] = source[map(d)[i0[d], i1[d], ...]].

    ```
    %i = tensor.iota 0 : tensor<5x8xi64>
    %y = tensor.gather %table[%i, d1]
         : tensor<100x8xf32> -> tensor<5x8xf32>
    ```

    The elements of the index tensors are the symbols of the map. A coordinate outside of the source reads zero, so no
    index reads other memory. Programs that check indices have a `payload.assert` on each index. A negative index counts
    as outside: PyTorch's negative indices are made positive by other operations.

    Operands:
        indices: index tensors, the symbols of the map.

    Attributes:
        map: source coordinates for each result index.

    Constraints: at least one index tensor; all are integer tensors of the result's shape; element types of source and
    result are equal.
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
            raise VerifyException("expected at least one index tensor, but got none; use tensor.index_map")
        _verify_indexed(self, self.source, self.result, "a source", "result's")
        if element_type(self.source.type) != element_type(self.result.type):
            raise VerifyException(
                f"expected one element type of source and result, but got {element_type(self.source.type)} and"
                f" {element_type(self.result.type)}"
            )


@irdl.irdl_op_definition
class ScatterOp(PureOp):
    """Combines values into a tensor at data-dependent coordinates.

    ```
    %i = tensor.iota 0 : tensor<5x8xi64>
    %y = tensor.scatter add %v, %x[%i, d1]
         : tensor<5x8xf32>, tensor<100x8xf32>
    ```

    The result is `init` with values[d] combined into the element at map(d)[i0[d], ...], for every d. The elements of
    the index tensors are the symbols of the map. The order is unspecified, so float sums may round in any order. Values
    with coordinates outside of the tensor are dropped. To overwrite instead of combining, a program scatters the
    positions of the values by `max`, and gathers the value at each resulting position.

    The operation is like a call on the host. It may occur at the tensor and the loop level, where its values and
    indices are results of one nest, and becomes a kernel of atomic operations.

    Operands:
        init: tensor to start from.
        values: values to combine into it.
        indices: index tensors, the symbols of the map.

    Attributes:
        kind: reduction kind that combines a value with an element.
        map: coordinates in `init` for each index of the values.

    Constraints: at least one index tensor; all are integer tensors of the values' shape; the kind has an atomic
    operation on the element type.
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
            raise VerifyException("expected at least one index tensor, but got none")
        _verify_indexed(self, self.init, self.values, "a result", "values'")
        if element_type(self.values.type) != element_type(self.init.type):
            raise VerifyException(
                f"expected one element type of init and values, but got {element_type(self.init.type)} and"
                f" {element_type(self.values.type)}"
            )
        verify_atomic(self.kind.data, element_type(self.init.type))


def _verify_indexed(op: GatherOp | ScatterOp, whole: SSAValue, elements: SSAValue, target: str, owner: str) -> None:
    """Checks the index tensors and the map of a gather or scatter.

    Args:
        op: the operation.
        whole: tensor that the coordinates refer to.
        elements: tensor with one element for each access.
        target: name of `whole` in messages.
        owner: name of `elements` in messages, in the possessive case.
    """
    shape = extents_of(elements.type)
    verify_access(op, len(shape), len(op.indices), len(extents_of(whole.type)), target)
    for i in op.indices:
        if extents_of(i.type) != shape or not isinstance(element_type(i.type), IntegerType):
            raise VerifyException(f"expected an integer index tensor of the {owner} shape, but got {i.type}")


@irdl.irdl_op_definition
class ReduceOp(PureOp):
    """Reduces a tensor over some dimensions, which are removed.

    ```
    %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
    ```

    Over an empty dimension the result is the identity of the kind.

    Attributes:
        kind: reduction kind.
        dims: reduced dimensions (`over`).

    Constraints: the dimensions are distinct and ascending; the kind supports the element type.
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
            raise VerifyException(
                f"expected distinct, ascending dimensions below {len(shape)} to reduce, but got {dims}"
            )
        expected = tensor_of(element_type(self.source.type), [n for i, n in enumerate(shape) if i not in dims])
        if self.result.type != expected:
            raise VerifyException(
                f"expected {expected} as the reduction of {self.source.type} over {dims}, but got {self.result.type}"
            )
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl.irdl_op_definition
class PrefixScanOp(PureOp):
    """Scans a tensor inclusively: result[.., j, ..] combines source[.., 0, ..] to source[.., j, ..].

    ```
    %y = tensor.prefix_scan add %x along 1 : tensor<16x64xf32>
    ```

    Attributes:
        kind: reduction kind.
        dim: scanned dimension (`along`).

    Constraints: the dimension exists; the kind is one that scans support.
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
            raise VerifyException(f"expected a dimension of {self.source.type}, but got {self.dim.value.data}")
        verify_kind(self.kind.data, element_type(self.source.type), scan=True)


@irdl.irdl_op_definition
class IotaOp(PureOp):
    """Returns the index along one dimension: result[d] = d[dim].

    ```
    %i = tensor.iota 1 : tensor<4x5xi64>
    ```

    Attributes:
        dim: dimension whose index is returned.

    Constraints: the dimension exists; the element type is an integer or index.
    """

    name = "tensor.iota"
    dim = irdl.prop_def(IntegerAttr.constr(i64))
    result = irdl.result_def(irdl.base(TensorType))

    assembly_format = "$dim attr-dict `:` type($result)"

    def __init__(self, dim: int, result_type: TensorType[Attribute]):
        super().__init__(IntegerAttr(dim, i64), result_type)

    def verify_(self) -> None:
        if not 0 <= self.dim.value.data < len(extents_of(self.result.type)):
            raise VerifyException(f"expected a dimension of {self.result.type}, but got {self.dim.value.data}")
        if not isinstance(element_type(self.result.type), IntegerType | IndexType):
            raise VerifyException(
                f"expected an integer or index element type, but got {element_type(self.result.type)}"
            )


Tensor = Dialect("tensor", [IndexMapOp, GatherOp, ScatterOp, ReduceOp, PrefixScanOp, IotaOp, ScanOp], [KindAttr])
