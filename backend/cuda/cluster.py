"""Clusters of blocks as C++: their size, their barrier, and other blocks' shared memory."""

from __future__ import annotations

from ...dialects.kernel import ClusterBarrierOp, FuncOp, MapaOp
from .memory import memory_name
from .statements import Statements, add_printer
from .writer import Place


def cluster_bounds(func: FuncOp) -> str:
    """What the head of a kernel says about its clusters; a plain launch then makes them."""
    return f"__cluster_dims__({func.cluster_size}, 1, 1) " if func.cluster_size > 1 else ""


def print_cluster_barrier(statements: Statements, _: ClusterBarrierOp) -> None:
    """All threads of the cluster wait."""
    statements.writer.use("cluster_barrier")
    statements.writer.line("cluster_barrier();")


def print_peer(statements: Statements, op: MapaOp) -> None:
    """A pointer to another block's instance of a buffer."""
    writer = statements.writer
    element = writer.type_of(op.result.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
    name = writer.names.mint(op.result.name_hint, "peer")
    writer.use("cluster_peer")
    rank = writer.read(op.rank).text
    writer.line(f"const {element}* const {name} = cluster_peer({memory_name(writer, op.shared)}, {rank});")
    writer.places[op.result] = Place(name, 1)


add_printer(ClusterBarrierOp, print_cluster_barrier)
add_printer(MapaOp, print_peer)
