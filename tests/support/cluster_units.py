"""Small kernels for the device functions of thread block clusters.

They cover loads from the shared memory of another block, arrivals at its mbarriers, and multicast TMA loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from support.hopper_units import UNITS as BLOCK_UNITS


def _main(x: str, o: str, cluster: int) -> str:
    return f"""
func.func @main(%x: {x}, %o: {o}) {{
  kernel.launch @unit(%x, %o) : {x}, {o}
  func.return
}}
kernel.func @unit(%x: {x}, %o: {o}) grid [{2 * cluster}] warps 2 cluster {cluster} {{
  %block = kernel.id block
  %rank = kernel.id rank
  %t = kernel.id thread
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c64 = arith.constant 64 : index
  %size = arith.constant {cluster} : index
  %first = payload.cmp eq %t, %c0 : index
  %next0 = arith.addi %rank, %c1 : index
  %next = arith.remui %next0, %size : index"""


@dataclass(frozen=True)
class Neighbour:
    """A kernel in which each block writes the row that its neighbour in the cluster has loaded to shared memory.

    Attributes:
        cluster: number of blocks of a cluster.
        signalled: whether blocks wait for arrivals at mbarriers, instead of a barrier of the cluster.
        copied: whether the loads to shared memory are asynchronous copies.
    """

    cluster: int
    signalled: bool = False
    copied: bool = False

    def text(self) -> str:
        n, full = 2 * self.cluster, 'memref<1x!kernel.mbarrier, "shared">'
        set_up = f"""
  %full = kernel.shared : {full}
  scf.if %first {{
    kernel.mbar_init %full[%c0] arrivals 64 : {full}
    kernel.fence_mbar_init
  }}
  kernel.cluster_barrier"""
        meet = f"""
  %before0 = arith.addi %rank, %size : index
  %before1 = arith.subi %before0, %c1 : index
  %before = arith.remui %before1, %size : index
  kernel.mbar_arrive %full[%c0] of %before : {full}
  kernel.mbar_wait %full[%c0] parity %c0 : {full}"""
        return f"""{_main(f"memref<{n}x64xf32>", f"memref<{n}x64xf32>", self.cluster)}
  %s = kernel.shared : memref<64xf32, "shared">{set_up if self.signalled else ""}
{self._filled(n)}{meet if self.signalled else chr(10) + "  kernel.cluster_barrier"}
  %p = kernel.mapa %s of %next : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
  %w = kernel.load %p[%t] : memref<64xf32, "cluster"> -> vector<1xf32>
  kernel.store %w, %o[%block, %t] : memref<{n}x64xf32>, vector<1xf32>
  kernel.cluster_barrier
}}
"""

    def _filled(self, n: int) -> str:
        if self.copied:
            return f"""  kernel.cp_async %x[%block, %t] to %s[%t]
      : memref<{n}x64xf32>, memref<64xf32, "shared">
  kernel.async_commit
  kernel.async_wait 0"""
        return f"""  %v = kernel.load %x[%block, %t] : memref<{n}x64xf32> -> vector<1xf32>
  kernel.store %v, %s[%t] : memref<64xf32, "shared">, vector<1xf32>"""

    def inputs(self) -> list[np.ndarray]:
        return [np.arange(128 * self.cluster, dtype=np.float32).reshape(2 * self.cluster, 64)]

    def expected(self) -> np.ndarray:
        (x,) = self.inputs()
        return np.roll(x.reshape(2, self.cluster, 64), -1, axis=1).reshape(-1, 64)


@dataclass(frozen=True)
class Multicast:
    """A kernel in which each block loads a row of 64 numbers for all blocks of its cluster and writes all rows."""

    cluster: int

    def text(self) -> str:
        n, size = 2 * self.cluster, 64 * self.cluster
        x, o, s = f"memref<{n}x64xbf16>", f"memref<{n}x{size}xbf16>", f'memref<{size}xbf16, "shared">'
        full, box = 'memref<1x!kernel.mbarrier, "shared">', "!kernel.tensor_map<1x64xbf16>"
        return f"""{_main(x, o, self.cluster)}
  %boxes = kernel.tensor_map %x : {x} -> {box}
  %s = kernel.shared : {s}
  %full = kernel.shared : {full}
  scf.if %first {{
    kernel.mbar_init %full[%c0] arrivals 1 : {full}
    kernel.fence_mbar_init
  }}
  kernel.cluster_barrier
  scf.if %first {{
    kernel.mbar_expect %full[%c0] bytes {2 * size} : {full}
    %place = arith.muli %rank, %c64 : index
    kernel.tma_load %boxes[%block, %c0] to %s[%place] signal %full[%c0] multicast {list(range(self.cluster))}
        : {box}, {s}, {full}
  }}
  kernel.mbar_wait %full[%c0] parity %c0 : {full}
  %end = arith.constant {size} : index
  scf.for %i = %c0 to %end step %c64 {{
    %j = arith.addi %i, %t : index
    %v = kernel.load %s[%j] : {s} -> vector<1xbf16>
    kernel.store %v, %o[%block, %j] : {o}, vector<1xbf16>
  }}
  kernel.cluster_barrier
}}
"""

    def inputs(self) -> list[np.ndarray]:
        rows = (np.arange(128 * self.cluster) % 251 - 120).reshape(-1, 64)
        return [rows.astype(ml_dtypes.bfloat16)]

    def expected(self) -> np.ndarray:
        whole = self.inputs()[0].reshape(2, 1, -1)
        return np.broadcast_to(whole, (2, self.cluster, whole.shape[2])).reshape(2 * self.cluster, -1)


CLUSTER_UNITS = {
    "the neighbour's memory": Neighbour(2),
    "the neighbour's memory, of eight": Neighbour(8),
    "the neighbour's memory, copied there": Neighbour(2, copied=True),
    "arrivals at the neighbour's barrier": Neighbour(4, signalled=True),
    "a box for two blocks": Multicast(2),
    "a box for four blocks": Multicast(4),
}


UNITS = {**BLOCK_UNITS, **CLUSTER_UNITS}
