"""Layered layout of directed graphs without cycles: ranks from top to bottom, few crossings, routes around nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

NodeT = TypeVar("NodeT", bound=Hashable)

GAP, RANK_GAP, ROUTE_WIDTH, SWEEPS = 18.0, 44.0, 12.0, 6
"""Pixels between nodes of a rank and between ranks; width of a route between two nodes; rounds that reorder ranks."""


@dataclass(frozen=True)
class GraphLayout(Generic[NodeT]):
    """Positions of the nodes and routes of the edges of a graph, in pixels.

    Attributes:
        width, height: size of the picture.
        corners: node -> left and top of its box.
        routes: points of each edge, in the order of the edges: from the bottom of its source to the top of its target.
    """

    width: float
    height: float
    corners: Mapping[NodeT, tuple[float, float]]
    routes: Sequence[Sequence[tuple[float, float]]]


def arrange(sizes: Mapping[NodeT, tuple[float, float]], edges: Sequence[tuple[NodeT, NodeT]]) -> GraphLayout[NodeT]:
    """Returns a layout in which all edges point down.

    Args:
        sizes: node -> width and height, in the order in which nodes of one rank are placed without edges.
        edges: pairs of source and target. The source of an edge precedes its target in `sizes`.
    """
    ranks = _ranks([*sizes], edges)
    boxes: dict[Hashable, tuple[float, float]] = {**sizes}
    chains = [_chain(number, edge, ranks, boxes) for number, edge in enumerate(edges)]
    rows: dict[int, list[Hashable]] = defaultdict(list)
    rank_of: dict[Hashable, int] = {**ranks}
    for chain in chains:
        rank_of |= {node: ranks[chain[0]] + i for i, node in enumerate(chain)}  # pyright: ignore[reportArgumentType]
    for node in boxes:
        rows[rank_of[node]].append(node)
    links = [pair for chain in chains for pair in zip(chain, chain[1:], strict=False)]
    ordered = _untangled([rows[r] for r in sorted(rows)], links)
    centers = _centers(ordered, boxes, links)
    heights = [max(boxes[node][1] for node in row) for row in ordered]
    tops = [sum(heights[:i]) + i * RANK_GAP for i in range(len(ordered))]
    start = min((centers[n] - boxes[n][0] / 2 for n in boxes), default=0.0)
    right = max((centers[n] + boxes[n][0] / 2 for n in boxes), default=0.0)
    row_of = {node: i for i, row in enumerate(ordered) for node in row}

    def ends(node: Hashable) -> list[tuple[float, float]]:
        x, top = centers[node] - start, tops[row_of[node]]
        return [(x, top), (x, top + (boxes[node][1] if node in sizes else heights[row_of[node]]))]

    routes = [[p for node in chain for p in ends(node)][1:-1] for chain in chains]
    for side in (0, -1):
        _spread_ends(routes, [chain[side] for chain in chains], boxes, side)
    for chain, route in zip(chains, routes, strict=True):
        # Edges leave a row below its highest node, so that they cross no node of the row.
        route.insert(1, (route[0][0], tops[row_of[chain[0]]] + heights[row_of[chain[0]]]))
    corners = {n: (centers[n] - boxes[n][0] / 2 - start, tops[row_of[n]]) for n in sizes}
    height = tops[-1] + heights[-1] if tops else 0.0
    return GraphLayout(right - start, height, corners, routes)


def _spread_ends(
    routes: Sequence[list[tuple[float, float]]],
    nodes: Sequence[Hashable],
    boxes: Mapping[Hashable, tuple[float, float]],
    side: int,
) -> None:
    """Moves the ends of routes at one node apart, in the order of the points that they come from.

    Args:
        routes: points of each edge.
        nodes: the node at this end of each edge.
        boxes: sizes of nodes.
        side: 0 for the starts of edges, -1 for their ends.
    """
    following, edges = (1 if side == 0 else -2), defaultdict[Hashable, list[int]](list)
    for edge, node in enumerate(nodes):
        edges[node].append(edge)
    for node, group in edges.items():
        group.sort(key=lambda edge: routes[edge][following][0])
        for i, edge in enumerate(group):
            x, y = routes[edge][side]
            routes[edge][side] = x + ((i + 1) / (len(group) + 1) - 0.5) * boxes[node][0], y


def _ranks(nodes: Sequence[NodeT], edges: Sequence[tuple[NodeT, NodeT]]) -> dict[NodeT, int]:
    """Returns the rank of each node: below all of its sources, and a node without sources directly above a target."""
    sources, targets = defaultdict[NodeT, list[NodeT]](list), defaultdict[NodeT, list[NodeT]](list)
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    ranks = dict[NodeT, int]()
    for node in nodes:
        ranks[node] = max((ranks[s] + 1 for s in sources[node]), default=0)
    for node in nodes:
        if not sources[node] and targets[node]:
            ranks[node] = min(ranks[t] for t in targets[node]) - 1
    return ranks


def _chain(
    number: int,
    edge: tuple[NodeT, NodeT],
    ranks: Mapping[NodeT, int],
    boxes: dict[Hashable, tuple[float, float]],
) -> list[Hashable]:
    """Returns the nodes of an edge from source to target, with a new narrow node on each rank between them."""
    source, target = edge
    inner: list[Hashable] = [("route", number, rank) for rank in range(ranks[source] + 1, ranks[target])]
    boxes.update((node, (ROUTE_WIDTH, 0.0)) for node in inner)
    return [source, *inner, target]


def _untangled(rows: Sequence[list[Hashable]], links: Sequence[tuple[Hashable, Hashable]]) -> list[list[Hashable]]:
    """Returns the rows with their nodes ordered by the mean position of their neighbours in the row before."""
    above, below = defaultdict[Hashable, list[Hashable]](list), defaultdict[Hashable, list[Hashable]](list)
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    ordered = [list(row) for row in rows]
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        indices = range(1, len(ordered)) if sweep % 2 == 0 else range(len(ordered) - 2, -1, -1)
        for i in indices:
            fixed = {node: k for k, node in enumerate(ordered[i - 1 if sweep % 2 == 0 else i + 1])}
            mean = {
                node: sum(fixed[n] for n in near) / len(near) if (near := neighbours[node]) else float(k)
                for k, node in enumerate(ordered[i])
            }
            ordered[i].sort(key=mean.__getitem__)
    return ordered


def _centers(
    rows: Sequence[Sequence[Hashable]],
    boxes: Mapping[Hashable, tuple[float, float]],
    links: Sequence[tuple[Hashable, Hashable]],
) -> dict[Hashable, float]:
    """Returns the horizontal center of each node: near its neighbours, without overlaps."""
    near = defaultdict[Hashable, list[Hashable]](list)
    for source, target in links:
        near[source].append(target)
        near[target].append(source)
    centers = dict[Hashable, float]()
    for row in rows:
        x = 0.0
        for node in row:
            centers[node] = x + boxes[node][0] / 2
            x += boxes[node][0] + GAP
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wishes = [
                sum(centers[n] for n in near[node]) / len(near[node]) if near[node] else centers[node] for node in row
            ]
            centers.update(zip(row, _spread(row, wishes, boxes), strict=True))
    return centers


def _spread(
    row: Sequence[Hashable], wishes: Sequence[float], boxes: Mapping[Hashable, tuple[float, float]]
) -> list[float]:
    """Returns centers close to `wishes`, in order and without overlaps: the mean of packing from either side."""
    half = [boxes[node][0] / 2 for node in row]
    forward, backward = list(wishes), list(wishes)
    for i in range(1, len(row)):
        forward[i] = max(forward[i], forward[i - 1] + half[i - 1] + half[i] + GAP)
    for i in range(len(row) - 2, -1, -1):
        backward[i] = min(backward[i], backward[i + 1] - half[i + 1] - half[i] - GAP)
    return [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]
