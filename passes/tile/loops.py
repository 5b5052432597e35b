"""Helpers for passes on tile loops: the operations that update a loop-carried value, and the operations after
another."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue, Use

FIRST_CARRIED = 3
"""Number of operands of a loop before those that it carries: its bounds and its step."""


def carried_uses(loop: scf.ForOp, position: int) -> list[Use]:
    """Returns the uses in the chain of operations that updates the value that `loop` carries at `position`.

    The first operation of the chain reads the carried value, each other operation reads the result of the previous one,
    and the loop yields the last result. No other operation reads any of these values. If the chain passes through a
    nested loop, the chain inside that loop is included. Returns an empty list if the value is used in any other way.
    """
    block, uses = loop.body.block, list[Use]()
    value: SSAValue = block.args[1 + position]
    while (use := value.get_unique_use()) is not None and (op := use.operation).parent is block:
        if isinstance(op, scf.YieldOp):
            return uses if use.index == position else []
        inner, results = use.index - FIRST_CARRIED, list(op.results)
        if isinstance(op, scf.ForOp) and inner >= 0:
            steps, results = carried_uses(op, inner), [op.results[inner]]
        else:
            steps = [use] if len(results) == 1 else []
        if not steps:
            return []
        uses += steps
        value = results[0]
    return []


def ops_after(op: Operation) -> Iterator[Operation]:
    """Yields the operations that follow `op` in its block."""
    while (following := op.next_op) is not None:
        yield following
        op = following
