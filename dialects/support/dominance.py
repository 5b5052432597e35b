"""Every value is defined before it is used: the check that xDSL's verifier leaves out."""

from __future__ import annotations

from xdsl.ir import Operation, Region, SSAValue
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException


class DominanceError(VerifyException):
    """A use that its definition does not dominate; `op` is the user."""

    def __init__(self, op: Operation, index: int) -> None:
        name = op.operands[index].name_hint
        value = f" (%{name})" if name else ""
        super().__init__(f"operand #{index}{value} is used before it is defined, or outside its region")
        self.op = op


def verify_dominance(root: Operation) -> None:
    """Check that each operand inside `root` is defined by an earlier op, or by a block argument, that it can see.

    Blocks of one region are taken in their textual order, which is exact for the single-block regions that all our
    dialects have. Raises `DominanceError` at the first bad use.
    """
    for region in root.regions:
        _check_region(region, ())


def _check_region(region: Region, scope: tuple[set[SSAValue], ...]) -> None:
    for block in region.blocks:
        seen: set[SSAValue] = set(block.args)
        inner = (*scope, seen)
        for op in block.ops:
            for index, operand in enumerate(op.operands):
                if not any(operand in values for values in inner):
                    raise DominanceError(op, index)
            if op.regions:
                visible = () if op.has_trait(IsolatedFromAbove, value_if_unregistered=False) else inner
                for nested in op.regions:
                    _check_region(nested, visible)
            seen.update(op.results)
