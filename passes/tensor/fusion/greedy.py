"""Fusion by one walk over the program: `tensor-plan-fusion{strategy=greedy}`.

A tensor is stored in memory, or the kernels that read it compute it. `greedy` visits the tensors in the order of the
program. A tensor without a reduction since memory is computed by its readers if

- its elements take at most `CHEAP` operations since memory, however often they are read, or
- one operation reads it, and reads each element once.

A tensor with a reduction since memory is computed by its reader if that is one elementwise operation with a result of
the same shape, as an addition of a bias after a matmul. All other tensors are stored. So the reductions of a kernel
have the shape of its result, and none is an operand of another. No time is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from ....dialects.payload import is_payload
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor import IndexMapOp, ReduceOp
from .candidates import is_elementwise

CHEAP = 4
"""Operations that are cheaper to repeat than a tensor is to write and read."""

LONGEST = 40
"""Operations between memory and an element that is computed where it is read."""


@dataclass(frozen=True)
class Element:
    """An element of a tensor that is not kept: `operations` since memory, and whether it is a `sum`, or follows one."""

    operations: int = 0
    sum: bool = False


def greedy(function: FuncOp, candidates: Iterable[SSAValue], fixed: Set[SSAValue]) -> set[SSAValue]:
    """Returns the tensors to keep.

    Args:
        function: the program.
        candidates: tensors that may be kept; all others are computed where they are read.
        fixed: tensors that have to be kept.
    """
    kept, possible, elements = set[SSAValue](), {*candidates}, dict[SSAValue, Element]()
    for op in function.body.block.ops:
        operands = [elements[v] for v in dict.fromkeys(op.operands) if v in elements]
        operations = sum(e.operations for e in operands) + is_payload(op)
        element = Element(operations, any(e.sum for e in operands) or not is_elementwise(op))
        for result in op.results:
            if result in fixed or result in possible and not _is_computed(result, op, element):
                kept.add(result)
            else:
                elements[result] = element
    return kept


def _is_computed(value: SSAValue, op: Operation, element: Element) -> bool:
    """Returns whether the rules of this module leave a tensor to its readers."""
    if element.operations > LONGEST or isinstance(op, IndexMapOp):  # a view that may be kept is a long chain of views
        return False
    if element.operations <= CHEAP and not element.sum:
        return True
    reader = value.get_user_of_unique_use()
    if reader is None:
        return False
    if element.sum:
        return is_payload(reader) and extents_of(reader.results[0].type) == extents_of(value.type)
    if isinstance(reader, IndexMapOp) and _is_permutation(reader):
        reader = reader.result.get_user_of_unique_use()
    return reader is not None and (is_payload(reader) or isinstance(reader, ReduceOp))


def _is_permutation(view: IndexMapOp) -> bool:
    """Returns whether a view has each element of its source at most once."""
    map = view.map.data
    return len({d.position for r in map.results for d in r.dfs() if isinstance(d, AffineDimExpr)}) == map.num_dims
