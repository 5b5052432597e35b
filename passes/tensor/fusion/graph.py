"""A kernel as a graph of scalar values, pulled out of the tensor program by index substitution.

A node is one scalar as a function of index variables. Nodes are unique: the same value at the same index is the same
object, whoever asked for it. That needs equal reductions to bind equal variables, so a variable is named by its
extent and chosen as the first one that the reduction's own indices leave free; siblings thereby share everything they
can, and nothing is captured. `convert-tensor-to-loop` prints graphs as `loop.nest`, `tensor-plan-fusion` weighs them.
"""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeAlias, TypeVar, cast

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i1
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import element_bytes, element_type, tensor_bytes
from ....dialects.shapes.affine import DIM, SYM, Form, Simplifier, add, constant, dim, scale, symbol
from ....dialects.shapes.extents import Extent, most, typical

Constraint: TypeAlias = tuple[Form, int, Extent]  # lo <= form < hi
Guard: TypeAlias = tuple[Constraint, ...]
N = TypeVar("N", bound="Node")
VariableKey: TypeAlias = tuple[str, int, Extent]  # ("free", position, extent) or ("reduce", ordinal, extent)


@dataclass(eq=False)
class Node:
    """One scalar. `free` is the set of variables it depends on, as bits; `op` the tensor op it came from, if any;
    `children` are the nodes that it is computed from."""

    type: Attribute
    free: int
    op: Operation | None
    children: tuple[Node, ...]


@dataclass(eq=False)
class Scalar(Node):
    """A scalar value of the function, the same everywhere."""

    value: SSAValue


@dataclass(eq=False)
class Constant(Node):
    """A number."""

    value: FloatAttr | IntegerAttr

    @property
    def number(self) -> float | int:
        """The number as Python's; an i1 as 0 or 1."""
        data = self.value.value.data
        return abs(data) if isinstance(self.value, IntegerAttr) and self.value.type == i1 else data


@dataclass(eq=False)
class Index(Node):
    """An integer computed from the variables alone."""

    form: Form


@dataclass(eq=False)
class Load(Node):
    """source[coordinates] where the guard holds, else the fill. Without `chosen`, nobody looks at the fill."""

    source: SSAValue
    coordinates: tuple[Form, ...]
    guard: Guard
    fill: Constant | Scalar | None
    chosen: bool

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return element_bytes(self.type)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the source."""
        return tensor_bytes(self.source.type)


@dataclass(eq=False)
class Payload(Node):
    """The payload op `op` on `operands`."""

    @property
    def operands(self) -> tuple[Node, ...]:
        """Operands of `op`."""
        return self.children

    @cached_property
    def name(self) -> str:
        """The name of `op`."""
        return "" if self.op is None else self.op.name


@dataclass(eq=False)
class Reduce(Node):
    """The body combined over all values of `variables`."""

    kind: tensor.ReductionKind
    variables: tuple[int, ...]
    body: Node
    bound: int
    """The variables as bits."""


@dataclass(eq=False)
class Scan(Node):
    """The body combined over the values of `variable` up to the one that it stands for."""

    kind: tensor.ReductionKind
    variable: int
    body: Node


class TooLarge(Exception):
    """A kernel would compute too many values."""


def conjunction(*constraints: Constraint) -> Guard:
    """The constraints in a fixed order."""
    return tuple(sorted(constraints, key=lambda c: (c[0], c[1], most(c[2]), str(c[2]))))


class Graph:
    """Makes nodes, each once. `splits` says which variables stand for several digits (outermost first)."""

    def __init__(self, splits: Mapping[VariableKey, tuple[int, ...]] = {}) -> None:
        self.splits = splits
        self.simplifier = Simplifier()
        self.sizes: list[Extent] = []
        """How many values each variable takes."""
        self.extents: list[int] = []
        """The same in numbers, for estimates: for a symbol what is typical of it."""
        self.symbols: list[Node] = []
        self.keys: list[tuple[VariableKey, int]] = []
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._symbol_numbers: dict[Node, int] = {}
        self.variable, self.free_of, self._op_key = cache(self._variable), cache(self._free_of), cache(_op_key)

    def _variable(self, key: VariableKey) -> tuple[Form, tuple[int, ...]]:
        """The form of the variable `key`, and the numbers of its digits (one, unless it is split)."""
        form, numbers = constant(0), list[int]()
        for digit, extent in enumerate(self.splits.get(key, (key[2],))):
            number = len(self.extents)
            self.sizes.append(extent)
            self.extents.append(typical(extent))
            self.keys.append((key, digit))
            self.simplifier.set_range((DIM, number), extent)
            weight = extent if isinstance(extent, int) else 1  # a symbol has one digit
            form = add(scale(form, weight), dim(number) if extent != 1 else constant(0))
            numbers.append(number)
        return form, tuple(numbers)

    def _free_of(self, form: Form) -> int:
        """The variables in `form`, as bits."""
        return either(1 << atom[1] if atom[0] == DIM else self.symbols[atom[1]].free for atom in form.atoms())

    def symbols_of(self, *forms: Form) -> tuple[Node, ...]:
        """The data-dependent coordinates in `forms`, in order of their numbers."""
        numbers = sorted({atom[1] for form in forms for atom in form.atoms() if atom[0] == SYM})
        return tuple(self.symbols[n] for n in numbers)

    def symbol_for(self, node: Node) -> Form:
        """`node`, an integer, as a coordinate: its own form if it is computed from variables, else a symbol."""
        if isinstance(node, Index):
            return node.form
        if isinstance(node, Constant):
            return constant(int(node.number))
        number = self._symbol_numbers.setdefault(node, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(node)
        return symbol(number)

    def constant(self, value: FloatAttr | IntegerAttr, op: Operation | None = None) -> Constant:
        """The constant `value`."""
        key = (repr(value.value.data), value.type)  # the text, because -0.0 == 0.0
        return self._unique(key, lambda: Constant(value.type, 0, op, (), value))

    def number(self, value: float | int, type: Attribute) -> Constant:
        """The number `value` of the scalar type `type`."""
        return self.constant(payload.scalar_attr(value, type))

    def scalar(self, value: SSAValue) -> Scalar:
        """The scalar `value` of the function."""
        return self._unique((value,), lambda: Scalar(value.type, 0, None, (), value))

    def index(self, form: Form, type: Attribute, op: Operation | None) -> Index | Constant:
        """`form` as a value of the integer type `type`."""
        if form.is_constant:
            return self.number(form.constant, type)
        return self._unique((form, type), lambda: Index(type, self.free_of(form), op, self.symbols_of(form), form))

    def load(
        self, source: SSAValue, at: tuple[Form, ...], guard: Guard, fill: Constant | Scalar | None, chosen: bool
    ) -> Load:
        """An element of the tensor `source`; `chosen` says that the fill is what the program asks for."""
        key = (source, at, guard, fill, chosen)

        def make() -> Load:
            forms = (*at, *(c[0] for c in guard))
            children = (*self.symbols_of(*forms), *(() if fill is None else (fill,)))
            return Load(element_type(source.type), either(map(self.free_of, forms)), None, children, *key)

        return self._unique(key, make)

    def payload(self, op: Operation, operands: tuple[Node, ...]) -> Node:
        """The payload op `op` on `operands`."""
        key, element = self._op_key(op), element_type(op.results[0].type)
        return self._unique((key, operands), lambda: Payload(element, either(o.free for o in operands), op, operands))

    def reduce(self, kind: tensor.ReductionKind, variables: tuple[int, ...], body: Node, op: Operation) -> Reduce:
        """`body` combined over the variables with these numbers."""
        bound = sum(1 << v for v in variables)
        key = (kind, variables, body)
        return self._unique(key, lambda: Reduce(body.type, body.free & ~bound, op, (body,), *key, bound))

    def scan(self, kind: tensor.ReductionKind, variable: int, body: Node, op: Operation) -> Scan:
        """The scan of `body` along the variable with this number."""
        key = ("scan", kind, variable, body)
        return self._unique(key, lambda: Scan(body.type, body.free | 1 << variable, op, (body,), *key[1:]))

    def _unique(self, key: tuple[object, ...], make: Callable[[], N]) -> N:
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = make()
        return cast(N, found)


def _op_key(op: Operation) -> object:
    """Equal for ops that are the same function of their operands."""
    properties = tuple(sorted(op.properties.items(), key=lambda item: item[0]))
    return op.name, properties, element_type(op.results[0].type)


def either(masks: Iterable[int]) -> int:
    """What is in any of these sets of variables."""
    found = 0
    for mask in masks:
        found |= mask
    return found
