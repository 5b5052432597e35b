"""Cost model of fusion: estimates the time of a kernel from its graph, before it has a schedule.

The model counts how often each node of the graph is computed or loaded, for a few sizes of the blocks that the kernel
may be divided into. A node inside a reduction is computed for each iteration of the reduction. A node that does not
depend on a free index is computed again in every block along this index. The counts, divided by the rates of the
target, are the times of arithmetic, caches and memory.

*Enclosing* is, for a node, the bit mask of the variables of the reductions around it. A *row* is the elements that the
outermost reductions of a kernel combine, for example the row of a softmax, which one block computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import inf, prod

from xdsl.ir import Attribute

from ....dialects.kernel.barriers import CLUSTERS
from ....dialects.payload import element_bytes, is_low_precision, tensor_bytes
from ....dialects.shapes.affine import SYM
from ....dialects.tensor import ReductionKind
from ....target.model import Target
from ...analysis.nest_schedule import SHARED_LENGTH
from ...planning.model import MIN_PART_BYTES, MOST_PARTS, SPECIAL, Times, another_kernel
from .graph import Constant, Graph, Load, Node, Payload, Reduce, Scalar, Scan, TooLarge, either

TILE_SIDES = (128, 64, 32, 16)
"""Candidate extents of the output tile of a contraction, for rows and columns alike, largest first."""

MIN_SPLIT_K_ELEMENTS = 256
"""Minimum extent of the part of the reduction that each block of a split-K contraction computes."""

MIN_SPLIT_ELEMENTS = MIN_PART_BYTES // 4
"""Minimum f32 elements for each block that shares a reduction without contractions. A second kernel combines the
results of the blocks."""

GATHERED_OPERAND_RATE = 0.5
"""Fraction of the tensor-core rate that a contraction reaches if an operand is gathered, which needs loads through
registers."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two operands that depend on different indices, such as a matmul."""

    reduce: Reduce
    """The sum."""
    enclosing: int
    """Bit mask of the variables of the reductions around it."""
    lhs: int
    """Bit mask of the variables of the left operand, except the summed ones."""
    rhs: int
    """Bit mask of the variables of the right operand, except the summed ones."""
    narrow: bool
    """True if an operand is computed from floats narrower than 32 bits, so that tensor cores are used."""
    gathered: bool
    """True if an operand is gathered. Then it cannot be loaded asynchronously, and no tile of it is contiguous."""


class Kernel:
    """A kernel whose time fusion estimates.

    Args:
        graph: Graph of the nodes.
        root: Node of the scalar that the kernel stores.
        variables: Free variables, which are the indices of the result.
        output: Tensor type of the result.
        limit: Maximum of `value_count`.
        target: Target whose rates are used.

    Raises:
        TooLarge: If `value_count` would exceed `limit`.
    """

    def __init__(
        self, graph: Graph, root: Node, variables: tuple[int, ...], output: Attribute, limit: int, target: Target
    ) -> None:
        self.graph, self.root, self.variables, self.output, self.target = graph, root, variables, output, target
        self.visited: dict[tuple[Node, int], None] = {}
        """(Node, enclosing) for each node of the kernel."""
        self.value_count = self._visit(limit)
        """Number of computed values. A node inside several different reductions counts once for each."""
        self.free = sum(1 << v for v in variables)
        self.scanned_variables = {node.variable for node, _ in self.visited if isinstance(node, Scan)}
        self.reductions = [(node, enclosing) for node, enclosing in self.visited if isinstance(node, Reduce)]
        self.contractions = [c for node, enclosing in self.reductions if (c := contraction(node, enclosing))]
        outermost = [node for node, enclosing in self.reductions if not enclosing]
        self.rows = self.free & ~either(~node.free for node in outermost)
        """Bit mask of the free variables that all outermost reductions depend on: they index the rows."""
        self.lengths = {node.variables: self._count(node.variables) for node in outermost}
        """Variables of outermost reductions -> number of their iterations. Reductions over the same variables run in
        one loop."""
        self.row_variable = {
            r: v
            for variables, length in self.lengths.items()
            if length < SHARED_LENGTH
            for r, v in self._row_variables(variables)
        }
        """Variable of an outermost reduction -> free variable that indexes the same row.

        In `exp(x[i, j]) / sum_k(exp(x[i, k]))`, k -> j: `exp` is computed once for both if the block holds the row in
        registers. Rows of `SHARED_LENGTH` and more elements do not fit."""

    def _count(self, variables: Iterable[int]) -> int:
        return prod(self.graph.typical_extents[v] for v in variables)

    def _visit(self, limit: int) -> int:
        """Fills `visited` in depth-first order. Returns `value_count`."""
        todo, seen = [(self.root, tuple[Reduce, ...]())], set[tuple[Node, tuple[Reduce, ...]]]()
        while todo:
            node, enclosing = todo.pop()
            # A node that does not depend on the innermost reduction is computed outside it.
            while enclosing and not enclosing[-1].bound & node.free:
                enclosing = enclosing[:-1]
            if (node, enclosing) in seen:
                continue
            seen.add((node, enclosing))
            if len(seen) > limit:
                raise TooLarge
            self.visited[node, either(r.bound for r in enclosing)] = None
            inner = (*enclosing, node) if isinstance(node, Reduce) else enclosing
            todo += [(child, inner) for child in reversed(node.children)]
        return len(seen)

    def _row_variables(self, variables: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields (variable of a reduction, free variable) pairs that index the elements of the same row: (k, j) in the
        example of `row_variable`. Both have equal extents."""
        extents, free = self.graph.typical_extents, self._members(self.free & ~self.rows)
        for r in variables:
            if (v := next((v for v in free if extents[v] == extents[r]), None)) is not None:
                free.remove(v)
                yield r, v

    def _with_row_variables(self, free: int) -> int:
        """Returns the bit mask `free` with variables of reductions replaced by free ones, as in `row_variable`."""
        for r, v in self.row_variable.items():
            if free >> r & 1:
                free = free & ~(1 << r) | 1 << v
        return free

    def _members(self, mask: int) -> list[int]:
        """Returns the free variables in `mask`, in the order of the dimensions."""
        return [v for v in self.variables if mask >> v & 1]

    def _block_extents(self, side_extent: int) -> dict[int, int]:
        """Returns the tile of a block: free variable -> number of its indices that one block computes.

        A variable without an entry is not divided among blocks. `side_extent` is the maximum extent of the tile of a
        contraction along rows and along columns."""
        if not self.contractions:
            return self._row_extents(side_extent) if self.reductions else {}
        tile = dict[int, int]()
        for c in self.contractions:
            if c.enclosing or not c.lhs | c.rhs:
                continue
            batch = c.lhs & c.rhs & self.free
            sides = self._members(c.lhs & ~batch), self._members(c.rhs & ~batch)
            vector = not all(sides) and any(c.reduce.bound & enclosing for _, enclosing in self.reductions)
            for side in sides:
                # A product of a vector and a matrix with a reduction inside is not tiled: each block computes one
                # element along the long side, and so repeats the inner reduction for each element.
                total = self._count(side)
                room = total if total <= 2 * side_extent else 1 if vector else side_extent
                for v in reversed(side):
                    if v not in tile:
                        tile[v] = max(1, min(room, self.graph.typical_extents[v]))
                        room //= tile[v]
            tile = dict.fromkeys(self._members(batch), 1) | tile
        # Variables that no contraction depends on have extent 1: for each of their indices, another block repeats the
        # contractions.
        return dict.fromkeys(self.variables, 1) | tile if tile else tile

    def _row_extents(self, block: int) -> dict[int, int]:
        """Returns the tile of a block in a kernel of reductions without contractions: at most 2 * `block` elements.

        If a nested reduction does not depend on a free variable, each block along this variable repeats it. So the tile
        has several indices of such a variable, which share the result. Other variables have no entry."""
        nested, room, blocks = (
            [node.free for node, enclosing in self.reductions if enclosing],
            2 * block,
            dict[int, int](),
        )
        for v in reversed(self._members(either(node.free for node, enclosing in self.reductions if not enclosing))):
            if any(not free >> v & 1 for free in nested):
                blocks[v] = room
            room = max(1, room // max(1, self.graph.typical_extents[v]))
        return blocks

    def _executions(self, blocks: dict[int, int], free: int, enclosing: int) -> float:
        """Returns how often a value is computed: once for each of its indices, and again in every block along the other
        free variables.

        Args:
            blocks: Tile of a block.
            free: Bit mask of the variables that the value depends on.
            enclosing: Bit mask of the variables of the reductions around it.
        """
        count, extents = 1.0, self.graph.typical_extents
        for variable in range((self.free | enclosing | free).bit_length()):
            if free >> variable & 1:
                count *= extents[variable]
            elif variable in blocks and not enclosing >> variable & 1:
                count *= -(-extents[variable] // blocks[variable])
        return count

    def _blocks_in_flight(self, blocks: dict[int, int]) -> float:
        """Returns how many blocks can run at the same time, including those that share a reduction (split-K, clusters).

        Infinite for an elementwise kernel, which can be divided into any number of blocks."""
        extents = self.graph.typical_extents
        if self.contractions:
            count = prod(-(-extents[v] // max(blocks.get(v, extents[v]), 1)) for v in self.variables)
            return count * max(1, min(self.target.sms // max(count, 1), self._max_splits(MIN_SPLIT_K_ELEMENTS)))
        if not self.reductions:
            return inf
        # The blocks of a cluster share a row if each reduction has one variable and all are long enough.
        single = all(len(node.variables) == 1 for node, _ in self.reductions)
        shared = single and min(self.lengths.values()) >= SHARED_LENGTH and self.target.has("cluster")
        rows = prod(-(-extents[v] // blocks.get(v, 1)) for v in self._members(self.rows))
        return rows * max(CLUSTERS) if shared else rows

    def _max_splits(self, min_elements: int) -> int:
        """Returns how many blocks can share the outermost reductions, with at least `min_elements` iterations each.
        Returns 1 if the reductions are several loops."""
        return max(1, next(iter(self.lengths.values())) // min_elements) if len(self.lengths) == 1 else 1

    def _operations(self, executions: Callable[[int, int], float]) -> tuple[float, float]:
        """Returns the number of scalar operations outside contractions, and how many of them are special functions.

        A block holds its rows in registers. So a value of a row is computed once, for the reductions over the row and
        for the operations after them.

        Args:
            executions: Function of (free, enclosing) that returns how often a value is computed.
        """
        computed = dict[tuple[int, int], tuple[str, dict[int, float]]]()
        for node, enclosing in self.arithmetic:
            _, counts = computed.setdefault((id(node.op), self._with_row_variables(node.free)), (node.name, {}))
            counts[enclosing] = counts.get(enclosing, 0.0) + executions(node.free, enclosing)
        row_mask, total, special = either(1 << v for v in self.row_variable.values()), 0.0, 0.0
        for (_, free), (name, counts) in computed.items():
            times = max(counts.values()) if free & row_mask else sum(counts.values())
            # GPUs convert two halves in one instruction.
            total += times / 2 if name == "payload.cast" else times
            special += times if name in SPECIAL else 0
        return total, special

    @cached_property
    def arithmetic(self) -> list[tuple[Payload, int]]:
        """Scalar operations outside contractions, as (node, enclosing)."""
        products = {n for c in self.contractions for n in product_nodes(c.reduce)}
        return [(n, enclosing) for n, enclosing in self.visited if isinstance(n, Payload) and n not in products]

    def time(self) -> float:
        """Returns the estimated seconds, for the tile size that takes the least time."""
        best = inf
        for side in TILE_SIDES:
            blocks = self._block_extents(side)
            flight = self._blocks_in_flight(blocks)
            best = min(best, self._time(blocks, max(1.0, flight)))
            if not blocks or flight >= self.target.sms:
                break
        return best

    def _time(self, blocks: dict[int, int], flight: float) -> float:
        """Returns the estimated seconds if each block computes the tile `blocks`, and `flight` blocks can run at
        once."""
        rates = self.target.rates
        vector_operations = mma_operations = fma_operations = cache_bytes = serial_bytes = 0.0
        source_bytes = dict[int, tuple[float, int]]()
        executions = cache(partial(self._executions, blocks))
        contracted = {c.reduce: c for c in self.contractions}
        contraction_variables = {c.reduce.variables for c in self.contractions}
        for node, enclosing in self.visited:
            if isinstance(node, Reduce):
                steps, c = executions(node.free | node.bound, enclosing | node.bound), contracted.get(node)
                if c is None:
                    vector_operations += steps
                    # A reduction over other variables than the contractions is a loop of its own in every block.
                    if contraction_variables and node.variables not in contraction_variables and not enclosing:
                        serial_bytes += steps * element_bytes(node.type)
                elif c.narrow:
                    mma_operations += 2 * steps / (GATHERED_OPERAND_RATE if c.gathered else 1.0)
                else:
                    nested = c.enclosing and not (c.lhs | c.rhs) & self.free
                    fma_operations += 2 * steps / (rates.nested if nested else rates.tiled)
            elif isinstance(node, Scan):
                vector_operations += executions(node.free, enclosing)
            elif isinstance(node, Load):
                size = executions(node.free, enclosing) * node.element_bytes
                cache_bytes += size
                source_bytes[id(node.source)] = source_bytes.get(id(node.source), (0.0, 0))[0] + size, node.tensor_bytes
        scalar, special = self._operations(executions)
        vector_operations += scalar
        output = tensor_bytes(self.output)
        memory = output + sum(min(size, tensor) for size, tensor in source_bytes.values())
        # Seconds with all multiprocessors at work, if one kind of unit works after the other.
        compute = vector_operations / rates.vector + special / rates.special
        compute = compute + mma_operations / rates.mma + fma_operations / rates.fma

        def seconds(flight: float) -> float:
            bandwidth = rates.memory if self.contractions else min(rates.memory, flight * rates.block)
            busy = min(1.0, flight / self.target.sms)
            start = rates.launch + rates.ramp
            latency, cache = serial_bytes / flight / rates.block, (cache_bytes + output) / rates.cache
            work = compute / busy + self.target.exposed * cache
            return Times(start, memory / bandwidth, cache, work, latency=latency).seconds

        undivided = seconds(flight)
        divided = self.contractions or flight >= self.target.sms or self.rows != self.free
        # Nested reductions do not become shorter if several blocks share the outer one.
        if divided or any(enclosing for _, enclosing in self.reductions):
            return undivided
        parts = min(MOST_PARTS, self._max_splits(MIN_SPLIT_ELEMENTS))
        return undivided if parts == 1 else min(undivided, another_kernel(rates, seconds(flight * parts)))


def reached(node: Node, through: Callable[[Node], tuple[Node, ...]]) -> Iterator[Node]:
    """Yields `node` and all nodes that are reachable from it, each once, in depth-first order. `through` returns the
    successors of a node."""
    seen, todo = set[Node](), [node]
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            yield n
            todo += reversed(through(n))


def _operands(node: Node) -> tuple[Node, ...]:
    """Returns the two operands of a float multiplication; an empty tuple for any other node."""
    return node.children if isinstance(node, Payload) and node.name == "arith.mulf" else ()


def contraction(node: Reduce, enclosing: int) -> Contraction | None:
    """Returns the reduction `node` as a contraction, or None if it is not a sum of products of two operands that depend
    on different variables. `enclosing` is the bit mask of the variables of the reductions around it."""
    bound = node.bound
    operands = [f for f in reached(node.body, _operands) if not _operands(f) and f.free & bound]
    if node.kind != ReductionKind.ADD or len(operands) < 2:
        return None
    # The left operand is the one with the most variables.
    lhs = max(operands, key=lambda f: f.free.bit_count())
    others = [f for f in operands if f.free & ~lhs.free] or [f for f in operands if f.free != lhs.free]
    if not others:
        return None
    right = either(f.free for f in others)
    batch = lhs.free & right & ~bound
    narrow, gathered = any(map(_stored_narrow, operands)), any(_is_gathered(f, batch) for f in operands)
    return Contraction(node, enclosing, lhs.free & ~bound, right & ~bound, narrow, gathered)


def product_nodes(node: Reduce) -> set[Node]:
    """Returns the multiplications of a contraction that cost no scalar operation per iteration.

    - The multiplication of the two operands: a multiply-add or a matrix unit does it.
    - Multiplications by factors that `loop-hoist-reduction-factors` moves out of the sum.
    """
    products = ((n, _operands(n)) for n in reached(node.body, _operands))
    return {n for n, of in products if of and (n.free == node.body.free or any(not f.free & node.bound for f in of))}


def _is_gathered(node: Node, batch: int) -> bool:
    """Returns true if an operand is computed from a load with data-dependent coordinates, as in a gather.

    Coordinates that depend on variables in the bit mask `batch` alone do not count: they are equal for a whole tile."""
    nodes = reached(node, lambda n: n.children if isinstance(n, Payload) else ())
    loads = [n for n in nodes if isinstance(n, Load)]
    gathers = (n for n in loads if any(child.free & ~batch for child in n.children))
    return any(atom[0] == SYM for n in gathers for form in n.coordinates for atom in form.atoms())


def _stored_narrow(node: Node) -> bool:
    """Returns true if an operand is a conversion of, or elementwise arithmetic on, a float narrower than 32 bits."""
    while isinstance(node, Payload) and node.children:
        if any(is_low_precision(operand.type) for operand in node.children):
            return True
        node = next((o for o in node.children if not isinstance(o, Constant | Scalar)), node.children[0])
    return is_low_precision(node.type)
