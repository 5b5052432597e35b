"""Values of a function that are kept in memory, those that fusion may keep, and the choice of `greedy` among these."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import element_type, is_float, is_payload, is_tensor
from ....dialects.shapes.affine import divisions as divisions_of
from ....dialects.shapes.extents import extents_of, most
from ....dialects.support.calls import Call
from ....dialects.tensor import ROOT, ReductionKind
from .graph import either

CHEAP = 32
"""Operations that are cheaper to repeat than a kernel is to launch."""


def materialized(function: func.FuncOp) -> dict[SSAValue, None]:
    """Returns the tensors that `function` keeps in memory: `kept_values` and those that are marked, in program order.
    Results of calls, which are in memory anyway, are left out."""
    needed = kept_values(function)
    ops = [op for op in function.body.block.ops if not isinstance(op, Call)]
    tensors = ((op, result) for op in ops for result in op.results if isinstance(result.type, TensorType))
    return {result: None for op, result in tensors if ROOT in op.attributes or result in needed}


def kept_values(function: func.FuncOp) -> set[SSAValue]:
    """Returns the values that have to be in memory: results of `function`, operands of operations of the host, and sums
    that are compared with themselves.

    The nest of a scatter computes its values and indices as far as that is cheap, so the sources of that are kept. The
    nest of a scan computes its source and the elementwise operations on its result in the same way."""
    values, ops = set[SSAValue](), [*function.body.block.ops]
    if any(isinstance(op, payload.CmpOp) for op in ops):
        values |= compared_sums(function)
    for op in ops:
        if isinstance(op, tensor.ScatterOp):
            values.update((op.init,), *map(elementwise_sources, (op.values, *op.indices)))
        elif isinstance(op, tensor.PrefixScanOp):
            values.update((_end_of_scan(op.result),), elementwise_sources(op.source))
        elif isinstance(op, Call | func.ReturnOp):
            values.update(op.operands)
    return values


def _end_of_scan(value: SSAValue) -> SSAValue:
    """Returns the last of the elementwise operations that follow a scan with the result `value`, each the only user of
    the one before it; other users would read the scan along other indices, or in other nests."""
    while len(users := {use.operation for use in value.uses}) == 1:
        (user,) = users
        if not is_payload(user) or extents_of(user.results[0].type) != extents_of(value.type):
            break
        value = user.results[0]
    return value


def elementwise_sources(value: SSAValue) -> list[SSAValue]:
    """Returns the tensors that `value` is computed from by views and elementwise operations alone, or `value` if these
    are many. Arguments and results of calls, which are in memory anyway, are left out."""
    sources, seen, todo = dict[SSAValue, None](), set[SSAValue](), [value]
    while todo:
        one = todo.pop()
        if one in seen or not isinstance(one.owner, Operation) or not is_tensor(one.type):
            continue
        if len(seen) == CHEAP:
            return [value]
        seen.add(one)
        if is_elementwise(one.owner):
            todo += one.owner.operands
        elif not isinstance(one.owner, Call):
            sources.setdefault(one)
    return list(sources)


def is_elementwise(op: Operation) -> bool:
    """Returns true if each element of the result takes at most one operation, or one read."""
    return is_payload(op) or isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp)


def compared_sums(function: func.FuncOp) -> set[SSAValue]:
    """Returns the sums and products of floats from which both sides of a comparison are computed, not by way of others.

    These have to be computed once. Two kernels, or one in two ways, may add in different orders, and the last bits
    differ: then no element equals the largest of all, as the gradient of a maximum asks, and the ranks of a sort are no
    permutation. All other values have the same bits wherever they are computed."""
    sums, nearest, compared = list[SSAValue](), dict[SSAValue, int](), 0
    for op in function.body.block.ops:
        if isinstance(op, Call):
            continue  # its results are in memory
        sides = [nearest.get(v, 0) for v in op.operands]
        if isinstance(op, payload.CmpOp) and op.lhs is not op.rhs:
            compared |= sides[0] & sides[1]
        rounded = isinstance(op, tensor.ReduceOp) and op.kind.data in (ReductionKind.ADD, ReductionKind.MUL)
        if rounded and is_float(element_type(op.results[0].type)):
            nearest[op.results[0]] = 1 << len(sums)
            sums.append(op.results[0])
        else:
            nearest.update(dict.fromkeys(op.results, either(sides)))
    return {value for i, value in enumerate(sums) if compared >> i & 1}


FEW = 16
"""Elements of a small argument: the state of a generator, a position."""

MAX_DIVISIONS = 12
"""Divisions in the maps of views that are read through one another; each may make the index several times as long."""


def candidates(function: func.FuncOp) -> list[SSAValue]:
    """Returns the tensors that may be kept: those that have to be, and all others except constants, views, and values
    that are made of next to nothing. A view of views is one as well where their maps have many divisions.

    Random numbers are a hundred operations on an index. Of such a chain only the end is worth keeping in memory: each
    value before it costs as much to write and to read. A mask by the indices is a few operations: it is never kept,
    because by a mask in memory no loop is split and no block skipped.
    """
    needed, block = kept_values(function), function.body.block
    small = (a for a in block.args if is_tensor(a.type) and prod(map(most, extents_of(a.type))) <= FEW)
    made: dict[SSAValue, int] = dict.fromkeys(small, 0)
    divisions, values = dict[SSAValue, int](), list[SSAValue]()
    for op in block.ops:
        operations = None
        if is_elementwise(op) and all(v in made for v in op.operands):
            operations = min(sum(made[v] for v in op.operands) + is_payload(op), CHEAP + 1)
            made.update(dict.fromkeys(op.results, operations))
        worth = not isinstance(op, Call | tensor.IotaOp | payload.ConstantOp)
        if isinstance(op, tensor.IndexMapOp):
            divisions[op.result] = divisions.get(op.source, 0) + divisions_of(op.map.data)
            worth = divisions[op.result] > MAX_DIVISIONS
        for result in op.results:
            users = (use.operation for use in result.uses)
            inner = operations is not None and (operations <= CHEAP or all(map(is_payload, users)))
            kept = result in needed and not isinstance(op, Call)
            if isinstance(result.type, TensorType) and (kept or worth and not inner):
                divisions.pop(result, None)
                values.append(result)
    return values


# Greedy fusion

CHEAP_READS = 4
"""Operations that are cheaper to repeat than a tensor is to write and read."""

LONGEST = 40
"""Operations between memory and an element that is computed where it is read."""


@dataclass(frozen=True)
class Element:
    """An element of a tensor that is not kept: `operations` since memory, and whether it is a `sum`, or follows one."""

    operations: int = 0
    sum: bool = False


def greedy(function: func.FuncOp, candidates: Iterable[SSAValue], fixed: Set[SSAValue]) -> set[SSAValue]:
    """Returns the tensors to keep by `tensor-plan-fusion{strategy=simple}`: one walk over the program, and no times.

    A tensor is stored in memory, or the kernels that read it compute it. A tensor without a reduction since memory is
    computed by its readers if

    - its elements take at most `CHEAP_READS` operations since memory, however often they are read, or
    - one operation reads it, and reads each element once.

    A tensor with a reduction since memory is computed by its reader if that is one elementwise operation with a result
    of the same shape, as an addition of a bias after a matmul. All other tensors are stored. So the reductions of a
    kernel have the shape of its result, and none is an operand of another.

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
    """Returns whether the rules of `greedy` leave a tensor to its readers."""
    # A view that may be kept is a long chain of views.
    if element.operations > LONGEST or isinstance(op, tensor.IndexMapOp):
        return False
    if element.operations <= CHEAP_READS and not element.sum:
        return True
    reader = value.get_user_of_unique_use()
    if reader is None:
        return False
    if element.sum:
        return is_payload(reader) and extents_of(reader.results[0].type) == extents_of(value.type)
    if isinstance(reader, tensor.IndexMapOp) and _is_permutation(reader):
        reader = reader.result.get_user_of_unique_use()
    return reader is not None and (is_payload(reader) or isinstance(reader, tensor.ReduceOp))


def _is_permutation(view: tensor.IndexMapOp) -> bool:
    """Returns whether a view has each element of its source at most once."""
    return len(view.map.data.used_dims()) == view.map.data.num_dims
