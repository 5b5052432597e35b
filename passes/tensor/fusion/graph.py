"""Graph of the scalars that one kernel computes. Fusion estimates its time and writes it as a loop nest.

A *node* is one scalar as a function of *index variables*, which are the future loop indices. The tensors

```mlir
%s = arith.addf %x, %b : tensor<16x64xf32>
%r = tensor.reduce add %s over [1] : tensor<16x64xf32> -> tensor<16xf32>
```

become these nodes, where v0 and v1 are variables:

```
Reduce(add, [v1], Payload(addf, Load(%x, [v0, v1]), Load(%b, [v0, v1])))
```

A variable is a number. A set of variables is a bit mask. A `Form` is an affine expression over variables and *symbols*:
integers that the kernel loads or computes, such as the indices of a gather.

Each node exists once: the same scalar at the same index is the same object. For that, equal reductions must bind equal
variables. So variables are reused by extent: a reduction takes the first one of its extent that its indices do not use.

`inline.Pull` builds a graph, `cost.Kernel` estimates its time, and `make_nest` writes it as a `loop.nest`.
"""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from operator import or_
from typing import TypeAlias, TypeVar, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, UnknownLoc, i1, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap

from ....dialects import loop, payload, tensor
from ....dialects.payload import element_bytes, element_type, tensor_bytes
from ....dialects.shapes import affine
from ....dialects.shapes.affine import DIM, SYM, Atom, Form, Simplifier
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Extent, most, typical
from ....dialects.support.locations import location_of
from ....dialects.tensor import ROOT

Constraint: TypeAlias = tuple[Form, int, Extent]
"""The condition `lo <= form < hi`, as (form, lo, hi)."""
Guard: TypeAlias = tuple[Constraint, ...]
"""Conjunction of constraints; always true if it is empty."""
N = TypeVar("N", bound="Node")
VariableKey: TypeAlias = tuple[str, int, Extent]
"""Identity of a variable: ("free", dimension of the result, extent) or ("reduce", n, extent), the n-th variable for
reductions over this extent."""


@dataclass(eq=False)
class Node:
    """Node of a graph: one scalar as a function of index variables."""

    type: Attribute
    free: int
    """Bit mask of the variables that the scalar depends on."""
    op: Operation | None
    """Operation of the tensor program that the node was made from, if any."""
    children: tuple[Node, ...]
    """Operands."""


@dataclass(eq=False)
class Scalar(Node):
    """A scalar SSA value of the function, such as an argument that is no tensor."""

    value: SSAValue


@dataclass(eq=False)
class Constant(Node):
    value: FloatAttr | IntegerAttr

    @property
    def number(self) -> float | int:
        """The constant as a Python number. An i1 is 0 or 1."""
        data = self.value.value.data
        return abs(data) if isinstance(self.value, IntegerAttr) and self.value.type == i1 else data


@dataclass(eq=False)
class Index(Node):
    """An integer with the value of an affine form."""

    form: Form


@dataclass(eq=False)
class Load(Node):
    """The element `source[coordinates]` where `guard` holds, and `fill` elsewhere."""

    source: SSAValue
    coordinates: tuple[Form, ...]
    guard: Guard
    fill: Constant | Scalar | None
    chosen: bool
    """True if the program chose the fill value. False if no user depends on the fill value, so that another one may
    replace it."""

    @cached_property
    def element_bytes(self) -> int:
        return element_bytes(self.type)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the whole tensor `source`."""
        return tensor_bytes(self.source.type)


@dataclass(eq=False)
class Payload(Node):
    """The result of the payload operation `op` on the children."""

    @cached_property
    def name(self) -> str:
        return "" if self.op is None else self.op.name


@dataclass(eq=False)
class Reduce(Node):
    """The reduction of `body` over all values of `variables`."""

    kind: tensor.ReductionKind
    variables: tuple[int, ...]
    body: Node
    bound: int
    """Bit mask of `variables`."""


@dataclass(eq=False)
class Scan(Node):
    """An element of the inclusive prefix scan of `body` along `variable`, at the index `variable`."""

    kind: tensor.ReductionKind
    variable: int
    body: Node


class TooLarge(Exception):
    """Raised if a kernel would compute too many values, or have too complex indices."""


def conjunction(*constraints: Constraint) -> Guard:
    """Returns the guard of the constraints, sorted so that equal guards are equal tuples."""
    return tuple(sorted(constraints, key=lambda c: (c[0], c[1], most(c[2]), str(c[2]))))


@dataclass(eq=False)
class Graph:
    """Creates the nodes and variables of kernels. Requests for equal nodes return the same object.

    A variable may be *split* into several, called digits: an index of extent 12 that is used as `i floordiv 4` and
    `i mod 4` becomes two variables of extents 3 and 4.
    """

    splits: Mapping[VariableKey, tuple[int, ...]] = field(default_factory=dict[VariableKey, tuple[int, ...]])
    """Split variable -> the extents of its digits, outermost first."""
    simplifier: Simplifier = field(default_factory=Simplifier)
    extents: list[Extent] = field(default_factory=list[Extent])
    """Extent of each variable, which may be a symbol."""
    typical_extents: list[int] = field(default_factory=list[int])
    """Extent of each variable as a number, for estimates. A symbol counts with its typical size."""
    symbols: list[Node] = field(default_factory=list[Node])
    """Node of each symbol."""
    keys: list[tuple[VariableKey, int]] = field(default_factory=list[tuple[VariableKey, int]])
    """Key and digit of each variable."""
    _nodes: dict[tuple[object, ...], Node] = field(default_factory=dict[tuple[object, ...], Node])
    _symbol_numbers: dict[Node, int] = field(default_factory=dict[Node, int])

    def __post_init__(self) -> None:
        self.variable, self.free_of, self._op_key = cache(self._variable), cache(self._free_of), cache(_op_key)

    def _variable(self, key: VariableKey) -> tuple[Form, tuple[int, ...]]:
        """Returns the value of an index as a form, and its variables: one, or one for each digit if it is split."""
        form, numbers = affine.constant(0), list[int]()
        for digit, extent in enumerate(self.splits.get(key, (key[2],))):
            number = len(self.typical_extents)
            self.extents.append(extent)
            self.typical_extents.append(typical(extent))
            self.keys.append((key, digit))
            self.simplifier.set_range((DIM, number), extent)
            weight = extent if isinstance(extent, int) else 1  # A symbolic extent is never split.
            form = affine.add(affine.scale(form, weight), affine.dim(number) if extent != 1 else affine.constant(0))
            numbers.append(number)
        return form, tuple(numbers)

    def _free_of(self, form: Form) -> int:
        return either(1 << atom[1] if atom[0] == DIM else self.symbols[atom[1]].free for atom in form.atoms())

    def symbols_of(self, *forms: Form) -> tuple[Node, ...]:
        """Returns the nodes of the symbols that occur in `forms`, ordered by symbol number."""
        numbers = sorted({atom[1] for form in forms for atom in form.atoms() if atom[0] == SYM})
        return tuple(self.symbols[n] for n in numbers)

    def symbol_for(self, node: Node) -> Form:
        """Returns the form of an integer node. A node that is no form itself, such as a load, becomes a symbol."""
        if isinstance(node, Index):
            return node.form
        if isinstance(node, Constant):
            return affine.constant(int(node.number))
        number = self._symbol_numbers.setdefault(node, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(node)
        return affine.symbol(number)

    def constant(self, value: FloatAttr | IntegerAttr, op: Operation | None = None) -> Constant:
        key = (repr(value.value.data), value.type)  # The text distinguishes -0.0 from 0.0.
        return self._unique(key, lambda: Constant(value.type, 0, op, (), value))

    def number(self, value: float | int, type: Attribute) -> Constant:
        return self.constant(payload.scalar_attr(value, type))

    def scalar(self, value: SSAValue) -> Scalar:
        return self._unique((value,), lambda: Scalar(value.type, 0, None, (), value))

    def index(self, form: Form, type: Attribute, op: Operation | None) -> Index | Constant:
        if form.is_constant:
            return self.number(form.constant, type)
        return self._unique((form, type), lambda: Index(type, self.free_of(form), op, self.symbols_of(form), form))

    def load(
        self, source: SSAValue, at: tuple[Form, ...], guard: Guard, fill: Constant | Scalar | None, chosen: bool
    ) -> Load:
        key = (source, at, guard, fill, chosen)

        def make() -> Load:
            forms = (*at, *(c[0] for c in guard))
            children = (*self.symbols_of(*forms), *(() if fill is None else (fill,)))
            return Load(element_type(source.type), either(map(self.free_of, forms)), None, children, *key)

        return self._unique(key, make)

    def payload(self, op: Operation, operands: tuple[Node, ...]) -> Node:
        key, element = self._op_key(op), element_type(op.results[0].type)
        return self._unique((key, operands), lambda: Payload(element, either(o.free for o in operands), op, operands))

    def reduce(self, kind: tensor.ReductionKind, variables: tuple[int, ...], body: Node, op: Operation) -> Reduce:
        bound = sum(1 << v for v in variables)
        key = (kind, variables, body)
        return self._unique(key, lambda: Reduce(body.type, body.free & ~bound, op, (body,), *key, bound))

    def scan(self, kind: tensor.ReductionKind, variable: int, body: Node, op: Operation) -> Scan:
        key = ("scan", kind, variable, body)
        return self._unique(key, lambda: Scan(body.type, body.free | 1 << variable, op, (body,), *key[1:]))

    def _unique(self, key: tuple[object, ...], make: Callable[[], N]) -> N:
        if key not in self._nodes:
            self._nodes[key] = make()
        return cast(N, self._nodes[key])


def _op_key(op: Operation) -> object:
    """Returns a key that is equal for operations with the same name, properties and element type of the result."""
    properties = tuple(sorted(op.properties.items(), key=lambda item: item[0]))
    return op.name, properties, element_type(op.results[0].type)


def either(masks: Iterable[int]) -> int:
    """Returns the union of bit masks."""
    return reduce(or_, masks, 0)


FREE_NAMES = ("i", "j", "m", "n", "p", "q")
"""Names of the indices of a nest in the printed IR."""
REDUCED_NAMES = ("k", "r", "s", "t")
"""Names of the indices of reductions in the printed IR."""


def make_nest(
    graph: Graph, roots: Sequence[Node], variables: tuple[int, ...], nests: Mapping[SSAValue, SSAValue] = {}
) -> loop.NestOp:
    """Returns a `loop.nest` over `variables` that yields the scalars `roots`.

    Args:
        graph: Graph of the nodes.
        roots: Nodes to yield, one for each result of the nest.
        variables: Variables that become the indices of the nest.
        nests: Materialised tensor -> result of the nest that replaces it. Loads read the replacement.

    Returns:
        The nest, not inserted.
    """
    body = _NestWriter(graph, nests).body(roots, variables, FREE_NAMES)
    return loop.NestOp([graph.extents[v] for v in variables], [root.type for root in roots], body)


@dataclass
class _Scope:
    """Body of a nest or reduction under construction."""

    bound: int
    """Bit mask of the variables that the body binds."""
    block: Block
    arguments: dict[int, BlockArgument]
    """Variable -> its block argument."""
    values: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])
    """Node, form or atom of a form (a variable, symbol, quotient or remainder) -> its value, if this body computes
    it."""


@dataclass
class _NestWriter:
    """Writes nodes as operations of the loop dialect, each in the outermost body that has all its indices."""

    graph: Graph
    nests: Mapping[SSAValue, SSAValue]
    scopes: list[_Scope] = field(default_factory=list[_Scope])

    def body(self, roots: Sequence[Node], variables: tuple[int, ...], names: Sequence[str]) -> Region:
        """Returns a region that binds `variables` and yields `roots`.

        Args:
            roots: Nodes to yield.
            variables: Variables that become the block arguments.
            names: Name hints of the block arguments, reused from the start if there are too few.
        """
        block = Block(arg_types=[IndexType()] * len(variables))
        for position, argument in enumerate(block.args):
            argument.name_hint = names[position % len(names)]
        bound = sum(1 << variable for variable in variables)
        self.scopes.append(_Scope(bound, block, dict(zip(variables, block.args, strict=True))))
        block.add_op(loop.YieldOp(*[self.value(root) for root in roots]))
        self.scopes.pop()
        return Region(block)

    def _depth(self, free: int) -> int:
        """Returns the depth of the innermost scope that binds a variable in `free`; 0 if none does."""
        return max((depth for depth, scope in enumerate(self.scopes) if scope.bound & free), default=0)

    def value(self, node: Node) -> SSAValue:
        if isinstance(node, Scalar):
            return node.value
        depth = self._depth(node.free)
        values = self.scopes[depth].values
        if node not in values:
            values[node] = self._compute(node, depth)
        return values[node]

    def _compute(self, node: Node, depth: int) -> SSAValue:
        if isinstance(node, Index):
            return self._index(node, depth)
        if isinstance(node, Constant):
            op: Operation = payload.ConstantOp(node.value, node.type)
        elif isinstance(node, Load):
            op = self._load(node)
        elif isinstance(node, Reduce):
            op = self._reduce(node, depth)
        elif isinstance(node, Scan):
            op = self._scan(node)
        else:
            assert node.op is not None
            op = payload.retyped(node.op, [self.value(operand) for operand in node.children], node.type)
            op.attributes.pop(ROOT, None)
        return self._add(depth, op, node)

    def _add(self, depth: int, op: Operation, node: Node | None = None) -> SSAValue:
        if node is not None and node.op is not None and isinstance(op.location, UnknownLoc):
            op.location = location_of(node.op)
        self.scopes[depth].block.add_op(op)
        return op.results[0]

    def _reduce(self, node: Reduce, depth: int) -> loop.ReduceOp:
        # The reduction is written into an outer body, so its own body must not use values of deeper bodies.
        hidden = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        names = REDUCED_NAMES[self.graph.keys[node.variables[0]][0][1] % len(REDUCED_NAMES) :] + REDUCED_NAMES
        body = self.body([node.body], node.variables, names)
        self.scopes.extend(hidden)
        return loop.ReduceOp(node.kind, [self.graph.extents[v] for v in node.variables], body, node.type)

    def _load(self, node: Load) -> loop.LoadOp:
        forms = (*node.coordinates, *(c[0] for c in node.guard))
        atoms = {atom for f in forms for atom in f.atoms()}
        symbols = sorted(number for kind, number, *_ in atoms if kind == SYM)
        # A variable that several scopes bind has the argument of the innermost one.
        used = {v: a for scope in self.scopes for v, a in scope.arguments.items() if (DIM, v) in atoms}
        dim_names, symbol_names = ({v: i for i, v in enumerate(numbers)} for numbers in (used, symbols))
        exprs = tuple(affine.write(affine.renumbered(f, dim_names, symbol_names)) for f in forms)
        split, shape = len(node.coordinates), (len(used), len(symbols))
        domain = None
        if node.guard:
            domain = DomainAttr.get(AffineMap(*shape, exprs[split:]), [(lo, hi) for _, lo, hi in node.guard])
        indices = [self._as_index(self.graph.symbols[s]) for s in symbols]
        fill = self.value(node.fill) if node.fill is not None else None
        source = self.nests.get(node.source, node.source)
        return loop.LoadOp(source, AffineMap(*shape, exprs[:split]), list(used.values()), indices, domain, fill)

    def _scan(self, node: Scan) -> loop.ScanOp:
        index = next(s.arguments[node.variable] for s in self.scopes if node.variable in s.arguments)
        return loop.ScanOp(node.kind, self.value(node.body), index)

    def _index(self, node: Index, depth: int) -> SSAValue:
        value = self._form(node.form, depth)
        return value if node.type == i64 else self._add(depth, payload.CastOp(value, node.type), node)

    def _as_index(self, node: Node) -> SSAValue:
        value, depth = self.value(node), self._depth(node.free)
        key, values = (node, "index"), self.scopes[depth].values
        if key not in values:
            values[key] = self._add(depth, payload.CastOp(value, IndexType()), node)
        return values[key]

    def _form(self, form: Form, depth: int) -> SSAValue:
        """Returns the i64 value of `form`. Its operations are added to the scope at `depth`."""
        values = self.scopes[depth].values
        if form in values:
            return values[form]
        total: SSAValue | None = None
        for atom, coefficient in form.terms:
            if atom not in values:
                values[atom] = self._atom(atom, depth)
            term = values[atom]
            if coefficient != 1:
                term = self._add(depth, arith.MuliOp(term, self._number(coefficient)))
            total = term if total is None else self._add(depth, arith.AddiOp(total, term))
        if total is None:
            total = self._number(form.constant)
        elif form.constant:
            total = self._add(depth, arith.AddiOp(total, self._number(form.constant)))
        values[form] = total
        return total

    def _number(self, number: int) -> SSAValue:
        return self.value(self.graph.number(number, i64))

    def _atom(self, atom: Atom, depth: int) -> SSAValue:
        if atom[0] == DIM:
            argument = next(s.arguments[atom[1]] for s in reversed(self.scopes) if atom[1] in s.arguments)
            return self._add(depth, payload.CastOp(argument, i64))
        if atom[0] == SYM:
            node = self.graph.symbols[atom[1]]
            value = self.value(node)
            return value if node.type == i64 else self._add(depth, payload.CastOp(value, i64))
        inner, divisor = self._form(affine.dividend(atom), depth), atom[3]
        if atom[0] == affine.DIV:
            return self._add(depth, arith.FloorDivSIOp(inner, self._number(divisor)))
        remainder = self._add(depth, arith.RemSIOp(inner, self._number(divisor)))
        bounds = self.graph.simplifier.interval(affine.dividend(atom))
        if bounds is not None and bounds[0] >= 0:
            return remainder
        # `arith.remsi` has the sign of the dividend, while the remainder of a form is never negative.
        shifted = self._add(depth, arith.AddiOp(remainder, self._number(divisor)))
        return self._add(depth, arith.RemSIOp(shifted, self._number(divisor)))
