"""The loop dialect: a kernel as one loop nest over scalars, fused with its neighbours.

`loop.nest` is a pure operation from tensors to tensors: free indices, reads by index map, nested reductions and the
scalar payload. Nothing in it says how it runs; the schedule, once planned, is an attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl import irdl
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IndexType, IntAttr, TensorType
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type, is_tensor, same_elements
from ..shapes.affine import DIM, Simplifier, number_of
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import Extent, SymbolAttr, extents_in, extents_of, static, tensor_of
from ..support.assembly import SAME_TYPE, PureOp, YieldsOwnOps
from ..tensor import KindAttr, verify_kind


@irdl.irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """The values of one iteration: of a nest, a reduction body, the stages or the rescaling of a staged reduction."""

    name = "loop.yield"
    traits = irdl.lazy_traits_def(lambda: (IsTerminator(), Pure()))


@irdl.irdl_op_definition
class LoadOp(PureOp):
    """One element: source[map(indices)[symbols]] inside the domain, else the fill value.

    Indices are those of the enclosing nest and reductions; symbols are `index` values computed from data. A map with
    symbols has a domain that keeps every symbol's coordinate inside the source.

    ```
    %a = loop.load %x[%i, %k + 4] : tensor<16x64xf32>
    %b = loop.load %t[symbol(%s), %j]
         where 0 <= symbol(%s) < 100 else %zero
         : tensor<100x8xf32>
    ```
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
            raise VerifyException("a data-dependent coordinate needs a domain")


@irdl.irdl_op_definition
class ReshapeOp(PureOp):
    """Host: the elements of a tensor in row-major order as a tensor of another shape, in the same memory.

    Kernels are launched on the tensor itself, and see it in the shape that their nest does.

    ```
    %y = loop.reshape %x : tensor<64x7x7xf32> -> tensor<64x49xf32>
    ```
    """

    name = "loop.reshape"
    source = irdl.operand_def(irdl.base(TensorType))
    result = irdl.result_def(irdl.base(TensorType))
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    @property
    def expands(self) -> bool:
        """Whether the result has more dimensions than what it is made of."""
        return len(extents_of(self.result.type)) > len(extents_of(self.source.type))

    def verify_(self) -> None:
        if not same_elements(self.source.type, self.result.type):
            raise VerifyException(f"{self.result.type} has not the elements of {self.source.type}")


def unreshaped(value: SSAValue) -> SSAValue:
    """The tensor that `value` is, maybe in another shape."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.source
    return value


def _verify_body(op: Operation, block: Block, indices: int, results: Sequence[Attribute]) -> None:
    if [a.type for a in block.args] != [IndexType()] * indices:
        raise VerifyException(f"the body of '{op.name}' takes one index for each of its {indices} extents")
    end = block.last_op
    if not isinstance(end, YieldOp) or [o.type for o in end.operands] != list(results):
        raise VerifyException(f"the body of '{op.name}' ends with a loop.yield of {', '.join(map(str, results))}")


def verify_mixed_radix(map: AffineMap, extents: Sequence[Extent], shape: Sequence[Extent]) -> None:
    """Check that `map` takes indices below `extents` to every coordinate below `shape`, each once, by the digits rule:
    every index is a digit of one coordinate, with the product of the extents of the lower digits as its weight. An
    index of symbolic extent is a coordinate alone. Raises VerifyException."""
    if map.num_dims != len(extents) or map.num_symbols or len(map.results) != len(shape):
        raise VerifyException(f"the result map takes {len(extents)} indices to {len(shape)} coordinates")
    seen = set[int]()
    for form, result, size in zip(Simplifier().read_map(map), map.results, shape, strict=True):
        if form.constant or any(atom[0] != DIM for atom, _ in form.terms):
            raise VerifyException(f"{result} in the result map is not a number in mixed radix")
        digits = sorted((w, d) for atom, w in form.terms if extents[d := number_of(atom)] != 1)
        weight: Extent = 1
        for w, d in digits:
            extent = extents[d]
            if w != weight or d in seen or not isinstance(weight, int):
                raise VerifyException(f"{result} in the result map is not a number in mixed radix")
            seen.add(d)
            if isinstance(extent, int):
                weight *= extent
            elif len(digits) > 1:
                raise VerifyException(f"{result} in the result map has a digit of symbolic extent")
            else:
                weight = extent
        if weight != size:
            raise VerifyException(f"{result} in the result map counts to {weight}, not to {size}")
    if any(n != 1 and d not in seen for d, n in enumerate(extents)):
        raise VerifyException("an index does not occur in the result map")


class _IndexedOp(PureOp):
    """What runs a body for each value of its indices."""

    extents = irdl.prop_def(ArrayAttr[IntAttr | SymbolAttr])
    body = irdl.region_def("single_block")

    @property
    def sizes(self) -> tuple[Extent, ...]:
        return extents_in(self.extents)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the indices as numbers. Raises ExtentError if one is known only at run time."""
        return static(self.sizes)


@irdl.irdl_op_definition
class NestOp(_IndexedOp):
    """A kernel: every element of its results, computed independently from the free indices.

    Each result is a tensor of what is yielded for it. Its shape is that of the extents, unless the nest has a result
    map: that takes the indices to the coordinates at which the value is stored, each coordinate exactly once, as a
    number in mixed radix (`to [%i, %j * 64 + %k]`). Splitting a dimension leaves one
    behind.

    ```
    %y = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> {
      %acc = loop.reduce add (%k) in [64] -> f32 { ... }
      loop.yield %acc : f32
    }
    ```
    A planned nest carries `attributes {schedule = #tile.schedule<...>}`.
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
        """`shape` is that of the results, where a result map makes it another than the extents."""
        types = [tensor_of(e, extents if shape is None else shape) for e in elements]
        super().__init__(extents=extents, result_map=result_map, body=body, res=types)

    def verify_(self) -> None:
        shapes = {extents_of(r.type) if is_tensor(r.type) else None for r in self.res}
        if self.result_map is not None:
            if len(shapes) != 1 or None in shapes:
                raise VerifyException("a nest with a result map has results of one shape")
            shape = next(s for s in shapes if s is not None)
            verify_mixed_radix(self.result_map.data, self.sizes, shape)
        elif shapes - {self.sizes}:
            over = ", ".join(map(str, self.sizes))
            raise VerifyException(f"a nest over [{over}] yields tensors of that shape, not {self.res[0].type}")
        _verify_body(self, self.body.block, len(self.sizes), [element_type(r.type) for r in self.res])


@irdl.irdl_op_definition
class ReduceOp(_IndexedOp):
    """Combine the body's value over all reduction indices; over an empty range, the identity of the kind.

    ```
    %acc = loop.reduce add (%k) in [64] -> f32 {
      ...
      loop.yield %p : f32
    }
    ```
    """

    name = "loop.reduce"
    kind = irdl.prop_def(KindAttr)
    result = irdl.result_def()
    assembly_format = (
        "$kind custom<Indices>(ref($body)) `in` custom<Extents>($extents) `->` type($result)"
        " attr-dict-with-keyword custom<Body>($body)"
    )

    def verify_(self) -> None:
        _verify_body(self, self.body.block, len(self.sizes), [self.result.type])
        verify_kind(self.kind.data, self.result.type)


@irdl.irdl_op_definition
class StagedReduceOp(PureOp):
    """Reductions over one index range, in order, later ones using earlier results, mergeable chunk by chunk.

    The first region holds the stages: `loop.reduce` operations of equal extents, and payload between them that does not
    depend on the reduced index. Computed at once, the operation means its stages. Computed in chunks, a later stage was
    evaluated in a *frame* (the earlier results so far) that has moved since; the second region, the rescaling, takes
    all results in their old frame and all results that form the new frame, and gives the former moved into the latter.
    Then a stage's kind combines them. Online softmax, flash attention and split reductions are this operation.

    ```
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [37] -> f32 { ... }
      %l0 = loop.reduce add (%k) in [37] -> f32 { ... uses %m0 ... }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    ```
    Only the new values of earlier stages may be used to move a stage. Stage `i` yields result `i`.
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
        return tuple(op for op in self.stages.block.ops if isinstance(op, ReduceOp))

    def verify_(self) -> None:
        types = [r.type for r in self.res]
        _verify_body(self, self.stages.block, 0, types)
        if [a.type for a in self.rescale.block.args] != types * 2:
            raise VerifyException(
                "the rescaling takes all results twice: in the old frame, then those of the new frame"
            )
        end = self.rescale.block.last_op
        if not isinstance(end, YieldOp) or [o.type for o in end.operands] != types:
            raise VerifyException("the rescaling yields every result, moved")
        reduces = self.stage_ops
        if tuple(r.result for r in reduces) != tuple(self.stages.block.last_op.operands):  # pyright: ignore
            raise VerifyException("the stages yield their reductions, each once and in order")
        if len({r.sizes for r in reduces}) > 1:
            raise VerifyException("the stages of a staged reduction have equal extents")


@irdl.irdl_op_definition
class ScanOp(PureOp):
    """Inclusive scan along a free index of the nest: combines `source` of the iterations 0 to `index`, with equal other
    indices, in this order.

    ```
    %s = loop.scan add %a along %j : f32
    ```
    The iterations of the index are ordered, so one block computes all of them. All scans of a nest run along one index.
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
            raise VerifyException("a scan is directly inside a nest and runs along one of the nest's indices")
        if any(isinstance(op, ScanOp) and op.index is not self.index for op in nest.body.block.ops):
            raise VerifyException("the scans of a nest run along one index")


def scanned_index(nest: NestOp) -> SSAValue | None:
    """Returns the index of `nest` along which its scans run, or None if it has no scan."""
    return next((op.index for op in nest.body.block.ops if isinstance(op, ScanOp)), None)


Loop = Dialect("loop", [NestOp, ReduceOp, StagedReduceOp, ScanOp, LoadOp, ReshapeOp, YieldOp])
