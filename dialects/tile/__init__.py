"""The tile dialect: the program of a thread block, over tiles.

A tile is a value `tensor<64x128xf32>`; later passes add a layout as its encoding. A tile without dimensions is a scalar
(`f32`), equal in all threads of the block. The payload computes on tiles, and `scf.for` loops over chunks.

```
tile.kernel @k0(%x: memref<16x64xf32>, %y: memref<16xf32>) blocks (%i) in [4] warps 4 {
  %a = tile.load %x[d0 + %i * 4, d1] : memref<16x64xf32> -> tensor<4x64xf32>
  %s = tile.reduce add %a over [1] : tensor<4x64xf32> -> tensor<4xf32>
  tile.store %s, %y[d0 + %i * 4] : tensor<4xf32>, memref<16xf32>
}
```

The arguments of a kernel are buffers in global memory, results last. A kernel never loads its results, so loads are
pure.

`kernel.py` has kernels and synchronous operations, `copies.py` asynchronous copies and warp specialisation,
`async_dot.py` asynchronous dots, `row_cache.py` the row cache and clusters, `prints.py` printing, `schedule.py` the
schedule.
"""

# pyright: reportUnusedImport=false
# ruff: noqa: F401, F403, F405  the package offers everything that its files define

from __future__ import annotations

from xdsl.ir import Dialect

from ..support.assembly import definitions
from .async_dot import *
from .copies import *
from .kernel import *
from .prints import PrintOp
from .row_cache import *
from .schedule import ScheduleAttr

Tile = Dialect("tile", *definitions("tile", globals()))
