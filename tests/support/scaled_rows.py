"""A hand-written kernel-level program of five launches. Each launch squares rows and divides them by their sums."""

from __future__ import annotations

import torch

from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module

SHUFFLES = "\n".join(
    f"    %s{i} = kernel.shuffle_xor %a{i} by {1 << i} : vector<1xf32>\n"
    f"    %a{i + 1} = arith.addf %a{i}, %s{i} : vector<1xf32>"
    for i in range(5)
)


KERNEL = (
    """
  kernel.func @scale(%x: memref<4x256xf32>, %y: memref<4x256xf32>) grid [4] warps 2 shared 8 {
    %lane = kernel.id lane
    %warp = kernel.id warp
    %row = kernel.id block
    %part = kernel.shared at 0 : memref<2xf32, "shared">
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %c128 = arith.constant 128 : index
    %l4 = arith.muli %lane, %c4 : index
    %w128 = arith.muli %warp, %c128 : index
    %col = arith.addi %l4, %w128 : index
    %v = kernel.load %x[%row, %col] regs [[0, 1], [0, 2]] vec 4 : memref<4x256xf32> -> vector<4xf32>
    %q = arith.mulf %v, %v : vector<4xf32>
    %a0 = kernel.reduce_registers add %q over [0, 1] : vector<4xf32> -> vector<1xf32>
"""
    + SHUFFLES
    + """
    %first = payload.cmp eq %lane, %c0 : index
    kernel.store %a5, %part[%warp] if %first : memref<2xf32, "shared">, vector<1xf32>
    kernel.barrier
    %p = kernel.load %part[%c0] regs [[1]] vec 2 : memref<2xf32, "shared"> -> vector<2xf32>
    %t = kernel.reduce_registers add %p over [0] : vector<2xf32> -> vector<1xf32>
    %tb = kernel.shuffle_registers %t from [0, 0, 0, 0] : vector<1xf32> -> vector<4xf32>
    %o = arith.divf %v, %tb : vector<4xf32>
    kernel.store %o, %y[%row, %col] regs [[0, 1], [0, 2]] vec 4 : memref<4x256xf32>, vector<4xf32>
  }
"""
)


# An odd number of launches: in an even number, most bugs would cancel.
MAIN = """
  func.func @main(%x: memref<4x256xf32>, %y: memref<4x256xf32>) {
    %t = kernel.alloc : memref<4x256xf32>
    %u = kernel.alloc : memref<4x256xf32>
    %v = kernel.alloc : memref<4x256xf32>
    %w = kernel.alloc : memref<4x256xf32>
    kernel.launch @scale(%x, %t) : memref<4x256xf32>, memref<4x256xf32>
    kernel.launch @scale(%t, %u) : memref<4x256xf32>, memref<4x256xf32>
    kernel.launch @scale(%u, %v) : memref<4x256xf32>, memref<4x256xf32>
    kernel.launch @scale(%v, %w) : memref<4x256xf32>, memref<4x256xf32>
    kernel.launch @scale(%w, %y) : memref<4x256xf32>, memref<4x256xf32>
    func.return
  }
"""


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


def five_times(x: torch.Tensor) -> torch.Tensor:
    """Returns the program's expected result."""
    for _ in range(5):
        x = x * x / (x * x).sum(1, keepdim=True) / x
    return x


SIZES = """
#s0 = #payload.symbol<s0[0:1001]>
!V = memref<?xf32, #payload.extents<#s0>>
kernel.func @k(%x: !V, %y: !V) grid [#s0 / 32, 2] warps 1 {
  %lane = kernel.id lane
  %f = payload.constant 0.0 : f32
  %v = kernel.load %x[%lane] where 0 <= %lane < #s0 else %f : !V -> vector<1xf32>
  kernel.store %v, %y[%lane] where 0 <= %lane < #s0 : !V, vector<1xf32>
}
func.func @main(%x: !V, %y: !V) {
  %t = kernel.alloc : !V
  kernel.launch @k(%x, %t) : !V, !V
  kernel.launch @k(%t, %y) : !V, !V
  func.return
}
"""
