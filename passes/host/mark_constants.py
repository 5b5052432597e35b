"""`host-mark-constants`: marks launches that compute the same values in every call of a program."""

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
    """Marks the launches that read only constants, so that an executor can run them once and not in every call.

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

    The attribute `constants` of `@main` lists the arguments that are the same in every call. A launch is `constant` if
    it reads only such arguments or results of constant launches, and if no other launch writes its results. A launch
    that writes a result of the program, or that has a size known only at run time, is never constant.

    **Rationale**: weights that are packed for matmuls (`loop-pack-operands`) need to be packed only once. An executor
    keeps the results of constant launches. It may ignore the attribute and run all launches.

    **Pipeline position**: after `host-inline-calls`, when one list of launches shows all writers of a buffer.
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
    """Launches of one host program. `kernels`: name -> kernel."""

    main: func.FuncOp
    kernels: dict[str, kernel.FuncOp]

    def constant(self) -> list[kernel.LaunchOp]:
        """Returns the constant launches.

        All candidates are assumed constant at first. Launches whose results another launch writes are removed, until
        none is removed any more.
        """
        launches = [op for op in self.main.body.block.ops if isinstance(op, kernel.LaunchOp) and self._is_static(op)]
        while True:
            constants, candidates = {*constant_arguments(self.main)}, list[kernel.LaunchOp]()
            for op in launches:
                if constants.issuperset({*op.buffers} - (written := self._written(op))):
                    candidates.append(op)
                    constants |= written
            launches = [
                op for op in candidates if all(self._is_only_written_by(v, candidates) for v in self._written(op))
            ]
            if launches == candidates:
                return candidates

    def _written(self, launch: kernel.LaunchOp) -> set[SSAValue]:
        arguments = self.kernels[launch.kernel.string_value()].body.block.args
        return {v for v, a in zip(launch.buffers, arguments, strict=True) if kernel.is_written(a)}

    def _is_only_written_by(self, buffer: SSAValue, launches: list[kernel.LaunchOp]) -> bool:
        """Returns true if `buffer` is a result of `kernel.alloc`, and no launch except `launches` writes it."""
        others = {use.operation for use in buffer.uses}.difference(launches)
        reading = all(isinstance(op, kernel.LaunchOp) and buffer not in self._written(op) for op in others)
        return isinstance(buffer.owner, kernel.AllocOp) and reading

    def _is_static(self, launch: kernel.LaunchOp) -> bool:
        """Returns true if no size in a launch depends on the call."""
        is_static = all(isinstance(n, int) for buffer in launch.buffers for n in extents_of(buffer.type))
        return is_static and not symbols_in(self.kernels[launch.kernel.string_value()])
