"""Builds the graph of a kernel from the tensor program, by substituting indices into definitions.

To *pull* element `at` of a tensor means to compute it from its definition. `Pull` follows the operands until it reaches
tensors in memory, which become loads:

| definition of `%y` | element `[v0, v1]` of `%y` |
|---|---|
| `%y = arith.addf %a, %b` | `addf` of element `[v0, v1]` of `%a` and of `%b` |
| `%y = tensor.index_map %a[d1, d0]` | element `[v1, v0]` of `%a` |
| `%y = tensor.reduce add %a over [2]` | reduction over a new variable v2 of element `[v0, v1, v2]` of `%a` |
| `%y` is in memory | `Load(%y, [v0, v1])` |

A view with padding reads its source under a *guard*, a condition on the indices. The guard is passed on to the loads.

A *stop* is a tensor that the plan may materialise. Pulling ends there, except for stops that `LimitedPull.inlined`
selects: the kernel computes those itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import count
from typing import Any, ClassVar, TypeAlias, cast, get_args

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import loop, payload, tensor
from ....dialects.payload import element_type, is_payload, is_tensor
from ....dialects.payload.folding import decided, same_as_operand
from ....dialects.shapes.affine import Form, add, complexity, constant, dim as axis
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.support.calls import Call
from ....dialects.support.locations import refused
from ....errors import UnsupportedError
from .graph import Constant, Constraint, Graph, Guard, Index, Load, Node, Scalar, TooLarge, conjunction, either


def payload_node(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node:
    """Returns the node of a payload operation, folded if possible.

    Args:
        graph: Graph that owns the nodes.
        op: Payload operation on tensors or scalars.
        operands: Nodes of its operands.

    Returns:
        A new node, or an operand, constant or index with the same value.
    """
    folder = _FOLDERS.get(type(op))
    folded = folder(graph, op, operands) if folder is not None else None
    return folded or graph.payload(op, operands)


def _form(node: Node) -> Form | None:
    """Returns an integer node as a form, or None if it is no affine expression."""
    if isinstance(node, Index):
        return node.form
    if isinstance(node, Constant) and isinstance(node.type, IntegerType):
        return constant(int(node.number))
    return None


def _index(graph: Graph, form: Form, type: Attribute, op: Operation) -> Node | None:
    """Returns `form` as a node of the integer type `type`, or None if it may overflow or `type` is no integer."""
    result_type = type  # The type checker does not know the parameters of an IntegerType after `isinstance`.
    if not isinstance(type, IntegerType) or type == i1:
        return None
    return graph.index(form, result_type, op) if graph.simplifier.fits(form, result_type) else None


def _fold_arithmetic(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    """Returns integer arithmetic on indices as an index node, or None if the result is not affine or may overflow."""
    a, b = _form(operands[0]), _form(operands[1])
    form = None if a is None or b is None else graph.simplifier.computed(op.name, a, b)
    if form is None or operands[0].type == i1:
        return None
    return _index(graph, graph.simplifier.tidy(form), operands[0].type, op)


def _fold_compare(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    """Returns the outcome of a comparison of indices as a constant, or None if it differs between iterations."""
    assert isinstance(op, payload.CmpOp)
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None:
        return None
    bounds = graph.simplifier.interval(graph.simplifier.tidy(add(a, b, -1)))
    if bounds is None:
        return None
    outcome = decided(op.predicate.data, *bounds)
    return None if outcome is None else graph.number(outcome, i1)


def _fold_operand(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    """Returns the operand that equals the result because others are constant, as `x` in `and x, true`, or None."""
    constants = [o.number if isinstance(o, Constant) else None for o in operands]
    if (number := same_as_operand(op, constants)) is not None:
        return operands[number]
    return operands[1] if isinstance(op, payload.SelectOp) and operands[1] is operands[2] else None


def _fold_cast(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    (operand,) = operands
    type = element_type(op.results[0].type)
    if operand.type == type:
        return operand
    return _index(graph, operand.form, type, op) if isinstance(operand, Index) else None


_FOLDERS: dict[type[Operation], Callable[[Graph, Operation, tuple[Node, ...]], Node | None]] = {
    **dict.fromkeys((arith.AddiOp, arith.SubiOp, arith.MuliOp), _fold_arithmetic),
    **dict.fromkeys((arith.FloorDivSIOp, arith.DivSIOp, arith.RemSIOp), _fold_arithmetic),
    **dict.fromkeys((arith.AndIOp, arith.OrIOp, payload.SelectOp, payload.AssertOp), _fold_operand),
    payload.CmpOp: _fold_compare,
    payload.CastOp: _fold_cast,
}
"""Payload operation -> function that returns the node it folds to, or None. Other operations are not folded."""


@contextmanager
def deep_recursion(depth: int = 20_000) -> Generator[None]:
    """Raises the recursion limit of Python to `depth` calls, because pulling recurses along chains of operations."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, depth))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


_IN_MEMORY = frozenset[type]({Block, loop.NestOp, *get_args(Call)})
"""Owners of values in memory. Types are compared, because `isinstance` is slow for abstract classes of xDSL."""


def in_memory(value: SSAValue) -> bool:
    """Returns true if `value` is an argument, or a result of a call or nest. No kernel of the plan computes these."""
    return type(value.owner) in _IN_MEMORY


Element: TypeAlias = tuple[SSAValue, tuple[Form, ...], Guard]
"""Key of an element: (tensor, coordinates, guard under which it is read)."""


@dataclass
class Pull:
    """Builds the nodes of kernels. Pulling ends at `stops` and at values that are in memory anyway."""

    graph: Graph
    stops: Mapping[SSAValue, int]
    """Tensor at which pulling ends -> its number among the candidates of the search. `Pull` uses the keys alone."""
    nodes: dict[Element, Node] = field(default_factory=dict[Element, Node], init=False)

    def element(self, type: Attribute) -> tuple[tuple[Form, ...], tuple[int, ...]]:
        """Returns the coordinates, as forms, of the general element of a tensor type, and all their variables."""
        indices = [self.graph.variable(("free", position, extent)) for position, extent in enumerate(extents_of(type))]
        return tuple(form for form, _ in indices), tuple(d for _, digits in indices for d in digits)

    def root(self, value: SSAValue) -> tuple[Node, tuple[int, ...]]:
        """Returns the node of the general element of `value`, and the variables that index it.

        A dimension has one variable, or several if it is split. If `value` is in memory, the node is a load."""
        at, variables = self.element(value.type)
        if in_memory(value):
            return self.value(value, at, ()), variables
        return self._define(cast(Operation, value.owner), at, ()), variables

    def value(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Node:
        """Returns the node of element `at` of `value`. Where the guard fails, the node has an arbitrary value, but
        still loads nothing out of bounds.

        Args:
            value: Tensor, or scalar with `at = ()`.
            at: Coordinates, one form for each dimension.
            guard: Condition under which the element is used.
        """
        key = (value, at, guard)
        if key not in self.nodes:
            self.nodes[key] = self._pull(value, at, guard)
        return self.nodes[key]

    def _is_computed(self, value: SSAValue) -> bool:
        return not in_memory(value) and value not in self.stops

    def _pull(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Node:
        if self._is_computed(value):
            return self._define(cast(Operation, value.owner), at, guard)
        if not is_tensor(value.type):
            return self.graph.scalar(value)
        needed = self._needed(value, at, guard) if guard else ()
        fill = self.graph.number(0, element_type(value.type)) if needed else None
        return self.graph.load(value, at, needed, fill, chosen=False)

    def _needed(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Guard:
        """Returns the constraints of `guard` without which element `at` of `value` might be out of bounds."""
        within, needed, unsafe = self.graph.simplifier.within, set[Constraint](), set[tuple[object, ...]]()
        for coordinate, extent in zip(at, extents_of(value.type), strict=True):
            if not within(coordinate, 0, extent):
                bound = next((c for c in guard if within(coordinate, 0, extent, c)), None)
                if bound is None:
                    unsafe |= set(coordinate.atoms())
                else:
                    needed.add(bound)
        while more := [c for c in guard if c not in needed and not unsafe.isdisjoint(c[0].atoms())]:
            needed.update(more)
            unsafe.update(atom for c in more for atom in c[0].atoms())
        return tuple(c for c in guard if c in needed)

    def _define(self, op: Operation, at: tuple[Form, ...], guard: Guard) -> Node:
        rule = self._rules.get(type(op))
        if rule is not None:
            return rule(self, op, at, guard)
        if not is_payload(op) or len(op.results) != 1:
            raise refused(op, "cannot become part of a kernel", UnsupportedError)
        return payload_node(self.graph, op, tuple([self.value(v, at, guard) for v in op.operands]))

    def _constant(self, op: payload.ConstantOp, at: tuple[Form, ...], guard: Guard) -> Node:
        return self.graph.constant(op.value, op)

    def _iota(self, op: tensor.IotaOp, at: tuple[Form, ...], guard: Guard) -> Node:
        index = self.graph.index(at[op.dim.value.data], i64, op)
        return payload_node(self.graph, payload.CastOp(_dummy(i64), element_type(op.result.type)), (index,))

    def _view(self, op: tensor.IndexMapOp, at: tuple[Form, ...], guard: Guard) -> Node:
        simplifier = self.graph.simplifier
        coordinates = tuple(simplifier.read(e, at) for e in op.map.data.results)
        if op.domain is None:
            return self.value(op.source, coordinates, guard)
        assert op.fill is not None
        bounds = zip(op.domain.affine.results, op.domain.limits, strict=True)
        return self._guarded(op.source, coordinates, guard, [(simplifier.read(e, at), *b) for e, b in bounds], op.fill)

    def _gather(self, op: tensor.GatherOp, at: tuple[Form, ...], guard: Guard) -> Node:
        symbols = [self.graph.symbol_for(self.value(i, at, guard)) for i in op.indices]
        coordinates = tuple(self.graph.simplifier.read(e, at, symbols) for e in op.map.data.results)
        constraints = [(c, 0, n) for c, n in zip(coordinates, extents_of(op.source.type), strict=True)]
        return self._guarded(op.source, coordinates, guard, constraints, None)

    def _assert(self, op: payload.AssertOp, at: tuple[Form, ...], guard: Guard) -> Node:
        """Returns an assertion under a guard. It holds where the guard fails, because no element is used there."""
        value, condition = (self.value(v, at, guard) for v in op.operands)
        if guard:
            condition = payload_node(
                self.graph, _select(i1), (self._holds(guard), condition, self.graph.number(True, i1))
            )
        return payload_node(self.graph, op, (value, condition))

    def _guarded(
        self,
        source: SSAValue,
        at: tuple[Form, ...],
        guard: Guard,
        constraints: Sequence[Constraint],
        fill_value: SSAValue | None,
    ) -> Node:
        """Returns element `at` of `source` where `constraints` hold, else `fill_value`, or zero if that is None."""
        graph = self.graph
        fill = graph.number(0, element_type(source.type)) if fill_value is None else self.value(fill_value, (), ())
        new = list[Constraint]()
        for constraint in constraints:
            if graph.simplifier.outside(*constraint):
                return fill
            if constraint not in guard and not graph.simplifier.within(*constraint) and constraint not in new:
                new.append(constraint)
        inner = conjunction(*guard, *new)
        node = self.value(source, at, inner)
        if not new or node is fill:
            return node
        if isinstance(node, Load) and (node.fill is fill or not node.chosen) and isinstance(fill, Constant | Scalar):
            return graph.load(node.source, node.coordinates, conjunction(*{*node.guard, *new}), fill, chosen=True)
        return payload_node(graph, _select(fill.type), (self._holds(new), node, fill))

    def _holds(self, constraints: Iterable[Constraint]) -> Node:
        """Returns an i1 node that is true where the constraints hold."""
        graph, comparisons = self.graph, list[Node]()
        for form, lo, hi in constraints:
            value = graph.index(form, i64, None)
            for compare, bound in ((_GE, lo), (_LT, hi)):
                comparisons.append(payload_node(graph, compare, (value, self._size(bound))))
        return reduce(lambda x, y: payload_node(graph, _AND, (x, y)), comparisons)

    def _size(self, extent: Extent) -> Node:
        if isinstance(extent, int):
            return self.graph.number(extent, i64)
        return payload_node(self.graph, payload.ExtentOp(extent, i64), ())

    def _reduce(self, op: tensor.ReduceOp, at: tuple[Form, ...], guard: Guard) -> Node:
        graph = self.graph
        used = either(graph.free_of(form) for form in (*at, *(c[0] for c in guard)))
        shape, dims = extents_of(op.source.type), set(op.dims.get_values())
        outer, coordinates, variables = iter(at), list[Form](), list[int]()
        for position, extent in enumerate(shape):
            if position not in dims:
                coordinates.append(next(outer))
                continue
            # The first variable of this extent that the indices do not use, so that equal reductions share variables.
            numbered = (graph.variable(("reduce", ordinal, extent)) for ordinal in count())
            form, digits = next(v for v in numbered if not any(used >> d & 1 for d in v[1]))
            used |= either(1 << d for d in digits)
            coordinates.append(form)
            variables.extend(digits)
        body = self.value(op.source, tuple(coordinates), guard)
        return graph.reduce(op.kind.data, tuple(variables), body, op)

    def _scan(self, op: tensor.PrefixScanOp, at: tuple[Form, ...], guard: Guard) -> Node:
        """Returns a scan as a node. Its coordinate along the scanned dimension must be a plain variable that no other
        coordinate uses; `required_values` materialises scans with other users."""
        graph, dim = self.graph, op.dim.value.data
        if extents_of(op.source.type)[dim] == 1:
            return self.value(op.source, at, guard)
        others = (*at[:dim], *at[dim + 1 :], *(c[0] for c in guard))
        (variable,) = at[dim].atoms() if len(at[dim].terms) == 1 else [None]
        scanned = graph.free_of(at[dim])
        if variable is None or at[dim] != axis(variable[1]) or either(map(graph.free_of, others)) & scanned:
            raise refused(
                op,
                "expected its result to be read along the scanned index alone, but got another index",
                UnsupportedError,
            )
        return graph.scan(op.kind.data, variable[1], self.value(op.source, at, guard), op)

    _rules: ClassVar[dict[type[Operation], Callable[[Pull, Any, tuple[Form, ...], Guard], Node]]] = {
        payload.ConstantOp: _constant,
        tensor.IotaOp: _iota,
        tensor.IndexMapOp: _view,
        tensor.ReduceOp: _reduce,
        tensor.PrefixScanOp: _scan,
        payload.AssertOp: _assert,
        tensor.GatherOp: _gather,
    }
    """Operation -> method that pulls its result. Other operations are elementwise payload."""


def _dummy(type: Attribute) -> SSAValue:
    """Returns an operand for an operation that serves as a template: its name, properties and types alone are used."""
    return payload.ConstantOp(0, type).result


@cache
def _select(type: Attribute) -> Operation:
    return payload.SelectOp(_dummy(i1), _dummy(type), _dummy(type))


_GE = payload.CmpOp("ge", _dummy(i64), _dummy(i64))
_LT = payload.CmpOp("lt", _dummy(i64), _dummy(i64))
_AND = arith.AndIOp(_dummy(i1), _dummy(i1))
"""Templates of the operations that compute guards."""


# Pulling for a search

MAX_COMPLEXITY = 100
"""Maximum sum of `affine.complexity` over the coordinates of an element. Coordinates grow by a factor with each reshape
that splits dimensions differently than the one before."""


@dataclass(eq=False)
class Pulled:
    """An element of a tensor that was pulled: its node, and the elements that the node needs."""

    node: Node
    operands: list[Pulled]
    """Elements that were pulled to compute it."""


Memo: TypeAlias = dict[tuple[SSAValue, tuple[Form, ...], Guard, int], Pulled]
"""(Value, coordinates, guard, bit mask) -> pulled element. The mask holds the inlined stops from which the
value is computed, because the node depends on them."""


@dataclass
class LimitedPull(Pull):
    """Pull of one kernel in a search that compares many. Kernels share a graph, and elements pulled for another kernel
    are reused. A kernel computes the stops in `inlined` instead of loading them."""

    inlined: int = 0
    """Bit mask of the stops that this kernel computes itself."""
    computed_from: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Value -> bit mask of the stops from which it is computed, itself included. Needed if `inlined` is not 0."""
    memo: Memo = field(default_factory=Memo)
    """Elements that were pulled into `graph` by any kernel of the search."""
    limit: int = 0
    """Maximum number of elements. `value` raises TooLarge for more."""
    _operands: list[Pulled] = field(default_factory=list[Pulled], init=False)
    _counted: set[Pulled] = field(default_factory=set[Pulled], init=False)
    """Elements of this kernel."""

    def value(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Node:
        """Returns the node of element `at` of `value`, as `Pull.value` does, and counts the element.

        Args:
            value: Tensor, or scalar with `at = ()`.
            at: Coordinates, one form for each dimension.
            guard: Condition under which the element is used.

        Raises:
            TooLarge: If the kernel has `limit` elements already, or `at` is more complex than `MAX_COMPLEXITY`.
        """
        key = (value, at, guard, self.inlined and self.inlined & self.computed_from.get(value, 0))
        pulled = self.memo.get(key)
        if pulled is None:
            if len(self._counted) >= self.limit or sum(map(complexity, at)) > MAX_COMPLEXITY:
                raise TooLarge
            outer, self._operands = self._operands, []
            pulled = self.memo[key] = Pulled(self._pull(value, at, guard), self._operands)
            self._operands = outer
            self._counted.add(pulled)
        elif pulled not in self._counted:
            self._count(pulled)
        self._operands.append(pulled)
        return pulled.node

    def _is_computed(self, value: SSAValue) -> bool:
        number = self.stops.get(value, -1)
        return not in_memory(value) and (number < 0 or bool(self.inlined >> number & 1))

    def _check_limit(self) -> None:
        if len(self._counted) >= self.limit:
            raise TooLarge

    def _count(self, pulled: Pulled) -> None:
        """Counts an element that was pulled for another kernel, after its operands."""
        self._check_limit()
        path, counted = [(pulled, iter(pulled.operands))], self._counted
        while path:
            element, operands = path[-1]
            for operand in operands:
                if operand not in counted:
                    self._check_limit()
                    path.append((operand, iter(operand.operands)))
                    break
            else:
                counted.add(element)
                path.pop()
