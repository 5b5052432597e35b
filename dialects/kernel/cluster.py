"""Clusters of blocks in the kernel dialect (sm_90 and newer): blocks that run at the same time and reach each other.

The blocks of a grid with consecutive numbers form clusters of the size that `kernel.func` names (PTX ISA, "Cluster of
Cooperative Thread Arrays"). A block's number in its cluster is its *rank*, `kernel.id rank`. All blocks of a cluster
run the same kernel, so a buffer in shared memory has one instance in each of them, in the same place; `kernel.mapa`
names that of another block. Barriers order nothing between blocks but `kernel.cluster_barrier` and mbarriers that
blocks arrive at across the cluster.

A block's shared memory is there from the time when the block has begun until its last thread has ended. So blocks meet
at a `kernel.cluster_barrier` before the first touches what belongs to another (an mbarrier that is set up counts), and
after the last has. `kernel-insert-barriers` does that for `kernel.load`s; rings that boxes are multicast into say it
themselves.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntAttr, MemRefType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import base, irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type
from ..support.assembly import OrderedOp, PureOp
from .memory import CLUSTER, is_shared

CLUSTERS = (1, 2, 4, 8)
"""How many blocks a cluster may have on every card that has clusters."""


def cluster_of(op: Operation) -> int | None:
    """The size of the clusters of the kernel that `op` is in; None outside of kernels."""
    while (parent := op.parent_op()) is not None:
        if parent.name == "kernel.func":
            found = parent.properties.get("cluster")
            return found.data if isinstance(found, IntAttr) else 1  # pyright: ignore
        op = parent
    return None


def require_cluster(op: Operation, what: str) -> None:
    """Raise VerifyException if `op` is in a kernel whose blocks form no clusters."""
    if cluster_of(op) == 1:
        raise VerifyException(f"{what} in a kernel without clusters")


@irdl_op_definition
class ClusterBarrierOp(OrderedOp):
    """All threads of all blocks of the cluster wait for each other; what they did before is seen after, in shared
    memory of any of the blocks as in global memory (PTX `barrier.cluster.arrive.release`, `.wait.acquire`).

    Threads that have ended count as having arrived. It stands outside of partitions.

    ```
    kernel.cluster_barrier
    ```
    """

    name = "kernel.cluster_barrier"

    def verify_(self) -> None:
        require_cluster(self, "a barrier of the cluster")


@irdl_op_definition
class MapaOp(PureOp):
    """A shared buffer as the block with the given rank has it (PTX `mapa`); `kernel.load` reads it.

    ```
    %p = kernel.mapa %s of %rank : memref<256xf32, "shared"> -> memref<256xf32, "cluster">
    ```
    """

    name = "kernel.mapa"
    shared = operand_def(base(MemRefType))
    rank = operand_def(IndexType())
    result = result_def(base(MemRefType))
    assembly_format = "$shared `of` $rank attr-dict `:` type($shared) `->` type($result)"

    def __init__(self, shared: SSAValue, rank: SSAValue):
        super().__init__(shared, rank, _of_cluster(shared.type))

    def verify_(self) -> None:
        require_cluster(self, "another block's memory")
        if not is_shared(self.shared.type):
            raise VerifyException(f"names another block's instance of a shared buffer, not of {self.shared.type}")
        wanted = _of_cluster(self.shared.type)
        if self.result.type != wanted:
            raise VerifyException(f"gives {wanted}, not {self.result.type}")


def _of_cluster(t: Attribute) -> Attribute:
    """The type of another block's instance of a buffer."""
    return CLUSTER.buffer(element_type(t), t.get_shape()) if isinstance(t, MemRefType) else t  # pyright: ignore
