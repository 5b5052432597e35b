"""An exported graph, node by node, as ops of the torch dialect."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch.fx import Node
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, UnknownLoc, f64, i1, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.payload import element_type
from ...dialects.shapes.binding import SIZES, Algebra
from ...dialects.shapes.extents import Extent, SymbolAttr
from ...dialects.support.locations import file_location, location_text, named_location
from ...dialects.tensor.builder import work_type
from ...dialects.torch import OPS, SCHEMAS, AtenOp
from ...errors import CaptureError, CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.conversion import decompose
from ...passes.convert.torch_to_tensor.random import draws
from ...passes.convert.torch_to_tensor.registry import why_refused
from ...passes.convert.torch_to_tensor.scalars import common_element
from ...passes.torch.outline_layers import LAYER, MIN_OPS
from .arrays import element_of, tensor_type
from .eager_fallback import EagerCall
from .refusals import UserCalls, together
from .source_locations import blame, innermost
from .symbolic_shapes import NamedDim, SizeTable, depends_on_data

aten: Any = torch.ops.aten


class GraphImporter:
    """Builds `@main` from the nodes of a graph.

    Args:
        place: (file, line) of nodes without a stack trace.
        sizes: dimensions that vary under a name of the user's.
        nodes: the nodes of the graph.
        calls: the user's calls, for errors.

    Attributes:
        eager: functions that are left to PyTorch, by name.
        checks: (node, message) of values that must be true.
        generators: number of generators.
    """

    def __init__(
        self, place: tuple[str, int] | None, sizes: Sequence[NamedDim], nodes: Iterable[Node], calls: UserCalls
    ) -> None:
        self.place, self.calls = place, calls
        self.eager: dict[str, EagerCall] = {}
        self.checks: list[tuple[str, str]] = []
        self.generators = 0
        self.block = Block()
        self.values: dict[str, SSAValue | Sequence[SSAValue | None] | None] = {}
        self.declared: dict[object, FuncOp] = {}
        self._sizes = SizeTable(sizes, nodes)
        self._calls = count()
        self._layers: dict[Operation, str] = {}
        self._arguments: list[str] = []
        self._results: list[SSAValue] = []
        self._errors: list[CompileError] = []
        self._unknown: set[str] = set()

    def declare(self, arguments: Iterable[tuple[str, Node]]) -> None:
        """Gives `@main` an argument for each (name, placeholder)."""
        taken: dict[str, int] = {}
        for name, node in arguments:
            try:
                value = self.block.insert_arg(self.type_of(node.meta["val"]), len(self.block.args))
            except CompileError as error:
                error.argument, error.location = name, error.location or _text(self.place)
                raise
            value.name_hint = _unique(name_hint(name), taken)
            self.values[node.name] = value
            self._arguments.append(node.name)

    def type_of(self, value: torch.Tensor) -> Attribute:
        """Returns the type of an argument. Raises UnsupportedError."""
        return tensor_type(value, self._sizes)

    def run(self, nodes: Iterable[Node]) -> None:
        """Imports every computation. Raises the error of the first one that is refused, with those of all others."""
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                try:
                    self.import_node(node, innermost(node.meta.get("stack_trace")) or self.place)
                except CompileError as error:
                    self._refuse(node, error)
        if self._errors:
            self._errors += _refused_later(self.block, self.algebra)
            raise self.calls.complete(together(self._errors))

    @property
    def algebra(self) -> Algebra:
        """Arithmetic on the sizes of the program."""
        return Algebra(list(self._sizes.derived))

    def import_node(self, node: Node, place: tuple[str, int] | None) -> None:
        """Imports a node at a place. Raises CompileError."""
        if self._errors and self._follows_from_error(node):
            return
        target, value = node.target, node.meta.get("val")
        if (special := _SPECIAL.get(target)) is not None:
            special(self, node)
        elif isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) and not depends_on_data(value):
            if isinstance(value, torch.SymFloat):  # others are known by their expressions, wherever they are used
                self.values[node.name] = self._compute_number(node)
        elif isinstance(target, torch._ops.OpOverload) and node.op == "call_function":
            self.import_operator(node, target, place)
        else:
            raise _not_an_operator(node)

    def import_operator(self, node: Node, target: torch._ops.OpOverload, place: tuple[str, int] | None) -> None:
        """Imports the call of an operator. Raises CompileError."""
        name = overload_name(target)
        if name not in OPS or target._schema.is_mutable:
            raise _unknown_operator(name, target)
        types = _result_types(node, f"aten.{name}", self._sizes)
        arguments = {key: self._value(value) for key, value in _named(node).items()}
        tensors = [a.name for a in SCHEMAS[name].arguments if a.base == "Tensor"]
        if numbers := [key for key in tensors if isinstance(arguments.get(key), bool | int | float | SymbolAttr)]:
            name = self._take_numbers(name, arguments, numbers, types)
        if "generator" in SCHEMAS[name].names:
            self._take_generator(name, arguments)
        try:
            op = OPS[name](arguments, types)
        except VerifyException as error:
            raise UnsupportedError(str(error), operator=f"aten.{name}") from None
        self.check(op)
        where = f"{op.name}#{next(self._calls)}"
        op.location = named_location(where, file_location(*place)) if place else UnknownLoc()
        self.calls.note(f"aten.{name}", _text(place), node)
        self.add(op, node)
        self.values[node.name] = tuple(op.results) if isinstance(node.meta["val"], tuple | list) else op.results[0]

    def check(self, op: AtenOp) -> None:
        """Raises UnsupportedError if an operation has to be refused now: others are refused by the conversion."""

    def add(self, op: Operation, node: Node) -> None:
        """Adds the operation that a node became. Notes its layer: the path of the outermost module in a numbered list
        that it was called from, such as `model.layers.3`."""
        self.block.add_op(op)
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            if _NUMBERED.match(path):
                self._layers.setdefault(op, path)

    def _take_numbers(self, name: str, arguments: dict[str, Any], numbers: list[str], types: list[Attribute]) -> str:
        """Takes numbers in place of tensors. Returns the name of the overload for a number: PyTorch exports `x * 2` as
        `mul.Tensor`. Where there is none, as for `7 // x`, the numbers become tensors."""
        for tensor, number in ((".Tensor_Tensor", ".Tensor_Scalar"), (".Tensor", ".Scalar")):
            other = name.replace(tensor, number) if "." in name else f"{name}.Scalar"
            if numbers in (["other"], ["exponent"]) and other != name and other in SCHEMAS:
                if SCHEMAS[other].names == SCHEMAS[name].names:
                    return other
        operands = [
            v for a in SCHEMAS[name].arguments if a.base == "Tensor" and (v := arguments.get(a.name)) is not None
        ]
        compared = element_type(types[0]) == i1  # in the type in which the operands meet
        like = common_element(operands) if compared else work_type(element_type(types[0]))
        arguments |= {key: self._add_number(arguments[key], like) for key in numbers}
        return name

    def _take_generator(self, name: str, arguments: dict[str, Any]) -> None:
        """Adds an argument of `@main` for what one operator draws: every one has its own, so that equal layers, which
        draw different numbers, stay equal."""
        if arguments.get("generator") is not None:
            raise UnsupportedError("a generator of its own is not supported", argument="generator")
        if draws(arguments, name):
            value = self.block.insert_arg(TensorType(i64, [2]), len(self.block.args))
            value.name_hint = f"generator_{self.generators}"
            self.generators += 1
            arguments["generator"] = value

    def _refuse(self, node: Node, error: CompileError) -> None:
        """Notes an error. The others are looked for among what does not follow from it."""
        error.operator = error.operator or str(node.target)
        located = node if node.op == "call_function" else next(iter(node.users), node)
        self._errors.append(blame(error, located, self.place))
        self._stand_in(node)

    def _follows_from_error(self, node: Node) -> bool:
        """Returns true, and notes it, for a node that reads what is not known, and for the checks that PyTorch adds
        where a size depends on data."""
        value = node.meta.get("val")
        is_check = isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) or value is None and not node.users
        if follows := is_check or any(n.name in self._unknown for n in node.all_input_nodes):
            self._unknown.add(node.name)
        return follows

    def _stand_in(self, node: Node) -> None:
        """Let arguments stand in for the results of a node that is refused, so that what reads them is looked at."""
        value = node.meta.get("val")
        try:
            tensors = value if isinstance(value, tuple | list) else [value]
            types = [tensor_type(t, self._sizes) for t in tensors if isinstance(t, torch.Tensor)]
        except CompileError:
            types = []
        if not types or len(types) != len(tensors):
            self._unknown.add(node.name)
            return
        results = [self.block.insert_arg(t, len(self.block.args)) for t in types]
        self.values[node.name] = tuple(results) if isinstance(value, tuple | list) else results[0]

    def argument_index(self, name: str) -> int | None:
        """Which argument the node `name` is, if it is one."""
        return self._arguments.index(name) if name in self._arguments else None

    def result_index(self, name: str) -> int:
        """The result that returns the node `name`; added if there is none yet."""
        value = self.values[name]
        assert isinstance(value, SSAValue)
        if value not in self._results:
            self._results.append(value)
        return self._results.index(value)

    def extent(self, size: torch.SymInt) -> Extent:
        """A size of PyTorch's as an extent."""
        return self._sizes.extent(size)

    def finish(self) -> ModuleOp:
        """Returns the module with `@main`."""
        if self._layers:
            self._mark_large_layers()
        self.block.add_op(ReturnOp(*self._results))
        types = [a.type for a in self.block.args], [r.type for r in self._results]
        main = FuncOp("main", types, Region(self.block))
        if self._sizes.derived:
            main.attributes[SIZES] = self._sizes.derived
        return ModuleOp([*self.declared.values(), main])

    def _mark_large_layers(self) -> None:
        """Marks layers that are large enough to be outlined, and not the only one of their list."""
        sizes = Counter(self._layers.values())
        large = [layer for layer, size in sizes.items() if size >= MIN_OPS]
        lists = Counter(layer.rpartition(".")[0] for layer in large)
        for op, layer in self._layers.items():
            if layer in large and lists[layer.rpartition(".")[0]] > 1:
                op.attributes[LAYER] = StringAttr(layer)

    def _compute_number(self, node: Node) -> SSAValue:
        """What Python computes in floating point from sizes, such as the scale of an interpolation, as arithmetic on
        f64 tensors of no dimensions."""
        if node.target is not torch.sym_float and node.target not in _NUMBER_OPERATORS:
            raise UnsupportedError("this function of a size is not supported", operator=_target_name(node.target))
        number = TensorType(f64, [])
        operands = [v if isinstance(v, SSAValue) else self._add_number(v, number) for v in map(self._value, node.args)]
        if node.target is torch.sym_float:
            return operands[0]
        name = _NUMBER_OPERATORS[node.target]
        op = OPS[name](dict(zip(SCHEMAS[name].names, operands, strict=False)), [number])
        self.block.add_op(op)
        return op.results[0]

    def _add_number(self, value: Any, like: Attribute) -> SSAValue:
        element = element_type(like)
        given = {"size": [], "fill_value": value, "dtype": element}
        op = OPS["full"](given, [TensorType(element, [])])
        self.block.add_op(op)
        return op.results[0]

    def take_part(self, node: Node) -> None:
        """One of several results."""
        source, index = node.args
        assert isinstance(source, Node)
        assert isinstance(index, int)
        values = self.values[source.name]
        self.values[node.name] = values[index] if isinstance(values, tuple) else values

    def check_scalar(self, node: Node) -> None:
        """An assertion on sizes was checked when the program was captured, unless it depends on data."""
        condition = node.args[0]
        value = condition.meta.get("val") if isinstance(condition, Node) else condition
        if isinstance(value, torch.SymBool) and depends_on_data(value):
            raise _unknown_operator("_assert_scalar", node.target)  # pyright: ignore[reportArgumentType]

    def check_metadata(self, node: Node) -> None:
        """An assertion of fixed types holds; that its data type is the tensor's is checked once more."""
        named = _named(node)
        tensor, dtype = named["a"], named.get("dtype")
        if dtype is not None and tensor.meta["val"].dtype != dtype:
            raise CaptureError(f"asserts {dtype} of a tensor of {tensor.meta['val'].dtype}")

    def add_check(self, node: Node) -> None:
        """An assertion of a tensor's value is a result, which is looked at when it is there."""
        named = _named(node)
        self._value(named["self"])
        self.checks.append((named["self"].name, named.get("assert_msg", "an assertion of the program failed")))

    def refuse_effects(self, node: Node) -> None:
        """An operator that PyTorch keeps in order with others is refused."""
        raise UnsupportedError("an operator with effects is not supported", operator=str(node.args[1]))

    def _value(self, value: Any) -> Any:
        if isinstance(value, Node):
            if isinstance(size := value.meta.get("val"), torch.SymInt):
                return self._sizes.number(size)
            if value.name not in self.values:
                raise UnsupportedError(
                    "an argument is computed from a tensor's shape or contents, which is not supported"
                )
            return self.values[value.name]
        if isinstance(value, tuple | list):
            return [self._value(v) for v in value]
        if isinstance(value, torch.dtype):
            return element_of(value)
        if isinstance(value, torch.layout | torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch.device):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str | Attribute):
            return value
        if isinstance(value, torch.Generator):
            raise UnsupportedError("a generator of its own is not supported", argument="generator")
        raise UnsupportedError(f"an argument of type {type(value).__name__} is not supported")


_SPECIAL: dict[Any, Callable[[GraphImporter, Node], None]] = {
    operator.getitem: GraphImporter.take_part,
    aten._assert_scalar.default: GraphImporter.check_scalar,
    aten._assert_tensor_metadata.default: GraphImporter.check_metadata,
    aten._assert_async.default: GraphImporter.add_check,
    aten._assert_async.msg: GraphImporter.add_check,
    torch.ops.higher_order.with_effects: GraphImporter.refuse_effects,
}
"""Functions of a graph that become no operation."""


def _not_an_operator(node: Node) -> UnsupportedError:
    if node.op == "call_function":
        return UnsupportedError("operators of this library are not supported", operator=_target_name(node.target))
    reason = "control flow, or another operator that takes a graph, is not supported"
    return UnsupportedError(reason, operator=next((_target_name(n.target) for n in node.users), node.op))


def _unknown_operator(name: str, target: torch._ops.OpOverload) -> UnsupportedError:
    if target.namespace != "aten" and name not in OPS:
        return UnsupportedError("operators of this library are not supported", operator=_target_name(target))
    mutable = target._schema.is_mutable
    reason = "this operator changes a tensor in place" if mutable else why_refused(name)
    return UnsupportedError(reason, operator=f"aten.{name}")


def _refused_later(block: Block, algebra: Algebra) -> list[CompileError]:
    """The errors of ops that were imported and that have no decomposition."""
    errors: list[CompileError] = []
    for op in [op for op in block.ops if isinstance(op, AtenOp)]:
        try:
            try_to_decompose(op, algebra)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            errors.append(error)
    return errors


def try_to_decompose(op: AtenOp, algebra: Algebra) -> None:
    """Raises UnsupportedError if `op` would be refused later."""
    made, _, _ = decompose(op, algebra)
    for other in reversed(made):
        other.drop_all_references()


_NUMBER_OPERATORS: dict[Any, str] = {
    operator.add: "add.Tensor",
    operator.sub: "sub.Tensor",
    operator.mul: "mul.Tensor",
    operator.truediv: "div.Tensor",
    operator.neg: "neg",
    operator.pow: "pow.Tensor_Tensor",
    torch._sym_sqrt: "sqrt",  # pyright: ignore[reportAttributeAccessIssue]
}
"""The ATen operator for each operator of Python on floating-point numbers that come from sizes."""


def overload_name(target: torch._ops.OpOverload) -> str:
    """The dialect's name of an overload: `add.Tensor`, `relu`; of an operator of another library `library.name`."""
    base = target._schema.name.removeprefix("aten::").replace("::", ".")
    return f"{base}.{target._schema.overload_name}" if target._schema.overload_name else base


def _text(place: tuple[str, int] | None) -> str | None:
    return f"{place[0]}:{place[1]}" if place else None


def _named(node: Node) -> dict[str, Any]:
    names = [a.name for a in node.target._schema.arguments]  # pyright: ignore
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _result_types(node: Node, operator: str, sizes: SizeTable) -> list[Attribute]:
    value = node.meta.get("val")
    values: list[Any] = list(value) if isinstance(value, tuple | list) else [value]
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        raise UnsupportedError("the result is not a tensor", operator=operator)
    types: list[Attribute] = [tensor_type(v, sizes) for v in values]
    return types


def _target_name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def name_hint(name: str) -> str:
    """`name` as the name of an SSA value: lower case letters, digits and underscores, not starting with a digit."""
    hint = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return hint if re.match(r"[a-z]", hint) else f"v{hint}"


def _unique(name: str, taken: dict[str, int]) -> str:
    count = taken[name] = taken.get(name, -1) + 1
    return _unique(f"{name}_{count}", taken) if count else name


_NUMBERED = re.compile(r"(?:^|.*\.)\d+$")
