"""An exported graph, node by node, as ops of the torch dialect."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch.fx import Node
from xdsl.dialects.builtin import LocationAttr, ModuleOp, StringAttr, TensorType, UnknownLoc, f64, i1, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.payload import element_type
from ...dialects.shapes.binding import SIZES, Algebra
from ...dialects.shapes.extents import Extent, SymbolAttr
from ...dialects.support.calls import EAGER
from ...dialects.support.locations import file_location, location_text, named_location
from ...dialects.tensor.builder import work_type
from ...dialects.torch import OPS, SCHEMAS, AtenOp
from ...errors import CaptureError, CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.conversion import decompose
from ...passes.convert.torch_to_tensor.random import draws
from ...passes.convert.torch_to_tensor.registry import COMPLEX, why_refused
from ...passes.convert.torch_to_tensor.scalars import common_element
from ...passes.torch.outline_layers import LAYER, MIN_OPS
from .arrays import element_of, tensor_type
from .eager_fallback import EagerCall, Fallback, eager_call, has_effects, touches_complex, type_of
from .refusals import UserCalls, together
from .source_locations import blame, innermost
from .symbolic_shapes import NamedDim, SizeTable, depends_on_data


class GraphImporter:
    """Builds `@main` from the nodes of a graph. `place` is the (file, line) of nodes without a stack trace, `sizes` are
    the dimensions that vary under a name of the user's.

    `eager` are the functions that are left to PyTorch, by name; only with `fallback` there may be any. `checks`
    lists (node, message) of values that must be true.
    """

    def __init__(
        self,
        place: tuple[str, int] | None = None,
        fallback: Fallback = None,
        sizes: Sequence[NamedDim] = (),
        nodes: Iterable[Node] = (),
        calls: UserCalls | None = None,
    ) -> None:
        if fallback not in (None, "eager"):
            raise CompileError(f"is {fallback!r}, where there is only 'eager'", argument="fallback")
        self.eager: dict[str, EagerCall] = {}
        self.checks: list[tuple[str, str]] = []
        self._fallback = fallback
        self._declared: dict[object, FuncOp] = {}
        self._sizes = SizeTable(sizes, nodes)
        self._place = place
        self._block = Block()
        self._calls = count()
        self._values: dict[str, SSAValue | Sequence[SSAValue | None] | None] = {}
        self._arguments: list[str] = []
        self._results: list[SSAValue] = []
        self.generators = 0
        self.calls = calls or UserCalls(fallback=fallback)
        self._errors: list[CompileError] = []
        self._unknown: set[str] = set()

    def declare(self, arguments: Iterable[tuple[str, Node]]) -> None:
        """Give `@main` an argument for each (name, placeholder)."""
        taken: dict[str, int] = {}
        for name, node in arguments:
            try:
                val = node.meta["val"]
                wanted = type_of(val) if self._fallback and not _varies(val) else tensor_type(val, self._sizes)
                value = self._block.insert_arg(wanted, len(self._block.args))
            except CompileError as error:
                error.argument = name
                error.location = error.location or _text(self._place)
                raise
            value.name_hint = _unique(name_hint(name), taken)
            self._values[node.name] = value
            self._arguments.append(node.name)

    def run(self, nodes: Iterable[Node]) -> None:
        """Import every computation. Raises the error of the first one that is refused, with those of all others."""
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self._import(node)
        if self._errors:
            self._errors += _refused_later(self._block, Algebra(list(self._sizes.derived)))
            raise self.calls.complete(together(self._errors))

    def _import(self, node: Node) -> None:
        """Import one node. After the first error, the others are looked for among what does not follow from it."""
        if any(n.name in self._unknown for n in node.all_input_nodes) or self._errors and _is_check_of_sizes(node):
            self._unknown.add(node.name)
            return
        place = innermost(node.meta.get("stack_trace")) or self._place
        try:
            try:
                if node.op != "call_function":
                    raise UnsupportedError(
                        "control flow, or another operator that takes a graph, is not supported",
                        operator=next((_target_name(n.target) for n in node.users), node.op),
                    )
                self._import_call(node, place)
            except UnsupportedError as error:
                if self._fallback is None or node.op != "call_function":
                    raise
                self._leave_to_pytorch(node, error, place)
        except CompileError as error:
            error.operator = error.operator or str(node.target)
            located = node if node.op == "call_function" else next(iter(node.users), node)
            self._errors.append(blame(error, located, self._place))
            self._stand_in(node)

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
        results = [self._block.insert_arg(t, len(self._block.args)) for t in types]
        self._values[node.name] = tuple(results) if isinstance(value, tuple | list) else results[0]

    def argument_index(self, name: str) -> int | None:
        """Which argument the node `name` is, if it is one."""
        return self._arguments.index(name) if name in self._arguments else None

    def result_index(self, name: str) -> int:
        """The result that returns the node `name`; added if there is none yet."""
        value = self._values[name]
        assert isinstance(value, SSAValue)
        if value not in self._results:
            self._results.append(value)
        return next(i for i, r in enumerate(self._results) if r is value)

    def extent(self, size: torch.SymInt) -> Extent:
        """A size of PyTorch's as an extent."""
        return self._sizes.extent(size)

    def finish(self) -> ModuleOp:
        """The module with `@main`."""
        _keep_large_layers(self._block)
        self._block.add_op(ReturnOp(*self._results))
        types = [a.type for a in self._block.args], [r.type for r in self._results]
        main = FuncOp("main", types, Region(self._block))
        if self._sizes.derived:
            main.attributes[SIZES] = self._sizes.derived
        return ModuleOp([*self._declared.values(), main])

    def _location(self, op: Operation, place: tuple[str, int] | None) -> LocationAttr:
        """Returns the location of the next call, with its name and number."""
        name = f"{op.name}#{next(self._calls)}"
        return named_location(name, file_location(*place)) if place else UnknownLoc()

    def _leave_to_pytorch(self, node: Node, error: UnsupportedError, place: tuple[str, int] | None) -> None:
        """Import a call that was refused for `error` as one that PyTorch computes."""
        argument = f"{error.argument}: " if error.argument else ""
        call, nodes, types = eager_call(node, argument + error.reason, _text(place))
        operands = [self._values[n.name] for n in nodes]
        key = call.key, tuple(v.type for v in operands if isinstance(v, SSAValue)), tuple(types)
        if key not in self._declared:
            name = call.stem + (f"_{len(self.eager)}" if call.stem in self.eager else "")
            self._declared[key] = FuncOp.external(name, list(key[1]), types)
            self._declared[key].attributes[EAGER] = StringAttr(call.operator)
            self.eager[name] = call
        op = CallOp(self._declared[key].sym_name.data, operands, types)  # pyright: ignore[reportArgumentType]
        op.location = file_location(*place) if place else UnknownLoc()
        _mark_layer(op, node)
        self._block.add_op(op)
        several = isinstance(node.meta["val"], tuple | list)
        results = tuple(op.results) if several else op.results[0]
        if has_effects(node):  # the token, which orders effects, is the same behind it; an exported graph has none
            token = node.args[0]
            assert isinstance(token, Node)
            results = (self._values.get(token.name), *op.results)
        self._values[node.name] = results

    def _import_call(self, node: Node, place: tuple[str, int] | None) -> None:
        target = node.target
        if has_effects(node):
            raise UnsupportedError("an operator with effects is not supported", operator=str(node.args[1]))
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt | torch.SymBool) and not depends_on_data(size):
            return  # known by its expression, wherever it is used
        if target is torch.ops.aten._assert_scalar.default and not _from_data(node.args[0]):
            return  # checked when the program was captured
        if target is operator.getitem:
            source, index = node.args
            assert isinstance(source, Node)
            assert isinstance(index, int)
            values = self._values[source.name]
            self._values[node.name] = values[index] if isinstance(values, tuple) else values
            return
        if isinstance(size, torch.SymFloat) and not depends_on_data(size):
            self._values[node.name] = self._compute_number(node)
            return
        if self._fallback and touches_complex(node):
            raise UnsupportedError(COMPLEX)
        known = isinstance(target, torch._ops.OpOverload) and (
            target.namespace == "aten" or overload_name(target) in OPS
        )
        if not known:
            raise UnsupportedError("operators of this library are not supported", operator=_target_name(target))
        name = overload_name(target)
        if name == "_assert_tensor_metadata":
            return _check_metadata(node)
        if name in ("_assert_async", "_assert_async.msg"):
            return self._add_check(node, target)
        if target._schema.is_mutable:
            raise UnsupportedError("this operator changes a tensor in place", operator=f"aten.{name}")
        if name not in OPS:
            raise UnsupportedError(why_refused(name), operator=f"aten.{name}")
        types = _result_types(node, f"aten.{name}", self._sizes)
        named = _named(node, target)
        if named.get("generator") is not None:
            raise UnsupportedError("a generator of its own is not supported", argument="generator")
        arguments = {key: self._value(value) for key, value in named.items()}
        name = _with_numbers(name, arguments)
        operands = {key: arguments[key] for key in _tensors(name) if arguments.get(key) is not None}
        if numbers := [key for key, value in operands.items() if _is_number(value)]:  # `7 // x`, as PyTorch exports it
            compared = element_type(types[0]) == i1  # in the type in which the operands meet
            met = common_element([*operands.values()]) if compared else element_type(types[0])
            like = TensorType(met if compared else work_type(met), [])
            arguments |= {key: self._add_number(arguments[key], like) for key in numbers}
        if "generator" in SCHEMAS[name].names and draws(arguments, name):
            arguments["generator"] = self._new_generator()
        try:
            op = OPS[name](arguments, types)
        except VerifyException as error:
            raise UnsupportedError(str(error), operator=f"aten.{name}") from None
        if self._fallback:
            _try_to_decompose(op, Algebra(list(self._sizes.derived)))
        op.location = self._location(op, place)
        self.calls.note(f"aten.{name}", _text(place), node)
        _mark_layer(op, node)
        self._block.add_op(op)
        several = isinstance(node.meta["val"], tuple | list)
        self._values[node.name] = tuple(op.results) if several else op.results[0]

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
        self._block.add_op(op)
        return op.results[0]

    def _add_number(self, value: Any, like: Attribute) -> SSAValue:
        """Returns a number as a tensor of no dimensions, of the data type of `like`."""
        element = element_type(like)
        given = {"size": [], "fill_value": value, "dtype": element}
        op = OPS["full"](given, [TensorType(element, [])])
        self._block.add_op(op)
        return op.results[0]

    def _new_generator(self) -> SSAValue:
        """An argument of `@main` for what one operator draws: every one has its own, so that equal layers, which draw
        different numbers, stay equal."""
        value = self._block.insert_arg(TensorType(i64, [2]), len(self._block.args))
        value.name_hint = f"generator_{self.generators}"
        self.generators += 1
        return value

    def _add_check(self, node: Node, target: torch._ops.OpOverload) -> None:
        """An assertion of a tensor's value is a result, which is looked at when it is there."""
        named = _named(node, target)
        self._value(named["self"])
        self.checks.append((named["self"].name, named.get("assert_msg", "an assertion of the program failed")))

    def _value(self, value: Any) -> Any:
        if isinstance(value, Node):
            if isinstance(size := value.meta.get("val"), torch.SymInt):
                return self._sizes.number(size)
            if value.name not in self._values:
                raise UnsupportedError(
                    "an argument is computed from a tensor's shape or contents, which is not supported"
                )
            return self._values[value.name]
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
        raise UnsupportedError(f"an argument of type {type(value).__name__} is not supported")


def _refused_later(block: Block, algebra: Algebra) -> list[CompileError]:
    """The errors of ops that were imported and that have no decomposition."""
    errors: list[CompileError] = []
    for op in [op for op in block.ops if isinstance(op, AtenOp)]:
        try:
            _try_to_decompose(op, algebra)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            errors.append(error)
    return errors


def _is_check_of_sizes(node: Node) -> bool:
    """Whether a node is part of what PyTorch adds where a size depends on data."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) or value is None and not node.users


def _try_to_decompose(op: AtenOp, algebra: Algebra) -> None:
    """Raise UnsupportedError if `op` would be refused later."""
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


def _tensors(name: str) -> list[str]:
    """The arguments of an operator that are tensors."""
    return [a.name for a in SCHEMAS[name].arguments if a.base == "Tensor"]


def _with_numbers(name: str, arguments: dict[str, Any]) -> str:
    """The overload for numbers of one that was given a number for a tensor: PyTorch exports `x * 2` as `mul.Tensor`."""
    wrong = [a for a in _tensors(name) if _is_number(arguments.get(a))]
    for tensor, number in ((".Tensor_Tensor", ".Tensor_Scalar"), (".Tensor", ".Scalar")):
        other = name.replace(tensor, number) if "." in name else f"{name}.Scalar"
        if wrong == ["other"] or wrong == ["exponent"]:
            if other != name and other in SCHEMAS and SCHEMAS[other].names == SCHEMAS[name].names:
                return other
    return name


def _from_data(condition: Any) -> bool:
    """Whether a condition on sizes is one on data."""
    value = condition.meta.get("val") if isinstance(condition, Node) else condition
    return isinstance(value, torch.SymBool) and depends_on_data(value)


def _varies(value: Any) -> bool:
    """Whether a tensor has a size that varies."""
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | SymbolAttr)


def _text(place: tuple[str, int] | None) -> str | None:
    return f"{place[0]}:{place[1]}" if place else None


def _named(node: Node, target: torch._ops.OpOverload) -> dict[str, Any]:
    """The arguments of a call under their names in the schema."""
    names = [a.name for a in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _result_types(node: Node, operator: str, sizes: SizeTable) -> list[Attribute]:
    value = node.meta.get("val")
    values: list[Any] = list(value) if isinstance(value, tuple | list) else [value]
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        raise UnsupportedError("the result is not a tensor", operator=operator)
    types: list[Attribute] = [tensor_type(v, sizes) for v in values]
    return types


def _check_metadata(node: Node) -> None:
    """`_assert_tensor_metadata` holds for fixed types; that its data type is the tensor's is checked once more."""
    named = _named(node, node.target)  # pyright: ignore[reportArgumentType]
    tensor, dtype = named["a"], named.get("dtype")
    if dtype is not None and tensor.meta["val"].dtype != dtype:
        raise CaptureError(f"asserts {dtype} of a tensor of {tensor.meta['val'].dtype}")


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


def _mark_layer(op: Operation, node: Node) -> None:
    """Write the layer of `node` on the op that it became: the path of the outermost module in a numbered list that it
    was called from, such as `model.layers.3`."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if _NUMBERED.match(path)]
    if paths:
        op.attributes[LAYER] = StringAttr(paths[0])


def _keep_large_layers(block: Block) -> None:
    """Remove the marks of layers that are too small to be outlined, or the only one of their list."""
    sizes = Counter(op.attributes[LAYER] for op in block.ops if LAYER in op.attributes)
    large = [layer for layer, size in sizes.items() if size >= MIN_OPS]
    lists = Counter(_list_of(layer) for layer in large)
    kept = {layer for layer in large if lists[_list_of(layer)] > 1}
    for op in block.ops:
        if op.attributes.get(LAYER) not in kept:
            op.attributes.pop(LAYER, None)


def _list_of(layer: Attribute) -> str:
    assert isinstance(layer, StringAttr)
    return layer.data.rpartition(".")[0]
