"""From tensors to loop nests: every materialised value becomes one nest."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IndexType, ModuleOp, TensorType, UnknownLoc, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass

from ..dialects import loop, payload, tensor
from ..dialects.calls import Call
from ..dialects.domain import DomainAttr
from ..dialects.extents import extents_of
from ..dialects.locations import location_of
from ..dialects.payload import element_type
from .fusion.graph import Constant, Graph, Guard, Index, Load, Node, Payload, Reduce, Scalar
from .fusion.plan import ROOT, materialized
from .fusion.pull import Pull, deep_recursion
from .index_simplify import DIV, MOD, Form, renumbered, write

FREE_NAMES = ("i", "j", "m", "n", "p", "q")
REDUCED_NAMES = ("k", "r", "s", "t")


@dataclass(frozen=True)
class LowerTensorToLoopPass(ModulePass):
    """Make one `loop.nest` of each materialised value.

    What: the materialised values are the results of the function and what is marked `fuse.root`. The nest of a value
    is its definition, pulled in at the nest's indices until other materialised values or arguments are reached: views
    become the maps and domains of loads, reductions nested `loop.reduce`s, everything else the payload on scalars.
    Each value is computed once, in the outermost body that knows its indices. Result values that are arguments, or
    the same as an earlier result, become nests that copy. Calls stay, and get what the nests compute; so do scatters,
    whose values and indices are results of one nest. Mechanical: what to fuse was decided before.
    Why here: after plan-fusion, before anything that looks at loops.

    ```mlir
    %b = tensor.index_map %bias[affine_map<(d0, d1) -> (d1)>] : tensor<64xf32> -> tensor<16x64xf32>
    %s = arith.addf %x, %b : tensor<16x64xf32>
    %r = tensor.reduce add %s over [1] : tensor<16x64xf32> -> tensor<16xf32>
    ```
    becomes
    ```mlir
    %r = loop.nest (%i) in [16] -> tensor<16xf32> {
      %0 = loop.reduce add (%k) in [64] -> f32 {
        %1 = loop.load %x[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<16x64xf32>
        %2 = loop.load %bias[affine_map<(d0) -> (d0)>](%k) : tensor<64xf32>
        %3 = arith.addf %1, %2 : f32
        loop.yield %3 : f32
      }
      loop.yield %0 : f32
    }
    ```
    """

    name = "lower-tensor-to-loop"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    lower_function(function)


def lower_function(function: func.FuncOp) -> None:
    """Replace the tensor-level body of `function` by nests."""
    block = function.body.block
    end = block.last_op
    assert isinstance(end, func.ReturnOp)
    roots = materialized(function)
    old = [op for op in block.ops if op is not end]
    graph = Graph()
    nests = dict[SSAValue, SSAValue]()
    pull = Pull(graph, frozenset(roots))
    for op in old:
        if isinstance(op, tensor.ScatterOp):
            _place_scatter(op, pull, nests)
        for result in op.results:
            if result in roots:
                nest = build_nest(pull, result, nests)
                block.insert_op_before(nest, op)
                nests[result] = nest.res[0]
    returned = list[SSAValue]()
    for value in end.operands:
        result = value if isinstance(value.owner, Call) else nests.get(value)
        if isinstance(value.type, TensorType) and (result is None or result in returned):
            copy = build_nest(Pull(graph, frozenset()), result or value, {})
            block.insert_op_before(copy, end)
            result = copy.res[0]
        returned.append(result or value)
    for position, value in enumerate(returned):
        end.operands[position] = value
    for op in old:
        if isinstance(op, Call):
            for position, operand in enumerate(op.operands):
                op.operands[position] = nests.get(operand, operand)
    for op in reversed(old):
        if isinstance(op, Call):
            continue
        if not any(result.has_one_use() or result.uses for result in op.results):
            op.detach()
            op.erase()


def _place_scatter(op: tensor.ScatterOp, pull: Pull, nests: dict[SSAValue, SSAValue]) -> None:
    """Let one nest in front of `op` compute its values and indices, and another one what it starts from."""
    computed = [op.values, *op.indices]
    forms = [pull.graph.variable(("free", i, n)) for i, n in enumerate(extents_of(op.values.type))]
    roots = [pull.value(v, tuple(form for form, _ in forms), ()) for v in computed]
    variables = tuple(d for _, digits in forms for d in digits)
    nest = make_nest(pull.graph, roots, variables, [element_type(v.type) for v in computed], nests)
    nest.location = location_of(op)
    _place(nest)
    block = op.parent
    assert block is not None
    block.insert_op_before(nest, op)
    if op.init not in nests:
        start = build_nest(Pull(pull.graph, frozenset()), op.init, nests)
        block.insert_op_before(start, op)
        op.operands[0] = start.res[0]
    for i, result in enumerate(nest.res):
        op.operands[1 + i] = result
        result.name_hint = computed[i].name_hint


def build_nest(pull: Pull, value: SSAValue, nests: dict[SSAValue, SSAValue]) -> loop.NestOp:
    """The nest that computes the tensor `value`; loads of a value in `nests` read what it maps to."""
    if isinstance(value.owner, loop.NestOp):
        pull = Pull(pull.graph, frozenset((value,)))
        forms = [pull.graph.variable(("free", i, n)) for i, n in enumerate(extents_of(value.type))]
        root: Node = pull.value(value, tuple(form for form, _ in forms), ())
        variables = tuple(d for _, digits in forms for d in digits)
    else:
        root, variables = pull.root(value)
    nest = make_nest(pull.graph, [root], variables, [element_type(value.type)], nests)
    nest.res[0].name_hint = value.name_hint
    if isinstance(value.owner, Operation):
        nest.location = location_of(value.owner)
        _place(nest)
    return nest


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


def _place(nest: loop.NestOp) -> None:
    """Give ops without a location the one of the nest."""
    for op in nest.walk():
        if isinstance(op.location, UnknownLoc):
            op.location = nest.location


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
        op = loop.ReduceOp(node.kind, extents, node.type, Region(scope.block))
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
