"""Which values are materialised: the fusion plan, as it is written in the program."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, SSAValue

ROOT = "fuse.root"
"""The attribute of tensor ops whose results are kept in memory: each is the result of one kernel."""


def materialized(function: func.FuncOp) -> dict[SSAValue, None]:
    """The tensors that `function` keeps in memory: what it returns and what is marked, in program order."""
    end = function.body.block.last_op
    assert isinstance(end, func.ReturnOp)
    returned = set(end.operands)
    return {
        result: None
        for op in function.body.block.ops
        for result in op.results
        if isinstance(result.type, TensorType) and (ROOT in op.attributes or result in returned)
    }


_ = Block
