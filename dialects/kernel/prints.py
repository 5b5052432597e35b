"""Printing of registers."""

from __future__ import annotations

from xdsl import irdl
from xdsl.dialects.builtin import i1

from ..payload.prints import PrintingOp


@irdl.irdl_op_definition
class PrintOp(PrintingOp):
    """Prints registers, one line each, in threads whose predicate (if any) is true.

    ```
    %i = kernel.indices %row steps [0, 0] : vector<4xindex>
    %j = kernel.indices %column steps [1, 2] : vector<4xindex>
    %upper = payload.cmp lt %i, %j : vector<4xindex>
    kernel.print "k0 %7" %7[%i, %j] where %upper if %first : vector<4xf32>
    ```

    The example prints `k0 %7[3, 16] = 0.25` for the register whose indices are 3 and 16. A thread prints its registers
    in their order. Lines of different threads and blocks have no order on a GPU; a CPU runs the blocks one after the
    other.

    Operands:
        predicate: the thread prints nothing if it is false (`if`).

    Constraints: the indices and the mask have as many registers as the value.
    """

    name = "kernel.print"
    predicate = irdl.opt_operand_def(i1)
    assembly_format = (
        "$label $value `[` $indices `]` (`where` $mask^)? (`if` $predicate^)? attr-dict `:` type($value)"
        " custom<DefinedTypes>(type($indices)) custom<DefinedTypes>(type($mask))"
    )
