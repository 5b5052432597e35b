"""Computing while products of warpgroups are in flight: `kernel-fill-wgmma-waits`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import Pure

from ...dialects import kernel
from ...dialects.kernel.tma import is_written
from ..rewriting import move_before


@dataclass(frozen=True)
class FillWgmmaWaitsPass(ModulePass):
    """Compute in front of a wait for products what does not need them.

    What: what is computed behind a `kernel.wgmma_wait`, in the same block, and depends neither on its result nor on
    anything else that stays behind it, moves in front of it. So do loads of global memory that the kernel does not
    write, up to the first store or barrier. Accesses of shared memory and barriers stay where they are.
    Why: a warpgroup has nothing else to do while its products are computed, and what it computes and waits for
    meanwhile costs no time: in attention the sums of the weights, or which weights a mask leaves out; behind a product
    what is added to it.
    Why here: behind `kernel-overlap-wgmma`, which removes waits where it can.

    ```mlir
    %r = kernel.wgmma_wait 0, %q
    kernel.mbar_arrive %empty[%slot]
    %t = kernel.reduce_registers add %e over [0, 1]
    %u = arith.addf %r, %t
    ```
    becomes
    ```mlir
    %t = kernel.reduce_registers add %e over [0, 1]
    %r = kernel.wgmma_wait 0, %q
    kernel.mbar_arrive %empty[%slot]
    %u = arith.addf %r, %t
    ```
    """

    name = "kernel-fill-wgmma-waits"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for wait in [o for o in op.walk() if isinstance(o, kernel.WgmmaWaitOp)]:
            if wait.parent is not None:
                _fill(wait, wait.parent)


def _fill(wait: kernel.WgmmaWaitOp, block: Block) -> None:
    """Move what can be computed before `wait` in front of it, in its order."""
    behind: set[SSAValue] = set(wait.results)
    following: list[Operation] = []
    op = wait.next_op
    while op is not None:
        following.append(op)
        op = op.next_op
    loads = True
    for op in following:
        free = not any(v in behind for v in op.operands)
        if free and (_computes(op) or loads and _loads(op)):
            move_before(wait, op)
        else:
            behind |= set(op.results)
            loads = loads and (_gives_back(op) or op.has_trait(Pure) or isinstance(op, kernel.LoadOp))


def _computes(op: Operation) -> bool:
    """Whether `op` computes registers from registers."""
    return bool(op.results) and op.has_trait(Pure) and not op.regions and not isinstance(op, kernel.SubviewOp)


def _loads(op: Operation) -> bool:
    """Whether `op` loads from a buffer in global memory that nobody writes meanwhile."""
    return isinstance(op, kernel.LoadOp) and not kernel.is_shared(op.memory.type) and not is_written(op.memory)


def _gives_back(op: Operation) -> bool:
    """Whether `op` is an arrival at an mbarrier, under a condition perhaps; or a further wait for products."""
    inside = [o for o in op.walk() if not isinstance(o, scf.IfOp | scf.YieldOp)]
    return isinstance(op, kernel.WgmmaWaitOp) or all(isinstance(o, kernel.MbarArriveOp) for o in inside)
