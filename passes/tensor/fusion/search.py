"""Which values are materialised: the fusion plan, how it is written in the program, and the search for a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind

from ....dialects import payload, tensor
from ....dialects.payload import is_payload, is_tensor
from ....dialects.shapes.affine import DIM, Form
from ....dialects.shapes.extents import extents_of, most
from ....dialects.support.calls import Call
from ....dialects.target import TARGETS, Target
from ....dialects.tensor import ROOT
from .cost import Kernel
from .graph import Graph, Index, Load, Node, Reduce, TooLarge, VariableKey, children
from .inline import Pull

FEW = 16
"""Elements that are as good as none: the state of a generator, a position."""

CHEAP = 32
"""Operations that are not worth a kernel of their own."""


def inner_of_made(function: func.FuncOp) -> set[SSAValue]:
    """The values in the middle of elementwise computations that read next to nothing, and the ends of cheap ones.

    Random numbers are a hundred operations on an index. Of such a chain only the end is worth keeping in memory:
    everything before it costs as much to write and to read. A mask by the indices is a few: it is never worth it, and
    by one in memory no loop is split and no block skipped.
    """
    made: dict[SSAValue, int] = {a: 0 for a in function.body.block.args if _few(a)}
    inner = set[SSAValue]()
    for op in function.body.block.ops:
        if not _is_elementwise(op) or not all(v in made for v in op.operands):
            continue
        operations = min(sum(made[v] for v in op.operands) + is_payload(op), CHEAP + 1)
        for result in op.results:
            made[result] = operations
            if operations <= CHEAP or all(is_payload(use.operation) for use in result.uses):
                inner.add(result)
    return inner


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
        if _is_elementwise(one.owner):
            left += one.owner.operands
        elif not isinstance(one.owner, Call):
            found.setdefault(one)
    return list(found)


def _is_elementwise(op: Operation) -> bool:
    """Whether each element of the result takes an operation at most, or only a place to read at."""
    return is_payload(op) or isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp)


def _few(value: SSAValue) -> bool:
    t: Attribute = value.type
    return is_tensor(t) and prod(most(e) for e in extents_of(t)) <= FEW


LARGEST = 256
"""A kernel computes that many values at most. A launch is cheap beside them, while the time to plan kernels and to
compile them grows with their size: steps of a recurrence that run one after another would all become one kernel."""

MAX_NODES = 500
"""So many values are looked at until a kernel is too large: views can make exponentially many of a few tensors
(repeated rolls, say), of which few may be left when its dimensions have been split."""

MAX_COPIED = 200
"""What is computed in several kernels consists of that many values at most: otherwise what a recurrence hands on, which
is cheap to compute again, would make each of its steps as long as all steps before."""

MAX_DIVISIONS = 12
"""Divisions in the maps of views that are read through one another; each may make the index several times as long."""

_NONE = frozenset[int]()

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
    """What `function` returns and what it passes to operations of the host."""
    calls = (op for op in function.body.block.ops if isinstance(op, Call))
    return (*results_of(function), *(value for call in calls for value in _needed(call)))


def _needed(call: Call) -> Iterator[SSAValue]:
    """What is in memory before `call`. The nest of a scatter computes its values and places, as far as that is cheap,
    so what they are computed from is."""
    if not isinstance(call, tensor.ScatterOp):
        yield from call.operands
        return
    yield call.init
    for value in (call.values, *call.indices):
        yield from elementwise_sources(value)


def mark(function: func.FuncOp, roots: set[SSAValue]) -> None:
    """Write the plan: mark the ops that define `roots`, and no others."""
    for op in function.body.block.ops:
        if any(result in roots for result in op.results):
            op.attributes[ROOT] = UnitAttr()
        else:
            op.attributes.pop(ROOT, None)


def candidates(function: func.FuncOp) -> list[SSAValue]:
    """The tensors worth a thought: everything but views, constants and the inside of what is made from them, which are
    never kept unless returned. Of views one on top of the other, every so many are worth one."""
    returned, inner = set(kept_values(function)), inner_of_made(function)
    divisions: dict[SSAValue, int] = {}
    found = list[SSAValue]()
    for op in function.body.block.ops:
        if isinstance(op, tensor.IndexMapOp):
            divisions[op.result] = divisions.get(op.source, 0) + _divisions(op)
            worth = divisions[op.result] > MAX_DIVISIONS
        else:
            worth = not isinstance(op, Call | tensor.IotaOp | payload.ConstantOp)
        for result in op.results:
            kept = result in returned and not isinstance(op, Call)
            if isinstance(result.type, TensorType) and (kept or (worth and result not in inner)):
                divisions.pop(result, None)
                found.append(result)
    return found


def _divisions(view: tensor.IndexMapOp) -> int:
    """How many divisions there are in the map of a view."""
    kinds = (AffineBinaryOpKind.FloorDiv, AffineBinaryOpKind.Mod)
    parts = (part for result in view.map.data.results for part in result.dfs())
    return sum(isinstance(part, AffineBinaryOpExpr) and part.kind in kinds for part in parts)


@dataclass
class Search:
    """Best-first search from the unfused program.

    A state is the set of kept candidates. A step stops keeping one of them: all kernels that read it compute it
    themselves. The step that saves most is taken, until none saves anything. What a step would change is known from the
    kernels that read its value, so after a step only their gains, and those of what they read, are looked at again; and
    whether a step is legal is asked only when it is the best. Sets of candidates are bit masks.
    """

    function: func.FuncOp
    legal: Legality
    target: Target = TARGETS["sm_90a"]

    def __post_init__(self) -> None:
        self.values = candidates(self.function)
        self.number = {value: i for i, value in enumerate(self.values)}
        returned = set(kept_values(self.function))
        self.fixed = {i for i, value in enumerate(self.values) if value in returned}
        self.graphs: dict[tuple[tuple[VariableKey, tuple[int, ...]], ...], Graph] = {}
        self.costs: dict[tuple[int, int], float | None] = {}
        self.written: dict[tuple[int, int], int] = {}
        self.too_large: dict[int, list[int]] = {i: [] for i in range(len(self.values))}
        """Kept candidate -> what its kernel cannot compute besides it, nor anything more."""
        self.verdicts: dict[tuple[int, int], bool] = {}
        self.inlined = dict.fromkeys(range(len(self.values)), 0)
        """Kept candidate -> what its kernel computes besides it."""
        self.sources = self._inputs()
        """Kept candidate -> the kept candidates that its kernel reads."""
        self.readers: dict[int, set[int]] = {i: set() for i in self.inlined}
        """Kept candidate -> those whose kernels read it."""
        for reader, read in self.sources.items():
            for i in read:
                self.readers[i].add(reader)

    def _inputs(self) -> dict[int, set[int]]:
        """For each candidate those that it is computed from directly or through values that are none."""
        through: dict[SSAValue, frozenset[int]] = {}
        found: dict[int, set[int]] = {}
        for op in self.function.body.block.ops:
            if isinstance(op, Call):
                continue  # what it gives is in memory, and no candidate
            parts = [frozenset((self.number[v],)) if v in self.number else through.get(v, _NONE) for v in op.operands]
            read = parts[0] if len(parts) == 1 else _NONE.union(*parts)
            for result in op.results:
                if result in self.number:
                    found[self.number[result]] = set(read)
                else:
                    through[result] = read
        return found

    def run(self) -> set[SSAValue]:
        """The values to keep."""
        steps = {v: self._step(v) for v in self.inlined if v not in self.fixed}
        queue = [step for step in steps.values() if step[0] < 0]
        heapify(queue)
        while queue:
            step = heappop(queue)
            best = step[-1]
            if steps.get(best) != step:
                continue  # it was looked at again
            if not self._is_legal(best):
                steps[best] = (float("inf"), 0, best)
                continue
            del steps[best]
            readers = self._stop_keeping(best)
            for v in sorted((set(readers).union(*(self.sources[r] for r in readers))) & steps.keys()):
                steps[v] = self._step(v)
                if steps[v][0] < 0:
                    heappush(queue, steps[v])
        return {self.values[v] for v in self.inlined}

    def _step(self, value: int) -> tuple[float, int, int]:
        """No longer keeping `value`, as it is ranked: by what it gains, to the picosecond; of equal ones the one that
        makes the smallest kernels comes first: the kernels of a chain grow evenly, and few steps make large ones."""
        gain = self._gain(value)
        size = sum(self.inlined[r].bit_count() for r in self.readers[value]) + self.inlined[value].bit_count()
        return round(gain, 12), size, value

    def _stop_keeping(self, value: int) -> list[int]:
        """Let all kernels that read `value` compute it; gives them in program order."""
        computed = self.inlined.pop(value) | 1 << value
        sources, readers = self.sources.pop(value), sorted(self.readers.pop(value))
        for s in sources:
            self.readers[s].discard(value)
            self.readers[s].update(readers)
        for r in readers:
            self.inlined[r] |= computed
            self.sources[r].discard(value)
            self.sources[r] |= sources
        return readers

    def _gain(self, value: int) -> float:
        """Change of the total time if `value` is no longer kept; infinite if a kernel would be too large, or if what
        several kernels then compute is."""
        own = self.inlined[value] | 1 << value
        change = -(self.cost(value, self.inlined[value]) or 0.0)
        if len(self.readers[value]) > 1 and self.written.get((value, self.inlined[value]), 0) > MAX_COPIED:
            return float("inf")
        for r in sorted(self.readers[value]):
            new, old = self.cost(r, self.inlined[r] | own), self.cost(r, self.inlined[r])
            if new is None:
                return float("inf")
            change += new - (old or 0.0)
        return change

    def cost(self, root: int, inlined: int) -> float | None:
        """Seconds of the kernel that keeps `root` and computes `inlined` itself; None if it is too large."""
        key = (root, inlined)
        if key not in self.costs:
            self.costs[key] = (
                None if any(m & inlined == m for m in self.too_large[root]) else self._weigh(root, inlined)
            )
        return self.costs[key]

    def _weigh(self, root: int, inlined: int) -> float | None:
        try:
            kernel = self.kernel(root, inlined)
        except TooLarge:
            kernel = None
        if kernel is None or kernel.written > LARGEST:
            self.too_large[root].append(inlined)
            return None
        self.written[root, inlined] = kernel.written
        return kernel.time()

    def kernel(self, root: int, inlined: int) -> Kernel:
        """The graph of that kernel, with dimensions split as its accesses ask for. Raises TooLarge."""
        inside = frozenset(self.values[i] for i in _members(inlined))
        splits = dict[VariableKey, tuple[int, ...]]()
        while True:
            graph_key = tuple(sorted(splits.items()))
            graph = self.graphs.setdefault(graph_key, Graph(splits))
            pull = Pull(graph, self.number, inside, limit=MAX_NODES)
            node, variables = pull.root(self.values[root])
            kernel = Kernel(graph, node, variables, self.values[root].type, self.target, MAX_NODES)
            more = wanted_splits(kernel, splits)
            if more == splits:
                return kernel
            splits = more

    def _is_legal(self, value: int) -> bool:
        """Whether every kernel that reads `value` may compute it."""
        own = self.inlined[value] | 1 << value
        for r in sorted(self.readers[value]):
            key = (r, self.inlined[r] | own)
            if key not in self.verdicts:
                self.verdicts[key] = self._may_be_one(self.kernel(*key))
            if not self.verdicts[key]:
                return False
        return True

    def _may_be_one(self, kernel: Kernel) -> bool:
        merging, reductions = False, kernel.reductions()
        for _, around in kernel.nested_contractions():
            bound = {r.variables for r in around}
            opened = {o for r, o in reductions if r in around}
            group = {r for r, o in reductions if r.variables in bound and o in opened}
            if len(group) > 1 and any(_needs(r, group, kernel.graph) for r in group):
                merging = True
            elif any(c.reduce in group for c in kernel.contractions):
                return False
        return not merging or self.legal(kernel)


def _needs(reduce: Reduce, group: set[Reduce], graph: Graph) -> bool:
    """Whether `reduce` is computed from another reduction of the group: only then do they run in a chain."""
    seen, todo = set[Node](), [reduce.body]
    while todo:
        node = todo.pop()
        if node in group:
            return True
        if node not in seen:
            seen.add(node)
            todo.extend(children(node, graph))
    return False


def _members(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


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
