"""A kernel as a graph, written as a loop nest."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, UnknownLoc, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap

from ....dialects import loop, payload
from ....dialects.shapes.affine import DIV, MOD, Form, renumbered, write
from ....dialects.shapes.domain import DomainAttr
from ....dialects.support.locations import location_of
from ....dialects.tensor import ROOT
from .graph import Constant, Graph, Guard, Index, Load, Node, Payload, Reduce, Scalar

FREE_NAMES = ("i", "j", "m", "n", "p", "q")


REDUCED_NAMES = ("k", "r", "s", "t")


def make_nest(
    graph: Graph,
    roots: Sequence[Node],
    variables: tuple[int, ...],
    elements: Sequence[Attribute],
    nests: dict[SSAValue, SSAValue],
) -> loop.NestOp:
    """A nest over `variables` that yields `roots`."""
    body = _Emitter(graph, nests).nest_body(roots, variables)
    return loop.NestOp([graph.sizes[v] for v in variables], elements, body)


@dataclass
class _Scope:
    """A body under construction: the variables it binds and the values computed in it."""

    bound: int
    block: Block
    arguments: dict[int, BlockArgument]
    values: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])


@dataclass
class _Emitter:
    """Prints a graph as ops, each node in the outermost scope that binds what it depends on."""

    graph: Graph
    nests: dict[SSAValue, SSAValue]
    scopes: list[_Scope] = field(default_factory=list[_Scope])

    def nest_body(self, roots: Sequence[Node], variables: tuple[int, ...]) -> Region:
        self.scopes = [self._scope(variables, FREE_NAMES)]
        results = [self.value(root) for root in roots]
        block = self.scopes[0].block
        block.add_op(loop.YieldOp(*results))
        return Region(block)

    def _scope(self, variables: tuple[int, ...], names: Sequence[str]) -> _Scope:
        block = Block(arg_types=[IndexType()] * len(variables))
        bound = 0
        for position, (variable, argument) in enumerate(zip(variables, block.args, strict=True)):
            bound |= 1 << variable
            argument.name_hint = names[position % len(names)]
        return _Scope(bound, block, dict(zip(variables, block.args, strict=True)))

    def _depth(self, free: int) -> int:
        """The innermost scope that binds one of the variables."""
        for depth in range(len(self.scopes) - 1, 0, -1):
            if self.scopes[depth].bound & free:
                return depth
        return 0

    def value(self, node: Node) -> SSAValue:
        """The SSA value of `node`, computed if it is not there yet."""
        depth = self._depth(node.free)
        found = self.scopes[depth].values.get(node)
        if found is None:
            found = self._compute(node, depth)
            self.scopes[depth].values[node] = found
        return found

    def _compute(self, node: Node, depth: int) -> SSAValue:
        if isinstance(node, Scalar):
            return node.value
        if isinstance(node, Constant):
            return self._add(depth, payload.ConstantOp(node.value, node.type), node)
        if isinstance(node, Index):
            return self._index(node, depth)
        if isinstance(node, Load):
            return self._load(node, depth)
        if isinstance(node, Reduce):
            return self._reduce(node, depth)
        assert isinstance(node, Payload)
        assert node.op is not None
        operands = [self.value(operand) for operand in node.operands]
        op = payload.retyped(node.op, operands, node.type)
        op.attributes.pop(ROOT, None)
        return self._add(depth, op, node)

    def _add(self, depth: int, op: Operation, node: Node | None) -> SSAValue:
        if node is not None and node.op is not None and isinstance(op.location, UnknownLoc):
            op.location = location_of(node.op)
        self.scopes[depth].block.add_op(op)
        return op.results[0]

    def _reduce(self, node: Reduce, depth: int) -> SSAValue:
        hidden = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        names = REDUCED_NAMES[self.graph.keys[node.variables[0]][0][1] % len(REDUCED_NAMES) :] + REDUCED_NAMES
        scope = self._scope(node.variables, names)
        self.scopes.append(scope)
        scope.block.add_op(loop.YieldOp(self.value(node.body)))
        self.scopes.pop()
        self.scopes.extend(hidden)
        extents = [self.graph.sizes[v] for v in node.variables]
        op = loop.ReduceOp(node.kind, extents, Region(scope.block), node.type)
        return self._add(depth, op, node)

    def _access(
        self, coordinates: Sequence[Form], guard: Guard
    ) -> tuple[AffineMap, list[SSAValue], list[SSAValue], DomainAttr | None]:
        """The map, indices, symbols and domain for an access at these coordinates."""
        forms = (*coordinates, *(c[0] for c in guard))
        symbol_numbers = sorted({atom[1] for f in forms for atom in f.atoms() if atom[0] == 1})
        own = {atom[1] for f in forms for atom in f.atoms() if atom[0] == 0}
        dims = {v: a for scope in self.scopes for v, a in scope.arguments.items() if v in own}  # the innermost of each
        dim_names = {v: i for i, v in enumerate(dims)}
        symbol_names = {s: i for i, s in enumerate(symbol_numbers)}
        renamed = [renumbered(f, dim_names, symbol_names) for f in forms]
        shape = (len(dims), len(symbol_numbers))
        exprs = [write(f) for f in renamed]
        domain = None
        if guard:
            constrained = AffineMap(*shape, tuple(exprs[len(coordinates) :]))
            domain = DomainAttr.get(constrained, [(lo, hi) for _, lo, hi in guard])
        symbols = [self._as_index(self.graph.symbols[s]) for s in symbol_numbers]
        return AffineMap(*shape, tuple(exprs[: len(coordinates)])), list(dims.values()), symbols, domain

    def _as_index(self, node: Node) -> SSAValue:
        """The integer `node` as an `index`."""
        value, depth = self.value(node), self._depth(node.free)
        key = (node, "index")
        found = self.scopes[depth].values.get(key)
        if found is None:
            found = self.scopes[depth].values[key] = self._add(depth, payload.CastOp(value, IndexType()), node)
        return found

    def _load(self, node: Load, depth: int) -> SSAValue:
        map, indices, symbols, domain = self._access(node.coordinates, node.guard)
        fill = self.value(node.fill) if node.fill is not None else None
        source = self.nests.get(node.source, node.source)
        op = loop.LoadOp(source, map, indices, symbols, domain, fill)
        return self._add(depth, op, node)

    def _index(self, node: Index, depth: int) -> SSAValue:
        value = self._form(node.form, depth)
        if node.type == i64:
            return value
        return self._add(depth, payload.CastOp(value, node.type), node)

    def _form(self, form: Form, depth: int) -> SSAValue:
        """`form` computed in i64."""
        scope = self.scopes[depth]
        found = scope.values.get(form)
        if found is not None:
            return found
        total: SSAValue | None = None
        for atom, coefficient in form.terms:
            term = self._atom(atom, depth)
            if coefficient != 1:
                term = self._add(depth, arith.MuliOp(term, self._number(coefficient)), None)
            total = term if total is None else self._add(depth, arith.AddiOp(total, term), None)
        if total is None:
            total = self._number(form.constant)
        elif form.constant:
            total = self._add(depth, arith.AddiOp(total, self._number(form.constant)), None)
        scope.values[form] = total
        return total

    def _number(self, number: int) -> SSAValue:
        return self.value(self.graph.number(number, i64))

    def _atom(self, atom: tuple[object, ...], depth: int) -> SSAValue:
        scope = self.scopes[depth]
        found = scope.values.get(atom)
        if found is None:
            found = scope.values[atom] = self._new_atom(atom, depth)
        return found

    def _new_atom(self, atom: tuple[object, ...], depth: int) -> SSAValue:
        number = atom[1]
        if atom[0] in (DIV, MOD):
            inner, divisor = Form(atom[1], atom[2]), atom[3]  # pyright: ignore[reportArgumentType]
            assert isinstance(divisor, int)
            dividend = self._form(inner, depth)
            bounds = self.graph.simplifier.interval(inner)
            if atom[0] == DIV:
                return self._add(depth, arith.FloorDivSIOp(dividend, self._number(divisor)), None)
            rest = self._add(depth, arith.RemSIOp(dividend, self._number(divisor)), None)
            if bounds is not None and bounds[0] >= 0:
                return rest
            again = self._add(depth, arith.AddiOp(rest, self._number(divisor)), None)
            return self._add(depth, arith.RemSIOp(again, self._number(divisor)), None)
        assert isinstance(number, int)
        if atom[0] == 1:
            return self._symbol_value(self.graph.symbols[number], depth)
        argument = next(s.arguments[number] for s in reversed(self.scopes) if number in s.arguments)
        return self._add(depth, payload.CastOp(argument, i64), None)

    def _symbol_value(self, node: Node, depth: int) -> SSAValue:
        value = self.value(node)
        return value if node.type == i64 else self._add(depth, payload.CastOp(value, i64), None)
