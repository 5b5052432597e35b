"""Which values are materialised: the fusion plan, how it is written in the program, and the search for a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import Operation, SSAValue

from ...backend.targets import TARGETS, Target
from ...dialects import payload, tensor
from ...dialects.calls import Call
from ..index_simplify import DIM, Form
from .cost import Kernel
from .graph import Graph, Index, Load, VariableKey
from .pull import Pull, TooLarge, in_memory
from .sources import inner_of_made

ROOT = "fuse.root"
"""The attribute of tensor ops whose results are kept in memory: each is the result of one kernel."""

MAX_NODES = 1_000
"""A kernel may compute that many values; views can make exponentially many of a few tensors (repeated rolls, say)."""

Legality = Callable[[Kernel], bool]
"""Whether a kernel's dependent reductions can be merged, so that what is nested in them is computed once."""


def materialized(function: func.FuncOp) -> dict[SSAValue, None]:
    """The tensors that `function` keeps in memory: what it returns or passes on and what is marked, in program order.

    What calls give is in memory anyway.
    """
    returned = set(kept_values(function))
    return {
        result: None
        for op in function.body.block.ops
        for result in op.results
        if isinstance(result.type, TensorType)
        and (ROOT in op.attributes or result in returned)
        and not isinstance(op, Call)
    }


def results_of(function: func.FuncOp) -> tuple[SSAValue, ...]:
    """What `function` returns."""
    end = function.body.block.last_op
    assert isinstance(end, func.ReturnOp)
    return tuple(end.operands)


def kept_values(function: func.FuncOp) -> tuple[SSAValue, ...]:
    """What `function` returns and what it passes to other functions."""
    calls = (op for op in function.body.block.ops if isinstance(op, Call))
    return (*results_of(function), *(operand for call in calls for operand in call.operands))


def mark(function: func.FuncOp, roots: set[SSAValue]) -> None:
    """Write the plan: mark the ops that define `roots`, and no others."""
    for op in function.body.block.ops:
        if any(result in roots for result in op.results):
            op.attributes[ROOT] = UnitAttr()
        else:
            op.attributes.pop(ROOT, None)


def candidates(function: func.FuncOp) -> list[SSAValue]:
    """The tensors worth a thought: everything but views, constants and the inside of what is made from them, which are
    never kept unless returned."""
    returned, inner = set(kept_values(function)), inner_of_made(function)
    return [
        result
        for op in function.body.block.ops
        for result in op.results
        if isinstance(result.type, TensorType)
        and not isinstance(op, Call)
        and (result in returned or not isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp))
        and (result in returned or result not in inner)
    ]


@dataclass
class Search:
    """Best-first search from the unfused program.

    A state is the set of kept candidates. A step stops keeping one of them: all kernels that read it compute it
    themselves. The step that saves most is taken, until none saves anything. Sets of candidates are bit masks.
    """

    function: func.FuncOp
    legal: Legality
    target: Target = TARGETS["sm_90a"]

    def __post_init__(self) -> None:
        self.values = candidates(self.function)
        self.number = {value: i for i, value in enumerate(self.values)}
        returned = set(kept_values(self.function))
        self.fixed = {i for i, value in enumerate(self.values) if value in returned}
        self.inputs = [self._inputs(value) for value in self.values]
        self.graphs: dict[tuple[tuple[VariableKey, tuple[int, ...]], ...], Graph] = {}
        self.costs: dict[tuple[int, int], float | None] = {}

    def _inputs(self, value: SSAValue) -> int:
        """The candidates that `value` is computed from directly or through views."""
        found, todo = 0, list(_operands(value))
        while todo:
            v = todo.pop()
            if v in self.number:
                found |= 1 << self.number[v]
            else:
                todo.extend(_operands(v))
        return found

    def run(self) -> set[SSAValue]:
        """The values to keep."""
        inlined = dict.fromkeys(range(len(self.values)), 0)  # kept candidate -> what its kernel computes besides it
        gains = {v: self._gain(v, inlined) for v in inlined if v not in self.fixed}
        while gains:
            best = min(gains, key=lambda v: (gains[v], v))
            if gains[best] >= 0:
                break
            readers = self._readers(best, inlined)
            merged = {r: inlined[r] | inlined[best] | 1 << best for r in readers}
            del inlined[best], gains[best]
            inlined.update(merged)
            touched = set(readers)
            for r in readers:
                touched |= {v for v in gains if self._sources(r, inlined) >> v & 1}
            for v in sorted(touched & gains.keys()):
                gains[v] = self._gain(v, inlined)
        return {self.values[v] for v in inlined}

    def _sources(self, root: int, inlined: dict[int, int]) -> int:
        sources, rest, v = self.inputs[root], inlined[root], 0
        while rest:
            if rest & 1:
                sources |= self.inputs[v]
            rest >>= 1
            v += 1
        return sources & ~inlined[root]

    def _readers(self, value: int, inlined: dict[int, int]) -> list[int]:
        return [r for r in inlined if r != value and self._sources(r, inlined) >> value & 1]

    def _gain(self, value: int, inlined: dict[int, int]) -> float:
        """Change of the total time if `value` is no longer kept; infinite if that is not legal."""
        readers = self._readers(value, inlined)
        own = self.cost(value, inlined[value])
        change = -own if own is not None else 0.0
        for r in readers:
            new = self.cost(r, inlined[r] | inlined[value] | 1 << value)
            old = self.cost(r, inlined[r])
            if new is None:
                return float("inf")
            change += new - (old or 0.0)
        return change

    def cost(self, root: int, inlined: int) -> float | None:
        """Seconds of the kernel that keeps `root` and computes `inlined` itself; None if it is not legal."""
        key = (root, inlined)
        if key not in self.costs:
            try:
                kernel = self.kernel(root, inlined)
                self.costs[key] = kernel.time() if self._legal(kernel) else None
            except TooLarge:
                self.costs[key] = None
        return self.costs[key]

    def kernel(self, root: int, inlined: int) -> Kernel:
        """The graph of that kernel, with dimensions split as its accesses ask for. Raises TooLarge."""
        stops = frozenset(v for i, v in enumerate(self.values) if not inlined >> i & 1)
        splits = dict[VariableKey, tuple[int, ...]]()
        while True:
            graph_key = tuple(sorted(splits.items()))
            graph = self.graphs.setdefault(graph_key, Graph(splits))
            node, variables = Pull(graph, stops, limit=MAX_NODES).root(self.values[root])
            kernel = Kernel(graph, node, variables, self.values[root].type, self.target)
            more = wanted_splits(kernel, splits)
            if more == splits:
                return kernel
            splits = more

    def _legal(self, kernel: Kernel) -> bool:
        merging = False
        for _, around in kernel.nested_contractions():
            bound = {r.variables for r in around}
            opened = {o for r, o in kernel.reductions() if r in around}
            group = [r for r, o in kernel.reductions() if r.variables in bound and o in opened]
            if len(group) > 1:
                merging = True
            elif any(c.reduce in group for c in kernel.contractions):
                return False
        return not merging or self.legal(kernel)


def _operands(value: SSAValue) -> Sequence[SSAValue]:
    """What `value` is computed from, unless it is in memory anyway."""
    return value.owner.operands if isinstance(value.owner, Operation) and not in_memory(value) else ()


def wanted_splits(kernel: Kernel, splits: dict[VariableKey, tuple[int, ...]]) -> dict[VariableKey, tuple[int, ...]]:
    """`splits`, and further digits for variables that occur under a floordiv or mod by a divisor of their extent."""
    graph = kernel.graph
    result = dict(splits)
    for form in _forms(kernel):
        for inner, divisor in form.quotients():
            if len(inner.terms) != 1 or inner.constant or inner.terms[0][1] != 1 or inner.terms[0][0][0] != DIM:
                continue
            number: int = inner.terms[0][0][1]
            extent = graph.sizes[number]
            key, digit = graph.keys[number]
            if not isinstance(extent, int) or not isinstance(key[2], int):
                continue  # a symbol has no divisors
            digits = result.get(key, (key[2],))
            if extent % divisor or digits != splits.get(key, (key[2],)):
                continue
            result[key] = (*digits[:digit], extent // divisor, divisor, *digits[digit + 1 :])
    return result


def _forms(kernel: Kernel) -> Iterator[Form]:
    for node, _ in kernel.visited:
        if isinstance(node, Load):
            yield from node.coordinates
            yield from (c[0] for c in node.guard)
        elif isinstance(node, Index):
            yield node.form
