"""Imports the passes and the interpreter, by compiling and executing a small program.

Passes are imported when they are first used, which takes about 0.3 s. An exercise whose judge runs them names this
module in `modules`: the host then imports them once, before the processes of the answers.
"""

from __future__ import annotations

from ...backend.check_each import input_types, interpret, make_inputs
from ...backend.interpreter.exact import ExactDomain
from .judges import lowered, parsed

_PROGRAM = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = torch.softmax.int(self = %x, dim = 1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %0 : tensor<4x8xf32>
}"""

_module = lowered(parsed(_PROGRAM), "torch-to-tensor")
interpret(_module, make_inputs(input_types(_module)), ExactDomain())
lowered(_module, "tensor-to-loop,loop-to-tile,tile-to-kernel")
