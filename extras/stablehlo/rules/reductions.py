"""Rules of reductions.

The combining function of a reduction is a region. The single operation in it is the reduction kind. The region
of an argmax selects between pairs of a value and an index. It becomes a reduction of the values, and then one of the
indices of the elements with the result. Any other region combines the elements in a tree of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from ....dialects import tensor
from ....dialects.payload import element_type, is_float
from ....dialects.shapes.extents import extents_of
from ..registry import Builder, HloOperation, is_identity, number_of, rule
from ..selections import Selection, selection_of
from .integers import ordered
from .trees import reduced_by_tree


@rule("stablehlo.reduce")
def reduce(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    half = len(operands) // 2
    values, initial = operands[:half], operands[half:]
    over, body = sorted(op.ints("dimensions")), op.body()
    kinds = [body.kind(n) for n in range(half)]
    if all(kinds):
        results = list[SSAValue]()
        for kind, x, first, type in zip(kinds, values, initial, op.operands, strict=False):
            assert kind is not None
            reduced = reduce_by(b, kind, x, over, type.unsigned)
            results.append(combined(b, kind, reduced, first, type.element, type.unsigned))
        return results
    if half == 2 and (selection := selection_of(body)) is not None:
        pair = _selected(b, selection, values, over, op.operands[0].unsigned)
        shape = extents_of(pair[0].type)
        return body(b, [*(b.broadcast(v, shape) for v in initial), *pair])
    return reduced_by_tree(b, body, values, initial, over)


def reduce_by(b: Builder, kind: str, x: SSAValue, over: Sequence[int], unsigned: bool = False) -> SSAValue:
    """Returns a reduction without an initial value, in the type in which it is computed.

    Args:
        b: builder of the operation.
        kind: reduction kind.
        x: a tensor.
        over: dimensions to reduce, ascending.
        unsigned: whether its elements are unsigned integers.
    """
    if unsigned and kind in ("max", "min"):
        return ordered(b, b.reduce(kind, ordered(b, x, True), over), True)
    x = b.working(x)
    extents = extents_of(x.type)
    if any(extents[d] == 0 for d in over):
        number = tensor.identity(tensor.ReductionKind(kind), element_type(x.type))
        return b.constant(number, [n for d, n in enumerate(extents) if d not in over], element_type(x.type))
    return b.reduce(kind, x, over)


def combined(
    b: Builder, kind: str, reduced: SSAValue, initial: SSAValue, element: Attribute, unsigned: bool = False
) -> SSAValue:
    """Returns a reduction combined with its initial value, which need not be the identity.

    Args:
        b: builder of the operation.
        kind: reduction kind.
        reduced: the reduction, in the type in which it is computed.
        initial: the initial value, a tensor of rank 0.
        element: element type of the result.
        unsigned: whether the elements are unsigned integers.
    """
    flips = unsigned and kind in ("max", "min")
    first = ordered(b, initial, True) if flips else initial
    if not (_is_least(kind, initial) if flips else is_identity(kind, initial)):
        other = ordered(b, reduced, True) if flips else reduced
        first = b.broadcast(b.working(first), extents_of(reduced.type))
        reduced = b.insert(tensor.combine(tensor.ReductionKind(kind), other, first))
        reduced = ordered(b, reduced, True) if flips else reduced
    return b.cast(reduced, element)


def _is_least(kind: str, x: SSAValue) -> bool:
    """Returns true for the identity of a maximum or minimum of unsigned integers."""
    return number_of(x) == (0 if kind == "max" else -1)


def _selected(
    b: Builder, selection: Selection, values: Sequence[SSAValue], over: Sequence[int], unsigned: bool
) -> list[SSAValue]:
    """Returns the selected value, and the smallest or largest index of an element with that value.

    Args:
        b: builder of the operation.
        selection: the function that combines two pairs.
        values: values and indices.
        over: dimensions to reduce.
        unsigned: whether the values are unsigned integers.
    """
    x, index = values
    best = reduce_by(b, selection.kind, x, over, unsigned)
    x = b.working(x)
    hit = b.cmp("eq", x, b.keep(best, over, extents_of(x.type)))
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))
    kind = "min" if selection.smallest_index else "max"
    other = b.like(index, tensor.identity(tensor.ReductionKind(kind), element_type(index.type)))
    return [b.cast(best, element_type(values[0].type)), b.reduce(kind, b.select(hit, index, other), over)]
