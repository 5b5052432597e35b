"""The loop dialect: each kernel as one fused loop nest over scalars.

`loop.nest` is a pure operation from tensors to tensors. Its body reads elements by index maps, has nested reductions,
and computes with the scalar payload:

```
%y = loop.nest (%i) in [16] -> tensor<16xf32> {
  %sum = loop.reduce add (%k) in [64] -> f32 {
    %a = loop.load %x[%i, %k] : tensor<16x64xf32>
    loop.yield %a : f32
  }
  loop.yield %sum : f32
}
```

The nest does not specify how it runs. `plan-schedules` adds the schedule as an attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl import irdl
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IndexType, IntAttr, TensorType
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Dialect, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type, is_tensor, same_elements
from ..shapes.affine import DIM, Simplifier, number_of
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import Extent, SymbolAttr, extents_in, extents_of, extents_text, static, tensor_of
from ..support.assembly import SAME_TYPE, PureOp, YieldsOwnOps
from ..tensor import KindAttr, verify_kind


@irdl.irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Returns the values of one iteration of a nest, a reduction, or a region of a staged reduction.

    ```
    loop.yield %acc : f32
    ```

    Operands:
        arguments: values, one for each result of the region.
    """

    name = "loop.yield"
    traits = irdl.lazy_traits_def(lambda: (IsTerminator(), Pure()))


@irdl.irdl_op_definition
class LoadOp(PureOp):
    """Loads one element: source[map(indices)[symbols]] inside the domain, else the fill value.

    ```
    %a = loop.load %x[%i, %k + 4] : tensor<16x64xf32>
    %b = loop.load %t[symbol(%s), %j]
         where 0 <= symbol(%s) < 100 else %zero
         : tensor<100x8xf32>
    ```

    Operands:
        source: the tensor.
        indices: indices of the enclosing nest and reductions.
        symbols: `index` values that are computed from data.
        fill: value outside of the domain (`else`).

    Attributes:
        map: source coordinates, as expressions of indices and symbols.
        domain: index values that read the source (`where`).

    Constraints: the map has one coordinate for each dimension of the source; a fill value if and only if there is a
    domain; a load with symbols has a domain, which must keep their coordinates inside the source.
    """

    name = "loop.load"
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    source = irdl.operand_def(TensorType.constr(SAME_TYPE))
    map = irdl.prop_def(AffineMapAttr)
    indices = irdl.var_operand_def(IndexType())
    symbols = irdl.var_operand_def(IndexType())
    domain = irdl.opt_prop_def(DomainAttr)
    fill = irdl.opt_operand_def(SAME_TYPE)
    result = irdl.result_def(SAME_TYPE)
    assembly_format = (
        "$source `` custom<LoopAccess>($map, $indices, $symbols) (`where` custom<Domain>($domain)^)? (`else` $fill^)?"
        " attr-dict `:` type($source)"
    )

    def verify_(self) -> None:
        rank = len(extents_of(self.source.type))
        verify_access(self, len(self.indices), len(self.symbols), rank, "a source")
        if self.symbols and self.domain is None:
            raise VerifyException("expected a domain, because a coordinate depends on data, but got none")


@irdl.irdl_op_definition
class ReshapeOp(PureOp):
    """Host operation: returns the elements of a tensor in row-major order in another shape, in the same memory.

    ```
    %y = loop.reshape %x : tensor<64x7x7xf32> -> tensor<64x49xf32>
    ```

    Kernels are launched on the original tensor and use the shape that their nest reads.

    Constraints: number and type of the elements are equal.
    """

    name = "loop.reshape"
    source = irdl.operand_def(irdl.base(TensorType))
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    @property
    def expands(self) -> bool:
        """Returns true if the result has more dimensions than the source."""
        return len(extents_of(self.result.type)) > len(extents_of(self.source.type))

    def verify_(self) -> None:
        if not same_elements(self.source.type, self.result.type):
            raise VerifyException(
                f"expected a result with the number and type of elements of {self.source.type}, but got"
                f" {self.result.type}"
            )


def unreshaped(value: SSAValue) -> SSAValue:
    """Returns the tensor before all `loop.reshape` that lead to `value`."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.source
    return value


def _verify_body(block: Block, indices: int, results: Sequence[Attribute]) -> None:
    """Checks the arguments and the terminator of a body.

    Args:
        block: the body.
        indices: number of index arguments it must have.
        results: types it must yield.
    """
    if [a.type for a in block.args] != [IndexType()] * indices:
        raise VerifyException(
            f"expected {indices} arguments of type index, one for each extent, but got"
            f" ({', '.join(str(a.type) for a in block.args)})"
        )
    _verify_yield(block, results, "the body")


def _verify_yield(block: Block, results: Sequence[Attribute], subject: str) -> None:
    end = block.last_op
    actual = [o.type for o in end.operands] if isinstance(end, YieldOp) else None
    if actual != list(results):
        text = "no loop.yield" if actual is None else f"({', '.join(map(str, actual))})"
        raise VerifyException(f"expected {subject} to yield ({', '.join(map(str, results))}), but got {text}")


def verify_mixed_radix(map: AffineMap, extents: Sequence[Extent], shape: Sequence[Extent]) -> None:
    """Checks that `map` is a bijection from indices to coordinates in mixed radix.

    Every index must be a digit of one coordinate; its weight is the product of the extents of the lower digits, as in
    `%j * 64 + %k` with %k < 64. An index of symbolic extent is a coordinate by itself.

    Args:
        map: the map.
        extents: extents of the indices.
        shape: extents of the coordinates.

    Raises:
        VerifyException: the map is not such a bijection.
    """
    if map.num_dims != len(extents) or map.num_symbols or len(map.results) != len(shape):
        raise VerifyException(
            f"expected a result map from {len(extents)} indices to {len(shape)} coordinates, but got {map}"
        )
    seen = set[int]()
    for form, result, size in zip(Simplifier().read_map(map), map.results, shape, strict=True):
        if form.constant or any(atom[0] != DIM for atom, _ in form.terms):
            raise VerifyException(
                "expected a number in mixed radix, such as d0 * 8 + d1 with d1 < 8, in the result map, but got"
                f" {result}"
            )
        digits = sorted((w, d) for atom, w in form.terms if extents[d := number_of(atom)] != 1)
        weight: Extent = 1
        for w, d in digits:
            extent = extents[d]
            if w != weight or d in seen or not isinstance(weight, int):
                raise VerifyException(
                    "expected a number in mixed radix, such as d0 * 8 + d1 with d1 < 8, in the result map, but got"
                    f" {result}"
                )
            seen.add(d)
            if isinstance(extent, int):
                weight *= extent
            elif len(digits) > 1:
                raise VerifyException(
                    f"expected an index of symbolic extent alone in a coordinate of the result map, but got {result}"
                )
            else:
                weight = extent
        if weight != size:
            raise VerifyException(f"expected {result} in the result map to have {size} values, but got {weight}")
    if any(n != 1 and d not in seen for d, n in enumerate(extents)):
        raise VerifyException(f"expected every index in the result map, but got {map}")


class _IndexedOp(PureOp):
    """Base class of operations that execute a body for each value of their indices."""

    extents = irdl.prop_def(ArrayAttr[IntAttr | SymbolAttr])
    body = irdl.region_def("single_block")

    @property
    def sizes(self) -> tuple[Extent, ...]:
        """Returns the extents of the indices; some may be symbols."""
        return extents_in(self.extents)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the extents of the indices as numbers. Raises ExtentError for a symbol."""
        return static(self.sizes)


@irdl.irdl_op_definition
class NestOp(_IndexedOp):
    """Defines a kernel: computes every element of its results independently, from the free indices.

    ```
    %y = loop.nest (%i, %j) in [16, 8] -> tensor<16x8xf32> {
      %acc = loop.reduce add (%k) in [64] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<16x64xf32>
        %b = loop.load %w[%k, %j] : tensor<64x8xf32>
        %p = arith.mulf %a, %b : f32
        loop.yield %p : f32
      }
      loop.yield %acc : f32
    }
    ```

    Each yielded value becomes a result tensor. Its shape has the extents of the indices, unless the nest has a result
    map: `to [%i, %j * 64 + %k]` maps the indices to the coordinates at which the values are stored. The pass
    `loop-split-dimensions` creates result maps.

    Attributes:
        extents: extents of the free indices, numbers or symbols.
        result_map: map from indices to result coordinates (`to`).
        schedule: `#tile.schedule<...>` of a planned nest.

    Regions:
        body: computes one element of each result.

    Constraints: the results have the shape of the extents, or with a result map one common shape that the map reaches
    bijectively; the body yields one element for each result.
    """

    name = "loop.nest"
    result_map = irdl.opt_prop_def(AffineMapAttr)
    res = irdl.var_result_def()
    assembly_format = (
        "custom<Indices>(ref($body)) `in` custom<Extents>($extents) (`to` custom<ResultMap>($result_map, ref($body))^)?"
        " `->` type($res) attr-dict-with-keyword custom<Body>($body)"
    )

    def __init__(
        self,
        extents: Sequence[Extent],
        elements: Sequence[Attribute],
        body: Region,
        result_map: AffineMap | None = None,
        shape: Sequence[Extent] | None = None,
    ):
        """Creates a nest.

        Args:
            extents: extents of the free indices.
            elements: element types of the results.
            body: region with one index argument for each extent.
            result_map: map from indices to result coordinates, or None.
            shape: shape of the results if a result map changes it.
        """
        types = [tensor_of(e, extents if shape is None else shape) for e in elements]
        super().__init__(extents=extents, result_map=result_map, body=body, res=types)

    def verify_(self) -> None:
        shapes = {extents_of(r.type) if is_tensor(r.type) else None for r in self.res}
        if self.result_map is not None:
            if len(shapes) != 1 or None in shapes:
                raise VerifyException(
                    "expected results of one shape in a nest with a result map, but got"
                    f" {' and '.join(str(r.type) for r in self.res)}"
                )
            shape = next(s for s in shapes if s is not None)
            verify_mixed_radix(self.result_map.data, self.sizes, shape)
        elif shapes - {self.sizes}:
            over = ", ".join(map(str, self.sizes))
            raise VerifyException(f"expected results of shape [{over}], like the extents, but got {self.res[0].type}")
        _verify_body(self.body.block, len(self.sizes), [element_type(r.type) for r in self.res])


@irdl.irdl_op_definition
class ReduceOp(_IndexedOp):
    """Reduces the yielded value of its body over all reduction indices.

    ```
    %acc = loop.reduce add (%k) in [64] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<16x64xf32>
      loop.yield %a : f32
    }
    ```

    Over an empty range the result is the identity of the kind.

    Attributes:
        kind: reduction kind.
        extents: extents of the reduction indices, numbers or symbols.

    Regions:
        body: computes the value of one iteration.

    Constraints: the body yields one value of the result type; the kind supports that type.
    """

    name = "loop.reduce"
    kind = irdl.prop_def(KindAttr)
    result = irdl.result_def()
    assembly_format = (
        "$kind custom<Indices>(ref($body)) `in` custom<Extents>($extents) `->` type($result)"
        " attr-dict-with-keyword custom<Body>($body)"
    )

    def verify_(self) -> None:
        _verify_body(self.body.block, len(self.sizes), [self.result.type])
        verify_kind(self.kind.data, self.result.type)


@irdl.irdl_op_definition
class StagedReduceOp(PureOp):
    """Computes reductions over one index range, in order; later ones may use earlier results.

    ```
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [37] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<16x37xf32>
        loop.yield %a : f32
      }
      %l0 = loop.reduce add (%k) in [37] -> f32 {
        %b = loop.load %x[%i, %k] : tensor<16x37xf32>
        %c = arith.subf %b, %m0 : f32
        %e = math.exp %c : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    ```

    The first region has the stages: `loop.reduce` operations of equal extents, and payload that does not depend on the
    reduced index. They define the results: each stage reduces the whole range, in order.

    A kernel may also compute the range chunk by chunk. Then a later stage uses results of earlier stages over the
    chunks so far, its *reference values*, such as a running maximum. Every chunk changes them. The second region, the
    rescaling, converts partial results to the new reference values. Its arguments are all results relative to the old
    reference values (%om, %ol in the example), then all new results (%nm, %nl). It yields the old results relative to
    the new reference values. The kind of each stage then combines partial results. Online softmax, flash attention and
    split reductions have this form.

    Regions:
        stages: the reductions, in order.
        rescale: converts partial results from old to new reference values.

    Constraints: stage `i` yields result `i`; the stages have equal extents; the rescaling takes all results twice and
    yields each once. The rescaling of a stage may use only the new results of earlier stages.
    """

    name = "loop.staged_reduce"
    traits = irdl.traits_def(YieldsOwnOps())
    stages = irdl.region_def("single_block")
    rescale = irdl.region_def("single_block")
    res = irdl.var_result_def()
    assembly_format = (
        "`->` type($res) `stages` custom<Body>($stages)"
        " `rescale` custom<Arguments>(ref($rescale)) custom<Body>($rescale) attr-dict-with-keyword"
    )

    @property
    def stage_ops(self) -> tuple[ReduceOp, ...]:
        """Returns the reductions of the first region."""
        return tuple(op for op in self.stages.block.ops if isinstance(op, ReduceOp))

    def verify_(self) -> None:
        types = [r.type for r in self.res]
        _verify_body(self.stages.block, 0, types)
        if [a.type for a in self.rescale.block.args] != types * 2:
            raise VerifyException(
                "expected all results twice as arguments of the rescaling: the old ones, then the new ones, but got"
                f" ({', '.join(str(a.type) for a in self.rescale.block.args)})"
            )
        _verify_yield(self.rescale.block, types, "the rescaling")
        reduces = self.stage_ops
        if tuple(r.result for r in reduces) != tuple(self.stages.block.last_op.operands):  # pyright: ignore
            raise VerifyException(
                "expected the stages to yield their reductions, each once and in order, but got other values"
            )
        if len(extents := {r.sizes for r in reduces}) > 1:
            texts = " and ".join(sorted(map(extents_text, extents)))
            raise VerifyException(f"expected equal extents of all stages, but got {texts}")


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """Scans inclusively along a free index of the nest: combines `source` of the iterations 0 to `index`, in order.

    ```
    %y = loop.nest (%i, %j) in [16, 64] -> tensor<16x64xf32> {
      %a = loop.load %x[%i, %j] : tensor<16x64xf32>
      %s = loop.scan add %a along %j : f32
      loop.yield %s : f32
    }
    ```

    The other indices are equal in all combined iterations. One block computes all iterations of the index.

    Operands:
        source: value of one iteration.
        index: index of the nest that is scanned (`along`).

    Attributes:
        kind: reduction kind.

    Constraints: the scan is directly in the body of a nest; all scans of a nest run along one index; the kind is one
    that scans support.
    """

    name = "loop.scan"
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(SAME_TYPE)
    index = irdl.operand_def(IndexType())
    result = irdl.result_def(SAME_TYPE)
    assembly_format = "$kind $source `along` $index attr-dict `:` type($source)"

    def verify_(self) -> None:
        verify_kind(self.kind.data, self.source.type, scan=True)
        nest = self.parent_op()
        if not isinstance(nest, NestOp) or self.index.owner is not nest.body.block:
            raise VerifyException(
                "expected a scan directly in a nest, along one of the nest's indices, but got one in"
                f" {'no op' if nest is None else nest.name}"
            )
        if any(isinstance(op, ScanOp) and op.index is not self.index for op in nest.body.block.ops):
            raise VerifyException("expected all scans of a nest along one index, but got several")


def scanned_index(nest: NestOp) -> SSAValue | None:
    """Returns the index of `nest` along which its scans run, or None if it has no scan."""
    return next((op.index for op in nest.body.block.ops if isinstance(op, ScanOp)), None)


Loop = Dialect("loop", [NestOp, ReduceOp, StagedReduceOp, ScanOp, LoadOp, ReshapeOp, YieldOp])
