"""The host program: launches on tensors become launches on buffers, results are written to trailing arguments."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects import kernel, tensor, tile
from ....dialects.support.calls import EAGER_RESULTS, UPDATES, pairs_of, set_pairs
from ....dialects.support.locations import location_text, refused
from ....errors import CompileError
from .scans import append, buffer_type, lower_fold


def lower_declaration(function: func.FuncOp) -> func.FuncOp:
    """A function without a body on buffers: its results become trailing arguments."""
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    new = func.FuncOp.external(function.sym_name.data, [buffer_type(t) for t in (*inputs, *outputs)], [])
    new.attributes.update(function.attributes)
    new.attributes[EAGER_RESULTS] = IntegerAttr(len(outputs), i64)
    new.location = function.location
    return new


def lower_host(main: func.FuncOp, launchable: set[str]) -> func.FuncOp:
    """`main` on buffers: its results become trailing arguments. A kernel that is not `launchable` has nothing to do."""
    source = main.body.block
    inputs, outputs = main.function_type.inputs.data, main.function_type.outputs.data
    block = Block(arg_types=[buffer_type(t) for t in (*inputs, *outputs)])
    buffers: dict[SSAValue, SSAValue] = {}
    for old, new in zip(source.args, block.args, strict=False):
        new.name_hint = old.name_hint
        buffers[old] = new
    last = source.last_op
    assert isinstance(last, func.ReturnOp)
    wanted: dict[SSAValue, list[SSAValue]] = {}
    for value, out in zip(last.operands, block.args[len(inputs) :], strict=True):
        out.name_hint = value.name_hint or "out"
        wanted.setdefault(value, []).append(out)
    for op in source.ops:
        if isinstance(op, tile.LaunchOp):
            _launch(block, op, buffers, wanted, launchable)
        elif isinstance(op, func.CallOp):
            results = [_result_buffer(block, op, r, wanted.get(r, ()), 0) for r in op.results]
            buffers.update(zip(op.results, results, strict=True))
            append(block, func.CallOp(op.callee, [*(buffers[i] for i in op.operands), *results], []), op)
        elif isinstance(op, tensor.ScanOp):
            results = [_result_buffer(block, op, r, wanted.get(r, ()), 0) for r in op.res]
            buffers.update(zip(op.res, results, strict=True))
            lower_fold(block, op, buffers)
        elif op is not last:
            raise refused(op, "is no launch and no call", CompileError)
    for value in wanted:
        if value in source.args:
            raise CompileError("an argument is returned as it is", operator="func.return", location=location_text(last))
    block.add_op(func.ReturnOp())
    block.last_op.location = last.location  # pyright: ignore[reportOptionalMemberAccess]
    types = [a.type for a in block.args]
    new = func.FuncOp(main.sym_name.data, (types, []), Region(block), main.sym_visibility)
    new.attributes.update(main.attributes)
    set_pairs(new, UPDATES, [(len(inputs) + result, argument) for result, argument in pairs_of(main, UPDATES)])
    new.location = main.location
    return new


def _launch(
    block: Block,
    op: tile.LaunchOp,
    buffers: dict[SSAValue, SSAValue],
    wanted: dict[SSAValue, list[SSAValue]],
    launchable: set[str],
) -> None:
    """Launch on the buffers of the inputs and new buffers for the results, or those of `main` where it returns them.

    A result that is returned twice is computed twice: launches are pure. What a result starts from is in its buffer,
    or is computed there once more if others need it, too.
    """
    ends = [_end(r) for r in op.res]
    in_place = op.start is not None and _end(op.start) is ends[0]
    copies = max((len(wanted.get(r, ())) for r in ends), default=1)
    for copy in range(max(copies, 1)):
        if op.start is not None and in_place and copy == 0:
            results = [buffers[op.start]]
        else:
            pairs = zip(op.res, ends, strict=True)
            results = [_result_buffer(block, op, r, wanted.get(end, ()), copy) for r, end in pairs]
        if op.start is not None and not in_place:
            _compute_again(block, op.start, results[0], buffers, launchable)
        if copy == 0:
            buffers.update(zip(op.res, results, strict=True))
        _add_launch(block, op, results, buffers, launchable)


def _end(result: SSAValue) -> SSAValue:
    """The last of the values that lie in the buffer of `result` one after the other: what starts from it and is the
    last that needs it, and so on."""
    while uses := [use.operation for use in result.uses]:
        last = uses[0]
        for op in uses:
            last = op if last.is_before_in_block(op) else last
        if not isinstance(last, tile.LaunchOp) or last.start is not result or uses.count(last) > 1:
            break
        if any(result in op.inputs and any(map(_starts, op.res)) for op in uses if isinstance(op, tile.LaunchOp)):
            break  # that launch may be done once more, behind the last
        result = last.res[0]
    return result


def _starts(value: SSAValue) -> bool:
    """Whether something starts from `value`."""
    return any(isinstance(use.operation, tile.LaunchOp) and use.operation.start is value for use in value.uses)


def _compute_again(
    block: Block, value: SSAValue, into: SSAValue, buffers: dict[SSAValue, SSAValue], launchable: set[str]
) -> None:
    """Launch what gives `value` once more, into another buffer."""
    op = value.owner
    assert isinstance(op, tile.LaunchOp)
    if op.start is not None:
        _compute_again(block, op.start, into, buffers, launchable)
    results = [into if r is value else _result_buffer(block, op, r, (), 0) for r in op.res]
    _add_launch(block, op, results, buffers, launchable)


def _add_launch(
    block: Block,
    op: tile.LaunchOp,
    results: list[SSAValue],
    buffers: dict[SSAValue, SSAValue],
    launchable: set[str],
) -> None:
    name = op.kernel.string_value()
    if name in launchable:
        append(block, kernel.LaunchOp(name, [*(buffers[i] for i in op.inputs), *results]), op)


def _result_buffer(block: Block, op: Operation, result: SSAValue, own: Sequence[SSAValue], copy: int) -> SSAValue:
    if copy < len(own):
        return own[copy]
    buffer = append(block, kernel.AllocOp(buffer_type(result.type)), op).results[0]
    buffer.name_hint = result.name_hint
    return buffer
