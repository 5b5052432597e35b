"""Import of a StableHLO module into the tensor dialect.

`imported` walks the function `@main` in the order of its operations and calls the rule of each. Calls of other
functions are inlined. Layers that repeat become functions (`torch-outline-layers`). Values are stored in frames, one
for each function or region that is being imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import prod

import numpy as np
from jaxlib.mlir import ir
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects import make_context
from ...dialects.payload import ConstantOp, element_type
from ...dialects.shapes.binding import SIZES, Polynomial
from ...dialects.shapes.extents import Extent, extents_of, extents_text, tensor_of
from ...dialects.support.calls import CONSTANTS, set_numbers
from ...dialects.support.locations import file_line_of
from ...dialects.tensor import ScanOp
from ...dialects.tensor.builder import Builder
from ...errors import CompileError, UnsupportedError
from ...passes.torch.outline_layers import OutlineLayersPass
from .arguments import argument_extents
from .locations import location_of_text
from .loops import Steps
from .operation import OUTSIDE, HloOperation
from .registry import rules
from .sizes import Sizes, SizeTable
from .types import HloType, static_type, type_of

MOST_OPERATIONS = 200_000
"""Operations of StableHLO that an import may walk, inlined calls and unrolled loops included."""

MIN_LAYER, MIN_REPEATS = 16, 4
"""Half of the operations of a layer that is outlined, and the number of equal layers. Chosen by hand: a layer of a
transformer has about 130 operations. Nothing is fused across the boundaries of a layer, so few layers stay inlined."""

UNKNOWN = 1 << 62
"""Bound of a variable without a known range."""

MOST_CALLS = 100
"""Depth of calls, which also bounds recursion."""


@dataclass
class Imported:
    """A program of the tensor dialect.

    Attributes:
        module: the module with the function `@main`.
        tables: values of the last arguments of `@main`, which are constants.
        inputs: types of the other arguments in StableHLO.
        results: types of the results in StableHLO.
    """

    module: ModuleOp
    tables: list[np.ndarray]
    inputs: list[HloType]
    results: list[HloType]


@dataclass(frozen=True)
class Options:
    """Options of an import.

    Attributes:
        fast_math: whether exponentials and quotients may be approximated.
        file: name of the file of the module, or empty.
    """

    fast_math: bool = False
    file: str = ""


def imported(module: ir.Module, options: Options | None = None) -> Imported:
    """Returns the program of a StableHLO module, whose function `@main` is the entry.

    Args:
        module: the module.
        options: options of the import.

    Raises:
        UnsupportedError: for an operation or a type that is not supported.
    """
    return _Importer(module, options or Options()).run()


class _Importer:
    """State of one import."""

    def __init__(self, module: ir.Module, options: Options) -> None:
        self.functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        attributes = module.operation.attributes
        counts = [attributes[f"mhlo.num_{n}"] for n in ("partitions", "replicas") if f"mhlo.num_{n}" in attributes]
        self.devices = prod(int(ir.IntegerAttr(c).value) for c in counts)
        self.options = options
        self.tables = list[np.ndarray]()
        self.sizes = SizeTable()
        self.loops = list[Steps]()
        self.names = count()
        self.walked = 0
        self.depth = 0

    def run(self) -> Imported:
        if "main" not in self.functions:
            names = ", ".join(f"@{n}" for n in self.functions) or "none"
            raise UnsupportedError(f"expected a function @main, but got {names}")
        if self.devices != 1:
            raise UnsupportedError(f"expected a program for one device, but got one for {self.devices}")
        block = body_of(self.functions["main"])
        inputs = [type_of(a) for a in block.arguments]
        extents = argument_extents(Frame(self), block)
        types = [tensor_of(t.element, e) for t, e in zip(inputs, extents, strict=True)]
        main = FuncOp("main", (types, []))
        _name_arguments(main, block)
        frame = Frame(self)
        builder = Builder(algebra=self.sizes.algebra)
        self.main, self.top = main, builder
        results = frame.run(builder, block, list(main.args))
        declared = [type_of(v) for v in list(block.operations)[-1].operation.operands]
        main.body.block.add_ops([*builder.ops, ReturnOp(*results)])
        main.update_function_type()
        if derived := [*self.sizes.derived, *self.sizes.algebra.promises]:
            main.attributes[SIZES] = ArrayAttr(derived)
        set_numbers(main, CONSTANTS, range(len(inputs), len(inputs) + len(self.tables)))
        erase_unused(main.body.block)
        steps = used_steps(builder.functions)
        module = ModuleOp([main, *steps])
        if len(main.body.block.ops) >= 2 * MIN_REPEATS * MIN_LAYER:
            sink_constants(main.body.block)
            OutlineLayersPass(MIN_LAYER, "tensor.reduce", MIN_REPEATS).apply(make_context(), module)
        return Imported(module, self.tables, inputs, declared)

    def fresh(self, word: str, bounds: tuple[int, int] | None) -> str:
        """Returns the name of a new variable in polynomials. `bounds`: its range; None if it is not known."""
        name = f"{word}{next(self.names)}"
        self.sizes.ranges[name] = bounds or (-UNKNOWN, UNKNOWN)
        return name

    def table(self, values: np.ndarray, type: Attribute) -> SSAValue:
        """Returns a new argument of `@main` for a constant tensor."""
        block = self.main.body.block
        value = block.insert_arg(type, len(block.args))
        value.name_hint = f"table{len(self.tables)}"
        self.tables.append(values)
        return value


def erase_unused(block: Block) -> None:
    """Erases the operations of a block whose results have no users. None of them has effects."""
    for op in reversed(list(block.ops)):
        if op.results and not any(r.uses for r in op.results):
            op.detach()
            op.erase()


def sink_constants(block: Block) -> None:
    """Copies constants for each of their users, so that no layer has a constant as its argument."""
    for op in [op for op in block.ops if isinstance(op, ConstantOp)]:
        for use in list(op.result.uses)[1:]:
            copy = op.clone()
            block.insert_op_before(copy, use.operation)
            use.operation.operands[use.index] = copy.result


def used_steps(scans: Sequence[tuple[ScanOp, FuncOp]]) -> list[FuncOp]:
    """Returns the step functions of the scans that were not erased, and names them. A scan of a step follows the scan
    with that step."""
    functions, erased = list[FuncOp](), set[Operation]()
    for op, function in scans:
        parent = op.parent_op()
        if parent is None or parent in erased:
            erased.add(function)
            continue
        function.sym_name = StringAttr(f"step{len(functions) or ''}")
        op.step = SymbolRefAttr(function.sym_name)
        erase_unused(function.body.block)
        functions.append(function)
    return functions


def _name_arguments(main: FuncOp, block: ir.Block) -> None:
    """Copies the names of arguments, which JAX stores as locations."""
    for argument, theirs in zip(main.args, block.arguments, strict=True):
        match = re.fullmatch(r'loc\("([^"]*)"\)', str(theirs.location))
        name = "" if match is None else re.sub(r"\W+", "_", match[1], flags=re.ASCII).strip("_")
        argument.name_hint = name if name.isidentifier() else None


def body_of(function: ir.Operation) -> ir.Block:
    """Returns the block of a function. Raises UnsupportedError unless it has one."""
    if len(function.regions[0].blocks) != 1:
        name = ir.StringAttr(function.attributes["sym_name"]).value
        raise UnsupportedError(f"expected a function with one block, but got @{name}")
    return function.regions[0].blocks[0]


@dataclass(eq=False)
class Frame:
    """Values of one function or region that is being imported. Implements `operation.Scope`.

    Attributes:
        importer: the import.
        outer: frame of the region around this one, whose values it may use.
        space: shape of the tensors of a region of scalars, else None.
        values: tensors of values of MLIR.
        evaluated: elements of integer tensors, None where they are not known.
        captured: function that returns the tensor in the step of a scan for one outside of it, or None.
        end: terminator of a function.
    """

    importer: _Importer
    outer: Frame | None = None
    space: tuple[Extent, ...] | None = None
    values: dict[ir.Value, SSAValue] = field(default_factory=dict[ir.Value, SSAValue])
    evaluated: dict[ir.Value, list[Polynomial] | None] = field(default_factory=dict[ir.Value, list[Polynomial] | None])
    captured: Callable[[SSAValue], SSAValue] | None = None
    end: ir.Operation | None = None

    # The interface of rules

    @property
    def fast_math(self) -> bool:
        """True if exponentials and quotients may be approximated."""
        return self.importer.options.fast_math

    def value(self, value: ir.Value) -> SSAValue:
        """Returns the tensor of a value of this frame or of one around it."""
        if value in self.values:
            return self.values[value]
        assert self.outer is not None, "MLIR has verified that operands are defined"
        tensor = self.outer.value(value)
        return tensor if self.captured is None else self.captured(tensor)

    def sizes(self, value: ir.Value) -> list[Polynomial] | None:
        """Returns the elements of a small integer tensor if they are known at import, else None."""
        frame: Frame | None = self
        while frame is not None and value not in frame.values and value not in frame.evaluated:
            frame = frame.outer
        frame = frame or self
        if value not in frame.evaluated:
            frame.evaluated[value] = Sizes(frame, self.importer.sizes).of(value)
        return frame.evaluated[value]

    def elementwise(self, b: Builder, block: ir.Block, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a block of scalars, applied to the elements of tensors of one shape.

        Args:
            b: builder of the operation with the block.
            block: the block.
            values: tensors for its arguments.
        """
        space = extents_of(values[0].type)
        frame = Frame(self.importer, self, space)
        return [b.broadcast(r, space) for r in frame.run(b, block, values)]

    def inlined(self, b: Builder, block: ir.Block, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a block.

        Args:
            b: builder of the operation with the block.
            block: the block.
            values: its arguments.
        """
        return Frame(self.importer, self, self.space).run(b, block, values)

    def call(self, b: Builder, name: str, op: HloOperation, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a function of the module.

        Args:
            b: builder of the call.
            name: name of the function.
            op: the call.
            values: its arguments.
        """
        functions = self.importer.functions
        if name not in functions:
            raise UnsupportedError(f"expected a function of the module, but got @{name}")
        if self.importer.depth >= MOST_CALLS:
            raise UnsupportedError(
                f"expected at most {MOST_CALLS} nested calls, but got more; @{name} may be recursive"
            )
        frame = self.callee(op, name)
        self.importer.depth += 1
        try:
            return frame.run(b, body_of(functions[name]), values)
        finally:
            self.importer.depth -= 1

    def callee(self, op: HloOperation, name: str | None = None) -> Frame:
        """Returns the frame of a called function, with the integers that are known. `name`: the function, if it is not
        the attribute `callee`."""
        name = name or ir.FlatSymbolRefAttr(op.attribute("callee")).value
        block = body_of(self.importer.functions[name])
        frame = Frame(self.importer, None, self.space, end=list(block.operations)[-1].operation)
        for argument, operand in zip(block.arguments, op.ir.operands, strict=True):
            if (sizes := self.sizes(operand)) is not None:
                frame.evaluated[argument] = sizes
        return frame

    def returned(self, result: int) -> list[Polynomial] | None:
        """Returns the elements of a small integer result of the function of this frame, if they are known."""
        assert self.end is not None, "the frame is that of a function"
        return self.sizes(self.end.operands[result])

    def region(self, integers: Mapping[ir.Value, list[Polynomial]]) -> Frame:
        """Returns a frame for a region of an operation of this frame. `integers`: arguments that are known."""
        return Frame(self.importer, self, self.space, evaluated=dict(integers))

    def bounds(self, value: Polynomial) -> tuple[int, int]:
        """Returns the smallest and the largest value that a size of the program may have."""
        return self.importer.sizes.bounds(value)

    @property
    def steps(self) -> Steps | None:
        """Tensors of the step of the innermost scan that is being imported."""
        return self.importer.loops[-1] if self.importer.loops else None

    def table(self, values: np.ndarray, type: HloType) -> SSAValue:
        """Returns a constant tensor."""
        value = self.importer.table(values, static_type(type))
        frame: Frame | None = self
        captures = list[Callable[[SSAValue], SSAValue]]()
        while frame is not None:
            if frame.captured is not None:
                captures.append(frame.captured)
            frame = frame.outer
        for capture in reversed(captures):
            value = capture(value)
        return value

    # The walk

    def run(self, b: Builder, block: ir.Block, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Imports the operations of a block and returns the operands of its terminator.

        Args:
            b: builder that gets the operations.
            block: the block.
            values: tensors for its arguments.
        """
        self.values.update(zip(block.arguments, values, strict=True))
        location = b.location
        *operations, end = block.operations
        for operation in operations:
            self._import(b, HloOperation(operation.operation, self))
        b.location = location
        return [self.value(v) for v in end.operation.operands]

    def _import(self, b: Builder, op: HloOperation) -> None:
        """Imports one operation."""
        importer = self.importer
        importer.walked += 1
        location = location_of_text(str(op.ir.location), importer.options.file)
        b.location = location if file_line_of(location) is not None else b.location
        with _blamed(op, b.location):
            if importer.walked > MOST_OPERATIONS:
                raise op.refuse(f"expected at most {MOST_OPERATIONS} operations, with calls inlined and loops unrolled")
            function = rules().get(op.name)
            if function is None:
                raise op.refuse("the operation is not supported", remedy=OUTSIDE)
            b.result_types = [static_type(t) for t in op.results if t.is_static]
            if (constant := self._constant(b, op)) is not None:
                self.values[op.ir.results[0]] = constant
                return
            results = function(b, op, *self._operands(b, op))
            results = [results] if isinstance(results, SSAValue) else list(results)
            if len(results) != len(op.results):
                raise op.refuse(f"expected {len(op.results)} results, but the rule returns {len(results)}")
            for value, result, declared in zip(op.ir.results, results, op.results, strict=True):
                self.values[value] = self._checked(op, result, declared)

    def _constant(self, b: Builder, op: HloOperation) -> SSAValue | None:
        """Returns the result of an operation as a constant if it is an integer scalar with a known value, else None."""
        if op.ir.regions or len(op.results) != 1 or op.results[0].dims != () or op.name == "func.call":
            return None
        sizes = self.sizes(op.ir.results[0])
        number = sizes[0].number if sizes else None
        return None if number is None else b.constant(number, (), op.element)

    def _operands(self, b: Builder, op: HloOperation) -> list[SSAValue]:
        values = [self.value(v) for v in op.ir.operands]
        if self.space is None:
            return values
        return [b.broadcast(v, self.space) for v in values]

    def _checked(self, op: HloOperation, value: SSAValue, declared: HloType) -> SSAValue:
        """Returns a result of a rule. Raises UnsupportedError unless it has the declared type."""
        extents = extents_of(value.type)
        scalar = self.space is not None and declared.dims == () and extents in ((), self.space)
        if element_type(value.type) != declared.element or not (scalar or declared.accepts(extents)):
            got = f"{element_type(value.type)}{extents_text(extents)}"
            raise op.refuse(f"expected a result of type {declared}, as declared, but got {got}")
        return value


@contextmanager
def _blamed(op: HloOperation, location: Attribute | None) -> Iterator[None]:
    """Adds the name and the line of an operation to errors."""
    try:
        yield
    except VerifyException as error:
        fault: CompileError = error if isinstance(error, CompileError) else UnsupportedError(str(error))
        raise _placed(fault, op, location) from None
    except CompileError as error:
        raise _placed(error, op, location) from None


def _placed(error: CompileError, op: HloOperation, location: Attribute | None) -> CompileError:
    error.operator = error.operator or op.name
    if error.location is None and location is not None and (position := file_line_of(location)) is not None:
        error.location = f"{position.filename.data}:{position.line.data}"
    return error
