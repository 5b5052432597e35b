"""From a block's program over tiles to one thread's program in registers; and the host program: launches on buffers,
results written to trailing arguments, and a fold as a loop that calls the step, with the carries in rows of buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import FunctionType, IndexType, IntegerAttr, MemRefType, ModuleOp, VectorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ....dialects import kernel, payload, tensor, tile
from ....dialects.kernel import padded_row
from ....dialects.payload import ConstantOp, element_type
from ....dialects.shapes.extents import extents_of, memref_of
from ....dialects.support.calls import EAGER_RESULTS, UPDATES, pairs_of, set_pairs
from ....dialects.support.locations import refused
from ....errors import CompileError
from ...rewriting import erase, retype
from . import cp_async_pipeline, dots, exchanges, memory, scans, tma_pipeline  # noqa: F401  their functions lower ops  # pyright: ignore[reportUnusedImport]
from .emitter import LOOP_STATES, Lowering, lowers


class ConvertTileToKernelPass(ModulePass):
    """Give every thread its part of the block's tiles.

    What: a tile with a layout becomes the vector of registers that its layout gives each thread; the payload only
    changes its type. Loads and stores get coordinates computed from who the thread is, and as wide an access as can be
    proved right; reductions fold registers, shuffle lanes and meet in shared memory; contractions loop over slices of
    operands in shared memory; `tile.launch` becomes a launch on buffers, with `@main`'s results as trailing arguments.
    Why: hardware runs threads; until here nothing had to know about them.
    Why here: every decision has been taken (layouts, what is in shared memory), so this is mechanical. Barriers and
    addresses in shared memory are left to the passes after it, which see all accesses.

    ```mlir
    %x = tile.load %X[%i, d0] : memref<8x128xf32> -> tensor<128xf32, #l>
    %y = arith.mulf %x, %x : tensor<128xf32, #l>    // #l: reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]]
    ```
    becomes
    ```mlir
    %x = kernel.load %X[%block, %0] regs [[0, 1], [0, 2]] vec 4 : memref<8x128xf32> -> vector<4xf32>
    %y = arith.mulf %x, %x : vector<4xf32>          // %0 = thread * 4
    ```
    """

    name = "convert-tile-to-kernel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = [k for k in op.ops if isinstance(k, tile.KernelOp)]
        for k in kernels:
            if 0 not in k.grid_shape:
                op.body.block.insert_op_before(lower_kernel(k), k)
        launchable = {k.sym_name.data for k in kernels if 0 not in k.grid_shape}
        for main in [f for f in op.ops if isinstance(f, func.FuncOp)]:
            if main.is_declaration:
                lower_declaration(main)
            else:
                lower_host(main, launchable)
        erase(*kernels)


def lower_kernel(op: tile.KernelOp) -> kernel.FuncOp:
    out = Lowering(op)
    count = prod(n for n in out.grid if isinstance(n, int))
    if count >= 1 << 31:
        raise refused(op, f"a grid has 1 to 2^31 - 1 blocks, not {count}")
    for b, index in zip(op.blocks, out.block_indices([b.first_use is not None for b in op.blocks]), strict=True):
        if isinstance(index, SSAValue) and index.name_hint is None:
            index.name_hint = b.name_hint
        out.values[b] = index
    out.lower_block(op.body.block)
    Rewriter.inline_block(out.block, InsertPoint.at_end(out.head))
    symbolic = any(not isinstance(n, int) for n in out.grid)
    grid = [n for n in out.grid if n != 1] if symbolic else [count]
    warps, lanes = out.warps + out.producers, op.lanes.data
    new = kernel.FuncOp(
        op.sym_name.data, grid, warps, lanes, op.cluster_size, op.schedule.blocks_per_sm or None, body=Region(out.head)
    )
    new.attributes.update(op.attributes)  # the schedule, for whoever reads the CUDA
    new.location = op.location
    return new


@lowers(payload.ExtentOp)
def lower_extent(out: Lowering, op: payload.ExtentOp) -> None:
    if isinstance(op.result.type, IndexType):
        out.values[op.result] = out.size(op.symbol)
    else:
        out.lower_payload(op)


@lowers(tile.BroadcastOp)
def lower_broadcast(out: Lowering, op: tile.BroadcastOp) -> SSAValue:
    """A tile repeated: each thread has what it needs already, in fewer registers."""
    layout, source = out.layout(op.result), out.of(op.source)
    if not isinstance(source.type, VectorType):
        return out.emit(kernel.SplatOp(source, layout.registers))
    picks = layout.without(op.along.get_values()).picks(out.layout(op.source))
    if picks is None:
        raise refused(op, "needs elements of other threads (tile-assign-layouts inserts the conversion)")
    return out.picked(source, picks)


@lowers(tile.SliceOp)
def lower_slice(out: Lowering, op: tile.SliceOp) -> SSAValue:
    registers = out.layout(op.source).registers_of(out.layout(op.result), op.at.get_values())
    return out.emit(kernel.ShuffleRegistersOp(out.vector(op.source), registers))


@lowers(scf.ForOp)
def lower_for(out: Lowering, op: scf.ForOp) -> None:
    """A loop, which also carries the values of its states: where rings are."""
    if tile.StageAsyncOp not in out.kinds and any(tile.is_in_shared(v.type) for v in op.iter_args):
        raise refused(op, "carries a tile in shared memory that no pipeline of copies brings")
    states = [make(out, op) for kind, make in LOOP_STATES.items() if kind in out.kinds]
    kept = [i for i in range(len(op.iter_args)) if not any(i in s.dropped for s in states)]
    entries = [s.entry() for s in states]
    starts = [*(out.of(op.iter_args[i]) for i in kept), *chain(*entries)]
    counter, *carried = op.body.block.args
    body = Block(arg_types=[IndexType(), *(s.type for s in starts)])

    def bind(old: Sequence[SSAValue], new: Iterable[SSAValue], inside: bool) -> None:
        values = iter(new)
        for i, value in zip(kept, values, strict=False):
            out.define(old[i], value)
        for s, entry in zip(states, entries, strict=True):
            s.bind(old, [*islice(values, len(entry))], inside)

    out.define(counter, body.args[0])
    bind(carried, body.args[1:], True)
    loop = scf.ForOp(out.of(op.lb), out.of(op.ub), out.of(op.step), starts, body)
    loop.attributes.update(op.attributes)
    with out.inside(body):
        out.lower_block(op.body.block)
        last = op.body.block.last_op
        assert isinstance(last, scf.YieldOp)
        out.location = last.location
        yielded = [out.of(last.operands[i]) for i in kept]
        out.add_op(scf.YieldOp(*yielded, *(v for s in states for v in s.next(carried))))
    out.location = op.location
    out.add_op(loop)
    bind(op.results, loop.results, False)
    for s in states:
        s.close()


_STEP = AffineExpr.dimension(0)
_READ, _WRITTEN = _STEP % 2, (_STEP + 1) % 2
"""The row of a carry that a step reads, and the one that it writes, where only the last value is asked for."""


def _buffer_type(t: Attribute) -> MemRefType[Attribute]:
    return memref_of(element_type(t), extents_of(t))


def lower_declaration(function: func.FuncOp) -> None:
    """Puts a function without a body on buffers: its results become trailing arguments."""
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    function.function_type = FunctionType.from_lists([_buffer_type(t) for t in (*inputs, *outputs)], [])
    function.attributes[EAGER_RESULTS] = IntegerAttr(len(outputs), i64)


def lower_host(main: func.FuncOp, launchable: set[str]) -> None:
    """Puts `main` on buffers: its results become trailing arguments. A kernel that is not `launchable` has nothing to
    do."""
    block, inputs, source = main.body.block, main.body.block.args, list(main.body.block.ops)
    *ops, last = source
    if any(value in inputs for value in last.operands):
        raise refused(last, "an argument is returned as it is", CompileError)
    for argument in inputs:
        retype(argument, _buffer_type(argument.type))
    host = _Host(block, launchable, dict(zip(inputs, inputs, strict=True)))
    for value in last.operands:
        out = block.insert_arg(_buffer_type(value.type), len(block.args))
        out.name_hint = value.name_hint or "out"
        host.wanted.setdefault(value, []).append(out)
    for op in ops:
        if (lower := _HOST.get(type(op))) is None:
            raise refused(op, "is no launch and no call", CompileError)
        lower(host, op)
    host.append(func.ReturnOp(), last)
    erase(*reversed(source))
    main.update_function_type()
    if UPDATES in main.attributes:
        updates = [(len(inputs) + result, argument) for result, argument in pairs_of(main, UPDATES)]
        set_pairs(main, UPDATES, updates)


@dataclass
class _Host:
    """The host program that is being built at the end of `block`: the buffers that values became, the arguments that
    are `wanted` to hold a value in the end, and the kernels that have something to do."""

    block: Block
    launchable: set[str]
    buffers: dict[SSAValue, SSAValue]
    wanted: dict[SSAValue, list[SSAValue]] = field(default_factory=dict[SSAValue, list[SSAValue]])

    def append(self, op: Operation, source: Operation) -> Operation:
        op.location = source.location
        self.block.add_op(op)
        return op

    def results(self, op: Operation) -> list[SSAValue]:
        found = [self._result_buffer(op, r, self.wanted.get(r, ())) for r in op.results]
        self.buffers.update(zip(op.results, found, strict=True))
        return found

    def _result_buffer(self, op: Operation, result: SSAValue, own: Sequence[SSAValue] = (), copy: int = 0) -> SSAValue:
        """One of the arguments for this result, or a new buffer if there are too few."""
        return own[copy] if copy < len(own) else self._alloc(op, result, _buffer_type(result.type))

    def _alloc(self, op: Operation, value: SSAValue, t: Attribute) -> SSAValue:
        buffer = self.append(kernel.AllocOp(t), op).results[0]
        buffer.name_hint = value.name_hint
        return buffer

    def launch(self, op: tile.LaunchOp) -> None:
        """Launch on the buffers of the inputs, and on new ones for results that `main` does not return."""
        if op.start is not None or any(_starts(r) or len(self.wanted.get(r, ())) > 1 for r in op.res):
            self._launch_often(op)
        else:
            self._add_launch(op, self.results(op))

    def _launch_often(self, op: tile.LaunchOp) -> None:
        """Launch once for each buffer that a result has to be in: launches are pure. What a result starts from is in
        its buffer, or is computed there once more if others need it, too."""
        ends = [_end(r) if _starts(r) else r for r in op.res]
        in_place = op.start is not None and _end(op.start) is ends[0]
        copies = max((len(self.wanted.get(r, ())) for r in ends), default=1)
        for copy in range(max(copies, 1)):
            if op.start is not None and in_place and copy == 0:
                results = [self.buffers[op.start]]
            else:
                pairs = zip(op.res, ends, strict=True)
                results = [self._result_buffer(op, r, self.wanted.get(end, ()), copy) for r, end in pairs]
            if op.start is not None and not in_place:
                self._compute_again(op.start, results[0])
            if copy == 0:
                self.buffers.update(zip(op.res, results, strict=True))
            self._add_launch(op, results)

    def _compute_again(self, value: SSAValue, into: SSAValue) -> None:
        op = value.owner
        assert isinstance(op, tile.LaunchOp)
        if op.start is not None:
            self._compute_again(op.start, into)
        self._add_launch(op, [into if r is value else self._result_buffer(op, r) for r in op.res])

    def _add_launch(self, op: tile.LaunchOp, results: list[SSAValue]) -> None:
        name = op.kernel.string_value()
        if name in self.launchable:
            self.append(kernel.LaunchOp(name, [*(self.buffers[i] for i in op.inputs), *results]), op)

    def call(self, op: func.CallOp) -> None:
        """Call the function on buffers."""
        results = self.results(op)
        self.append(func.CallOp(op.callee, [*(self.buffers[i] for i in op.operands), *results], []), op)

    def fold(self, op: tensor.ScanOp) -> None:
        """A loop that calls the step of a fold.

        The first step reads the initial carries and the last one writes the results where they belong, so nothing is
        copied; the steps between are a loop. A history is its own memory; of other carries two rows take turns.
        """
        self.results(op)
        rings: dict[int, SSAValue] = {}
        if op.steps > 1:
            for i, carry in enumerate(op.carries):
                if i not in op.stacked:
                    rings[i] = self._alloc(op, carry, memref_of(element_type(carry.type), [2, *padded_row(carry.type)]))
        steps = op.steps
        self._call(op, rings, self._number(0, op), first=True, last=steps == 1)
        end = steps - 1 if rings else steps
        if end > 1:
            start, stop, by = (self._number(n, op) for n in (1, end, 1))
            inner = replace(self, block=Block(arg_types=[IndexType()]))
            counter = inner.block.args[0]
            counter.name_hint = "t"
            inner._call(op, rings, counter, first=False, last=False)
            inner.append(scf.YieldOp(), op)
            self.append(scf.ForOp(start, stop, by, [], Region(inner.block)), op)
        if end < steps:
            self._call(op, rings, self._number(steps - 1, op), first=False, last=True)

    def _number(self, value: int, source: Operation) -> SSAValue:
        return self.append(ConstantOp(value, IndexType()), source).results[0]

    def _call(self, op: tensor.ScanOp, rings: dict[int, SSAValue], t: SSAValue, *, first: bool, last: bool) -> None:
        def row(rows: SSAValue, number: AffineExpr, type: Attribute) -> SSAValue:
            found = self.append(kernel.SliceOp(rows, AffineMap(1, 0, (number,)), t, type), op).results[0]
            found.name_hint = rows.name_hint
            return found

        reads, writes = list[SSAValue](), list[SSAValue]()
        for i, (carry, result) in enumerate(zip(op.carries, op.res, strict=True)):
            history, ring, t_ = self.buffers[result], rings.get(i), _buffer_type(carry.type)
            before, after = (_STEP - 1, _STEP) if ring is None else (_READ, _WRITTEN)
            rows = history if ring is None else ring
            reads.append(self.buffers[carry] if first else row(rows, before, t_))
            writes.append(history if last and i not in op.stacked else row(rows, after, t_))
        slices = [row(self.buffers[v], _STEP, memref_of(element_type(v.type), extents_of(v.type)[1:])) for v in op.each]
        shared = [self.buffers[v] for v in op.shared]
        self.append(func.CallOp(op.step.string_value(), [*reads, *slices, *shared, *writes], []), op)


_HOST: dict[type[Operation], Callable[[_Host, Any], None]] = {
    tile.LaunchOp: _Host.launch,
    func.CallOp: _Host.call,
    tensor.ScanOp: _Host.fold,
}
"""Operation of the host program -> its lowering."""


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
    return any(isinstance(use.operation, tile.LaunchOp) and use.operation.start is value for use in value.uses)
