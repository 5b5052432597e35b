"""Which values are the same in every call of a program, because they are computed from its constants alone."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from ...dialects.loop import LoadOp, NestOp
from ...dialects.support.calls import constant_arguments


def is_constant(value: SSAValue) -> bool:
    """Whether a tensor at the loop level is one of the `constants` of its function, or what nests make of these."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        found = todo.pop()
        if found in seen:
            continue
        seen.add(found)
        if isinstance(found.owner, NestOp):
            todo += (op.source for op in found.owner.walk() if isinstance(op, LoadOp))
        elif not isinstance(found.owner, Block) or found not in _constants(found.owner):
            return False
    return True


def _constants(block: Block) -> list[SSAValue]:
    function = block.parent_op()
    return constant_arguments(function) if isinstance(function, FuncOp) else []
