"""Time of a kernel on a target, estimated from its graph."""

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

BLOCKS = (128, 64, 32, 16)
"""Extents that a contraction's tile may have along each of its two sides, largest first."""

PIECE = 256
"""The shortest range that a reduction is worth being cut into, for several blocks to share it."""

PART = MIN_PART_BYTES // 4
"""The same where no products are, of f32: a second kernel combines the parts."""

GATHERED = 0.5
"""The share of its rate that a product on tensor cores gets if a factor has to be gathered through registers."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of factors that depend on different indices. `left`, `right`: variables of the two sides."""

    reduce: Reduce
    open: int
    left: int
    right: int
    narrow: bool
    gathered: bool
    """True if a factor is gathered: then it is not copied ahead, and no tile of it is contiguous."""


class Kernel:
    """A kernel as a graph, and its nodes.

    `visited`: each node with the variables of the reductions around it. `written`: number of computed values; equal
    values in different reductions are computed in each. Raises TooLarge for more than `limit`.
    """

    def __init__(
        self, graph: Graph, root: Node, variables: tuple[int, ...], output: Attribute, limit: int, target: Target
    ) -> None:
        self.graph, self.root, self.variables, self.output, self.target = graph, root, variables, output, target
        self.visited: dict[tuple[Node, int], None] = {}
        self.written = self._visit(limit)
        self.free = sum(1 << v for v in variables)
        self.scanned = {node.variable for node, _ in self.visited if isinstance(node, Scan)}
        self.reductions = [(node, opened) for node, opened in self.visited if isinstance(node, Reduce)]
        self.contractions = [c for node, opened in self.reductions if (c := contraction(node, opened))]
        outermost = [node for node, opened in self.reductions if not opened]
        self.rows = self.free & ~either(~node.free for node in outermost)
        """The free variables that all outermost reductions depend on, along which the grid is."""
        self.lengths = {node.variables: self._count(node.variables) for node in outermost}
        """Lengths of the outermost reductions. Those over the same variables are one loop."""
        self.along = {
            r: v
            for variables, length in self.lengths.items()
            if length < SHARED_LENGTH
            for r, v in self._along(variables)
        }
        """Variables of outermost reductions -> the free ones along the same row."""

    def _count(self, variables: Iterable[int]) -> int:
        return prod(self.graph.extents[v] for v in variables)

    def _visit(self, limit: int) -> int:
        """Visits the nodes in depth-first order. Returns how many values they are."""
        todo, seen = [(self.root, tuple[Reduce, ...]())], set[tuple[Node, tuple[Reduce, ...]]]()
        while todo:
            node, around = todo.pop()
            while around and not around[-1].bound & node.free:
                around = around[:-1]
            if (node, around) in seen:
                continue
            seen.add((node, around))
            if len(seen) > limit:
                raise TooLarge
            self.visited[node, either(r.bound for r in around)] = None
            inner = (*around, node) if isinstance(node, Reduce) else around
            todo += [(child, inner) for child in reversed(node.children)]
        return len(seen)

    def _along(self, variables: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields variables of a reduction, each with the free one of the same extent that is no row's."""
        extents, free = self.graph.extents, self._in(self.free & ~self.rows)
        for r in variables:
            if (v := next((v for v in free if extents[v] == extents[r]), None)) is not None:
                free.remove(v)
                yield r, v

    def _of_row(self, free: int) -> int:
        """Returns a set of variables with free ones in place of those of reductions along the same row."""
        for r, v in self.along.items():
            if free >> r & 1:
                free = free & ~(1 << r) | 1 << v
        return free

    def _in(self, mask: int) -> list[int]:
        return [v for v in self.variables if mask >> v & 1]

    def _block_extents(self, block: int) -> dict[int, int]:
        """Returns how many indices of a free variable one block covers, for those that tiles of side `block` cut."""
        if not self.contractions:
            return self._row_extents(block) if self.reductions else {}
        blocks = dict[int, int]()
        for c in self.contractions:
            if c.open or not c.left | c.right:
                continue
            both = c.left & c.right & self.free
            sides = self._in(c.left & ~both), self._in(c.right & ~both)
            row = not all(sides) and any(c.reduce.bound & opened for _, opened in self.reductions)
            for side in sides:  # of a row times a matrix there are no tiles: what is inside is computed for each number
                total = self._count(side)
                room = total if total <= 2 * block else 1 if row else block
                for v in reversed(side):
                    if v not in blocks:
                        blocks[v] = max(1, min(room, self.graph.extents[v]))
                        room //= blocks[v]
            blocks = dict.fromkeys(self._in(both), 1) | blocks
        # Along the variables of no contraction every index is another block, which computes them all again.
        return dict.fromkeys(self.variables, 1) | blocks if blocks else blocks

    def _row_extents(self, block: int) -> dict[int, int]:
        """Returns the same without contractions: a block takes several indices of variables that nested reductions do
        not depend on, because every block computes these again."""
        nested, room, blocks = [node.free for node, opened in self.reductions if opened], 2 * block, dict[int, int]()
        for v in reversed(self._in(either(node.free for node, opened in self.reductions if not opened))):
            if any(not free >> v & 1 for free in nested):
                blocks[v] = room
            room = max(1, room // max(1, self.graph.extents[v]))
        return blocks

    def _executions(self, blocks: dict[int, int], free: int, opened: int) -> float:
        """Returns how often a value that depends on `free` is computed inside of reductions over `opened`: once for
        each of its indices, and again in every block along free variables that it does not depend on."""
        count, extents = 1.0, self.graph.extents
        for variable in range((self.free | opened | free).bit_length()):
            if free >> variable & 1:
                count *= extents[variable]
            elif variable in blocks and not opened >> variable & 1:
                count *= -(-extents[variable] // blocks[variable])
        return count

    def _blocks_in_flight(self, blocks: dict[int, int]) -> float:
        """Returns how many blocks can work at the same time, each computing all its operands."""
        extents = self.graph.extents
        if self.contractions:
            count = prod(-(-extents[v] // max(blocks.get(v, extents[v]), 1)) for v in self.variables)
            return count * max(1, min(self.target.sms // max(count, 1), self._parts(PIECE)))
        if not self.reductions:
            return inf
        # The blocks of a cluster share a row if all reductions are long enough for them.
        single = all(len(node.variables) == 1 for node, _ in self.reductions)
        shared = single and min(self.lengths.values()) >= SHARED_LENGTH and self.target.has("cluster")
        rows = prod(-(-extents[v] // blocks.get(v, 1)) for v in self._in(self.rows))
        return rows * max(CLUSTERS) if shared else rows

    def _parts(self, least: int) -> int:
        """Returns into how many parts of `least` elements the outermost reductions can be cut, if they are one loop."""
        return max(1, next(iter(self.lengths.values())) // least) if len(self.lengths) == 1 else 1

    def _operations(self, executions: Callable[[int, int], float]) -> tuple[float, float]:
        """Returns the number of operations on scalars outside of contractions, and of the special ones. Blocks keep
        rows: a value of a row is computed once, for reductions over it and for the operations after these."""
        computed = dict[tuple[int, int], tuple[str, dict[int, float]]]()
        for node, opened in self.arithmetic:
            _, within = computed.setdefault((id(node.op), self._of_row(node.free)), (node.name, {}))
            within[opened] = within.get(opened, 0.0) + executions(node.free, opened)
        kept, total, special = either(1 << v for v in self.along.values()), 0.0, 0.0
        for (_, free), (name, within) in computed.items():
            times = max(within.values()) if free & kept else sum(within.values())
            total += times / 2 if name == "payload.cast" else times  # two halves in one instruction
            special += times if name in SPECIAL else 0
        return total, special

    @cached_property
    def arithmetic(self) -> list[tuple[Payload, int]]:
        """Operations on scalars outside of contractions, with the variables of the reductions around them."""
        products = {n for c in self.contractions for n in product_nodes(c.reduce)}
        return [(n, opened) for n, opened in self.visited if isinstance(n, Payload) and n not in products]

    def time(self) -> float:
        """Returns the estimated seconds with the best of the tile sizes."""
        best = inf
        for side in BLOCKS:
            blocks = self._block_extents(side)
            flight = self._blocks_in_flight(blocks)
            best = min(best, self._time(blocks, max(1.0, flight)))
            if not blocks or flight >= self.target.sms:
                break
        return best

    def _time(self, blocks: dict[int, int], flight: float) -> float:
        rates = self.target.rates
        vector = matrix = wide = near = alone = 0.0
        far = dict[int, tuple[float, int]]()
        executions = cache(partial(self._executions, blocks))
        contracted = {c.reduce: c for c in self.contractions}
        along = {c.reduce.variables for c in self.contractions}
        for node, opened in self.visited:
            if isinstance(node, Reduce):
                steps, c = executions(node.free | node.bound, opened | node.bound), contracted.get(node)
                if c is None:
                    vector += steps
                    if along and node.variables not in along and not opened:  # a loop of its own, in every block
                        alone += steps * element_bytes(node.type)
                elif c.narrow:
                    matrix += 2 * steps / (GATHERED if c.gathered else 1.0)
                else:
                    nested = c.open and not (c.left | c.right) & self.free
                    wide += 2 * steps / (rates.nested if nested else rates.tiled)
            elif isinstance(node, Scan):
                vector += executions(node.free, opened)
            elif isinstance(node, Load):
                size = executions(node.free, opened) * node.element_bytes
                near += size
                far[id(node.source)] = far.get(id(node.source), (0.0, 0))[0] + size, node.tensor_bytes
        scalar, special = self._operations(executions)
        vector += scalar
        output = tensor_bytes(self.output)
        memory = output + sum(min(size, whole) for size, whole in far.values())
        compute = vector / rates.vector + special / rates.special  # every unit of the card at work, one after the other
        compute = compute + matrix / rates.mma + wide / rates.fma

        def seconds(flight: float) -> float:
            bandwidth = rates.memory if self.contractions else min(rates.memory, flight * rates.block)
            busy = min(1.0, flight / self.target.sms)
            start = rates.launch + rates.ramp
            latency, cache = alone / flight / rates.block, (near + output) / rates.cache
            work = compute / busy + self.target.exposed * cache
            return Times(start, memory / bandwidth, cache, work, latency=latency).seconds

        whole = seconds(flight)
        divided = self.contractions or flight >= self.target.sms or self.rows != self.free
        if divided or any(opened for _, opened in self.reductions):  # others inside are as long in every part
            return whole
        parts = min(MOST_PARTS, self._parts(PART))
        return whole if parts == 1 else min(whole, another_kernel(rates, seconds(flight * parts)))


def reached(node: Node, through: Callable[[Node], tuple[Node, ...]]) -> Iterator[Node]:
    """Yields `node` and the nodes that it leads to by `through`, each once, in depth-first order."""
    seen, todo = set[Node](), [node]
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            yield n
            todo += reversed(through(n))


def _factors(node: Node) -> tuple[Node, ...]:
    """Returns the two factors of a product of floats; nothing of another node."""
    return node.children if isinstance(node, Payload) and node.name == "arith.mulf" else ()


def contraction(node: Reduce, opened: int) -> Contraction | None:
    """Returns `node` as a contraction, or None."""
    bound = node.bound
    parts = [f for f in reached(node.body, _factors) if not _factors(f) and f.free & bound]
    if node.kind != ReductionKind.ADD or len(parts) < 2:
        return None
    left = max(parts, key=lambda f: f.free.bit_count())
    others = [f for f in parts if f.free & ~left.free] or [f for f in parts if f.free != left.free]
    if not others:
        return None
    right = either(f.free for f in others)
    narrow, gathered = any(map(_stored_narrow, parts)), any(map(_is_gathered, parts))
    return Contraction(node, opened, left.free & ~bound, right & ~bound, narrow, gathered)


def product_nodes(node: Reduce) -> set[Node]:
    """Returns the multiplications that a contraction does not do one by one: the product of its two sides, which a
    matrix unit does, and those by factors that are moved out of the sum."""
    products = ((n, _factors(n)) for n in reached(node.body, _factors))
    return {n for n, of in products if of and (n.free == node.body.free or any(not f.free & node.bound for f in of))}


def _is_gathered(node: Node) -> bool:
    """Returns true if a factor is computed from a load at coordinates that depend on data."""
    nodes = reached(node, lambda n: n.children if isinstance(n, Payload) else ())
    loads = (n for n in nodes if isinstance(n, Load))
    return any(atom[0] == SYM for n in loads for form in n.coordinates for atom in form.atoms())


def _stored_narrow(node: Node) -> bool:
    while isinstance(node, Payload) and node.children:
        if any(is_low_precision(operand.type) for operand in node.children):
            return True
        node = next((o for o in node.children if not isinstance(o, Constant | Scalar)), node.children[0])
    return is_low_precision(node.type)
