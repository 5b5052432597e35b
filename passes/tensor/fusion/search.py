"""Best-first search for a fusion plan, with or without a memory limit.

A *plan* is a set of materialised tensors. Each of them is the result, or `root`, of one kernel, which also computes the
tensors between its root and the materialised tensors that it loads.

*Candidates* are the tensors that may be materialised. They are numbered in program order, and sets of them are bit
masks. All other tensors are computed in every kernel that uses them. A kernel is a pair (`root`, `inlined`): the number
of its root, and the candidates that it computes in addition.

A *step* of the search fuses one candidate into its users: it is no longer materialised, and each kernel that loaded it
computes it instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from math import inf, prod

from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects.kernel import aligned
from ....dialects.payload import CastOp, tensor_bytes
from ....dialects.shapes.affine import DIM, Form
from ....dialects.shapes.extents import extents_of, most
from ....dialects.support.calls import Call
from ....dialects.tensor import GatherOp, IndexMapOp, PrefixScanOp, ReduceOp
from ....target.model import Target
from ...analysis.host_memory import result_bytes
from .contractions import computed_operands, contracts_flat, contracts_once, planned_seconds, read_bytes
from .cost import Kernel
from .graph import Graph, Index, Load, TooLarge, VariableKey, either
from .inline import LimitedPull, Memo
from .structure import Structure

MAX_KERNEL_VALUES = 256
"""Maximum of `Kernel.value_count`. Without it, all steps of an unrolled recurrence would become one kernel, and the
time to plan and compile kernels grows with their size. A launch costs little next to a kernel of this size. Tuned by
hand."""

MAX_VISITED_VALUES = 500
"""Maximum number of elements that are pulled to build the graph of one kernel. Chains of views, such as repeated rolls,
can multiply elements exponentially. The limit is above `MAX_KERNEL_VALUES`, because splitting dimensions may merge many
of them afterwards."""

MAX_DUPLICATED_VALUES = 200
"""Maximum number of values of a kernel that is fused into several users, which all repeat them. Without it, each step
of a recurrence would compute the states of all steps before it. Tuned by hand."""


@dataclass(eq=False)
class Search:
    """Best-first search that starts from the plan in which all candidates are materialised.

    The step that saves the most time is taken, until none saves time. A step changes the gains of few other steps:
    those that fuse a user of the tensor, or another tensor that such a user loads. Legality is expensive to check, so
    it is checked only for the best step.
    """

    ctx: Context
    """Context of the passes that lower a single kernel for the planning model."""
    function: FuncOp
    values: Sequence[SSAValue]
    """Candidates in program order. The index is the number of the candidate."""
    required: Set[SSAValue]
    """Candidates that every plan must materialise."""
    target: Target
    """Target of the module."""
    precision: str = "ieee"
    """Option `f32_matmul_precision` of `plan-schedules`, for the predictions of the planning model."""
    graphs: dict[object, tuple[Graph, Memo]] = field(default_factory=dict[object, tuple[Graph, Memo]])
    """Splits of variables -> the graph and the pulled elements that all kernels with these splits share."""
    costs: dict[bytes, tuple[float, int]] = field(default_factory=dict[bytes, tuple[float, int]])
    """Structural key of a kernel -> seconds by the cost model of fusion, and number of values."""
    legal: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    """Structural key of a kernel -> True if it computes no contraction several times."""
    tiled: dict[bytes, bool] = field(default_factory=dict[bytes, bool])
    """Structural key of a kernel -> True if it has a contraction with rows and columns."""
    planned: dict[bytes, float] = field(default_factory=dict[bytes, float])
    """Structural key of a kernel -> seconds by the planning model."""
    faster: dict[tuple[bool | bytes, ...], bool] = field(default_factory=dict[tuple[bool | bytes, ...], bool])
    """Results of `_is_faster`, by its `contracted` and the structural keys of the kernels of both plans."""
    computed_from: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Value -> bit mask of the candidates that it depends on, itself included."""
    inputs: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Candidate -> the candidates that it is computed from, with no other candidate in between."""
    inlined: dict[int, int] = field(default_factory=dict[int, int])
    """Root of each kernel of the current plan -> bit mask of the candidates that the kernel computes in addition."""
    sources: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Root -> the roots that its kernel loads."""
    readers: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Root -> the roots of the kernels that load it."""
    budget: int = MAX_KERNEL_VALUES
    """Number of values by which all kernels together may still grow."""
    contracts: bool = False
    """True if any kernel that was estimated has contractions."""

    def __post_init__(self) -> None:
        self.cost, self.computes_contractions_once = cache(self._cost), cache(self._computes_contractions_once)
        self.has_tiles = cache(self._has_tiles)
        self.gathers = any(isinstance(op, GatherOp) for op in self.function.body.block.ops)
        self.number = {value: i for i, value in enumerate(self.values)}
        self.fixed = {self.number[value] for value in self.required if value in self.number}
        sums = {i for i, value in enumerate(self.values) if isinstance(value.owner, ReduceOp | PrefixScanOp)}
        self.boundaries = self.fixed | sums
        """Candidates that are not computed in the kernel of a sum that uses them (`_operands`)."""
        self.card = self.target.fusion or self.target
        """Target whose rates the cost model of fusion uses. It is the same for all cards of a table, so that they get
        the same plans."""
        self.structure = Structure(self.function, self.number, self.card)
        self._read_inputs()
        self.users = _transposed(self.inputs)
        self.too_large: dict[int, list[int]] = {i: [] for i in range(len(self.values))}
        """Root -> sets of inlined candidates with which its kernel is too large. Supersets are too large as well."""

    def _read_inputs(self) -> None:
        nearest: dict[SSAValue, set[int]] = {}
        for op in self.function.body.block.ops:
            if isinstance(op, Call):
                continue  # Results of calls are in memory and no candidates.
            through = either(self.computed_from.get(v, 0) for v in op.operands)
            read = set[int]().union(*(nearest.get(v, ()) for v in op.operands))
            for result in op.results:
                number = self.number.get(result)
                if number is not None:
                    self.inputs[number] = read
                nearest[result] = read if number is None else {number}
                self.computed_from[result] = through if number is None else through | 1 << number

    def run(self, without: Iterable[int] = ()) -> set[SSAValue]:
        """Runs the search and returns the tensors to materialise.

        Args:
            without: Candidates that are fused into their users first, as far as that is legal, whatever it costs. They
                are not materialised again as operands of contractions.
        """
        self.inlined, self.budget = dict.fromkeys(range(len(self.values)), 0), MAX_KERNEL_VALUES
        self.sources = {v: {*read} for v, read in self.inputs.items()}
        self.readers = {v: {*users} for v, users in self.users.items()}
        for value in without:
            if self._gain(value) < inf and self._legal(value):
                self._fuse_into_users(value)
        fixed = set(self.fixed)
        self._descend(fixed)
        while self.contracts and (operands := self._materialize_operands({*without})):
            fixed |= operands
            self._descend(fixed)
        return {self.values[v] for v in self.inlined}

    def _descend(self, fixed: set[int]) -> None:
        """Takes the best step until none saves time. Candidates in `fixed` stay materialised."""
        steps = {v: self._rank(v) for v in self.inlined if v not in fixed}
        while steps and (best := min(steps.values()))[0] < 0:
            value = best[-1]
            if not self._legal(value):
                steps[value] = (inf, 0, value)
                continue
            del steps[value]
            readers = self._fuse_into_users(value)
            for v in set(readers).union(*(self.sources[r] for r in readers)) & steps.keys():
                steps[v] = self._rank(v)

    def _materialize_operands(self, without: set[int]) -> set[int]:
        """Materialises computed operands of contractions where the planning model predicts less time for that.

        An operand that is larger than the tensors it is computed from stays fused, because fusion saves its memory.

        Args:
            without: Candidates that are not materialised.

        Returns:
            Candidates that are materialised now.
        """
        operands = set[int]()
        for value, contracted in computed_operands(self.function, self.number, self.inlined).items():
            fused = {r: inlined for r, inlined in self.inlined.items() if inlined >> value & 1}
            materialized = {*self.inlined, value}
            kernels = {r: self._computed(r, materialized)[0] for r in (value, *fused)}
            if value not in without and self._is_faster(value, contracted, kernels, fused):
                self.inlined |= kernels
                operands.add(value)
        self.sources = {r: self._computed(r, self.inlined)[1] for r in self.inlined}
        self.readers = _transposed(self.sources)
        return operands

    def _is_faster(self, value: int, contracted: bool, kernels: dict[int, int], fused: dict[int, int]) -> bool:
        """Returns true if materialising an operand of a contraction saves time by the planning model.

        Returns false without a prediction in three cases:

        - no kernel that computes the operand now has contractions that are independent (`contracts_flat`);
        - the operand is larger than the tensors it is computed from;
        - the operand is only squared, and its own kernel has no contraction.

        Args:
            value: Candidate that holds the operand.
            contracted: False if `value` is only multiplied by itself, as in a sum of squares.
            kernels: Kernels of the plan that materialises `value`, as root -> inlined.
            fused: Kernels of the plan that fuses `value`, as root -> inlined.
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

    def _computed(self, root: int, materialized: Container[int]) -> tuple[int, set[int]]:
        """Returns the candidates that the kernel of `root` computes in addition, and those in `materialized` that it
        loads."""
        inlined, read, todo = 0, set[int](), [*self.inputs[root]]
        while todo:
            v = todo.pop()
            if v in materialized:
                read.add(v)
            elif not inlined >> v & 1:
                inlined |= 1 << v
                todo += self.inputs[v]
        return inlined, read

    def _planned(self, kernel: tuple[int, int]) -> float:
        """Returns the seconds that the planning model predicts for a kernel (root, inlined)."""
        key = self.structure.key(*kernel)
        if key not in self.planned:
            self.planned[key] = planned_seconds(self.ctx, self.kernel(*kernel), self.target, self.precision)
        return self.planned[key]

    def _legal(self, value: int) -> bool:
        """Returns true if `value` may be fused into its users.

        That must not repeat a contraction, nor take its tiles apart (`_keeps_tiles`). And all kernels together may
        compute at most `MAX_KERNEL_VALUES` more values than in the unfused program: otherwise each step of an unrolled
        recurrence would compute all steps before it."""
        return (
            self._added_values(value) <= self.budget
            and all(self.computes_contractions_once(*key) for key in self._users_after_fusing(value))
            and (not self.gathers or self._keeps_tiles(value))
        )

    def _keeps_tiles(self, value: int) -> bool:
        """Returns false if fusing `value` turns a contraction into slower products of a vector and a matrix.

        That happens if a gather reads most rows of a batched matmul by their positions in all batches: each row then
        loads the matrix of its batch. The planning model predicts both plans: for small matrices, a launch costs more
        than the loads."""
        operands = self._operands(value)
        if not self.has_tiles(value, self.inlined[value] | operands):
            return True
        half, fused = _elements(self.values[value]) / 2, [(r, i | operands) for r, i in self._users_after_fusing(value)]
        if all(_elements(self.values[r]) < half or self.has_tiles(r, inlined) for r, inlined in fused):
            return True
        separate = [(value, self.inlined[value] | operands), *((r, self.inlined[r]) for r, _ in fused)]
        try:
            return sum(map(self._planned, fused)) <= sum(map(self._planned, separate))
        except TooLarge:
            return False

    def _operands(self, value: int) -> int:
        """Returns the candidates from which the terms of a sum are computed, up to the nearest other sums.

        Returns 0 for a value that is no conversion or view of a sum."""
        source = self.values[value]
        while isinstance(source.owner, IndexMapOp | CastOp):
            source = source.owner.operands[0]
        return self._computed(self.number[source], self.boundaries)[0] if isinstance(source.owner, ReduceOp) else 0

    def _has_tiles(self, root: int, inlined: int) -> bool:
        """Returns true if the kernel (`root`, `inlined`) has a contraction with rows and columns."""
        if self.structure.is_elementwise(root, inlined):
            return False
        key = self.structure.key(root, inlined)
        if key not in self.tiled:
            try:
                contractions = self.kernel(root, inlined).contractions
            except TooLarge:
                contractions = []
            self.tiled[key] = any(c.lhs & ~c.rhs and c.rhs & ~c.lhs for c in contractions)
        return self.tiled[key]

    def _added_values(self, value: int) -> int:
        """Returns how many more values all kernels together compute if `value` is fused into its users."""
        readers = self._users_after_fusing(value)
        more = sum(self.cost(r, inlined)[1] - self.cost(r, self.inlined[r])[1] for r, inlined in readers)
        return more - self.cost(value, self.inlined[value])[1]

    def _rank(self, value: int) -> tuple[float, int, int]:
        """Returns the sort key of the step that fuses `value`: (change of time in seconds, size, `value`).

        The time is rounded to picoseconds. The size is the number of candidates that the kernels of `value` and of its
        users inline. Of equally good steps the smallest is first, so that the kernels of a chain grow evenly."""
        size = sum(self.inlined[r].bit_count() for r in self.readers[value]) + self.inlined[value].bit_count()
        return round(self._gain(value), 12), size, value

    def _fuse_into_users(self, value: int) -> list[int]:
        """Fuses `value` into all kernels that load it. Returns their roots in program order."""
        self.budget -= self._added_values(value)
        for r, inlined in self._users_after_fusing(value):
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

    def _users_after_fusing(self, value: int) -> list[tuple[int, int]]:
        """Returns the kernels that load `value`, as (root, inlined) after `value` is fused into them."""
        computed = self.inlined[value] | 1 << value
        return [(r, self.inlined[r] | computed) for r in sorted(self.readers[value])]

    def _gain(self, value: int) -> float:
        """Returns the change of the total time, in seconds, if `value` is fused into its users; negative if that saves
        time.

        Infinite if a kernel would become too large, or if several kernels would repeat too many values."""
        seconds, value_count = self.cost(value, self.inlined[value])
        if len(self.readers[value]) > 1 and value_count > MAX_DUPLICATED_VALUES:
            return inf
        change = 0.0 if seconds == inf else -seconds
        for r, inlined in self._users_after_fusing(value):
            new, old = self.cost(r, inlined)[0], self.cost(r, self.inlined[r])[0]
            if new == inf:
                return inf
            change += new - (0.0 if old == inf else old)
        return change

    def _cost(self, root: int, inlined: int) -> tuple[float, int]:
        """Returns the estimated seconds and the number of values of a kernel; (infinity, 0) if it is too large."""
        if any(m & inlined == m for m in self.too_large[root]):
            return inf, 0
        if self.structure.is_elementwise(root, inlined):
            seconds, value_count = self.structure.elementwise_cost(root, inlined)
        else:
            key = self.structure.key(root, inlined)
            if key not in self.costs:
                self.costs[key] = self._cost_of_graph(root, inlined)
            seconds, value_count = self.costs[key]
        if value_count <= MAX_KERNEL_VALUES:
            return seconds, value_count
        self.too_large[root].append(inlined)
        return inf, 0

    def _cost_of_graph(self, root: int, inlined: int) -> tuple[float, int]:
        try:
            kernel = self.kernel(root, inlined)
        except TooLarge:
            return inf, MAX_KERNEL_VALUES + 1
        self.contracts |= bool(kernel.contractions)
        return (kernel.time() if kernel.value_count <= MAX_KERNEL_VALUES else inf), kernel.value_count

    def kernel(self, root: int, inlined: int) -> Kernel:
        """Returns a kernel with its graph.

        Indices that are used as `i floordiv c` and `i mod c` are split, because the cost model and the nests need
        linear accesses. Raises TooLarge."""
        splits = Splits()
        while True:
            key = tuple(sorted(splits.items()))
            if key not in self.graphs:
                self.graphs[key] = Graph(splits), {}
            graph, memo = self.graphs[key]
            pull = LimitedPull(graph, self.number, inlined, self.computed_from, memo, MAX_VISITED_VALUES)
            node, variables = pull.root(self.values[root])
            kernel = Kernel(graph, node, variables, self.values[root].type, MAX_VISITED_VALUES, self.card)
            quotients = [*_quotients(kernel)]
            more = with_quotient_splits(kernel, quotients, splits) if quotients else splits
            if more == splits:
                return kernel
            splits = more

    def _computes_contractions_once(self, root: int, inlined: int) -> bool:
        """Returns true if the kernel (`root`, `inlined`) computes no contraction several times."""
        if self.structure.is_elementwise(root, inlined):
            return True
        key = self.structure.key(root, inlined)
        if key not in self.legal:
            kernel = self.kernel(root, inlined)
            nested = [c for c in kernel.contractions if c.enclosing]
            self.legal[key] = not nested or contracts_once(self.ctx, kernel, nested)
        return self.legal[key]


Splits = dict[VariableKey, tuple[int, ...]]
"""Split variable -> the extents of its digits, outermost first."""


def with_quotient_splits(kernel: Kernel, quotients: Iterable[tuple[Form, int]], splits: Splits) -> Splits:
    """Returns `splits` with further digits for the variables that are divided by a divisor of their extent.

    Args:
        kernel: Kernel whose graph has `splits`.
        quotients: (Dividend, divisor) of each division in its coordinates and conditions.
        splits: Present splits.

    Returns:
        The same splits if no variable can be split further.
    """
    graph, result = kernel.graph, dict(splits)
    for inner, divisor in quotients:
        if len(inner.terms) != 1 or inner.constant or inner.terms[0][1] != 1 or inner.terms[0][0][0] != DIM:
            continue
        number: int = inner.terms[0][0][1]
        extent = graph.extents[number]
        key, digit = graph.keys[number]
        if number in kernel.scanned_variables or not isinstance(extent, int) or not isinstance(key[2], int):
            continue  # A symbolic extent has no known divisor.
        digits = result.get(key, (key[2],))
        if extent % divisor == 0 and digits == splits.get(key, (key[2],)):
            result[key] = (*digits[:digit], extent // divisor, divisor, *digits[digit + 1 :])
    return result


def _quotients(kernel: Kernel) -> Iterator[tuple[Form, int]]:
    """Yields (dividend, divisor) of each division in the coordinates, guards and index nodes of a kernel."""
    for node, _ in kernel.visited:
        if isinstance(node, Load):
            for form in (*node.coordinates, *(c[0] for c in node.guard)):
                yield from form.quotients()
        elif isinstance(node, Index):
            yield from node.form.quotients()


def _transposed(edges: Mapping[int, set[int]]) -> dict[int, set[int]]:
    sources: dict[int, set[int]] = {node: set() for node in edges}
    for source, targets in edges.items():
        for target in targets:
            sources[target].add(source)
    return sources


def _elements(value: SSAValue) -> int:
    return prod(map(most, extents_of(value.type)))


def _bytes(value: SSAValue) -> int:
    return aligned(tensor_bytes(value.type))


def _scratch_values(function: FuncOp, values: Iterable[SSAValue]) -> list[SSAValue]:
    """Returns `values` without the results of `function`. They are in scratch memory."""
    returned = {*(function.body.block.last_op or function).operands}
    return [value for value in values if value not in returned]


def scratch_bytes(function: FuncOp, materialized: Iterable[SSAValue]) -> int:
    """Returns the bytes of the materialised tensors that are not results of `function`."""
    return sum(map(_bytes, _scratch_values(function, materialized)))


def plan_within(search: Search, plan: set[SSAValue], limit: int) -> set[SSAValue]:
    """Returns a plan that fits in a memory limit, or the best one that was found.

    The *excess* is the number of bytes by which the live tensors exceed the limit, summed over the kernels. While there
    is an excess, the search runs again, but first fuses the largest live tensor of each such kernel, whatever time that
    costs. The new plan may then materialise a neighbour of the tensor, with as many bytes. So if the excess does not
    halve, the next search also fuses neighbours, four times as many each time. That keeps the number of searches small.

    Args:
        search: Search that has run.
        plan: Tensors to materialise without a limit.
        limit: Bytes that a call may allocate in addition to its arguments. If a kernel has reductions, the workspace
            that PyTorch reserves for matmuls is added.

    Returns:
        Tensors to materialise.
    """
    without, immovable, width = set[int](), set[int](), 1
    excess, largest = _excess(search, limit, immovable)
    while largest and width <= 2 * len(search.values):
        trial = sorted(without | _neighbours(search, largest, width), key=lambda v: (-_bytes(search.values[v]), v))
        new_plan = search.run(trial)
        immovable |= largest & search.inlined.keys()
        new_excess, new_largest = _excess(search, limit, immovable)
        width *= 1 if 2 * new_excess <= excess else 4
        if new_excess < excess:
            plan, excess, largest, without = new_plan, new_excess, new_largest, {*trial} - search.inlined.keys()
        else:
            largest -= immovable
    return plan


def _neighbours(search: Search, values: set[int], count: int) -> set[int]:
    """Returns `values` and their nearest candidates in the dependence graph, up to `count` candidates for each
    value."""
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


def _excess(search: Search, limit: int, immovable: set[int]) -> tuple[int, set[int]]:
    """Returns by how much the live tensors of the current plan exceed a memory limit, and the largest of them.

    Args:
        search: Search with the current plan.
        limit: Bytes, as in `plan_within`.
        immovable: Candidates that could not be fused. They are not returned.

    Returns:
        Bytes above the limit, summed over the kernels, and the largest fusible tensor at each kernel above the limit.
    """
    if any(search.kernel(root, inlined).reductions for root, inlined in search.inlined.items()):
        limit += search.target.workspace
    sizes = {search.number[v]: _bytes(v) for v in _scratch_values(search.function, search.values)}
    last = {v: max(search.readers[v], default=v) for v in search.inlined}
    excess, largest, live, available = 0, set[int](), list[int](), limit - result_bytes(search.function)
    for kernel in sorted(search.inlined):
        live = [v for v in live if last[v] >= kernel]
        if kernel in sizes:
            live.append(kernel)
        if (used := sum(sizes[v] for v in live)) > available:
            excess += used - available
            movable = [v for v in live if v not in search.fixed and v not in immovable]
            largest |= {max(movable, key=lambda v: (sizes[v], -v))} if movable else set()
    return excess, largest
