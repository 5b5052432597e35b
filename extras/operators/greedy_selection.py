"""`deplodock.greedy_selection`: selects elements in order, each one unless it conflicts with an earlier one.

Non-maximum suppression of boxes is such a selection. It is a fold over the elements, because each decision depends on
the earlier ones.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from ...dialects.shapes.extents import extents_of, fixed
from ...dialects.tensor.builder import Builder
from ...dialects.tensor.folds import fold
from ...passes.convert.torch_to_tensor.registry import decomposes


@decomposes("deplodock.greedy_selection")
def greedy_selection(b: Builder, conflicts: SSAValue) -> SSAValue:
    """Returns the mask of the selected elements.

    Step i knows whether element i is selected, and removes the later elements that conflict with it.

    Args:
        b: Builder of the operator.
        conflicts: Booleans of shape [elements, elements].
    """
    count = fixed(extents_of(conflicts.type)[0])
    selected = b.constant(True, [count], i1)
    if count == 0:
        return selected
    is_current = b.cmp("eq", b.iota(0, [count, count]), b.iota(1, [count, count]))
    later = b.both(conflicts, b.cmp("lt", b.iota(0, [count, count]), b.iota(1, [count, count])))

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        (remaining,), (current, removed) = carries, slices
        taken = b.place(b.reduce("or", b.both(remaining, current), [0]), [], [count])
        return [b.both(remaining, b.negated(b.both(taken, removed)))]

    return fold(b, step, count, [selected], [is_current, later], [], [])[0]
