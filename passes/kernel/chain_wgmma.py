"""Products of warpgroups into the same sums, one behind the other: `kernel-chain-wgmma`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from ...dialects import kernel, payload
from ..rewriting import erase
from .wgmma_dataflow import HARMLESS


@dataclass(frozen=True)
class ChainWgmmaPass(ModulePass):
    """Let a product that adds to the sums of another one follow it without a wait.

    What: where the sums that one product waits for are nothing but the accumulators of the next, both become one group
    with one wait behind it. Slots that are given back between the two are given back behind that wait. Where anything
    else happens between them that might count on the wait, they stay apart.
    Why: tensor cores add up products of the same accumulators in their order by themselves, and a wait between two of
    them leaves them idle for a while. Factors in parts are six such products. The fence of a product that waits for
    its operands stays: a loop that polls a barrier between two of them is a divergent path, in which ptxas would put a
    fence of its own and no longer overlap anything (its message C7519).
    Why here: waits have only just appeared; `kernel-overlap-wgmma`, which is next, carries one group into the
    next iteration.

    ```mlir
    %q = kernel.wgmma %x[...], %y[...] into %p ...
    kernel.wgmma_commit
    %r = kernel.wgmma_wait 0, %q
    kernel.mbar_arrive %empty[%slot]
    %s = kernel.registers_to_accumulators %r
    kernel.wgmma_fence
    %t = kernel.wgmma %z[...], %w[...] into %s ...
    kernel.wgmma_commit
    %u = kernel.wgmma_wait 0, %t
    ```
    becomes
    ```mlir
    %q = kernel.wgmma %x[...], %y[...] into %p ...
    %t = kernel.wgmma %z[...], %w[...] into %q ...
    kernel.wgmma_commit
    %u = kernel.wgmma_wait 0, %t
    kernel.mbar_arrive %empty[%slot]
    ```
    """

    name = "kernel-chain-wgmma"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for wait in [o for o in op.walk() if isinstance(o, kernel.WgmmaWaitOp)]:
            link = _link(wait)
            if link is not None:
                _join(wait, link)


@dataclass(frozen=True)
class _Link:
    """What stands between the wait for one product and the next: where its accumulators come from, the wait for that
    one, and the operations that give slots back."""

    resume: kernel.RegistersToAccumulatorsOp
    last: kernel.WgmmaWaitOp
    releases: list[Operation]
    after_data: bool
    """Whether the next one waits for its operands."""


def _link(wait: kernel.WgmmaWaitOp) -> _Link | None:
    """How `wait` is followed by a product into the same sums, if it is, and only harmless things come between."""
    users = [u.operation for u in wait.result.uses]
    if wait.pending.data or len(users) != 1 or not isinstance(resume := users[0], kernel.RegistersToAccumulatorsOp):
        return None
    block, committed = wait.parent, wait.prev_op
    if block is None or resume.parent is not block or not isinstance(committed, kernel.WgmmaCommitOp):
        return None
    last, releases, after_data = _wait_for(resume), list[Operation](), False
    if last is None or last.parent is not block:
        return None
    op = wait.next_op
    while op is not None and op is not resume:
        if isinstance(op, scf.IfOp | kernel.MbarArriveOp):
            if not _gives_back(op):
                return None
            releases.append(op)
        elif not isinstance(op, HARMLESS) and not payload.is_payload(op):
            return None
        after_data |= isinstance(op, kernel.MbarWaitOp)
        op = op.next_op
    return _Link(resume, last, releases, after_data) if op is resume else None


def _gives_back(op: scf.IfOp | kernel.MbarArriveOp) -> bool:
    """Whether `op` is an arrival, perhaps of an elected thread, and nothing else."""
    if isinstance(op, kernel.MbarArriveOp):
        return True
    inside = [o for o in op.true_region.block.ops if not isinstance(o, scf.YieldOp)]
    return not op.false_region.blocks and not op.results and all(isinstance(o, kernel.MbarArriveOp) for o in inside)


def _wait_for(resume: kernel.RegistersToAccumulatorsOp) -> kernel.WgmmaWaitOp | None:
    """The wait for the products into the accumulators of `resume`."""
    value = resume.result
    while True:
        users = [u.operation for u in value.uses]
        if len(users) != 1:
            return None
        if isinstance(users[0], kernel.WgmmaWaitOp):
            return users[0]
        if not isinstance(users[0], kernel.WgmmaOp):
            return None
        value = users[0].result


def _join(wait: kernel.WgmmaWaitOp, link: _Link) -> None:
    block, committed, fence = wait.parent, wait.prev_op, link.resume.next_op
    assert isinstance(block, Block)
    assert committed is not None
    behind: Operation = link.last
    for op in link.releases:
        op.detach()
        block.insert_op_after(op, behind)
        behind = op
    link.resume.result.replace_all_uses_with(wait.acc)
    erase(link.resume, wait, committed)
    if isinstance(fence, kernel.WgmmaFenceOp) and not link.after_data:
        erase(fence)
