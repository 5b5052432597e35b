"""Import of a graph of ATen operators: each node becomes an operation of the torch dialect in a captured program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import LocationAttr, ModuleOp, StringAttr, TensorType, UnknownLoc, i1, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects.host import BindSizeOp
from ...dialects.payload import element_type
from ...dialects.shapes.binding import SIZES, Algebra
from ...dialects.shapes.extents import Extent, SymbolAttr, extents_of
from ...dialects.support.locations import file_location, location_text, named_location
from ...dialects.tensor.builder import work_type
from ...dialects.torch import OPS, SCHEMAS, AtenOp
from ...errors import CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.conversion import decompose, get_decompositions
from ...passes.convert.torch_to_tensor.random import draws
from ...passes.convert.torch_to_tensor.scalars import common_element
from ...passes.torch.outline_layers import LAYER, MIN_OPS
from .arrays import element_of, named_arguments, tensor_type
from .captured_program import Binding, CapturedProgram, Output, announce
from .eager_fallback import EagerCall
from .refusals import UserCalls, together
from .source_locations import Origin, blame, innermost, place_text
from .special_nodes import SPECIAL, compute_number, not_an_operator, unknown_operator
from .symbolic_shapes import SizeTable, depends_on_data

if TYPE_CHECKING:
    from .features import Features

Argument: TypeAlias = tuple[Binding, Node]
"""Argument of a program: its binding, and its node in the graph."""


@dataclass
class TracedGraph:
    """Graph of ATen operators without changes in place, ready for import.

    Attributes:
        graph: the graph. Features rewrite it.
        arguments: arguments of the program.
        updates: pairs (index in the graph's output, name of the argument that this value replaces).
        results: indices in the graph's output of the program's results.
        examples: leaves of the caller's example arguments.
        specs: structure of the caller's arguments, and of the result.
        features: features of the program.
        calls: the user's calls, for errors.
    """

    graph: Graph
    arguments: list[Argument]
    updates: Sequence[tuple[int, str]]
    results: Sequence[int]
    examples: Sequence[Any]
    specs: tuple[pytree.TreeSpec, pytree.TreeSpec]
    features: Features
    calls: UserCalls

    @property
    def leaves(self) -> Sequence[Any]:
        """Output of the graph: nodes and constants."""
        return self.graph.output_node().args[0]  # pyright: ignore[reportReturnType]


def import_graph(traced: TracedGraph) -> CapturedProgram:
    """Imports a graph. Raises UnsupportedError if the torch dialect does not support an operator or a type in it."""
    features = traced.features
    features.run("rewritten", traced)
    features.names = [node.name for _, node in traced.arguments]
    kind: type[GraphImporter] = next((cls for _, cls in features.stage("Importer")), GraphImporter)
    importer = kind(traced)
    importer.declare()
    importer.run()
    features.run("imported", importer)
    leaves, devices = traced.leaves, {node.meta["val"].device.type for _, node in traced.arguments} or {"cpu"}
    updates = tuple((importer.result_index(leaves[n].name), _updated(importer, name)) for n, name in traced.updates)
    outputs = tuple(_output(importer, leaves[i], devices) for i in traced.results)
    checks = tuple((importer.result_index(name), message) for name, message in importer.checks)
    viewed = ({}, {}) if features.words.isdisjoint(("complex", "float8")) else _viewed(importer)
    module = importer.finish()
    if updates:
        announce(module, outputs, updates)
    generators = (Binding(f"generator_{i}", "generator", i) for i in range(importer.generators))
    captured = CapturedProgram(
        module,
        (*(binding for binding, _ in traced.arguments), *generators),
        outputs,
        updates,
        tuple(traced.examples),
        *traced.specs,
        importer.eager,
        viewed,
        checks=checks,
        autocast=features.facts.get("autocast", {}),
        f32_matmul_precision="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None,
        calls=traced.calls,
    )
    features.run("captured", captured)
    return captured


def _output(importer: GraphImporter, leaf: Any, devices: set[str]) -> Output:
    """Returns the output of the captured program for a leaf of the result."""
    if not isinstance(leaf, Node):
        return Output("constant", value=leaf)
    value = leaf.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymFloat) and depends_on_data(value):
        importer.add_number_result(leaf)
        return Output("number", importer.result_index(leaf.name))
    if not isinstance(value, torch.Tensor) or value.device.type not in devices:
        raise blame(_refused_result(value, devices), leaf, importer.traced.calls.place)
    argument = importer.arguments.get(leaf.name)
    return Output("result", importer.result_index(leaf.name)) if argument is None else Output("argument", argument)


def _refused_result(value: Any, devices: set[str]) -> UnsupportedError:
    if not isinstance(value, torch.Tensor):
        return UnsupportedError("a result that is a number and varies is not supported", kind="dynamic-sizes")
    at = " and ".join(sorted(devices))
    reason = f"a result is on the device {value.device.type}, but the arguments are on {at}"
    remedy = "move the arguments, or the result after the call (x.to(...))"
    return UnsupportedError(reason, kind="devices-and-types", remedy=remedy)


def _updated(importer: GraphImporter, name: str) -> int:
    argument = importer.arguments.get(name)
    if argument is None:
        raise UnsupportedError(f"the program changes {name!r} in a way that is not supported")
    return argument


def is_computed(leaf: Any) -> bool:
    """Returns true for a node that is a tensor and not an argument."""
    return isinstance(leaf, Node) and leaf.op != "placeholder" and isinstance(leaf.meta.get("val"), torch.Tensor)


def _viewed(importer: GraphImporter) -> tuple[dict[int, torch.dtype], dict[int, torch.dtype]]:
    """Returns `CapturedProgram.viewed`: the caller's data types of float8 and complex arguments and results."""
    arguments = (node for _, node in importer.traced.arguments)
    computed = (leaf for leaf in importer.traced.leaves if is_computed(leaf) and "viewed" in leaf.meta)
    return (
        {i: node.meta["viewed"] for i, node in enumerate(arguments) if "viewed" in node.meta},
        {importer.result_index(leaf.name): leaf.meta["viewed"] for leaf in computed},
    )


class GraphImporter:
    """Importer of one graph. It builds the function `@main`.

    Attributes:
        traced: the graph.
        arguments: numbers of the arguments of `@main`, by node name.
        values: SSA values by node name; a sequence for an operator with several results.
        eager: operators that PyTorch computes, by the name of their function.
        declared: declarations of these functions, by the key of the call.
        functions: functions of the steps of loops, by their structure.
        checks: pairs (node name, message) of values that must be true.
        generators: number of generator arguments added so far.
        special: import function by target, for targets that become no operation of the torch dialect.
        block: the block of the operations.
    """

    def __init__(self, traced: TracedGraph) -> None:
        self.traced = traced
        self.arguments: dict[str, int] = {}
        self.values: dict[str, SSAValue | Sequence[SSAValue | None] | None] = {}
        self.eager: dict[str, EagerCall] = {}
        self.declared: dict[object, FuncOp] = {}
        self.functions: dict[object, FuncOp] = {}
        self.checks: list[tuple[str, str]] = []
        self.checked: set[Node] = set()
        """Assertions that `checks` contains."""
        self.generators = 0
        self.special = {**SPECIAL}
        for _, importers in traced.features.stage("NODES"):
            self.special |= importers
        self.block = Block()
        self._operations = count()
        self._layers: dict[Operation, str] = {}
        self._results: list[SSAValue] = []
        self._errors: list[CompileError] = []
        self._unknown: set[str] = set()

    @cached_property
    def sizes(self) -> SizeTable:
        """Table of the program's symbolic sizes. A program of fixed sizes never creates it."""
        return SizeTable(self.traced.features.facts.get("specialization", ()), self.traced.graph.nodes)

    def extent(self, size: torch.SymInt) -> Extent:
        """Returns a symbolic size as an extent of the IR."""
        return self.sizes.extent(size)

    @property
    def algebra(self) -> Algebra:
        """Arithmetic on the symbolic sizes of the program."""
        return Algebra.with_sizes(list(self.sizes.derived))

    def declare(self) -> None:
        """Adds the arguments of `@main`. Raises CompileError for an unsupported type."""
        for binding, node in self.traced.arguments:
            try:
                value = self.block.insert_arg(self.type_of(node.meta["val"]), len(self.arguments))
            except CompileError as error:
                error.argument, error.location = binding.name, error.location or place_text(self.traced.calls.place)
                raise
            value.name_hint = name_hint(binding.name)
            self.values[node.name] = value
            self.arguments[node.name] = len(self.arguments)

    def type_of(self, value: torch.Tensor) -> Attribute:
        """Returns the IR type of an argument. Raises UnsupportedError."""
        return tensor_type(value, self.extent)

    def run(self) -> None:
        """Imports all nodes. Raises one error for all refused nodes: the first, with the others in `others`."""
        for node in self.traced.graph.nodes:
            if node.op not in ("placeholder", "output"):
                try:
                    self.import_node(node, self.place_of(node))
                except CompileError as error:
                    self._refuse(node, error)
        if self._errors:
            self._errors += _refused_later(self.block, self.algebra)
            raise self.traced.calls.complete(together(self._errors))

    def import_node(self, node: Node, place: tuple[str, int] | None) -> None:
        """Imports a node that is not an argument or the output.

        Args:
            node: the node.
            place: (file, line) of the node in the user's source, or None.

        Raises:
            CompileError: the node is not supported.
        """
        if self._errors and self._follows_from_error(node):
            return
        target, value = node.target, node.meta.get("val")
        if node.op == "get_attr" and all(user.target in self.special for user in node.users):
            return  # The graph of a loop's step, which the loop imports.
        if (special := self.special.get(target)) is not None:
            special(self, node)
        elif isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat):
            # Integers and conditions are read from their expressions where they are used.
            if isinstance(value, torch.SymFloat):
                self.values[node.name] = compute_number(self, node)
        elif isinstance(target, torch._ops.OpOverload) and node.op == "call_function":
            self.import_operator(node, target, place)
        else:
            raise not_an_operator(node)

    def import_operator(self, node: Node, target: torch._ops.OpOverload, place: tuple[str, int] | None) -> None:
        """Imports a call of an operator as an operation of the torch dialect.

        Args:
            node: the call.
            target: the operator.
            place: (file, line) of the node in the user's source, or None.

        Raises:
            CompileError: the operator or one of its arguments is not supported.
        """
        name = overload_name(target)
        if name not in OPS and target.namespace == "aten" and (view := name.replace("_copy", "", 1)) in OPS:
            name = view  # `view_copy` in the step of a loop. Values have no memory of their own.
        if name not in OPS or target._schema.is_mutable:
            raise unknown_operator(name, target)
        types = self._result_types(node, f"aten.{name}")
        arguments = {key: self.operand(value) for key, value in named_arguments(node).items()}
        tensors = [a.name for a in SCHEMAS[name].arguments if a.base == "Tensor"]
        if numbers := [key for key in tensors if isinstance(arguments.get(key), bool | int | float | SymbolAttr)]:
            name = self._take_numbers(name, arguments, numbers, types)
        if "generator" in SCHEMAS[name].names:
            self._take_generator(name, arguments)
        try:
            op = OPS[name](arguments, types)
        except VerifyException as error:
            raise UnsupportedError(str(error), operator=f"aten.{name}") from None
        self.add(op, node)
        where = f"{op.name}#{next(self._operations)}"
        op.location = named_location(where, file_location(*place)) if place else UnknownLoc()
        self.traced.calls.origins.setdefault((f"aten.{name}", place_text(place)), Origin.of(node))
        self.values[node.name] = tuple(op.results) if isinstance(node.meta["val"], tuple | list) else op.results[0]

    def bind_size(self, tensor: SSAValue, number: torch.SymInt, node: Node) -> None:
        """Adds the operation by which the host reads an integer of the program.

        Args:
            tensor: i64 tensor without dimensions.
            number: the integer.
            node: node that reads it, for the location.
        """
        op = BindSizeOp(tensor, self.sizes.bind(number))
        op.location = _location(self.place_of(node))
        self.block.add_op(op)

    def _result_types(self, node: Node, operator: str) -> list[Attribute]:
        value = node.meta.get("val")
        values: list[Any] = list(value) if isinstance(value, tuple | list) else [value]
        if not values or not all(isinstance(v, torch.Tensor) for v in values):
            raise UnsupportedError("the result is not a tensor", operator=operator)
        return [tensor_type(v, self.extent) for v in values]

    def add(self, op: Operation, node: Node) -> None:
        """Adds the operation for a node, and stores the layer that it belongs to.

        The layer is the outermost module around the node that is an element of a list, such as `model.layers.3`.
        """
        self.block.add_op(op)
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            if _NUMBERED.match(path):
                self._layers.setdefault(op, path)

    def add_located(self, op: Operation, node: Node) -> None:
        """Adds an operation with the location of its node."""
        op.location = _location(self.place_of(node))  # pyright: ignore[reportAttributeAccessIssue]
        self.add(op, node)

    def place_of(self, node: Node) -> tuple[str, int] | None:
        """Returns (file, line) of a node in the user's source, or None."""
        return innermost(node.meta.get("stack_trace")) or self.traced.calls.place

    def operand(self, value: Any) -> Any:
        """Returns an argument of a node in the IR: an SSA value, an attribute, a number, or a list of these."""
        if isinstance(value, Node):
            if isinstance(size := value.meta.get("val"), torch.SymInt):
                return self.sizes.number(size)
            if value.name not in self.values:
                reason = "an argument is computed from a tensor's shape or contents, which is not supported"
                raise UnsupportedError(reason)
            return self.values[value.name]
        if isinstance(value, tuple | list):
            return [self.operand(v) for v in value]
        return value if value is None or isinstance(value, bool | int | float | str | Attribute) else _attribute(value)

    def _take_numbers(self, name: str, arguments: dict[str, Any], numbers: list[str], types: list[Attribute]) -> str:
        """Handles numbers in place of tensors, and returns the name of the overload to import.

        PyTorch exports `x * 2` as `mul.Tensor`; the overload for a number is `mul.Scalar`. If there is none, as for `7
        // x`, the numbers in `arguments` become tensors.
        """
        for tensor, number in ((".Tensor_Tensor", ".Tensor_Scalar"), (".Tensor", ".Scalar")):
            other = name.replace(tensor, number) if "." in name else f"{name}.Scalar"
            if numbers in (["other"], ["exponent"]) and other != name and other in SCHEMAS:
                if SCHEMAS[other].names == SCHEMAS[name].names:
                    return other
        operands = [
            v for a in SCHEMAS[name].arguments if a.base == "Tensor" and (v := arguments.get(a.name)) is not None
        ]
        # A comparison computes in the common type of its operands, not in the type of its result.
        compared = element_type(types[0]) == i1
        like = common_element(operands) if compared else work_type(element_type(types[0]))
        arguments |= {key: self.add_number(arguments[key], like) for key in numbers}
        return name

    def add_number(self, value: Any, like: Attribute) -> SSAValue:
        """Adds a tensor without dimensions that holds a number, with the element type of `like`."""
        return self.add_filled(value, TensorType(element_type(like), []))

    def add_filled(self, value: Any, type: Attribute) -> SSAValue:
        """Adds a tensor of a type, all of whose elements are `value`."""
        named = {"size": list(extents_of(type)), "fill_value": value, "dtype": element_type(type)}
        return self.add_computed("full", named, type)

    def add_number_result(self, node: Node) -> None:
        """Makes an integer that depends on data a tensor without dimensions. A float is one already."""
        if isinstance(number := node.meta["val"], torch.SymInt):
            named = {"size": [], "fill_value": self.sizes.number(number), "dtype": i64}
            self.values[node.name] = self.add_computed("full", named, TensorType(i64, []))

    def add_computed(self, name: str, arguments: dict[str, Any], result: Attribute) -> SSAValue:
        """Adds an operation that has no node, and returns its result.

        Args:
            name: overload in the torch dialect.
            arguments: arguments by name.
            result: type of the result.
        """
        op = OPS[name](arguments, [result])
        self.block.add_op(op)
        return op.results[0]

    def _take_generator(self, name: str, arguments: dict[str, Any]) -> None:
        """Adds a generator argument to `@main` for an operator that draws random numbers.

        Each operator gets its own generator. So equal layers, which draw different numbers, stay equal as IR.
        """
        if arguments.get("generator") is not None:
            raise UnsupportedError("a generator of its own is not supported", argument="generator")
        if draws(arguments, name):
            value = self.block.insert_arg(TensorType(i64, [2]), len(self.block.args))
            value.name_hint = f"generator_{self.generators}"
            self.generators += 1
            arguments["generator"] = value

    def _refuse(self, node: Node, error: CompileError) -> None:
        """Stores an error. The import continues, to find errors that do not follow from this one."""
        error.operator = error.operator or str(node.target)
        located = node if node.op == "call_function" else next(iter(node.users), node)
        self._errors.append(blame(error, located, self.traced.calls.place))
        self._stand_in(node)

    def _follows_from_error(self, node: Node) -> bool:
        """Returns true for a node that the import skips after an error. Stores such a node as unknown.

        It reads an unknown result, computes a number from sizes, or is an assertion.
        """
        value = node.meta.get("val")
        is_check = isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat) or value is None and not node.users
        if follows := is_check or any(n.name in self._unknown for n in node.all_input_nodes):
            self._unknown.add(node.name)
        return follows

    def _stand_in(self, node: Node) -> None:
        """Replaces the results of a refused node by arguments, so that the nodes that read them are imported."""
        try:
            types = self._result_types(node, "")
        except CompileError:
            self._unknown.add(node.name)
            return
        results = [self.block.insert_arg(t, len(self.block.args)) for t in types]
        self.values[node.name] = tuple(results) if isinstance(node.meta["val"], tuple | list) else results[0]

    def result_index(self, name: str) -> int:
        """Returns the number of the result of `@main` for a node; adds the result if there is none yet."""
        value = self.values[name]
        assert isinstance(value, SSAValue)
        if value not in self._results:
            self._results.append(value)
        return self._results.index(value)

    def finish(self) -> ModuleOp:
        """Returns the module with `@main`."""
        if self._layers:
            self._mark_large_layers()
        self.block.add_op(ReturnOp(*self._results))
        types = [a.type for a in self.block.args], [r.type for r in self._results]
        main = FuncOp("main", types, Region(self.block))
        if "sizes" in vars(self) and self.sizes.derived:
            main.attributes[SIZES] = self.sizes.derived
        return ModuleOp([*self.declared.values(), *self.functions.values(), main])

    def _mark_large_layers(self) -> None:
        """Marks the operations of layers that can be outlined: large layers in a list with at least two of them."""
        sizes = Counter(self._layers.values())
        large = [layer for layer, size in sizes.items() if size >= MIN_OPS]
        lists = Counter(layer.rpartition(".")[0] for layer in large)
        for op, layer in self._layers.items():
            if layer in large and lists[layer.rpartition(".")[0]] > 1:
                op.attributes[LAYER] = StringAttr(layer)


_NUMBERED = re.compile(r"(?:^|.*\.)\d+$")


def _attribute(value: Any) -> Any:
    """Returns an object of PyTorch among a node's arguments as an attribute or a string. Raises UnsupportedError."""
    if isinstance(value, torch.dtype):
        return element_of(value)
    if isinstance(value, torch.layout | torch.memory_format):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.Generator):
        raise UnsupportedError("a generator of its own is not supported", argument="generator")
    raise UnsupportedError(f"an argument of type {type(value).__name__} is not supported")


def _refused_later(block: Block, algebra: Algebra) -> list[CompileError]:
    """Returns the errors of imported operations that have no decomposition to the tensor level."""
    errors: list[CompileError] = []
    for op in [op for op in block.ops if isinstance(op, AtenOp)]:
        try:
            try_to_decompose(op, algebra)
        except CompileError as error:
            error.operator, error.location = f"aten.{op.SCHEMA.name}", error.location or location_text(op)
            errors.append(error)
    return errors


def try_to_decompose(op: AtenOp, algebra: Algebra) -> None:
    """Raises UnsupportedError if `op` cannot be decomposed to the tensor level."""
    new_ops, _, _ = decompose(op, algebra)
    for other in reversed(new_ops):
        other.drop_all_references()


def is_ours(target: Any) -> bool:
    """Returns true for an operator that the torch dialect has, and that can be lowered from it."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    name = overload_name(target)
    return name in SCHEMAS and name in get_decompositions()


def _location(place: tuple[str, int] | None) -> LocationAttr:
    return file_location(*place) if place else UnknownLoc()


def overload_name(target: torch._ops.OpOverload) -> str:
    """Returns the name of an overload in the torch dialect: `add.Tensor`, `relu`, or `library.name` outside of ATen."""
    base = target._schema.name.removeprefix("aten::").replace("::", ".")
    return f"{base}.{target._schema.overload_name}" if target._schema.overload_name else base


def name_hint(name: str) -> str:
    """Returns `name` as a valid name of an SSA value: lower case letters, digits and underscores, first a letter."""
    hint = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return hint if re.match(r"[a-z]", hint) else f"v{hint}"
