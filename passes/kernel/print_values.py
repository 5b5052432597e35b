"""`kernel-print-values`: prints registers when a program runs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects import kernel
from ..printing import print_chosen


@dataclass(frozen=True)
class PrintRegistersPass(ModulePass):
    """Inserts a `kernel.print` after the definition of each value in `values`.

    ```mlir
    %v = arith.addf %a, %b : vector<4xf32>
    ```
    becomes, with `values="%v[0,5,*]"`,
    ```mlir
    %v = arith.addf %a, %b : vector<4xf32>
    %block = kernel.id block
    ...
    kernel.print "k0 %v" %v[%0, %1, %2] where %3 : vector<4xf32>
    ```

    The printed index is block, thread and register.

    **Rationale**: as for `tile-print-values`, of the values of one thread.

    **Pipeline position**: after all passes on kernels and the host program, whose text has the names. `--print kernel:`
    inserts it there.

    **Options**:

    - `values`: names of values, as the kernel level is printed: `%7` (all threads of the first block), `k0:%7` (of one
      kernel), `%7[0,5,*]` (block 0, thread 5).
    """

    name = "kernel-print-values"

    values: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        print_chosen(op, kernel.FuncOp, self.values)
