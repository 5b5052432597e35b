"""What a kernel would cost: its time on a GPU, estimated from its graph, or why it should not be one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from xdsl.ir import Attribute, SSAValue

from ....dialects.kernel.cluster import CLUSTERS
from ....dialects.payload import element_bytes, is_low_precision, tensor_bytes
from ....dialects.shapes.affine import SYM
from ....dialects.target import Target
from ....dialects.tensor import ReductionKind
from ...analysis.cluster_rows import SHARED_LENGTH
from ...planning.roofline import GAP, SPECIAL, Operations, Times
from .graph import Constant, Graph, Index, Load, Node, Payload, Reduce, Scalar, TooLarge, children

BLOCKS = (128, 64, 32, 16)
"""Extents that a contraction's tile may have along each of its two sides, largest first."""

PIECE = 256
"""The shortest range that a reduction is worth being cut into, for several blocks to share it."""

PART, MOST_PARTS = 4096, 256
"""The same where no products are: elements at least, and parts at most, which a second kernel combines."""

NESTED = 0.15
"""The share of its rate that a product of f32 gets whose results are all reduced again: in one small tile after the
other."""

GATHERED = 0.5
"""The share of its rate that a product on tensor cores gets if a factor has to be gathered through registers."""

MATRIX_WIDE = 0.67
"""The share of its rate that a product of f32 gets on CUDA cores with tiles of any shape."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of factors that depend on different indices; sides as sets of variables."""

    reduce: Reduce
    open: int
    left: int
    right: int
    narrow: bool
    gathered: bool
    """Whether a factor is read where data say: then it cannot be copied ahead, and no tile of it is contiguous."""


@dataclass
class Kernel:
    """A kernel as a graph, and everything that is computed in it.

    `visited` holds each node with the reduction variables that are open where it is computed.
    """

    graph: Graph
    root: Node
    variables: tuple[int, ...]
    output: Attribute
    target: Target
    limit: int | None = None
    """Raise TooLarge if more is `written`: values, and equal ones in different reductions are written in each."""
    visited: dict[tuple[Node, int], None] = field(default_factory=dict[tuple[Node, int], None])
    contractions: list[Contraction] = field(default_factory=list[Contraction])
    blocks: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self.free = sum(1 << v for v in self.variables)
        seen = set[tuple[Node, tuple[Reduce, ...]]]()
        self._visit(self.root, (), seen)
        self.written = len(seen)
        self.contractions = [c for (n, o) in self.visited if isinstance(n, Reduce) and (c := contraction(n, o))]
        self.blocks = self._block_extents(BLOCKS[0])
        self._products: dict[tuple[int, int], float] = {}

    def _visit(self, node: Node, around: tuple[Reduce, ...], seen: set[tuple[Node, tuple[Reduce, ...]]]) -> None:
        while around and not around[-1].bound & node.free:
            around = around[:-1]
        if (node, around) in seen:
            return
        seen.add((node, around))
        if self.limit is not None and len(seen) > self.limit:
            raise TooLarge
        opened = 0
        for reduce in around:
            opened |= reduce.bound
        self.visited[node, opened] = None
        if isinstance(node, Reduce):
            self._visit(node.body, (*around, node), seen)
        else:
            for child in children(node, self.graph):
                self._visit(child, around, seen)

    def _block_extents(self, block: int) -> dict[int, int]:
        """How many indices of a free dimension one block covers, for those that tiles of `block` by `block` cut."""
        blocks = dict[int, int]()
        for c in self.contractions:
            if c.open or not c.left | c.right:
                continue
            both = c.left & c.right & self.free
            for side in (c.left & ~both & self.free, c.right & ~both & self.free):
                total = prod(self.graph.extents[v] for v in self.variables if side >> v & 1)
                room = total if total <= 2 * block else block
                for v in reversed(self.variables):
                    if side >> v & 1 and v not in blocks:
                        blocks[v] = max(1, min(room, self.graph.extents[v]))
                        room //= blocks[v]
            blocks.update({v: 1 for v in self.variables if both >> v & 1 and v not in blocks})
        if blocks:  # along what no contraction has, every index is another block, which computes them all again
            blocks.update({v: 1 for v in self.variables if v not in blocks})
        return blocks if self.contractions else self._row_extents(block)

    def _row_extents(self, block: int) -> dict[int, int]:
        """The same where there are only other reductions: a block takes several indices of what reductions inside of
        others do not depend on, for every block computes those again."""
        nested = [node.free for node, opened in self.visited if opened and isinstance(node, Reduce)]
        along = [v for v in self.variables if self._rows >> v & 1 and any(not free >> v & 1 for free in nested)]
        return {along[-1]: 2 * block} if along else {}

    def executions(self, free: int, opened: int) -> float:
        """How often a value that depends on `free` is computed where `opened` are the reductions around it.

        Once for each of its indices, but again in every block along free dimensions that it does not depend on. What
        does not change along a reduction is kept."""
        key = (free, opened)
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = self._count(free, opened)
        return found

    def _count(self, free: int, opened: int) -> float:
        count, rest, variable = 1.0, self.free | opened | free, 0
        while rest:
            if rest & 1:
                extent = self.graph.extents[variable]
                if free >> variable & 1:
                    count *= extent
                elif not opened >> variable & 1 and (block := self.blocks.get(variable)):
                    count *= -(-extent // block)
            rest >>= 1
            variable += 1
        return count

    @property
    def _rows(self) -> int:
        """The free variables that all outermost reductions depend on: blocks stand along these."""
        rows = self.free
        for node, opened in self.visited:
            if isinstance(node, Reduce) and not opened:
                rows &= node.free
        return rows

    @property
    def blocks_in_flight(self) -> float:
        """How many blocks can work at once, each computing all that it needs."""
        extents = self.graph.extents
        if self.contractions:
            blocks = prod(-(-extents[v] // max(self.blocks.get(v, extents[v]), 1)) for v in self.variables)
            return blocks * max(1, min(self.target.sms // max(blocks, 1), self._pieces()))
        if not any(isinstance(node, Reduce) for node, _ in self.visited):
            return float("inf")
        rows = self._rows
        return self._sharers() * prod(-(-extents[v] // self.blocks.get(v, 1)) for v in self.variables if rows >> v & 1)

    def _parts(self) -> int:
        """Into how many parts blocks can divide the reductions. One, if others are inside of them, which are as long in
        every part; or if there is more to compute along their results, which is not divided."""
        reductions = self.reductions()
        outermost = {r.variables for r, opened in reductions if not opened}
        if len(outermost) != 1 or any(opened for _, opened in reductions) or self._rows != self.free:
            return 1
        return max(1, min(MOST_PARTS, prod(self.graph.extents[v] for v in next(iter(outermost))) // PART))

    def _sharers(self) -> int:
        """How many blocks can share one row: those of a cluster, if all that is reduced is long enough for them."""
        lengths = [prod(self.graph.extents[v] for v in r.variables) for r, opened in self.reductions() if not opened]
        single = all(len(r.variables) == 1 for r, _ in self.reductions())
        shares = single and min(lengths, default=0) >= SHARED_LENGTH and self.target.has("cluster")
        return max(CLUSTERS) if shares else 1

    def _pieces(self) -> int:
        """Into how many parts the outermost reductions can be cut, if they are one loop."""
        outermost = {r.variables for r, opened in self.reductions() if not opened}
        if len(outermost) != 1:
            return 1
        return max(1, prod(self.graph.extents[v] for v in next(iter(outermost))) // PIECE)

    def time(self) -> float:
        """Estimated seconds, with the best of the tile sizes."""
        best = float("inf")
        for side in BLOCKS:
            self.blocks = self._block_extents(side)
            self._products.clear()
            best = min(best, self._time())
            if not self.blocks or self.blocks_in_flight >= self.target.sms:
                break
        return best

    def _time(self) -> float:
        rates = self.target.rates
        vector = special = matrix = wide = near = 0.0
        far = dict[SSAValue, float]()
        products = {n for c in self.contractions for n in product_nodes(c.reduce)}
        narrow = {c.reduce: GATHERED if c.gathered else 1.0 for c in self.contractions if c.narrow}
        contracted = {c.reduce for c in self.contractions}
        along, alone = {c.reduce.variables for c in self.contractions}, 0.0
        reduced = {c.reduce for c in self.contractions if c.open and not (c.left | c.right) & self.free}
        for node, opened in self.visited:
            if isinstance(node, Constant | Scalar | Index) or node in products:
                continue
            if isinstance(node, Reduce):
                bound = node.bound
                steps = self.executions(node.free | bound, opened | bound)
                if node not in contracted:
                    vector += steps
                    if along and node.variables not in along and not opened:  # a loop of its own, in every block
                        alone += steps * element_bytes(node.type)
                elif node in narrow:
                    matrix += 2 * steps / narrow[node]
                else:
                    wide += 2 * steps / (NESTED if node in reduced else 1.0)
                continue
            times = self.executions(node.free, opened)
            if isinstance(node, Load):
                size = times * element_bytes(node.type)
                near += size
                far[node.source] = far.get(node.source, 0.0) + size
            elif isinstance(node, Payload) and node.op is not None:
                vector += times / 2 if node.op.name == "payload.cast" else times  # two halves in one instruction
                special += times if node.op.name in SPECIAL else 0
        output = tensor_bytes(self.output)
        memory = output + sum(min(size, tensor_bytes(source.type)) for source, size in far.items())
        compute = Operations(vector, special, matrix, wide / MATRIX_WIDE).seconds(rates)

        def seconds(flight: float) -> float:
            bandwidth = rates.memory if self.contractions else min(rates.memory, flight * rates.block)
            busy = min(1.0, flight / self.target.sms)
            start = rates.launch + rates.ramp
            latency = alone / flight / rates.block
            return Times(
                start, memory / bandwidth, (near + output) / rates.cache, compute / busy, latency=latency
            ).seconds

        flight = max(1.0, self.blocks_in_flight)
        whole = seconds(flight)
        parts = 1 if self.contractions or flight >= self.target.sms else self._parts()
        return whole if parts == 1 else min(whole, seconds(flight * parts) + GAP + rates.launch + rates.ramp)

    def nested_contractions(self) -> Iterable[tuple[Contraction, list[Reduce]]]:
        """Every contraction that is computed inside other reductions, with the reductions directly around it."""
        for c in self.contractions:
            if c.open:
                yield c, [r for r, opened in self.reductions() if self._directly_around(r, opened, c)]

    def reductions(self) -> list[tuple[Reduce, int]]:
        """All reductions, with the variables open around each."""
        return [(node, opened) for node, opened in self.visited if isinstance(node, Reduce)]

    @staticmethod
    def _directly_around(outer: Reduce, opened: int, inner: Contraction) -> bool:
        bound = outer.bound
        return bool(inner.open & bound) and inner.open == opened | bound


def factors(node: Node) -> list[Node]:
    """The different factors of a product, at any depth."""
    found, seen, todo = list[Node](), set[Node](), [node]
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if isinstance(n, Payload) and n.op is not None and n.op.name == "arith.mulf":
            todo.extend(reversed(n.operands))
        else:
            found.append(n)
    return found


def contraction(node: Reduce, opened: int) -> Contraction | None:
    """`node` as a contraction, if it is one: a sum of products whose factors see different indices."""
    if node.kind != ReductionKind.ADD:
        return None
    bound = node.bound
    parts = [f for f in factors(node.body) if f.free & bound]
    if len(parts) < 2:
        return None
    left = max(parts, key=lambda f: f.free.bit_count())
    others = [f for f in parts if f.free & ~left.free] or [f for f in parts if f.free != left.free]
    if not others:
        return None
    right = 0
    for f in others:
        right |= f.free
    narrow, gathered = any(_stored_narrow(f) for f in parts), any(_is_gathered(f) for f in parts)
    return Contraction(node, opened, left.free & ~bound, right & ~bound, narrow, gathered)


def product_nodes(node: Reduce) -> set[Node]:
    """The multiplications that a contraction does not do for each of its elements one by one: the product of its two
    sides, which a matrix unit does, and those by factors that are moved out of the sum."""
    bound = node.bound
    found, seen, todo = set[Node](), set[Node](), [node.body]
    while todo:
        n = todo.pop()
        if n not in seen and isinstance(n, Payload) and n.op is not None and n.op.name == "arith.mulf":
            seen.add(n)
            if n.free == node.body.free or any(not operand.free & bound for operand in n.operands):
                found.add(n)
            todo.extend(n.operands)
    return found


def _is_gathered(node: Node) -> bool:
    """Whether a factor is computed from something that is read at places which depend on data."""
    seen, todo = set[Node](), [node]
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if isinstance(n, Load) and any(atom[0] == SYM for form in n.coordinates for atom in form.atoms()):
            return True
        if isinstance(n, Payload):
            todo.extend(n.operands)
    return False


def _stored_narrow(node: Node) -> bool:
    while isinstance(node, Payload) and node.operands:
        if any(is_low_precision(operand.type) for operand in node.operands):
            return True
        node = next((o for o in node.operands if not isinstance(o, Constant | Scalar)), node.operands[0])
    return is_low_precision(node.type)
