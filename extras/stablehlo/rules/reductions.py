"""Rules of reductions. The combining function of a reduction is a region; the single operation in it is the kind."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from ....dialects import tensor
from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of
from ..registry import Builder, HloOperation, number_of, rule
from .elementwise import is_identity


@rule("stablehlo.reduce")
def reduce(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    values, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    over = op.ints("dimensions")
    kind = op.body().kind()
    if len(values) == 1 and kind is not None:
        reduced = b.reduce(kind, b.working(values[0]), sorted(over))
        return [combined(b, kind, reduced, initial[0], element_type(values[0].type))]
    raise op.refuse("expected a reduction by one operation")


def combined(b: Builder, kind: str, reduced: SSAValue, initial: SSAValue, element: Attribute) -> SSAValue:
    """Returns a reduction combined with its initial value, which need not be the identity.

    Args:
        b: builder of the operation.
        kind: reduction kind.
        reduced: the reduction, in the type in which it is computed.
        initial: the initial value, a tensor of rank 0.
        element: element type of the result.
    """
    if not (is_identity(kind, initial) or kind == "add" and is_positive_zero(initial)):
        first = b.broadcast(b.working(initial), extents_of(reduced.type))
        reduced = b.insert(tensor.combine(tensor.ReductionKind(kind), reduced, first))
    return b.cast(reduced, element)


def is_positive_zero(x: SSAValue) -> bool:
    """Returns true if all elements are +0, which changes no sum: our sums start with it."""
    number = number_of(x)
    return number is not None and str(float(number)) == "0.0"
