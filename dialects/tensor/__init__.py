"""The tensor dialect: whole tensors. With the payload on tensors it is the level every frontend lowers to.

An elementwise operator is the payload (`arith.addf %a, %b : tensor<16x64xf32>`, both operands of one shape), a
broadcast or any other view is an `index_map`, a reduction is a `reduce`; there are no named operators. A matrix
multiplication is two index maps, a product and a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntegerAttr, IntegerType, TensorType, i64
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import Extent, extents_of, tensor_of
from ..support.assembly import NUMBERS, SAME_TYPE, PureOp
from .reduction_kinds import (
    KindAttr as KindAttr,
    ReductionKind as ReductionKind,
    identity as identity,
    verify_atomic,
    verify_kind,
)
from .scan import ScanOp

ROOT = "fuse.root"
"""The attribute of tensor ops whose results are kept in memory: each is the result of one kernel."""


@irdl_op_definition
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
    source = operand_def(TensorType.constr(SAME_TYPE))
    map = prop_def(AffineMapAttr)
    domain = opt_prop_def(DomainAttr)
    fill = opt_operand_def(SAME_TYPE)
    result = result_def(base(TensorType))
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


@irdl_op_definition
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
    source = operand_def(base(TensorType))
    indices = var_operand_def(base(TensorType))
    map = prop_def(AffineMapAttr)
    result = result_def(base(TensorType))
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


@irdl_op_definition
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
    T: ClassVar = VarConstraint("T", base(TensorType))
    kind = prop_def(KindAttr)
    init = operand_def(T)
    values = operand_def(base(TensorType))
    indices = var_operand_def(base(TensorType))
    map = prop_def(AffineMapAttr)
    result = result_def(T)
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
    """Check the map from the indices of `elements`, and the index tensors, to `whole`."""
    shape = extents_of(elements.type)
    verify_access(op, len(shape), len(op.indices), len(extents_of(whole.type)), what)
    for i in op.indices:
        if extents_of(i.type) != shape or not isinstance(element_type(i.type), IntegerType):
            raise VerifyException(f"an index tensor is an integer tensor of the {whose} shape, not {i.type}")


@irdl_op_definition
class ReduceOp(PureOp):
    """Combine all elements along some dimensions, which disappear. An empty dimension gives the kind's identity.

    ```
    %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
    ```
    """

    name = "tensor.reduce"
    kind = prop_def(KindAttr)
    source = operand_def(base(TensorType))
    dims = prop_def(NUMBERS)
    result = result_def(base(TensorType))
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


@irdl_op_definition
class PrefixScanOp(PureOp):
    """Inclusive scan: result[.., j, ..] combines source[.., 0, ..] to source[.., j, ..] along one dimension.

    ```
    %y = tensor.prefix_scan add %x along 1 : tensor<16x64xf32>
    ```
    """

    name = "tensor.prefix_scan"
    T: ClassVar = VarConstraint("T", base(TensorType))
    kind = prop_def(KindAttr)
    source = operand_def(T)
    dim = prop_def(IntegerAttr.constr(i64))
    result = result_def(T)
    assembly_format = "$kind $source `along` $dim attr-dict `:` type($source)"

    def __init__(self, kind: str | ReductionKind, source: SSAValue, dim: int):
        super().__init__(kind, source, IntegerAttr(dim, i64))

    def verify_(self) -> None:
        if not 0 <= self.dim.value.data < len(extents_of(self.source.type)):
            raise VerifyException(f"dimension {self.dim.value.data} of {self.source.type}")
        verify_kind(self.kind.data, element_type(self.source.type), scan=True)


@irdl_op_definition
class IotaOp(PureOp):
    """The index along one dimension: result[d] = d[dim].

    ```
    %i = tensor.iota 1 : tensor<4x5xi64>
    ```
    """

    name = "tensor.iota"
    dim = prop_def(IntegerAttr.constr(i64))
    result = result_def(base(TensorType))

    assembly_format = "$dim attr-dict `:` type($result)"

    def __init__(self, dim: int, result_type: TensorType[Attribute]):
        super().__init__(IntegerAttr(dim, i64), result_type)

    def verify_(self) -> None:
        if not 0 <= self.dim.value.data < len(extents_of(self.result.type)):
            raise VerifyException(f"dimension {self.dim.value.data} of {self.result.type}")
        if not isinstance(element_type(self.result.type), IntegerType | IndexType):
            raise VerifyException(f"an iota of {element_type(self.result.type)}: only integers count")


Tensor = Dialect("tensor", [IndexMapOp, GatherOp, ScatterOp, ReduceOp, PrefixScanOp, IotaOp, ScanOp], [KindAttr])
