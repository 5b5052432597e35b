"""Which tensors are kept in memory, and thereby which kernels there will be: the fusion plan, how it is written in the
program, and the search for a good one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects.kernel.host import aligned
from ...dialects.payload import tensor_bytes
from ...dialects.shapes.affine import DIM, Form
from ...dialects.support.calls import Call
from ...dialects.support.printing import value_names
from ...dialects.tensor import ROOT
from ...target.attribute import target_of
from ...target.model import Target
from ..analysis.host_memory import MEMORY_LIMIT, limit_of, result_bytes
from ..records import Record, RecordError, operations_at
from ..remarks import emit_remark
from .fusion.candidates import candidates
from .fusion.contractions import contracts_once
from .fusion.cost import Kernel, fused_for
from .fusion.elementwise import ElementwiseCosts
from .fusion.graph import Graph, Index, Load, TooLarge, VariableKey, either
from .fusion.greedy import greedy
from .fusion.inline import Memo, Pull, deep_recursion, kept_values, materialized
from .fusion.kernel_keys import KernelKeys
from .fusion.operands import computed_operands, contracts_flat, planned_seconds, read_bytes


@dataclass(frozen=True)
class PlanFusionPass(ModulePass):
    """Mark the values to keep in memory with `fuse.root`; everything else is computed inside the kernels that use it.

    What: the plan is the set of kept values, written as an attribute, so it can be read, edited and taken back. The
    strategies: `best` searches from the unfused program, always taking the step that saves most by the cost model
    (bytes moved, operations including repeated ones, launches), among the legal ones; then it keeps operands that
    contractions compute, where the planning model predicts less time for that; `greedy` decides in one walk, by rules
    without a model (`fusion/greedy.py`); `none` keeps every value but views and constants; `all` keeps only what has to
    be (results, what the host works on, sums that are compared with
    themselves); `keep` leaves the marks as they are. `roots` are the values of the program, `@main`, that are kept, in
    place of a strategy: names as they are printed (`%3`), or positions of operations. A remark says if they take more
    than the `memory_limit`. All cards get the plan that is best on one, the cores of a
    CPU have their own. A function that is in the file `record` (`records.py`), for `target` or for all, gets the marks
    that are noted there, unless they do not fit, which a remark says. Legal is a step after which no contraction is
    computed inside another one, except along a chain of reductions over one index, each of which needs others, that
    `loop-fuse-reductions` can merge (as softmax between two matrix products).
    Why here: on tensors, where the whole program is visible and undoing is free; `convert-tensor-to-loop` follows.

    ```mlir
    %s = arith.addf %x, %b : tensor<16x64xf32>
    ```
    becomes, where `%s` is to be kept,
    ```mlir
    %s = arith.addf %x, %b {fuse.root} : tensor<16x64xf32>
    ```
    """

    name = "tensor-plan-fusion"

    strategy: Literal["best", "greedy", "none", "all", "keep"] = "best"
    record: str | None = None
    target: str | None = None
    roots: tuple[int | str, ...] = ()
    limit_memory: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op, self.target)
        record = None if self.record is None else _read(self.record, target.card)
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    kept = self._decided(function, record, target)
                    if kept is not None:
                        mark(function, {result for o in kept for result in o.results})
                    elif self.strategy != "keep":
                        self._plan(ctx, function, target)

    def _decided(self, function: func.FuncOp, record: Record | None, target: Target) -> list[Operation] | None:
        """The operations whose results the options or the record say are kept; None where neither does."""
        if self.roots and function.sym_name.data == "main":
            roots = operations_at(function, self.roots)
            self._tell_of_memory(function, roots)
            return roots
        try:
            return None if record is None else record.fusion_for(function, target.arch)
        except RecordError as error:
            emit_remark(function, self.name, f"{error.reason}, and the planner's plan is taken")
            return None

    def _tell_of_memory(self, function: func.FuncOp, roots: Sequence[Operation]) -> None:
        """Emits a remark if the values that the options keep take more than the memory limit of the program."""
        limit, returned = limit_of(function, MEMORY_LIMIT), {*(function.body.block.last_op or function).operands}
        names = {value: name for name, value in value_names(function).items()}
        sizes = {names[v]: tensor_bytes(v.type) for op in roots for v in op.results if v not in returned}
        if limit is not None and sum(sizes.values()) > limit:
            shown = ", ".join(f"{name} ({size} bytes)" for name, size in sizes.items())
            emit_remark(function, self.name, f"roots keep {shown} in memory; memory_limit is {limit} bytes")

    def _plan(self, ctx: Context, function: func.FuncOp, target: Target) -> None:
        mark(function, set())
        values = [] if self.strategy == "all" else candidates(function)
        if self.strategy == "all":
            roots = materialized(function)
        elif self.strategy == "none" or kept_values(function).issuperset(values):
            roots = values
        elif self.strategy == "greedy":
            roots = greedy(function, values, kept_values(function))
        else:
            search = Search(ctx, function, fused_for(target))
            limit = limit_of(function, MEMORY_LIMIT) if self.limit_memory else None
            roots = search.run() if limit is None else search.within(limit)
        mark(function, {*roots})


def _read(path: str, device: str) -> Record:
    from ..record_file import read_record

    return read_record(path, device)


LARGEST = 256
"""A kernel computes that many values at most. A launch is cheap beside them, while the time to plan kernels and to
compile them grows with their size: steps of a recurrence that run one after another would all become one kernel."""

MAX_NODES = 500
"""So many values are looked at until a kernel is too large: views can make exponentially many of a few tensors
(repeated rolls, say), of which few may be left when its dimensions have been split."""

MAX_COPIED = 200
"""What is computed in several kernels consists of that many values at most: otherwise what a recurrence hands on, which
is cheap to compute again, would make each of its steps as long as all steps before."""


def mark(function: func.FuncOp, roots: set[SSAValue]) -> None:
    """Write the plan: mark the ops that define `roots`, and no others."""
    for op in function.body.block.ops:
        if any(result in roots for result in op.results):
            op.attributes[ROOT] = UnitAttr()
        else:
            op.attributes.pop(ROOT, None)


class Search:
    """Best-first search from the unfused program.

    A state is the set of kept candidates. A step stops keeping one of them: all kernels that read it compute it
    themselves. The step that saves most is taken, until none saves anything. What a step would change is known from the
    kernels that read its value, so after a step only their gains, and those of what they read, are looked at again; and
    whether a step is legal is asked only when it is the best. Sets of candidates are bit masks.
    """

    def __init__(self, ctx: Context, function: func.FuncOp, target: Target) -> None:
        self.ctx, self.function, self.target = ctx, function, target
        self.values = candidates(function)
        self.graphs: dict[tuple[tuple[VariableKey, tuple[int, ...]], ...], tuple[Graph, Memo]] = {}
        self.cost, self.may_be_one = cache(self._cost), cache(self._may_be_one)
        self.number = {value: i for i, value in enumerate(self.values)}
        self.elementwise = ElementwiseCosts(function, self.number, target)
        self.keys = KernelKeys(function, self.number)
        self.costs: dict[bytes, tuple[float, int]] = {}
        self.legal: dict[bytes, bool] = {}
        """Key of a kernel -> its cost, and whether it may be one kernel."""
        self.planned: dict[bytes, float] = {}
        """Key of a kernel -> its seconds by the planning model."""
        self.computed_from: dict[SSAValue, int] = {}
        """Value -> the candidates that it is computed from, itself included."""
        self.inputs: dict[int, set[int]] = {}
        """Candidate -> those that it is computed from directly or through values that are none."""
        self.users: dict[int, set[int]] = {i: set() for i in range(len(self.values))}
        """Candidate -> those that are computed from it directly or through values that are none."""
        self._read(function)
        for user, read in self.inputs.items():
            for v in read:
                self.users[v].add(user)
        end = function.body.block.last_op
        self.returned = set[SSAValue]() if end is None else {*end.operands}
        self.fixed = {self.number[value] for value in kept_values(function) if value in self.number}
        self.too_large: dict[int, list[int]] = {i: [] for i in range(len(self.values))}
        """Kept candidate -> what its kernel cannot compute besides it, nor anything more."""
        self.inlined: dict[int, int] = {}
        """Kept candidate -> what its kernel computes besides it."""
        self.sources: dict[int, set[int]] = {}
        """Kept candidate -> the kept candidates that its kernel reads."""
        self.readers: dict[int, set[int]] = {}
        """Kept candidate -> those whose kernels read it."""
        self.room = LARGEST
        """Values that the kernels may compute together in addition to what they compute now."""

    def _read(self, function: func.FuncOp) -> None:
        """Find out from which candidates every value is computed."""
        nearest: dict[SSAValue, set[int]] = {}
        for op in function.body.block.ops:
            if isinstance(op, Call):
                continue  # what it gives is in memory, and no candidate
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
        those that no kernel can compute. Operands of contractions that are kept in the end are not in `without`."""
        self.inlined = dict.fromkeys(range(len(self.values)), 0)
        self.sources = {v: set(read) for v, read in self.inputs.items()}
        self.readers = {v: set(users) for v, users in self.users.items()}
        self.room = LARGEST
        for value in without:
            if self._gain(value) < inf and self._legal(value):
                self._stop_keeping(value)
        fixed = set(self.fixed)
        self._fuse(fixed)
        while operands := self._keep_operands({*without}):
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
        for value in computed_operands(self.function, self.number, self.inlined):
            readers = [r for r, inlined in self.inlined.items() if inlined >> value & 1]
            kept = {*self.inlined, value}
            own, _ = self._computed(value, kept)
            if value in without or not any(contracts_flat(self.kernel(r, self.inlined[r])) for r in readers):
                continue
            if tensor_bytes(self.values[value].type) > read_bytes(self.kernel(value, own)):
                continue
            kernels = {value: own, **{r: self._computed(r, kept)[0] for r in readers}}
            fused = sum(self._planned(r, self.inlined[r]) for r in readers)
            if sum(self._planned(*kernel) for kernel in kernels.items()) < fused:
                self.inlined |= kernels
                operands.add(value)
        self.sources = {r: self._computed(r, self.inlined)[1] for r in self.inlined}
        self.readers = {v: set() for v in self.inlined}
        for reader, read in self.sources.items():
            for v in read:
                self.readers[v].add(reader)
        return operands

    def _computed(self, root: int, kept: Container[int]) -> tuple[int, set[int]]:
        """Returns what the kernel of `root` computes in addition to it, and what it reads, where the values in `kept`
        are in memory."""
        inlined, read, todo = 0, set[int](), [*self.inputs[root]]
        while todo:
            v = todo.pop()
            if v in kept:
                read.add(v)
            elif not inlined >> v & 1:
                inlined |= 1 << v
                todo += self.inputs[v]
        return inlined, read

    def _planned(self, root: int, inlined: int) -> float:
        """Returns the seconds of the kernel that keeps `root` and computes `inlined` itself, by the planning model."""
        key = self.keys.of(root, inlined)
        if key not in self.planned:
            self.planned[key] = planned_seconds(self.ctx, self.kernel(root, inlined))
        return self.planned[key]

    def within(self, limit: int) -> set[SSAValue]:
        """Returns the values to keep if a call may take `limit` bytes in addition to its arguments, and what PyTorch
        takes in addition to its tensors if there are sums.

        While the kept values take more, another search begins without the largest of them at every place where they
        do, whatever time that costs. Where that helps little, because a neighbour is kept instead, the next search
        begins without four times as many neighbours, so there are few searches."""
        kept, without, stuck, width = self.run(), set[int](), set[int](), 1
        excess, largest = self._excess(limit, stuck)
        while largest and width <= 2 * len(self.values):
            trial = sorted(without | self._neighbours(largest, width), key=lambda v: (-self._bytes(v), v))
            other = self.run(trial)
            stuck |= largest & self.inlined.keys()
            new_excess, new_largest = self._excess(limit, stuck)
            width *= 1 if 2 * new_excess <= excess else 4
            if new_excess < excess:
                kept, excess, largest, without = other, new_excess, new_largest, {*trial} - self.inlined.keys()
            else:
                largest -= stuck
        return kept

    def _neighbours(self, values: set[int], count: int) -> set[int]:
        """Returns `values`, and for each of them as many of the candidates near it as make `count` together."""
        result = set(values)
        for value in values:
            near, edge = {value}, [value]
            for v in edge:
                if len(near) >= count:
                    break
                found = sorted((self.inputs[v] | self.users[v]) - near - self.fixed)[: count - len(near)]
                near.update(found)
                edge += found
            result |= near
        return result

    def _bytes(self, value: int) -> int:
        return aligned(tensor_bytes(self.values[value].type))

    def _excess(self, limit: int, stuck: set[int]) -> tuple[int, set[int]]:
        """Returns how many bytes more than `limit` the kept values take, summed over the kernels, and for every kernel
        where they do the largest of those that need not be kept and are not `stuck`."""
        if any(self.kernel(root, inlined).reductions for root, inlined in self.inlined.items()):
            limit += self.target.workspace
        last = {v: max(self.readers[v], default=v) for v in self.inlined}
        excess, largest, live = 0, set[int](), list[int]()
        most = limit - result_bytes(self.function)
        for kernel in sorted(self.inlined):
            live = [v for v in live if last[v] >= kernel]
            if self.values[kernel] not in self.returned:
                live.append(kernel)
            if (taken := sum(map(self._bytes, live))) > most:
                excess += taken - most
                movable = [v for v in live if v not in self.fixed and v not in stuck]
                largest |= {max(movable, key=lambda v: (self._bytes(v), -v))} if movable else set()
        return excess, largest

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
        """No longer keeping `value`, as it is ranked: by what it gains, to the picosecond; of equal ones the one that
        makes the smallest kernels comes first: the kernels of a chain grow evenly, and few steps make large ones."""
        size = sum(self.inlined[r].bit_count() for r in self.readers[value]) + self.inlined[value].bit_count()
        return round(self._gain(value), 12), size, value

    def _stop_keeping(self, value: int) -> list[int]:
        """Let all kernels that read `value` compute it; gives them in program order."""
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
        """The kernels that read `value`, as they are when they compute it: what each keeps, and what it computes."""
        own = self.inlined[value] | 1 << value
        return [(r, self.inlined[r] | own) for r in sorted(self.readers[value])]

    def _gain(self, value: int) -> float:
        """Change of the total time if `value` is no longer kept; infinite if a kernel would be too large, or if what
        several kernels then compute is."""
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
        """Seconds of the kernel that keeps `root` and computes `inlined` itself, and how many values it computes; its
        time is infinite if it is too large."""
        if any(m & inlined == m for m in self.too_large[root]):
            return inf, 0
        if (known := self.elementwise.cost(root, inlined)) is None:
            key = self.keys.of(root, inlined)
            if (known := self.costs.get(key)) is None:
                known = self.costs[key] = self._cost_of_graph(root, inlined)
        if known[1] <= LARGEST:
            return known
        self.too_large[root].append(inlined)
        return inf, 0

    def _cost_of_graph(self, root: int, inlined: int) -> tuple[float, int]:
        """Returns the cost of a kernel from its graph: infinite, of more than `LARGEST` values, if it is too large."""
        try:
            kernel = self.kernel(root, inlined)
        except TooLarge:
            return inf, LARGEST + 1
        return (kernel.time() if kernel.written <= LARGEST else inf), kernel.written

    def kernel(self, root: int, inlined: int) -> Kernel:
        """The graph of that kernel, with dimensions split as its accesses ask for. Raises TooLarge."""
        splits = dict[VariableKey, tuple[int, ...]]()
        while True:
            key = tuple(sorted(splits.items()))
            if key not in self.graphs:
                self.graphs[key] = Graph(splits), {}
            graph, memo = self.graphs[key]
            pull = Pull(graph, self.number, inlined, self.computed_from, MAX_NODES, memo)
            node, variables = pull.root(self.values[root])
            kernel = Kernel(graph, node, variables, self.values[root].type, MAX_NODES, self.target)
            more = wanted_splits(kernel, splits)
            if more == splits:
                return kernel
            splits = more

    def _may_be_one(self, root: int, inlined: int) -> bool:
        """Returns true if no contraction of that kernel is computed several times."""
        if self.elementwise.covers(root, inlined):
            return True
        key = self.keys.of(root, inlined)
        if key not in self.legal:
            self.legal[key] = contracts_once(self.ctx, self.kernel(root, inlined))
        return self.legal[key]


def wanted_splits(kernel: Kernel, splits: dict[VariableKey, tuple[int, ...]]) -> dict[VariableKey, tuple[int, ...]]:
    """`splits`, and further digits for variables that occur under a floordiv or mod by a divisor of their extent."""
    graph = kernel.graph
    result = dict(splits)
    for form in _forms(kernel):
        for inner, divisor in form.quotients():
            if len(inner.terms) != 1 or inner.constant or inner.terms[0][1] != 1 or inner.terms[0][0][0] != DIM:
                continue
            number: int = inner.terms[0][0][1]
            if number in kernel.scanned:
                continue
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
