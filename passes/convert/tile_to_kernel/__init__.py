"""`convert-tile-to-kernel`: lowers programs of a block over tiles to programs of a thread.

A *tile* is a tensor value that the threads of a block hold together. Its layout assigns each element to a register of
a thread. At the kernel level a tile is the vector of registers of one thread. `Lowering` (`emitter.py`) lowers a
kernel; the modules of this package register functions that lower single operations. `_Host` lowers the host program
`@main` to operations on buffers.
"""

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
from ....dialects.host import BindSizeOp
from ....dialects.payload import ConstantOp, element_type
from ....dialects.payload.rows import padded_row
from ....dialects.shapes.extents import extents_of, memref_of
from ....dialects.support.calls import EAGER_RESULTS, UPDATES, pairs_of, set_pairs
from ....dialects.support.locations import refused
from ....errors import CompileError
from ...rewriting import erase, retype
from . import cp_async_pipeline, dots, exchanges, memory, scans, tma_pipeline  # noqa: F401  their functions lower ops  # pyright: ignore[reportUnusedImport]
from .emitter import LOOP_STATES, Lowering, lowers


class ConvertTileToKernelPass(ModulePass):
    """Lowers the program of a block over tiles to the program of each of its threads, over vectors of registers.

    ```mlir
    %x = tile.load %X[%i, d0] : memref<8x128xf32> -> tensor<128xf32, #l>
    %y = arith.mulf %x, %x : tensor<128xf32, #l>    // #l: reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]]
    ```
    becomes
    ```mlir
    %x = kernel.load %X[%block, %0] regs [[0, 1], [0, 2]] vec 4 : memref<8x128xf32> -> vector<4xf32>
    %y = arith.mulf %x, %x : vector<4xf32>          // %0 = thread * 4
    ```

    - A tile becomes a vector of the registers that its layout assigns to a thread. Payload operations only change
      their types.
    - Loads and stores get coordinates that depend on the number of the thread. They use the widest access that is
      proved to be contiguous and aligned.
    - A reduction folds the registers of a thread, then lanes by shuffles, then warps through shared memory.
    - A dot loops over k. It becomes fused multiply-adds or instructions of the tensor cores, as its `atom` specifies.
    - A `tile.launch` in `@main` becomes a launch on buffers. The results of `@main` become trailing arguments.

    **Rationale**: hardware runs threads, and all levels above describe blocks.

    **Pipeline position**: last of the conversions, after all tile passes. They choose the layouts and the tiles in
    shared memory, so this pass decides nothing. It emits no barriers and no addresses in shared memory.
    `kernel-insert-barriers` and `kernel-allocate-shared` add them later, with all accesses in view.
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
        raise refused(op, f"expected a grid of 1 to 2^31 - 1 blocks, but got {count}")
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
    # The attributes include the schedule, which is kept for readers of the printed kernel.
    new.attributes.update(op.attributes)
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
    """Repeats registers: in the layout that `tile-assign-layouts` chose, each thread has the elements already."""
    layout, source = out.layout(op.result), out.of(op.source)
    if not isinstance(source.type, VectorType):
        return out.emit(kernel.SplatOp(source, layout.registers))
    picks = layout.without(op.along.get_values()).picks(out.layout(op.source))
    if picks is None:
        raise refused(
            op,
            "expected operands in one layout; run tile-assign-layouts, which inserts conversions",
        )
    return out.picked(source, picks)


@lowers(tile.SliceOp)
def lower_slice(out: Lowering, op: tile.SliceOp) -> SSAValue:
    registers = out.layout(op.source).registers_of(out.layout(op.result), op.at.get_values())
    return out.emit(kernel.ShuffleRegistersOp(out.vector(op.source), registers))


@lowers(scf.ForOp)
def lower_for(out: Lowering, op: scf.ForOp) -> None:
    """Lowers a loop. It also carries the values of its `LoopState`s, but not the values that they drop.

    A carried tile that copies are filling becomes the offset of a slot.
    """
    if tile.StageAsyncOp not in out.kinds and any(tile.is_in_shared(v.type) for v in op.iter_args):
        raise refused(op, "carries a tile in shared memory that no pipeline of copies brings")
    states = [make(out, op) for kind, make in LOOP_STATES.items() if kind in out.kinds]
    positions = [i for i in range(len(op.iter_args)) if not any(i in s.dropped for s in states)]
    entries = [s.entry() for s in states]
    starts = [*(out.of(op.iter_args[i]) for i in positions), *chain(*entries)]
    counter, *carried = op.body.block.args
    body = Block(arg_types=[IndexType(), *(s.type for s in starts)])

    def bind(old: Sequence[SSAValue], new: Iterable[SSAValue], inside: bool) -> None:
        values = iter(new)
        for i, value in zip(positions, values, strict=False):
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
        yielded = [out.of(last.operands[i]) for i in positions]
        out.add_op(scf.YieldOp(*yielded, *(v for s in states for v in s.next(carried))))
    out.location = op.location
    out.add_op(loop)
    bind(op.results, loop.results, False)
    for s in states:
        s.close()


_STEP = AffineExpr.dimension(0)
_READ, _WRITTEN = _STEP % 2, (_STEP + 1) % 2
"""Rows of a two-row buffer that a fold step reads and writes. Used for carries without a history, by turns."""


def _buffer_type(t: Attribute) -> MemRefType[Attribute]:
    return memref_of(element_type(t), extents_of(t))


def lower_declaration(function: func.FuncOp) -> None:
    """Changes the signature of a function without a body to buffers: its results become trailing arguments."""
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    function.function_type = FunctionType.from_lists([_buffer_type(t) for t in (*inputs, *outputs)], [])
    function.attributes[EAGER_RESULTS] = IntegerAttr(len(outputs), i64)


def lower_host(main: func.FuncOp, launchable: set[str]) -> None:
    """Lowers the host program `main` to operations on buffers. Its results become trailing arguments.

    Args:
        main: the function.
        launchable: names of the kernels that have blocks. Launches of other kernels (empty grid) are dropped.

    Raises:
        CompileError: if `main` returns an argument, or has an operation that is not a launch, call or fold.
    """
    block, inputs, source = main.body.block, main.body.block.args, list(main.body.block.ops)
    *ops, last = source
    if any(value in inputs for value in last.operands):
        raise refused(last, "expected a computed result, but got an argument that is returned unchanged", CompileError)
    for argument in inputs:
        retype(argument, _buffer_type(argument.type))
    host = _Host(block, launchable, dict(zip(inputs, inputs, strict=True)))
    for value in last.operands:
        out = block.insert_arg(_buffer_type(value.type), len(block.args))
        out.name_hint = value.name_hint or "out"
        host.outputs.setdefault(value, []).append(out)
    for op in ops:
        if (lower := _HOST.get(type(op))) is None:
            raise refused(op, "expected a launch or a call in the host program", CompileError)
        lower(host, op)
    host.append(func.ReturnOp(), last)
    erase(*reversed(source))
    main.update_function_type()
    if UPDATES in main.attributes:
        updates = [(len(inputs) + result, argument) for result, argument in pairs_of(main, UPDATES)]
        set_pairs(main, UPDATES, updates)


@dataclass
class _Host:
    """Builder of the host program on buffers.

    block       receives the new operations at its end
    launchable  names of the kernels with a grid that is not empty
    buffers     value -> its buffer
    outputs     value -> arguments of `@main` that must hold it at the end; several if it is returned several times
    """

    block: Block
    launchable: set[str]
    buffers: dict[SSAValue, SSAValue]
    outputs: dict[SSAValue, list[SSAValue]] = field(default_factory=dict[SSAValue, list[SSAValue]])

    def append(self, op: Operation, source: Operation) -> Operation:
        """Appends `op` with the location of `source`."""
        op.location = source.location
        self.block.add_op(op)
        return op

    def results(self, op: Operation) -> list[SSAValue]:
        """Returns the buffers for the results of `op`, and records them."""
        result_buffers = [self._result_buffer(op, r, self.outputs.get(r, ())) for r in op.results]
        self.buffers.update(zip(op.results, result_buffers, strict=True))
        return result_buffers

    def _result_buffer(
        self, op: Operation, result: SSAValue, arguments: Sequence[SSAValue] = (), copy: int = 0
    ) -> SSAValue:
        """Returns the argument number `copy` of `arguments`, or a new buffer if there are fewer."""
        return arguments[copy] if copy < len(arguments) else self._alloc(op, result, _buffer_type(result.type))

    def _alloc(self, op: Operation, value: SSAValue, t: Attribute) -> SSAValue:
        buffer = self.append(kernel.AllocOp(t), op).results[0]
        buffer.name_hint = value.name_hint
        return buffer

    def launch(self, op: tile.LaunchOp) -> None:
        """Emits a launch, with new buffers for results that `main` does not return."""
        if op.start is not None or any(_starts(r) or len(self.outputs.get(r, ())) > 1 for r in op.res):
            self._launch_often(op)
        else:
            self._add_launch(op, self.results(op))

    def _launch_often(self, op: tile.LaunchOp) -> None:
        """Emits one launch per buffer that must hold a result; launches are pure, so each may run several times.

        A launch with a `start` updates that value (the initial tensor of a scatter). If the launch is the last use of
        the value, it updates the buffer in place. Otherwise the value is computed again, into the result's buffer.
        """
        ends = [_end(r) if _starts(r) else r for r in op.res]
        in_place = op.start is not None and _end(op.start) is ends[0]
        copies = max((len(self.outputs.get(r, ())) for r in ends), default=1)
        for copy in range(max(copies, 1)):
            if op.start is not None and in_place and copy == 0:
                results = [self.buffers[op.start]]
            else:
                pairs = zip(op.res, ends, strict=True)
                results = [self._result_buffer(op, r, self.outputs.get(end, ()), copy) for r, end in pairs]
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
        """Emits the call of the function on buffers."""
        results = self.results(op)
        self.append(func.CallOp(op.callee, [*(self.buffers[i] for i in op.operands), *results], []), op)

    def bind_size(self, op: BindSizeOp) -> None:
        self.append(BindSizeOp(self.buffers[op.value], op.symbol), op)

    def fold(self, op: tensor.ScanOp) -> None:
        """Emits a fold (`tensor.scan`): calls of its step function, the first and the last one outside of a loop.

        The first step reads the initial carries, and the last step writes the result buffers, so that no carry is
        copied. A carry with a history is stored in the rows of the history. Other carries alternate between the two
        rows of a temporary buffer.
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
        """Emits the call of step `t` of a fold. `rings` maps the number of a carry without history to its two rows."""

        def row(rows: SSAValue, number: AffineExpr, type: Attribute) -> SSAValue:
            slice_ = self.append(kernel.SliceOp(rows, AffineMap(1, 0, (number,)), t, type), op).results[0]
            slice_.name_hint = rows.name_hint
            return slice_

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
    BindSizeOp: _Host.bind_size,
}
"""Operation of the host program -> its lowering."""


def _end(result: SSAValue) -> SSAValue:
    """Returns the last value that reuses the buffer of `result`.

    A launch that starts from `result`, and is its last use, updates the buffer in place. The same may hold for the
    result of that launch, and so on.
    """
    while uses := [use.operation for use in result.uses]:
        last = uses[0]
        for op in uses:
            last = op if last.is_before_in_block(op) else last
        if not isinstance(last, tile.LaunchOp) or last.start is not result or uses.count(last) > 1:
            break
        if any(result in op.inputs and any(map(_starts, op.res)) for op in uses if isinstance(op, tile.LaunchOp)):
            # This launch may be emitted several times, also after `last`, and reads `result` each time.
            break
        result = last.res[0]
    return result


def _starts(value: SSAValue) -> bool:
    return any(isinstance(use.operation, tile.LaunchOp) and use.operation.start is value for use in value.uses)
