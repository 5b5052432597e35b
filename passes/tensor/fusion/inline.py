"""Pulling a tensor value into a kernel: its definition, with the index substituted, down to what is in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, ClassVar, TypeAlias, cast, get_args

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerType, TensorType, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import element_type, is_float, is_payload, is_tensor
from ....dialects.payload.folding import decided, same_as_operand
from ....dialects.shapes.affine import Form, add, complexity, constant, dim as axis
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.support.calls import Call
from ....dialects.support.locations import refused
from ....dialects.tensor import ROOT, ReductionKind
from ....errors import UnsupportedError
from .graph import Constant, Constraint, Graph, Guard, Index, Load, Node, Scalar, TooLarge, conjunction, either


def payload_node(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node:
    """The payload op `op` on `operands`, or what it folds to."""
    folder = _FOLDERS.get(type(op))
    folded = folder(graph, op, operands) if folder is not None else None
    return folded if folded is not None else graph.payload(op, operands)


def _form(node: Node) -> Form | None:
    if isinstance(node, Index):
        return node.form
    if isinstance(node, Constant) and isinstance(node.type, IntegerType):
        return constant(int(node.number))
    return None


def _index(graph: Graph, form: Form, type: Attribute, op: Operation) -> Node | None:
    """`form` as a value of `type`, if it is known not to overflow."""
    own = type
    if not isinstance(type, IntegerType) or type == i1:
        return None
    return graph.index(form, own, op) if graph.simplifier.fits(form, own) else None


def _fold_arithmetic(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    a, b = _form(operands[0]), _form(operands[1])
    form = None if a is None or b is None else graph.simplifier.computed(op.name, a, b)
    if form is None or operands[0].type == i1:
        return None
    return _index(graph, graph.simplifier.tidy(form), operands[0].type, op)


def _fold_compare(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    assert isinstance(op, payload.CmpOp)
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None:
        return None
    bounds = graph.simplifier.interval(graph.simplifier.tidy(add(a, b, -1)))
    if bounds is None:
        return None
    known = decided(op.predicate.data, *bounds)
    return None if known is None else graph.number(known, i1)


def _fold_operand(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    """One of the operands, where constants among them decide that it is the result."""
    known = [o.number if isinstance(o, Constant) else None for o in operands]
    if (number := same_as_operand(op, known)) is not None:
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


@contextmanager
def deep_recursion(depth: int = 20_000) -> Generator[None]:
    """Allow recursion along chains of that many operations."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, depth))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


MAX_COMPLEXITY = 100
"""Of the coordinates of one element, where there is a limit: each reshape that cuts across the one before it makes them
several times as complex."""

_GIVEN = frozenset[type]({Block, *get_args(Call)})
"""Asked for by the type itself, because it is asked often and xDSL's abstract classes make isinstance slow."""


def in_memory(value: SSAValue) -> bool:
    """Whether `value` is not computed here: an argument, or what a call gives."""
    return type(value.owner) in _GIVEN


CHEAP = 32
"""Operations that are not worth a kernel of their own."""


def materialized(function: func.FuncOp) -> dict[SSAValue, None]:
    """The tensors that `function` keeps in memory: those that it has to, and what is marked, in program order.

    What calls give is in memory anyway.
    """
    needed = kept_values(function)
    ops = [op for op in function.body.block.ops if not isinstance(op, Call)]
    found = ((op, result) for op in ops for result in op.results if isinstance(result.type, TensorType))
    return {result: None for op, result in found if ROOT in op.attributes or result in needed}


def kept_values(function: func.FuncOp) -> set[SSAValue]:
    """What `function` returns, what it passes to operations of the host, and sums that are compared with themselves.

    The nest of a scatter computes its values and places, as far as that is cheap, so the tensors that they are computed
    from are kept. The nest of a scan computes the source and the elementwise operations on its result alike, and its
    result is kept."""
    found, ops = set[SSAValue](), function.body.block.ops
    if any(isinstance(op, payload.CmpOp) for op in ops):
        found |= compared_sums(function)
    for op in function.body.block.ops:
        if isinstance(op, tensor.ScatterOp):
            computed = (op.values, *op.indices)
            found.update((op.init,), *map(elementwise_sources, computed))
        elif isinstance(op, tensor.PrefixScanOp):
            found.update((_end_of_scan(op.result),), elementwise_sources(op.source))
        elif isinstance(op, Call | func.ReturnOp):
            found.update(op.operands)
    return found


def _end_of_scan(value: SSAValue) -> SSAValue:
    """Returns the last of the elementwise operations that follow a scan with the result `value`, each the only user of
    the one before it; other users would read the scan along other indices, or in other nests."""
    while len(users := {use.operation for use in value.uses}) == 1:
        (user,) = users
        if not is_payload(user) or extents_of(user.results[0].type) != extents_of(value.type):
            break
        value = user.results[0]
    return value


def elementwise_sources(value: SSAValue) -> list[SSAValue]:
    """The tensors that `value` is computed from by views and elementwise operations alone; itself, if those are many.

    Arguments, and what operations of the host give, are in memory anyway and left out."""
    found, seen, left = dict[SSAValue, None](), set[SSAValue](), [value]
    while left:
        one = left.pop()
        if one in seen or not isinstance(one.owner, Operation) or not is_tensor(one.type):
            continue
        if len(seen) == CHEAP:
            return [value]
        seen.add(one)
        if is_elementwise(one.owner):
            left += one.owner.operands
        elif not isinstance(one.owner, Call):
            found.setdefault(one)
    return list(found)


def is_elementwise(op: Operation) -> bool:
    """Whether each element of the result takes an operation at most, or only a place to read at."""
    return is_payload(op) or isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp)


@dataclass(eq=False)
class Pulled:
    """An element that was pulled, and the elements that it was pulled from."""

    node: Node
    parts: list[Pulled]


Memo: TypeAlias = dict[tuple[SSAValue, tuple[Form, ...], Guard, int], Pulled]
"""By value, element, guard, and what is inlined of the stops that the value is computed from."""


@dataclass
class Pull:
    """Pulls values into `graph`, stopping at `stops` (values that are in memory) and at arguments of the function."""

    graph: Graph
    stops: Mapping[SSAValue, int]
    """Each with a number of its own."""
    inlined: int = 0
    """Those of `stops` that are computed all the same, as bits."""
    computed_from: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Value -> those of `stops` that it is computed from, itself included, as bits; needed if some are inlined."""
    limit: int | None = None
    """Raise TooLarge beyond that many values."""
    memo: Memo = field(default_factory=Memo)
    """What was pulled into `graph` before, from the same stops."""
    _parts: list[Pulled] = field(default_factory=list[Pulled])
    _counted: set[Pulled] = field(default_factory=set[Pulled])

    def element(self, type: Attribute) -> tuple[tuple[Form, ...], tuple[int, ...]]:
        """The indices of an element of a tensor of this type, and their variables."""
        made = [self.graph.variable(("free", position, extent)) for position, extent in enumerate(extents_of(type))]
        return tuple(form for form, _ in made), tuple(d for _, digits in made for d in digits)

    def root(self, value: SSAValue) -> tuple[Node, tuple[int, ...]]:
        """What the kernel that stores `value` computes for each element, and the variables of its dimensions."""
        at, variables = self.element(value.type)
        if in_memory(value):
            return self.value(value, at, ()), variables
        return self._define(cast(Operation, value.owner), at, ()), variables

    def value(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Node:
        """Element `at` of `value`; where the guard fails it is anything, but touches no memory."""
        key = (value, at, guard, self.inlined and self.inlined & self.computed_from.get(value, 0))
        pulled = self.memo.get(key)
        if pulled is None:
            self._room()
            outer, self._parts = self._parts, []
            number = None if in_memory(value) else self.stops.get(value, -1)
            if number is not None and (number < 0 or self.inlined >> number & 1):
                node = self._define(cast(Operation, value.owner), at, guard)
            elif isinstance(value.type, TensorType):
                node = self._load(value, at, guard)
            else:
                node = self.graph.scalar(value)
            pulled = self.memo[key] = Pulled(node, self._parts)
            self._parts = outer
            self._counted.add(pulled)
        elif self.limit is not None and pulled not in self._counted:
            self._count(pulled)
        self._parts.append(pulled)
        return pulled.node

    def _room(self) -> None:
        if self.limit is not None and len(self._counted) >= self.limit:
            raise TooLarge

    def _count(self, pulled: Pulled) -> None:
        """Count what was pulled before, as if it were pulled now: an element when all of its parts are."""
        self._room()
        path, counted = [(pulled, iter(pulled.parts))], self._counted
        while path:
            one, parts = path[-1]
            for part in parts:
                if part not in counted:
                    self._room()
                    path.append((part, iter(part.parts)))
                    break
            else:
                counted.add(one)
                path.pop()

    def _load(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Node:
        needed = self._needed(value, at, guard)
        fill = self.graph.number(0, element_type(value.type)) if needed else None
        return self.graph.load(value, at, needed, fill, chosen=False)

    def _needed(self, value: SSAValue, at: tuple[Form, ...], guard: Guard) -> Guard:
        """The part of the guard that has to do with coordinates that might leave the tensor."""
        graph, needed = self.graph, set[Constraint]()
        unsafe = set[tuple[object, ...]]()
        for coordinate, extent in zip(at, extents_of(value.type), strict=True):
            if not graph.simplifier.within(coordinate, 0, extent):
                bound = next((c for c in guard if graph.simplifier.within(coordinate, 0, extent, c)), None)
                if bound is None:
                    unsafe |= set(coordinate.atoms())
                else:
                    needed.add(bound)
        rest = [c for c in guard if c not in needed]
        while unsafe and (found := [c for c in rest if not unsafe.isdisjoint(c[0].atoms())]):
            needed |= set(found)
            rest = [c for c in rest if c not in needed]
            for c in found:
                unsafe |= set(c[0].atoms())
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
        if self.limit is not None and sum(map(complexity, coordinates)) > MAX_COMPLEXITY:
            raise TooLarge
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
        """The assertion, which says nothing where the guard fails: there is no element."""
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
        """Element `at` of `source` where the constraints hold, else the fill (zero without one)."""
        graph = self.graph
        if fill_value is None:
            fill: Node = graph.number(0, element_type(source.type))
        else:
            fill = self.value(fill_value, (), ())
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
        """Whether the constraints hold, as an i1."""
        graph, result = self.graph, None
        for form, lo, hi in constraints:
            value = graph.index(form, i64, None)
            for compare, bound in ((_GE, lo), (_LT, hi)):
                side = payload_node(graph, compare, (value, self._size(bound)))
                result = side if result is None else payload_node(graph, _AND, (result, side))
        assert result is not None
        return result

    def _size(self, extent: Extent) -> Node:
        """An extent as an i64."""
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
            # The first variable of this extent that is free.
            numbered = (graph.variable(("reduce", ordinal, extent)) for ordinal in count())
            form, digits = next(v for v in numbered if not any(used >> d & 1 for d in v[1]))
            used |= either(1 << d for d in digits)
            coordinates.append(form)
            variables.extend(digits)
        body = self.value(op.source, tuple(coordinates), guard)
        return graph.reduce(op.kind.data, tuple(variables), body, op)

    def _scan(self, op: tensor.PrefixScanOp, at: tuple[Form, ...], guard: Guard) -> Node:
        """A scan, where it is read along the variable that it runs along (`scanned_values` keeps any other)."""
        graph, dim = self.graph, op.dim.value.data
        if extents_of(op.source.type)[dim] == 1:
            return self.value(op.source, at, guard)
        others = (*at[:dim], *at[dim + 1 :], *(c[0] for c in guard))
        (variable,) = at[dim].atoms() if len(at[dim].terms) == 1 else [None]
        own = graph.free_of(at[dim])
        if variable is None or at[dim] != axis(variable[1]) or either(map(graph.free_of, others)) & own:
            raise refused(op, "is read along another index than the scan runs along", UnsupportedError)
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
    """How the value of an op is pulled; of all others as an elementwise operation."""


def _dummy(type: Attribute) -> SSAValue:
    return payload.ConstantOp(0, type).result


@cache
def _select(type: Attribute) -> Operation:
    return payload.SelectOp(_dummy(i1), _dummy(type), _dummy(type))


_GE = payload.CmpOp("ge", _dummy(i64), _dummy(i64))
_LT = payload.CmpOp("lt", _dummy(i64), _dummy(i64))
_AND = arith.AndIOp(_dummy(i1), _dummy(i1))
"""Ops that stand for what guards compute; only their names, properties and result types matter."""


ROUNDED = (ReductionKind.ADD, ReductionKind.MUL)


def compared_sums(function: func.FuncOp) -> set[SSAValue]:
    """The sums and products of floats from which both sides of a comparison are computed, not by way of others: they
    have to be computed once. Two kernels, or one in two ways, may add in different orders, and the last bits differ:
    then no element equals the largest of all, as the gradient of a maximum asks, and the ranks of a sort are no
    permutation. Everything else has the same bits wherever it is computed."""
    sums: list[SSAValue] = []
    nearest: dict[SSAValue, int] = {}
    found = 0
    for op in function.body.block.ops:
        if isinstance(op, Call):
            continue  # what it gives is in memory
        sides = [nearest.get(v, 0) for v in op.operands]
        if isinstance(op, payload.CmpOp) and op.lhs is not op.rhs:
            found |= sides[0] & sides[1]
        if _is_rounded(op):
            nearest[op.results[0]] = 1 << len(sums)
            sums.append(op.results[0])
        else:
            nearest.update(dict.fromkeys(op.results, either(sides)))
    return {value for i, value in enumerate(sums) if found >> i & 1}


def _is_rounded(op: Operation) -> bool:
    return isinstance(op, tensor.ReduceOp) and op.kind.data in ROUNDED and is_float(element_type(op.result.type))
