"""Values made from next to nothing: numbers, indices, a few elements in memory."""

from __future__ import annotations

from math import prod

from xdsl.dialects import func
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import is_payload, is_tensor
from ....dialects.shapes.extents import extents_of, most
from ....dialects.support.calls import Call

FEW = 16
"""Elements that are as good as none: the state of a generator, a position."""

CHEAP = 32
"""Operations that are not worth a kernel of their own."""


def inner_of_made(function: func.FuncOp) -> set[SSAValue]:
    """The values in the middle of elementwise computations that read next to nothing, and the ends of cheap ones.

    Random numbers are a hundred operations on an index. Of such a chain only the end is worth keeping in memory:
    everything before it costs as much to write and to read. A mask by the indices is a few: it is never worth it, and
    by one in memory no loop is split and no block skipped.
    """
    made: dict[SSAValue, int] = {a: 0 for a in function.body.block.args if _few(a)}
    inner = set[SSAValue]()
    for op in function.body.block.ops:
        if not _is_elementwise(op) or not all(v in made for v in op.operands):
            continue
        operations = min(sum(made[v] for v in op.operands) + is_payload(op), CHEAP + 1)
        for result in op.results:
            made[result] = operations
            if operations <= CHEAP or all(is_payload(use.operation) for use in result.uses):
                inner.add(result)
    return inner


def elementwise_sources(value: SSAValue) -> list[SSAValue]:
    """The tensors that `value` is computed from by views and elementwise operations alone; itself, if those are many.

    Arguments, and what operations of the host give, are in memory anyway and left out."""
    found, seen, left = dict[SSAValue, None](), set[SSAValue](), [value]
    while left:
        one = left.pop()
        if one in seen or not isinstance(one.owner, Operation) or not is_tensor(one.type):
            continue
        if len(seen) == CHEAP:
            return [value]
        seen.add(one)
        if _is_elementwise(one.owner):
            left += one.owner.operands
        elif not isinstance(one.owner, Call):
            found.setdefault(one)
    return list(found)


def _is_elementwise(op: Operation) -> bool:
    """Whether each element of the result takes an operation at most, or only a place to read at."""
    return is_payload(op) or isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp)


def _few(value: SSAValue) -> bool:
    t: Attribute = value.type
    return is_tensor(t) and prod(most(e) for e in extents_of(t)) <= FEW
