"""Values of a function that fusion may keep in memory."""

from __future__ import annotations

from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import is_payload, is_tensor
from ....dialects.shapes.affine import divisions as divisions_of
from ....dialects.shapes.extents import extents_of, most
from ....dialects.support.calls import Call
from .inline import CHEAP, is_elementwise, kept_values

FEW = 16
"""Elements that are as good as none: the state of a generator, a position."""


def inner_of_made(function: func.FuncOp) -> set[SSAValue]:
    """The values in the middle of elementwise computations that read next to nothing, and the ends of cheap ones.

    Random numbers are a hundred operations on an index. Of such a chain only the end is worth keeping in memory:
    everything before it costs as much to write and to read. A mask by the indices is a few: it is never worth it, and
    by one in memory no loop is split and no block skipped.
    """
    made: dict[SSAValue, int] = {a: 0 for a in function.body.block.args if _few(a)}
    inner = set[SSAValue]()
    for op in function.body.block.ops:
        if not is_elementwise(op) or not all(v in made for v in op.operands):
            continue
        operations = min(sum(made[v] for v in op.operands) + is_payload(op), CHEAP + 1)
        for result in op.results:
            made[result] = operations
            if operations <= CHEAP or all(is_payload(use.operation) for use in result.uses):
                inner.add(result)
    return inner


def _few(value: SSAValue) -> bool:
    t: Attribute = value.type
    return is_tensor(t) and prod(most(e) for e in extents_of(t)) <= FEW


MAX_DIVISIONS = 12
"""Divisions in the maps of views that are read through one another; each may make the index several times as long."""


def candidates(function: func.FuncOp) -> list[SSAValue]:
    """The tensors worth a thought: everything but views, constants and the inside of what is made from them, which are
    never kept unless returned. Of views one on top of the other, every so many are worth one."""
    returned, inner = kept_values(function), inner_of_made(function)
    divisions: dict[SSAValue, int] = {}
    found = list[SSAValue]()
    for op in function.body.block.ops:
        if isinstance(op, tensor.IndexMapOp):
            divisions[op.result] = divisions.get(op.source, 0) + divisions_of(op.map.data)
            worth = divisions[op.result] > MAX_DIVISIONS
        else:
            worth = not isinstance(op, Call | tensor.IotaOp | payload.ConstantOp)
        for result in op.results:
            kept = result in returned and not isinstance(op, Call)
            if isinstance(result.type, TensorType) and (kept or (worth and result not in inner)):
                divisions.pop(result, None)
                found.append(result)
    return found
