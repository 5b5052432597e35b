"""Launches that give the same in every call of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from ...dialects import kernel
from ...dialects.kernel import symbols_in
from ...dialects.shapes.extents import extents_of
from ...dialects.support.calls import CONSTANT, CONSTANTS, constant_arguments


class MarkConstantsPass(ModulePass):
    """Mark the launches that compute from constants alone: they need not run in every call.

    What: `constants` of `@main` are the arguments that are the same in every call. A launch that reads nothing else,
    and whose results nothing else writes, is `constant`. Results of the program are made anew in every call.
    Why: weights that are packed for products (`loop-pack-operands`) are packed once. Whoever runs the program keeps
    what constant launches give, or ignores the mark and runs them like the others.
    Why here: the host program is one list of launches, so what is written elsewhere is seen.

    ```mlir
    func.func @main(%x: memref<8x64xf32>, %w: memref<64x64xf32>, %y: memref<8x64xf32>)
        attributes {constants = array<i64: 1>} {
      %packed = kernel.alloc : memref<2x64x32xf32>
      kernel.launch @k0(%w, %packed) : memref<64x64xf32>, memref<2x64x32xf32>
      kernel.launch @k1(%x, %packed, %y) : memref<8x64xf32>, memref<2x64x32xf32>, memref<8x64xf32>
    ```
    becomes
    ```mlir
      %packed = kernel.alloc : memref<2x64x32xf32>
      kernel.launch @k0(%w, %packed) {constant} : memref<64x64xf32>, memref<2x64x32xf32>
      kernel.launch @k1(%x, %packed, %y) : memref<8x64xf32>, memref<2x64x32xf32>, memref<8x64xf32>
    ```
    """

    name = "host-mark-constants"
    needs: ClassVar[Mapping[str, int]] = {"func.func{constants}": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = {k.sym_name.data: k for k in op.ops if isinstance(k, kernel.FuncOp)}
        for main in [f for f in op.ops if isinstance(f, func.FuncOp) and CONSTANTS in f.attributes]:
            for launch in _Launches(main, kernels).constant():
                launch.attributes[CONSTANT] = UnitAttr()


@dataclass
class _Launches:
    """The launches of a host program."""

    main: func.FuncOp
    kernels: dict[str, kernel.FuncOp]

    def constant(self) -> list[kernel.LaunchOp]:
        """Those that read constants, and what others of these write."""
        launches = [op for op in self.main.body.block.ops if isinstance(op, kernel.LaunchOp) and self._is_static(op)]
        while True:
            known, found = {*constant_arguments(self.main)}, list[kernel.LaunchOp]()
            for op in launches:
                if known.issuperset({*op.buffers} - (written := self._written(op))):
                    found.append(op)
                    known |= written
            launches = [op for op in found if all(self._is_left_alone(v, found) for v in self._written(op))]
            if launches == found:
                return found

    def _written(self, launch: kernel.LaunchOp) -> set[SSAValue]:
        arguments = self.kernels[launch.kernel.string_value()].body.block.args
        return {v for v, a in zip(launch.buffers, arguments, strict=True) if kernel.is_written(a)}

    def _is_left_alone(self, buffer: SSAValue, own: list[kernel.LaunchOp]) -> bool:
        """Whether a buffer lies between arguments and results, and none but the launches `own` may write it."""
        others = {use.operation for use in buffer.uses}.difference(own)
        reading = all(isinstance(op, kernel.LaunchOp) and buffer not in self._written(op) for op in others)
        return isinstance(buffer.owner, kernel.AllocOp) and reading

    def _is_static(self, launch: kernel.LaunchOp) -> bool:
        known = all(isinstance(n, int) for buffer in launch.buffers for n in extents_of(buffer.type))
        return known and not symbols_in(self.kernels[launch.kernel.string_value()])
