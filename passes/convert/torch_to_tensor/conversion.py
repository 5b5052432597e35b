"""Lower the torch dialect to the tensor level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import chain, count
from pkgutil import iter_modules

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from ....dialects import tensor
from ....dialects.payload import element_type, is_float
from ....dialects.shapes.binding import SIZES, Algebra, derived_sizes
from ....dialects.shapes.extents import ExtentError, extents_of, extents_text
from ....dialects.support.equivalence import structure
from ....dialects.support.locations import location_text
from ....dialects.tensor.builder import Builder
from ....dialects.torch import AtenOp, Value
from ....errors import CompileError, ShapeError, UnsupportedError
from ....plugins import plugins
from ...rewriting import replace
from .registry import DECOMPOSITIONS, Decomposition
from .scalars import HELD, SUMS, check_types, held_scalars

WHERE_ONLY = frozenset(
    "layout device pin_memory non_blocking memory_format copy cudnn_enable cudnn_enabled half_to_float".split()
)
"""Arguments that specify where or how a tensor is stored, not its elements. Decompositions do not see them."""

_NAME = ("sym_name",)

ENTRY_POINT_GROUP = "deplodock.decompositions"
"""Entry points of this group, each naming a module that enters decompositions, are third-party operators."""


@cache
def get_decompositions() -> Mapping[str, Decomposition]:
    """Every decomposition by overload name (`"add.Tensor"`), those of plugins included. Raises PluginError."""
    package = import_module(__name__.rpartition(".")[0])
    for family in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{family.name}")
    for load in plugins(ENTRY_POINT_GROUP, (), "decomposition").values():
        load()
    return dict(sorted(DECOMPOSITIONS.items()))


def decompose(
    op: AtenOp, algebra: Algebra | None = None, checked: bool = False
) -> tuple[list[Operation], list[SSAValue], list[tuple[tensor.ScanOp, FuncOp]]]:
    """Returns the ops that compute `op`, its results, of the types that `op` declares, and the functions of folds.

    Args:
        op: An op of the torch dialect.
        algebra: Knows the sizes of the program.
        checked: Whether to assert that indices are legal.

    Raises:
        UnsupportedError: An operator or argument has no decomposition.
        ShapeError: The declared types are not those of the operator.
    """
    function = get_decompositions().get(op.SCHEMA.name)
    if function is None:
        raise UnsupportedError("this operator has no decomposition")
    element = element_type(op.result_types[0])
    arguments = {name: value for name, value in op.values.items() if name not in WHERE_ONLY}
    if op.values.get("layout") not in (None, "strided"):
        raise UnsupportedError("only strided tensors", argument="layout")
    if unread := arguments.keys() - signature(function).parameters.keys():
        raise UnsupportedError("this argument is not supported", argument=min(unread))
    if not _is_plain(op, arguments):
        check_types(op.SCHEMA.name, function.__module__, arguments.values(), element)
        arguments = held_scalars(op.SCHEMA.name, arguments, element)
    asserts = f"aten.{op.SCHEMA.name}" if checked else None
    builder = Builder(op.result_types, op.location, algebra or Algebra(), asserts)
    try:
        results = function(builder, **arguments)
    except VerifyException as error:
        raise error if isinstance(error, ExtentError) else ShapeError(str(error)) from None
    for new in builder.ops:
        if isinstance(new, tensor.GatherOp) or new.name.startswith("math.") and not is_float(new.results[0].type):
            _check_element_type(new)
    results = [results] if isinstance(results, SSAValue) else results
    if len(results) < len(op.results):
        raise ShapeError(f"{len(results)} results where {len(op.results)} are declared")
    declared = zip(results, op.result_types, strict=False)  # an overload may have fewer results
    return builder.ops, [_declared(builder, value, type) for value, type in declared], builder.functions


def _declared(builder: Builder, value: SSAValue, type: Attribute) -> SSAValue:
    """Returns the result `value` as the type that the operator declares. Raises ShapeError for another shape."""
    shape, expected = extents_of(value.type), extents_of(type)
    if shape != expected:
        raise ShapeError(f"gives shape {extents_text(shape)}, declared as {extents_text(expected)}")
    return builder.cast(value, element_type(type))


def _is_plain(op: AtenOp, arguments: Mapping[str, Value]) -> bool:
    """Returns true if all tensors are f32, of which PyTorch refuses none, and no number is rounded (a float of `HELD`)
    or refused (a truth value in `SUMS`)."""
    name = op.SCHEMA.name.partition(".")[0]
    rounded = any(isinstance(arguments.get(argument), float) for argument in HELD.get(name, ()))
    refused = name in SUMS and any(isinstance(value, bool) for value in arguments.values())
    return {element_type(t) for t in (*op.operand_types, *op.result_types)} == {f32} and not rounded and not refused


def _check_element_type(op: Operation) -> None:
    """Refuses an element type that the operator does not work on, which PyTorch would not have captured."""
    try:
        op.verify(verify_nested_ops=False)
    except VerifyException:
        elements = ", ".join(dict.fromkeys(str(element_type(v.type)) for v in op.operands))
        raise UnsupportedError(f"does not work on tensors of {elements}") from None


def _add_function(op: AtenOp, fold: tensor.ScanOp, function: FuncOp) -> None:
    """Inserts the function of a fold before the one that `op` is in, unless the module has an equal one."""
    top: Operation = op
    while (parent := top.parent_op()) is not None and not isinstance(parent, ModuleOp):
        top = parent
    assert isinstance(parent, ModuleOp)
    functions = {other.sym_name.data: other for other in parent.ops if isinstance(other, FuncOp)}
    key, name = structure(function, {}, _NAME), function.sym_name.data
    names = chain([name], (f"{name}_{n}" for n in count(1)))
    equal = (n for n, other in functions.items() if structure(other, {}, _NAME) == key)
    if (step := next(equal, None)) is None:
        step = next(n for n in names if n not in functions)
        function.sym_name = StringAttr(step)
        parent.body.block.insert_op_before(function, top)
    fold.step = SymbolRefAttr(step)


def decompose_all(module: ModuleOp, algebra: Algebra, checked: bool = False) -> None:
    """Replaces every op of the torch dialect in a module. Raises the CompileError of the first op that is refused, with
    those of all further ones as its `others`."""
    errors = list[CompileError]()
    for op in [op for op in module.walk() if isinstance(op, AtenOp)]:
        try:
            ops, results, functions = decompose(op, algebra, checked)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            errors.append(error)
            continue
        for fold, function in functions:
            _add_function(op, fold, function)
        replace(op, *ops, results=results)
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]


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
    """Stop the program at an index that PyTorch refuses: `payload.assert` on the indices of operators."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        derived = [d for f in op.ops if isinstance(f, FuncOp) and SIZES in f.attributes for d in derived_sizes(f)]
        algebra = Algebra.with_sizes(derived) if derived else Algebra()
        decompose_all(op, algebra, self.checked)
        if algebra.promises:
            main = next(f for f in op.ops if isinstance(f, FuncOp) and f.sym_name.data == "main")
            main.attributes[SIZES] = ArrayAttr([*derived_sizes(main), *algebra.promises])
