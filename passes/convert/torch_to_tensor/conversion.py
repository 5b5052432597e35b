"""`convert-torch-to-tensor`: replaces ATen operators by their decompositions."""

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
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from ....dialects import tensor
from ....dialects.payload import element_type, is_float
from ....dialects.shapes.binding import SIZES, Algebra, derived_sizes
from ....dialects.shapes.extents import ExtentError, extents_of, extents_text
from ....dialects.support.equivalence import structure
from ....dialects.support.locations import location_text
from ....dialects.tensor.builder import Builder
from ....dialects.tensor.folds import fold, needs_padding
from ....dialects.torch import AtenOp, Value
from ....errors import CompileError, ShapeError, UnsupportedError
from ....plugins import plugins
from ...rewriting import erase, replace
from .registry import DECOMPOSITIONS, Decomposition
from .scalars import ALPHA_OPERATORS, TENSOR_TYPE_SCALARS, check_types, convert_scalars

Values = list[SSAValue]

STORAGE_ARGUMENTS = frozenset(
    "layout device pin_memory non_blocking memory_format copy cudnn_enable cudnn_enabled half_to_float".split()
)
"""Arguments that specify where or how a tensor is stored, not its elements. Decompositions do not see them."""

_NAME = ("sym_name",)

ENTRY_POINT_GROUP = "deplodock.decompositions"
"""Group of entry points for third-party operators. Each names a module that registers decompositions."""


@cache
def get_decompositions() -> Mapping[str, Decomposition]:
    """Returns overload name, such as "add.Tensor" -> decomposition, with the decompositions of plugins.

    Raises PluginError if a plugin cannot be loaded."""
    package = import_module(__name__.rpartition(".")[0])
    for family in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{family.name}")
    for load in plugins(ENTRY_POINT_GROUP, (), "decomposition").values():
        load()
    return dict(sorted(DECOMPOSITIONS.items()))


def decompose(
    op: AtenOp, algebra: Algebra | None = None, checked: bool = False
) -> tuple[list[Operation], list[SSAValue], list[tuple[tensor.ScanOp, FuncOp]]]:
    """Decomposes one operator into operations of the tensor level, which are not inserted.

    Args:
        op: Operation of the torch dialect.
        algebra: Arithmetic on the symbolic sizes of the program.
        checked: True to insert asserts that indices are legal.

    Returns:
        The new operations, the results with the types that `op` declares, and (scan, step function) of each
        `tensor.scan` among the operations.

    Raises:
        UnsupportedError: If the operator or an argument is not supported.
        ShapeError: If the declared types do not match the operator.
    """
    function = get_decompositions().get(op.SCHEMA.name)
    if function is None:
        raise UnsupportedError("this operator has no decomposition")
    element = element_type(op.result_types[0])
    arguments = {name: value for name, value in op.values.items() if name not in STORAGE_ARGUMENTS}
    if op.values.get("layout") not in (None, "strided"):
        raise UnsupportedError(f"expected a strided tensor, but got {op.values['layout']}", argument="layout")
    if unread := arguments.keys() - signature(function).parameters.keys():
        raise UnsupportedError("this argument is not supported", argument=min(unread))
    if not _is_plain(op, arguments):
        check_types(op.SCHEMA.name, function.__module__, arguments.values(), element)
        arguments = convert_scalars(op.SCHEMA.name, arguments, element)
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
        raise ShapeError(f"expected {len(op.results)} results, as declared, but got {len(results)}")
    declared = zip(results, op.result_types, strict=False)  # An overload may have fewer results.
    return builder.ops, [_declared(builder, value, type) for value, type in declared], builder.functions


def _declared(builder: Builder, value: SSAValue, type: Attribute) -> SSAValue:
    """Returns `value` converted to the declared element type. Raises ShapeError if the shapes differ."""
    shape, expected = extents_of(value.type), extents_of(type)
    if shape != expected:
        raise ShapeError(f"expected shape {extents_text(expected)}, as declared, but got {extents_text(shape)}")
    return builder.cast(value, element_type(type))


def _is_plain(op: AtenOp, arguments: Mapping[str, Value]) -> bool:
    """Returns true if the type rules of `scalars.py` change and refuse nothing. A quick test for the common case.

    All tensors are f32, no argument in `TENSOR_TYPE_SCALARS` is a float, which would be rounded, and no operator in
    `ALPHA_OPERATORS` has a boolean, which may be refused."""
    name = op.SCHEMA.name.partition(".")[0]
    rounded = any(isinstance(arguments.get(argument), float) for argument in TENSOR_TYPE_SCALARS.get(name, ()))
    refused = name in ALPHA_OPERATORS and any(isinstance(value, bool) for value in arguments.values())
    return {element_type(t) for t in (*op.operand_types, *op.result_types)} == {f32} and not rounded and not refused


def _check_element_type(op: Operation) -> None:
    """Raises UnsupportedError if an operation does not support the element type of its operands."""
    try:
        op.verify(verify_nested_ops=False)
    except VerifyException:
        elements = ", ".join(dict.fromkeys(str(element_type(v.type)) for v in op.operands))
        raise UnsupportedError(f"does not work on tensors of {elements}") from None


def _add_function(op: Operation, scan: tensor.ScanOp, function: FuncOp) -> None:
    """Sets the step of a `tensor.scan` to `function`, inserted before the function that contains `op`, or to an equal
    function of the module."""
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
    scan.step = SymbolRefAttr(step)


def _pad_folds(module: ModuleOp, algebra: Algebra) -> None:
    """Replaces every `tensor.scan` whose slices need padding, and its step, by one that pads them (`folds.fold`)."""
    folds = [op for op in module.walk() if isinstance(op, tensor.ScanOp) and needs_padding(op)]
    functions = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)} if folds else {}
    for op in folds:
        body = functions[op.step.string_value()].body.block

        def step(b: Builder, carries: Values, slices: Values, shared: Values, body: Block = body) -> Values:
            values: dict[SSAValue, SSAValue] = dict(zip(body.args, (*carries, *slices, *shared), strict=True))
            *ops, end = body.ops
            b.ops.extend(inner.clone(values) for inner in ops)
            return [values.get(v, v) for v in end.operands]

        builder = Builder((), op.location, algebra)
        results = fold(builder, step, op.steps, op.carries, op.each, op.shared, op.stacked)
        for new, function in builder.functions:
            _add_function(op, new, function)
        replace(op, *builder.ops, results=results)
    used = {op.step.string_value() for op in module.walk() if isinstance(op, tensor.ScanOp)} if folds else set[str]()
    for name in {op.step.string_value() for op in folds} - used:
        erase(functions[name])


def decompose_all(module: ModuleOp, algebra: Algebra, checked: bool = False) -> None:
    """Replaces every operation of the torch dialect in a module.

    Args:
        module: Module to rewrite.
        algebra: Arithmetic on the symbolic sizes of the program.
        checked: True to insert asserts that indices are legal.

    Raises:
        CompileError: For the first operator that is refused. `others` has the errors of the further ones.
    """
    errors = list[CompileError]()
    _pad_folds(module, algebra)
    for op in [op for op in module.walk() if isinstance(op, AtenOp)]:
        try:
            ops, results, functions = decompose(op, algebra, checked)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            errors.append(error)
            continue
        for scan, function in functions:
            _add_function(op, scan, function)
        replace(op, *ops, results=results)
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]


@dataclass(frozen=True)
class ConvertTorchToTensorPass(ModulePass):
    """Decomposes every ATen operator into elementwise operations, index maps, gathers and reductions.

    ```
    %0 = torch.add.Tensor(self = %x, other = %b, alpha = 1) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
    ```
    becomes
    ```
    %1 = tensor.index_map %b[d1] : tensor<64xf32> -> tensor<16x64xf32>
    %0 = arith.addf %x, %1 : tensor<16x64xf32>
    ```

    Low-precision tensors are cast to f32 before an operator computes on them. The result is rounded once, where PyTorch
    rounds.

    **Rationale**: below this level no operator has a name, so that later passes match structure alone.

    **Pipeline position**: after `torch-outline-layers`; all other passes need the tensor level.
    """

    name = "convert-torch-to-tensor"

    checked: bool = False
    """True to insert a `payload.assert` that stops the program at an index that PyTorch refuses."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        derived = [d for f in op.ops if isinstance(f, FuncOp) and SIZES in f.attributes for d in derived_sizes(f)]
        algebra = Algebra.with_sizes(derived) if derived else Algebra()
        decompose_all(op, algebra, self.checked)
        if algebra.promises:
            main = next(f for f in op.ops if isinstance(f, FuncOp) and f.sym_name.data == "main")
            main.attributes[SIZES] = ArrayAttr([*derived_sizes(main), *algebra.promises])
