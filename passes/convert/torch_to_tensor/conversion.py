"""Lower the torch dialect to the tensor level."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.utils.exceptions import VerifyException

from ....dialects import tensor
from ....dialects.payload import element_type, is_float
from ....dialects.shapes.binding import SIZES, Algebra, derived_sizes
from ....dialects.shapes.extents import ExtentError, extents_of, extents_text
from ....dialects.support.equivalence import structure
from ....dialects.support.locations import location_text
from ....dialects.tensor.builder import Builder
from ....dialects.torch import AtenOp
from ....errors import CompileError, ShapeError, UnsupportedError
from ...rewriting import rewrite_module
from .registry import get_decompositions
from .scalars import check_types, held_scalars

WHERE_ONLY = frozenset(
    "layout device pin_memory non_blocking memory_format copy cudnn_enable cudnn_enabled half_to_float".split()
)
"""Arguments that say where or how a tensor is stored, not what is in it. Decompositions do not see them."""

_NAME = ("sym_name",)


def decompose(
    op: AtenOp, algebra: Algebra | None = None, checked: bool = False
) -> tuple[list[Operation], list[SSAValue], list[tuple[tensor.ScanOp, FuncOp]]]:
    """The ops that compute `op`, its results, of exactly the types that `op` declares, and the functions of folds.

    `algebra` knows the sizes of the program; with `checked` indices are asserted to be legal.

    Raises UnsupportedError for an operator or argument without a decomposition, ShapeError where the declared types
    are not what the operator gives.
    """
    function = get_decompositions().get(op.SCHEMA.name)
    if function is None:
        raise UnsupportedError("this operator has no decomposition")
    arguments = {name: value for name, value in op.values.items() if name not in WHERE_ONLY}
    if op.values.get("layout") not in (None, "strided"):
        raise UnsupportedError("only strided tensors", argument="layout")
    if unread := arguments.keys() - signature(function).parameters.keys():
        raise UnsupportedError("this argument is not supported", argument=min(unread))
    check_types(op.SCHEMA.name, arguments.values(), element_type(op.result_types[0]))
    arguments = held_scalars(op.SCHEMA.name, arguments, element_type(op.result_types[0]))
    asserts = f"aten.{op.SCHEMA.name}" if checked else None
    builder = Builder(op.result_types, op.location, algebra or Algebra(), asserts)
    try:
        found = function(builder, **arguments)
    except ExtentError:
        raise
    except VerifyException as error:
        raise ShapeError(str(error)) from None
    for made in builder.ops:
        if isinstance(made, tensor.GatherOp) or made.name.startswith("math.") and not is_float(made.results[0].type):
            _check_element_type(made)
    results = [found] if isinstance(found, SSAValue) else found
    if len(results) < len(op.results):
        raise ShapeError(f"{len(results)} results where {len(op.results)} are declared")
    given = list(zip(results, op.result_types, strict=False))  # what the overload has no result for is left away
    for value, declared in given:
        if extents_of(value.type) != extents_of(declared):
            gives, wanted = extents_text(extents_of(value.type)), extents_text(extents_of(declared))
            raise ShapeError(f"gives shape {gives}, declared as {wanted}")
    return builder.ops, [builder.cast(value, element_type(t)) for value, t in given], builder.functions


def _check_element_type(made: Operation) -> None:
    """Refuse a tensor of an element type that the operator does not work on, which PyTorch would not have captured."""
    try:
        made.verify(verify_nested_ops=False)
    except VerifyException:
        elements = ", ".join(dict.fromkeys(str(element_type(v.type)) for v in made.operands))
        raise UnsupportedError(f"does not work on tensors of {elements}") from None


def _add_function(op: AtenOp, fold: tensor.ScanOp, function: FuncOp) -> None:
    """Put the function of a fold in front of the one that `op` is in, unless the module has one like it."""
    top: Operation = op
    while (parent := top.parent_op()) is not None and not isinstance(parent, ModuleOp):
        top = parent
    assert isinstance(parent, ModuleOp)
    key, taken = structure(function, {}, _NAME), set[str]()
    for other in parent.ops:
        if isinstance(other, FuncOp):
            if structure(other, {}, _NAME) == key:
                fold.step = SymbolRefAttr(other.sym_name.data)
                return
            taken.add(other.sym_name.data)
    name = function.sym_name.data
    number = next(n for n in range(len(taken) + 1) if (f"{name}_{n}" if n else name) not in taken)
    function.sym_name = StringAttr(f"{name}_{number}" if number else name)
    fold.step = SymbolRefAttr(function.sym_name.data)
    parent.body.block.insert_op_before(function, top)


@dataclass(frozen=True)
class DecomposeAtenOp(RewritePattern):
    """Replaces an op of the torch dialect by what it computes; `errors` collects those of ops that are refused."""

    algebra: Algebra
    checked: bool
    errors: list[CompileError] = field(default_factory=list[CompileError])

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, AtenOp):
            return
        try:
            ops, results, functions = decompose(op, self.algebra, self.checked)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            self.errors.append(error)
            return
        for old, new in zip(op.results, results, strict=True):
            if old.name_hint and not new.name_hint:
                new.name_hint = old.name_hint
        for fold, function in functions:
            _add_function(op, fold, function)
        rewriter.replace(op, ops, results)


def decompose_all(module: ModuleOp, algebra: Algebra, checked: bool = False) -> None:
    """Replaces every op of the torch dialect in a module. Raises the CompileError of the first op that is refused, with
    those of all further ones as its `others`."""
    pattern = DecomposeAtenOp(algebra, checked)
    rewrite_module(module, [pattern])
    if pattern.errors:
        first, *others = pattern.errors
        first.others = tuple(others)
        raise first


@dataclass(frozen=True)
class ConvertTorchToTensorPass(ModulePass):
    """Write every ATen operator out in elementwise operations, index maps, gathers and reductions.

    First of all passes: below it no operator has a name, so every later pass is about structure alone. Low-precision
    tensors are cast to f32 before an operator computes on them and its result is rounded once, where PyTorch rounds.

    ```
    %0 = torch.add.Tensor(self = %x, other = %b, alpha = 1) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
    ```
    becomes
    ```
    %1 = tensor.index_map %b[d1] : tensor<64xf32> -> tensor<16x64xf32>
    %0 = arith.addf %x, %1 : tensor<16x64xf32>
    ```
    """

    name = "convert-torch-to-tensor"

    checked: bool = False
    """Let the program stop where an index is none that PyTorch takes: `payload.assert` on what operators index with."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        derived = [d for f in op.ops if isinstance(f, FuncOp) for d in derived_sizes(f)]
        algebra = Algebra(derived)
        decompose_all(op, algebra, self.checked)
        if algebra.promises:
            main = next(f for f in op.ops if isinstance(f, FuncOp) and f.sym_name.data == "main")
            main.attributes[SIZES] = ArrayAttr([*derived_sizes(main), *algebra.promises])
