"""Candidates of fusion: tensors that must be materialised, may be, or are by the rules of `strategy=simple`.

A tensor is *materialised* if a kernel stores it in memory. All other tensors are computed by every kernel that uses
them.
"""

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

MAX_CHEAP_OPERATIONS = 32
"""Maximum number of scalar operations that are cheaper to repeat than a kernel is to launch. Tuned by hand."""


def materialized(function: func.FuncOp) -> dict[SSAValue, None]:
    """Returns the tensors that the kernels of `function` store, in program order: those marked with `fuse.root`, and
    `required_values`. Results of calls, which are in memory anyway, are omitted."""
    needed = required_values(function)
    ops = [op for op in function.body.block.ops if not isinstance(op, Call)]
    tensors = ((op, result) for op in ops for result in op.results if isinstance(result.type, TensorType))
    return {result: None for op, result in tensors if ROOT in op.attributes or result in needed}


def required_values(function: func.FuncOp) -> set[SSAValue]:
    """Returns the values that must be materialised.

    - Results of `function`, and operands of calls.
    - Sums that are compared with themselves (`compared_sums`).
    - The initial tensor of a scatter.
    - The nearest tensors from which the values and indices of a scatter are computed elementwise. The nest of the
      scatter computes only these elementwise operations itself.
    - Likewise, the nearest tensors from which the source of a prefix scan is computed elementwise.
    - The last result in the chain of elementwise operations after a scan, which the nest of the scan computes.
    """
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
    """Returns the last result in the chain of elementwise operations after a scan with the result `value`.

    Each operation of the chain is the only user of the one before it. Other users would read the scan along other
    indices, or in other nests."""
    while len(users := {use.operation for use in value.uses}) == 1:
        (user,) = users
        if not is_payload(user) or extents_of(user.results[0].type) != extents_of(value.type):
            break
        value = user.results[0]
    return value


def elementwise_sources(value: SSAValue) -> list[SSAValue]:
    """Returns the nearest tensors from which `value` is computed by views and elementwise operations alone.

    Returns `value` itself if more than `MAX_CHEAP_OPERATIONS` tensors are involved. Arguments and results of calls,
    which are in memory anyway, are omitted."""
    sources, seen, todo = dict[SSAValue, None](), set[SSAValue](), [value]
    while todo:
        operand = todo.pop()
        if operand in seen or not isinstance(operand.owner, Operation) or not is_tensor(operand.type):
            continue
        if len(seen) == MAX_CHEAP_OPERATIONS:
            return [value]
        seen.add(operand)
        if is_elementwise(operand.owner):
            todo += operand.owner.operands
        elif not isinstance(operand.owner, Call):
            sources.setdefault(operand)
    return list(sources)


def is_elementwise(op: Operation) -> bool:
    """Returns true if each element of the result takes at most one scalar operation or one read."""
    return is_payload(op) or isinstance(op, tensor.IndexMapOp | tensor.IotaOp | payload.ConstantOp)


def compared_sums(function: func.FuncOp) -> set[SSAValue]:
    """Returns the float sums and products (reductions) from which both sides of a comparison are computed.

    They must be computed only once. Two kernels may add in different orders, and the last bits differ. Then no element
    would equal the maximum, which the gradient of a maximum compares with, and the ranks of a sort would be no
    permutation. All other values have the same bits wherever they are computed.

    Only the nearest reductions count: a sum of sums is returned, but not the inner sums."""
    sums, nearest, compared = list[SSAValue](), dict[SSAValue, int](), 0
    for op in function.body.block.ops:
        if isinstance(op, Call):
            continue  # Results of calls are in memory.
        operand_sums = [nearest.get(v, 0) for v in op.operands]
        if isinstance(op, payload.CmpOp) and op.lhs is not op.rhs:
            compared |= operand_sums[0] & operand_sums[1]
        rounded = isinstance(op, tensor.ReduceOp) and op.kind.data in (ReductionKind.ADD, ReductionKind.MUL)
        if rounded and is_float(element_type(op.results[0].type)):
            nearest[op.results[0]] = 1 << len(sums)
            sums.append(op.results[0])
        else:
            nearest.update(dict.fromkeys(op.results, either(operand_sums)))
    return {value for i, value in enumerate(sums) if compared >> i & 1}


MAX_SMALL_ELEMENTS = 16
"""Maximum number of elements of a small argument, such as the state of a random generator or a position."""

MAX_DIVISIONS = 12
"""Maximum number of divisions in the maps of a chain of fused views. Each may multiply the length of the index
expression."""


def candidates(function: func.FuncOp) -> list[SSAValue]:
    """Returns the tensors that a plan may materialise, in program order.

    These are `required_values` and all other tensors except:

    - constants, and views unless their chain has more than `MAX_DIVISIONS` divisions;
    - tensors computed from indices and small arguments by at most `MAX_CHEAP_OPERATIONS` operations, such as masks: a
      mask in memory could not be used to split loops or to skip blocks;
    - tensors in the middle of a long elementwise chain on indices, such as the steps of a random generator: each costs
      as much memory as the end of the chain.
    """
    needed, block = required_values(function), function.body.block
    small = (a for a in block.args if is_tensor(a.type) and prod(map(most, extents_of(a.type))) <= MAX_SMALL_ELEMENTS)
    operation_counts: dict[SSAValue, int] = dict.fromkeys(small, 0)
    divisions, values = dict[SSAValue, int](), list[SSAValue]()
    for op in block.ops:
        operations = None
        if is_elementwise(op) and all(v in operation_counts for v in op.operands):
            operations = min(sum(operation_counts[v] for v in op.operands) + is_payload(op), MAX_CHEAP_OPERATIONS + 1)
            operation_counts.update(dict.fromkeys(op.results, operations))
        worth = not isinstance(op, Call | tensor.IotaOp | payload.ConstantOp)
        if isinstance(op, tensor.IndexMapOp):
            divisions[op.result] = divisions.get(op.source, 0) + divisions_of(op.map.data)
            worth = divisions[op.result] > MAX_DIVISIONS
        for result in op.results:
            users = (use.operation for use in result.uses)
            inner = operations is not None and (operations <= MAX_CHEAP_OPERATIONS or all(map(is_payload, users)))
            required = result in needed and not isinstance(op, Call)
            if isinstance(result.type, TensorType) and (required or worth and not inner):
                divisions.pop(result, None)
                values.append(result)
    return values


# Greedy fusion

MAX_REPEATED_OPERATIONS = 4
"""Maximum number of operations that are cheaper to repeat than a tensor is to write and read. Tuned by hand."""

MAX_FUSED_OPERATIONS = 40
"""Maximum number of operations that compute an element of a fused tensor from tensors in memory. Tuned by hand."""


@dataclass(frozen=True)
class FusedElement:
    """Operations that compute one element of a fused tensor from tensors in memory."""

    operations: int = 0
    """Number of scalar operations."""
    reduces: bool = False
    """True if a reduction, gather or other operation that is not elementwise is among them."""


def greedy(function: func.FuncOp, candidates: Iterable[SSAValue], fixed: Set[SSAValue]) -> set[SSAValue]:
    """Returns the tensors to materialise by `tensor-plan-fusion{strategy=simple}`: one walk, without a cost model.

    The operations of a tensor are those that compute an element from the tensors in memory (`FusedElement`). A tensor
    is fused into its users in three cases:

    - It has at most `MAX_REPEATED_OPERATIONS` operations, all elementwise, however often it is read.
    - It has at most `MAX_FUSED_OPERATIONS`, all elementwise, and one user that reads each element once.
    - It has at most `MAX_FUSED_OPERATIONS`, with a reduction. Its only user is elementwise and has the same shape, such
      as the addition of a bias after a matmul.

    All other tensors are materialised, and so are views that are candidates. So the reductions of a kernel have the
    shape of its result, and no reduction is an operand of another one.

    Args:
        function: Function that is planned.
        candidates: Tensors that may be materialised. All others are fused.
        fixed: Tensors that must be materialised.

    Returns:
        Tensors to materialise.
    """
    materialized_values, possible, elements = set[SSAValue](), {*candidates}, dict[SSAValue, FusedElement]()
    for op in function.body.block.ops:
        operands = [elements[v] for v in dict.fromkeys(op.operands) if v in elements]
        operations = sum(e.operations for e in operands) + is_payload(op)
        element = FusedElement(operations, any(e.reduces for e in operands) or not is_elementwise(op))
        for result in op.results:
            if result in fixed or result in possible and not _is_fused(result, op, element):
                materialized_values.add(result)
            else:
                elements[result] = element
    return materialized_values


def _is_fused(value: SSAValue, op: Operation, element: FusedElement) -> bool:
    """Returns true if the rules of `greedy` fuse `value`, a result of `op`, into its users."""
    # A view is a candidate only at the end of a long chain of views.
    if element.operations > MAX_FUSED_OPERATIONS or isinstance(op, tensor.IndexMapOp):
        return False
    if element.operations <= MAX_REPEATED_OPERATIONS and not element.reduces:
        return True
    reader = value.get_user_of_unique_use()
    if reader is None:
        return False
    if element.reduces:
        return is_payload(reader) and extents_of(reader.results[0].type) == extents_of(value.type)
    if isinstance(reader, tensor.IndexMapOp) and _uses_all_dims(reader):
        reader = reader.result.get_user_of_unique_use()
    return reader is not None and (is_payload(reader) or isinstance(reader, tensor.ReduceOp))


def _uses_all_dims(view: tensor.IndexMapOp) -> bool:
    """Returns true if all dimensions of a view occur in its map, so that it does not broadcast."""
    return len(view.map.data.used_dims()) == view.map.data.num_dims
