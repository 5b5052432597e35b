"""Best-first search for a plan of fusion, and the same within a limit of memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from math import inf

from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects.kernel import aligned
from ....dialects.payload import tensor_bytes
from ....dialects.shapes.affine import DIM, Form
from ....dialects.support.calls import Call
from ....target.model import Target
from ...analysis.host_memory import result_bytes
from .contractions import computed_operands, contracts_flat, contracts_once, planned_seconds, read_bytes
from .cost import Kernel
from .graph import Graph, Index, Load, TooLarge, VariableKey, either
from .inline import LimitedPull, Memo
from .structure import Structure

LARGEST = 256
"""Values that a kernel computes at most. A launch is cheap compared to these, while the time to plan and to compile
kernels grows with their size: steps of a recurrence that run one after another would all become one kernel."""

MAX_NODES = 500
"""Values that are visited until a kernel is too large: views can make exponentially many of a few tensors (repeated
rolls), of which few may be left when dimensions have been split."""

MAX_COPIED = 200
"""Values that are computed in several kernels at most: otherwise the cheap state of a recurrence would make each of its
steps as long as all steps before."""


@dataclass(eq=False)
class Search:
    """Best-first search from the unfused program.

    A state is the set of kept candidates. A step stops keeping one of them: all kernels that read it compute it
    themselves. The step that saves most is taken, until none saves anything. After a step only the gains of the kernels
    that read its value, and of those that they read, change. Whether a step is legal is asked only when it is the best.
    Sets of candidates are bit masks.
    """

    ctx: Context
    """Context of the passes that a kernel goes through by itself."""
    function: FuncOp
    values: Sequence[SSAValue]
    """Candidates."""
    needed: Set[SSAValue]
    """Values that have to be kept."""
    target: Target
    """Target of the module."""
    precision: str = "ieee"
    """Permission of `f32_matmul_precision`, by which the planning model predicts times."""
    graphs: dict[object, tuple[Graph, Memo]] = field(default_factory=dict[object, tuple[Graph, Memo]])
    """Splits of variables -> the graph of all kernels with these."""
    costs: dict[bytes, tuple[float, int]] = field(default_factory=dict[bytes, tuple[float, int]])
    legal: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    """Key of a kernel -> its cost, and whether it may be one kernel."""
    planned: dict[bytes, float] = field(default_factory=dict[bytes, float])
    """Key of a kernel -> its seconds by the planning model."""
    faster: dict[tuple[bool | bytes, ...], bool] = field(default_factory=dict[tuple[bool | bytes, ...], bool])
    """Keys of the kernels with a kept operand, and of those that compute it -> whether the former take less time."""
    computed_from: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Value -> the candidates that it is computed from, itself included."""
    inputs: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Candidate -> those that it is computed from directly or through values that are none."""
    inlined: dict[int, int] = field(default_factory=dict[int, int])
    """Kept candidate -> those that its kernel computes in addition."""
    sources: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Kept candidate -> the kept candidates that its kernel reads."""
    readers: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Kept candidate -> those whose kernels read it."""
    room: int = LARGEST
    """Values that the kernels may compute together in addition to those that they compute now."""
    contracts: bool = False
    """True if a kernel with contractions was visited."""

    def __post_init__(self) -> None:
        self.cost, self.may_be_one = cache(self._cost), cache(self._may_be_one)
        self.number = {value: i for i, value in enumerate(self.values)}
        self.fixed = {self.number[value] for value in self.needed if value in self.number}
        self.card = self.target.fusion or self.target
        """The card by whose numbers kernels are compared, except for those that the planning model predicts."""
        self.structure = Structure(self.function, self.number, self.card)
        self._read_inputs()
        self.users = _reversed(self.inputs)
        self.too_large: dict[int, list[int]] = {i: [] for i in range(len(self.values))}
        """Kept candidate -> candidates that its kernel cannot compute, nor more than these."""

    def _read_inputs(self) -> None:
        nearest: dict[SSAValue, set[int]] = {}
        for op in self.function.body.block.ops:
            if isinstance(op, Call):
                continue  # its results are in memory, and no candidates
            through = either(self.computed_from.get(v, 0) for v in op.operands)
            read = set[int]().union(*(nearest.get(v, ()) for v in op.operands))
            for result in op.results:
                number = self.number.get(result)
                if number is not None:
                    self.inputs[number] = read
                nearest[result] = read if number is None else {number}
                self.computed_from[result] = through if number is None else through | 1 << number

    def run(self, without: Iterable[int] = ()) -> set[SSAValue]:
        """Returns the values to keep, of a search that begins with `without` computed where they are read, except for
        values that no kernel can compute. Operands of contractions that are kept in the end are not in `without`."""
        self.inlined, self.room = dict.fromkeys(range(len(self.values)), 0), LARGEST
        self.sources = {v: {*read} for v, read in self.inputs.items()}
        self.readers = {v: {*users} for v, users in self.users.items()}
        for value in without:
            if self._gain(value) < inf and self._legal(value):
                self._stop_keeping(value)
        fixed = set(self.fixed)
        self._fuse(fixed)
        while self.contracts and (operands := self._keep_operands({*without})):
            fixed |= operands
            self._fuse(fixed)
        return {self.values[v] for v in self.inlined}

    def _fuse(self, fixed: set[int]) -> None:
        """Takes steps as long as one saves time. The values in `fixed` are kept."""
        steps = {v: self._step(v) for v in self.inlined if v not in fixed}
        while steps and (best := min(steps.values()))[0] < 0:
            value = best[-1]
            if not self._legal(value):
                steps[value] = (inf, 0, value)
                continue
            del steps[value]
            readers = self._stop_keeping(value)
            for v in set(readers).union(*(self.sources[r] for r in readers)) & steps.keys():
                steps[v] = self._step(v)

    def _keep_operands(self, without: set[int]) -> set[int]:
        """Keeps operands of contractions, except for values in `without`, where the planning model predicts less time
        for the kernels that compute them. Returns their numbers.

        An operand that takes more memory than what it is computed from is not kept: fusion is to save this memory."""
        operands = set[int]()
        for value, contracted in computed_operands(self.function, self.number, self.inlined).items():
            fused = {r: inlined for r, inlined in self.inlined.items() if inlined >> value & 1}
            kept = {*self.inlined, value}
            kernels = {r: self._computed(r, kept)[0] for r in (value, *fused)}
            if value not in without and self._is_faster(value, contracted, kernels, fused):
                self.inlined |= kernels
                operands.add(value)
        self.sources = {r: self._computed(r, self.inlined)[1] for r in self.inlined}
        self.readers = _reversed(self.sources)
        return operands

    def _is_faster(self, value: int, contracted: bool, kernels: dict[int, int], fused: dict[int, int]) -> bool:
        """Returns true if keeping an operand of a contraction, or the result of one, saves time.

        Args:
            value: Operand.
            contracted: False if `value` is an operand of squares alone.
            kernels: Kernels of which one keeps `value`.
            fused: Kernels that compute `value`.
        """
        key = contracted, *(self.structure.key(*kernel) for kernel in (*kernels.items(), *fused.items()))
        if key not in self.faster:
            maker = self.kernel(value, kernels[value])
            self.faster[key] = (
                (contracted or bool(maker.contractions))
                and any(contracts_flat(self.kernel(*kernel)) for kernel in fused.items())
                and tensor_bytes(self.values[value].type) <= read_bytes(maker)
                and sum(map(self._planned, kernels.items())) < sum(map(self._planned, fused.items()))
            )
        return self.faster[key]

    def _computed(self, root: int, kept: Container[int]) -> tuple[int, set[int]]:
        """Returns the values that the kernel of `root` computes in addition, and those of `kept` that it reads."""
        inlined, read, todo = 0, set[int](), [*self.inputs[root]]
        while todo:
            v = todo.pop()
            if v in kept:
                read.add(v)
            elif not inlined >> v & 1:
                inlined |= 1 << v
                todo += self.inputs[v]
        return inlined, read

    def _planned(self, kernel: tuple[int, int]) -> float:
        """Returns the seconds of a kernel by the planning model."""
        key = self.structure.key(*kernel)
        if key not in self.planned:
            self.planned[key] = planned_seconds(self.ctx, self.kernel(*kernel), self.target, self.precision)
        return self.planned[key]

    def _legal(self, value: int) -> bool:
        """Returns true if each kernel that reads `value` may compute it, and the kernels together do not become longer
        than those of the unfused program and one more. Otherwise every step of an unrolled recurrence would compute
        all steps before it."""
        return self._longer(value) <= self.room and all(self.may_be_one(*key) for key in self._kernels_without(value))

    def _longer(self, value: int) -> int:
        """Returns how many values more the kernels compute together if `value` is no longer kept."""
        readers = self._kernels_without(value)
        more = sum(self.cost(r, inlined)[1] - self.cost(r, self.inlined[r])[1] for r, inlined in readers)
        return more - self.cost(value, self.inlined[value])[1]

    def _step(self, value: int) -> tuple[float, int, int]:
        """Returns the rank of a step that stops keeping `value`: its gain, to the picosecond, then the size of its
        kernels. So the kernels of a chain grow evenly, and few steps make large ones."""
        size = sum(self.inlined[r].bit_count() for r in self.readers[value]) + self.inlined[value].bit_count()
        return round(self._gain(value), 12), size, value

    def _stop_keeping(self, value: int) -> list[int]:
        """Lets all kernels that read `value` compute it. Returns them in program order."""
        self.room -= self._longer(value)
        for r, inlined in self._kernels_without(value):
            self.inlined[r] = inlined
        del self.inlined[value]
        sources, readers = self.sources.pop(value), sorted(self.readers.pop(value))
        for s in sources:
            self.readers[s].discard(value)
            self.readers[s].update(readers)
        for r in readers:
            self.sources[r].discard(value)
            self.sources[r] |= sources
        return readers

    def _kernels_without(self, value: int) -> list[tuple[int, int]]:
        """Returns the kernels that read `value` as they are when they compute it: roots, and computed values."""
        computed = self.inlined[value] | 1 << value
        return [(r, self.inlined[r] | computed) for r in sorted(self.readers[value])]

    def _gain(self, value: int) -> float:
        """Returns the change of the total time if `value` is no longer kept; infinite if a kernel would be too large,
        or if several kernels would compute too many values."""
        seconds, written = self.cost(value, self.inlined[value])
        if len(self.readers[value]) > 1 and written > MAX_COPIED:
            return inf
        change = 0.0 if seconds == inf else -seconds
        for r, inlined in self._kernels_without(value):
            new, old = self.cost(r, inlined)[0], self.cost(r, self.inlined[r])[0]
            if new == inf:
                return inf
            change += new - (0.0 if old == inf else old)
        return change

    def _cost(self, root: int, inlined: int) -> tuple[float, int]:
        """Returns the seconds of the kernel that keeps `root` and computes `inlined` itself, and how many values it
        computes; infinite and 0 if it is too large."""
        if any(m & inlined == m for m in self.too_large[root]):
            return inf, 0
        if self.structure.is_elementwise(root, inlined):
            seconds, written = self.structure.elementwise_cost(root, inlined)
        else:
            key = self.structure.key(root, inlined)
            if key not in self.costs:
                self.costs[key] = self._cost_of_graph(root, inlined)
            seconds, written = self.costs[key]
        if written <= LARGEST:
            return seconds, written
        self.too_large[root].append(inlined)
        return inf, 0

    def _cost_of_graph(self, root: int, inlined: int) -> tuple[float, int]:
        try:
            kernel = self.kernel(root, inlined)
        except TooLarge:
            return inf, LARGEST + 1
        self.contracts |= bool(kernel.contractions)
        return (kernel.time() if kernel.written <= LARGEST else inf), kernel.written

    def kernel(self, root: int, inlined: int) -> Kernel:
        """Returns the graph of a kernel, with dimensions split as its accesses ask for. Raises TooLarge."""
        splits = Splits()
        while True:
            key = tuple(sorted(splits.items()))
            if key not in self.graphs:
                self.graphs[key] = Graph(splits), {}
            graph, memo = self.graphs[key]
            pull = LimitedPull(graph, self.number, inlined, self.computed_from, memo, MAX_NODES)
            node, variables = pull.root(self.values[root])
            kernel = Kernel(graph, node, variables, self.values[root].type, MAX_NODES, self.card)
            quotients = [*_quotients(kernel)]
            more = wanted_splits(kernel, quotients, splits) if quotients else splits
            if more == splits:
                return kernel
            splits = more

    def _may_be_one(self, root: int, inlined: int) -> bool:
        """Returns true if no contraction of that kernel is computed several times."""
        if self.structure.is_elementwise(root, inlined):
            return True
        key = self.structure.key(root, inlined)
        if key not in self.legal:
            kernel = self.kernel(root, inlined)
            nested = [c for c in kernel.contractions if c.open]
            self.legal[key] = not nested or contracts_once(self.ctx, kernel, nested)
        return self.legal[key]


Splits = dict[VariableKey, tuple[int, ...]]


def wanted_splits(kernel: Kernel, quotients: Iterable[tuple[Form, int]], splits: Splits) -> Splits:
    """Returns `splits` and further digits for variables that occur in a quotient by a divisor of their extent."""
    graph, result = kernel.graph, dict(splits)
    for inner, divisor in quotients:
        if len(inner.terms) != 1 or inner.constant or inner.terms[0][1] != 1 or inner.terms[0][0][0] != DIM:
            continue
        number: int = inner.terms[0][0][1]
        extent = graph.sizes[number]
        key, digit = graph.keys[number]
        if number in kernel.scanned or not isinstance(extent, int) or not isinstance(key[2], int):
            continue  # a symbol has no divisors
        digits = result.get(key, (key[2],))
        if extent % divisor == 0 and digits == splits.get(key, (key[2],)):
            result[key] = (*digits[:digit], extent // divisor, divisor, *digits[digit + 1 :])
    return result


def _quotients(kernel: Kernel) -> Iterator[tuple[Form, int]]:
    """Yields the divided forms and the divisors in the coordinates and conditions of a kernel."""
    for node, _ in kernel.visited:
        if isinstance(node, Load):
            for form in (*node.coordinates, *(c[0] for c in node.guard)):
                yield from form.quotients()
        elif isinstance(node, Index):
            yield from node.form.quotients()


def _reversed(edges: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """Returns the edges of a graph the other way around."""
    sources: dict[int, set[int]] = {node: set() for node in edges}
    for source, targets in edges.items():
        for target in targets:
            sources[target].add(source)
    return sources


def _bytes(value: SSAValue) -> int:
    return aligned(tensor_bytes(value.type))


def _between(function: FuncOp, values: Iterable[SSAValue]) -> list[SSAValue]:
    """Returns the values that `function` does not return."""
    returned = {*(function.body.block.last_op or function).operands}
    return [value for value in values if value not in returned]


def between_bytes(function: FuncOp, kept: Iterable[SSAValue]) -> int:
    """Returns the bytes of the kept values that `function` does not return."""
    return sum(map(_bytes, _between(function, kept)))


def within(search: Search, kept: set[SSAValue], limit: int) -> set[SSAValue]:
    """Returns the values to keep if a call may take `limit` bytes in addition to its arguments, and to PyTorch's
    workspace if there are sums.

    While the kept values take more, another search begins without the largest of them at every place where they do,
    whatever time that costs. Where that helps little, because a neighbour is kept instead, the next search begins
    without four times as many neighbours, so there are few searches.

    Args:
        search: The search, which has run.
        kept: Its values to keep.
        limit: Bytes.
    """
    without, stuck, width = set[int](), set[int](), 1
    excess, largest = _excess(search, limit, stuck)
    while largest and width <= 2 * len(search.values):
        trial = sorted(without | _neighbours(search, largest, width), key=lambda v: (-_bytes(search.values[v]), v))
        other = search.run(trial)
        stuck |= largest & search.inlined.keys()
        new_excess, new_largest = _excess(search, limit, stuck)
        width *= 1 if 2 * new_excess <= excess else 4
        if new_excess < excess:
            kept, excess, largest, without = other, new_excess, new_largest, {*trial} - search.inlined.keys()
        else:
            largest -= stuck
    return kept


def _neighbours(search: Search, values: set[int], count: int) -> set[int]:
    """Returns `values`, and for each of them as many of the candidates near it as make `count` together."""
    result = set(values)
    for value in values:
        near, edge = {value}, [value]
        for v in edge:
            if len(near) >= count:
                break
            others = sorted((search.inputs[v] | search.users[v]) - near - search.fixed)[: count - len(near)]
            near.update(others)
            edge += others
        result |= near
    return result


def _excess(search: Search, limit: int, stuck: set[int]) -> tuple[int, set[int]]:
    """Returns how many bytes more than `limit` the kept values take, summed over the kernels, and for every kernel
    where they do the largest of those that need not be kept and are not `stuck`."""
    if any(search.kernel(root, inlined).reductions for root, inlined in search.inlined.items()):
        limit += search.target.workspace
    sizes = {search.number[v]: _bytes(v) for v in _between(search.function, search.values)}
    last = {v: max(search.readers[v], default=v) for v in search.inlined}
    excess, largest, live, most = 0, set[int](), list[int](), limit - result_bytes(search.function)
    for kernel in sorted(search.inlined):
        live = [v for v in live if last[v] >= kernel]
        if kernel in sizes:
            live.append(kernel)
        if (taken := sum(sizes[v] for v in live)) > most:
            excess += taken - most
            movable = [v for v in live if v not in search.fixed and v not in stuck]
            largest |= {max(movable, key=lambda v: (sizes[v], -v))} if movable else set()
    return excess, largest
