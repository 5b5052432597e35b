"""Bugs in the cooperation of the blocks of a cluster, planted in text.

The subjects are a compiled matmul whose blocks load an operand together, and hand-written kernels whose blocks read the
shared memory of their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from mutation.hopper_mutants import TextMutant


@dataclass(frozen=True)
class ClusterMutant(TextMutant):
    """A bug in the text of a program for clusters."""

    subject: str = "product"


def _cuda(name: str, pattern: str, replacement: str = "", number: int = -1, subject: str = "product") -> ClusterMutant:
    return ClusterMutant(name, pattern, replacement, number, subject, True)


_M = ClusterMutant
_FIRST, _LAST = 0, 1
_OF_PRODUCER, _OF_END = 1, 2

IR_MUTANTS = [
    _M("only the block waits after setting up", r"kernel\.cluster_barrier", "kernel.barrier", _FIRST),
    _M("nobody waits after setting up", r"kernel\.cluster_barrier", "", _FIRST),
    _M("a block ends while others tell it of slots", r"kernel\.cluster_barrier", "", _LAST),
    _M("free slots are told to the own block alone", r" of %\w+ async"),
    _M("each block tells too few of free slots", r"(%elected = payload\.cmp lt %\w+,) %\w+", r"\1 %rank"),
    _M("one block's consumers free a slot", r"%empty\[(%\w+)\] arrivals 2", r"%empty[\1] arrivals 1"),
    _M("a slot needs one arrival too many", r"%empty\[(%\w+)\] arrivals 2", r"%empty[\1] arrivals 3"),
    _M("a shared box goes to the own block alone", r" multicast \[0, 1\]"),
    _M("a shared box goes to the first block alone", r"multicast \[0, 1\]", "multicast [0]"),
    _M("a box of its own goes to both", r"(%w_map.*signal %full\[%\w+\])( :)", r"\1 multicast [0, 1]\2"),
    _M("only the own parts are announced", r"bytes 16384", "bytes 12288"),
    _M("both load the first part", r"%rank = kernel\.id rank", "%rank = payload.constant 0 : index"),
    _M(
        "both load rows of another tile",
        r"kernel\.tma_load %x_map\[%\w+,",
        "kernel.tma_load %x_map[%rank,",
    ),
    _M("no wait for free slots", r"kernel\.mbar_wait %empty[^\n]*\n", "\n"),
    _M("no fence of barriers", r"kernel\.fence_mbar_init"),
    _M("the parity of free slots", r"(%\w+ = arith\.)xori (%phase\w*), %\w+", r"\1muli \2, \2"),
    _M("a slot is given back before the product", r"kernel\.wgmma_wait 1", "kernel.wgmma_wait 2"),
    _M("no wait for the neighbour's stores", r"kernel\.cluster_barrier", "", _FIRST, "exchange"),
    _M("the block waits, not the cluster", r"kernel\.cluster_barrier", "kernel.barrier", _FIRST, "exchange"),
    _M("a block ends while its neighbour reads", r"kernel\.cluster_barrier", "", _LAST, "exchange"),
    _M(
        "the neighbour of the last block",
        r"%next = arith\.remui %next0, %size",
        "%next = arith.addi %next0, %c0",
        -1,
        "exchange",
    ),
    _M("no wait for a copy that the neighbour reads", r"kernel\.async_wait 0", "", -1, "copied"),
    _M("arrivals that tell of no stores", r"of %before :", "of %before async :", -1, "signalled"),
    _M("arrivals at the wrong neighbour", r"of %before :", "of %next :", -1, "signalled"),
    _M("barriers set up without the cluster", r"kernel\.cluster_barrier", "kernel.barrier", _FIRST, "signalled"),
    _M("no wait for arrivals", r"kernel\.mbar_wait[^\n]*\n", "\n", -1, "signalled"),
    _M(
        "sums are read before they are stored",
        r"kernel\.cluster_barrier(\s+%\w+ = kernel\.load %peer\b[^\n]*\n)",
        r"\1 kernel.cluster_barrier\n",
        -1,
        "sums",
    ),
    _M("the producer is not at the barrier", r"kernel\.cluster_barrier", "", _OF_PRODUCER, "sums"),
    _M("a block ends while others read its sums", r"kernel\.cluster_barrier", "", _OF_END, "sums"),
    _M("every block has the first part", r"arith\.muli %rank, (%\w+)", r"arith.muli %0, \1", -1, "sums"),
    _M("one part is stored twice, one never", r"arith\.muli %block, (%\w+)", r"arith.muli %0, \1", _FIRST, "sums"),
    _M("the sums of one block count twice", r"kernel\.mapa %s_shared of %1", "kernel.mapa %s_shared of %0", -1, "sums"),
    _M("the own sums count twice", r"kernel\.mapa %s_shared of %0", "kernel.mapa %s_shared of %rank", -1, "sums"),
    _M("all threads read the first sums of a part", r"(kernel\.load %peer_1\[)%\w+", r"\1%28", -1, "sums"),
    _M("the blocks share no chunks", r"(%\w+ = arith\.muli )%block, (%\w+)", r"\1%0, \2", 1, "sums"),
]

CUDA_MUTANTS = [
    _cuda("only the block waits after setting up", r"cluster_barrier\(\);", "__syncthreads();", _FIRST),
    _cuda("nobody waits after setting up", r"cluster_barrier\(\);", "", _FIRST),
    _cuda("a block ends while others tell it of slots", r"cluster_barrier\(\);", "", _LAST),
    _cuda(
        "free slots are told to the own block alone",
        r"mbar_signal_at\((&empty\[\w+\]), \w+\)",
        r"mbar_signal_at(\1, blockIdx.x % 2)",
    ),
    _cuda("free slots are told to the first block alone", r"< 2;", "< 1;"),
    _cuda("one block's consumers free a slot", r"(mbar_init\(&empty\[\d\]), 2", r"\1, 1"),
    _cuda("a shared box goes to the first block alone", r"(tma_multicast2\([^;]*), 3,", r"\1, 1,"),
    _cuda("only the own parts are announced", r", 16384\);", ", 12288);"),
    _cuda("both load the first part", r"rank = blockIdx\.x % 2", "rank = 0"),
    _cuda("no wait for free slots", r"mbar_wait\(&empty[^\n]*\n", "\n"),
    _cuda("no fence of barriers", r"fence_mbar_init\(\);"),
    _cuda("clusters of another size", r"__cluster_dims__\(2, 1, 1\)", "__cluster_dims__(4, 1, 1)"),
    _cuda("no wait for the neighbour's stores", r"cluster_barrier\(\);", "", _FIRST, "exchange"),
    _cuda("a block ends while its neighbour reads", r"cluster_barrier\(\);", "", _LAST, "exchange"),
    _cuda(
        "the neighbour of the last block",
        r"cluster_peer\(s, \w+\)",
        "cluster_peer(s, (int)(blockIdx.x % 2) + 1)",
        -1,
        "exchange",
    ),
    _cuda("arrivals at the own barrier", r"(mbar_arrive_at\([^,]*), \w+\)", r"\1, rank)", -1, "signalled"),
    _cuda("no wait for the sums of others", r"cluster_barrier\(\);", "", _FIRST, "sums"),
    _cuda("the producer is not at the barrier", r"cluster_barrier\(\);", "", _OF_PRODUCER, "sums"),
    _cuda("a block ends while others read its sums", r"cluster_barrier\(\);", "", _OF_END, "sums"),
    _cuda("the sums of one block count twice", r"cluster_peer\(s_shared, 1\)", "cluster_peer(s_shared, 0)", -1, "sums"),
    _cuda("every block has the first part", r"rank = blockIdx\.x % 2", "rank = 0", -1, "sums"),
]
