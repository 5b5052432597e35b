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
from ....dialects.shapes.affine import DIM, DIV, MOD, SYM, Atom, Form, renumbered, write
from ....dialects.shapes.domain import DomainAttr
from ....dialects.support.locations import location_of
from ....dialects.tensor import ROOT
from .graph import Constant, Graph, Index, Load, Node, Payload, Reduce, Scalar, Scan

FREE_NAMES = ("i", "j", "m", "n", "p", "q")


REDUCED_NAMES = ("k", "r", "s", "t")


def make_nest(
    graph: Graph,
    roots: Sequence[Node],
    variables: tuple[int, ...],
    elements: Sequence[Attribute],
    nests: dict[SSAValue, SSAValue],
) -> loop.NestOp:
    """A nest over `variables` that yields `roots`; what reads a value in `nests` reads what it maps to."""
    body = _Emitter(graph, nests).body(roots, variables, FREE_NAMES)
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

    def body(self, roots: Sequence[Node], variables: tuple[int, ...], names: Sequence[str]) -> Region:
        """A body inside of the scopes that binds `variables` and yields `roots`."""
        block = Block(arg_types=[IndexType()] * len(variables))
        for position, argument in enumerate(block.args):
            argument.name_hint = names[position % len(names)]
        bound = sum(1 << variable for variable in variables)
        self.scopes.append(_Scope(bound, block, dict(zip(variables, block.args, strict=True))))
        block.add_op(loop.YieldOp(*[self.value(root) for root in roots]))
        self.scopes.pop()
        return Region(block)

    def _depth(self, free: int) -> int:
        """The innermost scope that binds one of the variables."""
        return max((depth for depth, scope in enumerate(self.scopes) if scope.bound & free), default=0)

    def value(self, node: Node) -> SSAValue:
        """The SSA value of `node`, computed if it is not there yet."""
        depth = self._depth(node.free)
        found = self.scopes[depth].values.get(node)
        if found is None:
            found = self.scopes[depth].values[node] = self._compute(node, depth)
        return found

    def _compute(self, node: Node, depth: int) -> SSAValue:
        if isinstance(node, Scalar):
            return node.value
        if isinstance(node, Index):
            value = self._form(node.form, depth)
            return value if node.type == i64 else self._add(depth, payload.CastOp(value, node.type), node)
        if isinstance(node, Constant):
            op: Operation = payload.ConstantOp(node.value, node.type)
        elif isinstance(node, Load):
            op = self._load(node)
        elif isinstance(node, Reduce):
            op = self._reduce(node, depth)
        elif isinstance(node, Scan):
            index = next(s.arguments[node.variable] for s in self.scopes if node.variable in s.arguments)
            op = loop.ScanOp(node.kind, self.value(node.body), index)
        else:
            assert isinstance(node, Payload)
            assert node.op is not None
            op = payload.retyped(node.op, [self.value(operand) for operand in node.operands], node.type)
            op.attributes.pop(ROOT, None)
        return self._add(depth, op, node)

    def _add(self, depth: int, op: Operation, node: Node | None = None) -> SSAValue:
        if node is not None and node.op is not None and isinstance(op.location, UnknownLoc):
            op.location = location_of(node.op)
        self.scopes[depth].block.add_op(op)
        return op.results[0]

    def _reduce(self, node: Reduce, depth: int) -> loop.ReduceOp:
        hidden = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        names = REDUCED_NAMES[self.graph.keys[node.variables[0]][0][1] % len(REDUCED_NAMES) :] + REDUCED_NAMES
        body = self.body([node.body], node.variables, names)
        self.scopes.extend(hidden)
        return loop.ReduceOp(node.kind, [self.graph.sizes[v] for v in node.variables], body, node.type)

    def _load(self, node: Load) -> loop.LoadOp:
        forms = (*node.coordinates, *(c[0] for c in node.guard))
        atoms = {atom for f in forms for atom in f.atoms()}
        symbols = sorted(number for kind, number, *_ in atoms if kind == SYM)
        used = {v: a for scope in self.scopes for v, a in scope.arguments.items() if (DIM, v) in atoms}  # the innermost
        dim_names, symbol_names = ({v: i for i, v in enumerate(numbers)} for numbers in (used, symbols))
        exprs = tuple(write(renumbered(f, dim_names, symbol_names)) for f in forms)
        split, shape = len(node.coordinates), (len(used), len(symbols))
        domain = None
        if node.guard:
            domain = DomainAttr.get(AffineMap(*shape, exprs[split:]), [(lo, hi) for _, lo, hi in node.guard])
        places = [self._as_index(self.graph.symbols[s]) for s in symbols]
        fill = self.value(node.fill) if node.fill is not None else None
        source = self.nests.get(node.source, node.source)
        return loop.LoadOp(source, AffineMap(*shape, exprs[:split]), list(used.values()), places, domain, fill)

    def _as_index(self, node: Node) -> SSAValue:
        """The integer `node` as an `index`."""
        value, depth = self.value(node), self._depth(node.free)
        key = (node, "index")
        found = self.scopes[depth].values.get(key)
        if found is None:
            found = self.scopes[depth].values[key] = self._add(depth, payload.CastOp(value, IndexType()), node)
        return found

    def _form(self, form: Form, depth: int) -> SSAValue:
        """`form` computed in i64."""
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
        kind, number, *rest = atom
        if kind == DIM:
            argument = next(s.arguments[number] for s in reversed(self.scopes) if number in s.arguments)
            return self._add(depth, payload.CastOp(argument, i64))
        if kind == SYM:
            node = self.graph.symbols[number]
            value = self.value(node)
            return value if node.type == i64 else self._add(depth, payload.CastOp(value, i64))
        assert kind in (DIV, MOD)
        inner, divisor = Form(number, rest[0]), rest[1]
        dividend = self._form(inner, depth)
        bounds = self.graph.simplifier.interval(inner)
        if kind == DIV:
            return self._add(depth, arith.FloorDivSIOp(dividend, self._number(divisor)))
        remainder = self._add(depth, arith.RemSIOp(dividend, self._number(divisor)))
        if bounds is not None and bounds[0] >= 0:
            return remainder
        again = self._add(depth, arith.AddiOp(remainder, self._number(divisor)))
        return self._add(depth, arith.RemSIOp(again, self._number(divisor)))
