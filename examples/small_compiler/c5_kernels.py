"""Chapter 5: kernels. Each nest becomes one kernel: the program of a thread, with loads, arithmetic and stores.

In this chapter one thread computes all elements of a tensor in a loop. Chapter 6 divides them among threads, so the
lowering here takes the number of blocks and threads as its `Schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr, AffineExpr, AffineMap

from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop
from deplodock.dialects.payload import CmpOp, ConstantOp, retyped
from deplodock.dialects.shapes.affine import simplify_map
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.tensor import combine, identity
from deplodock.passes.rewriting import eliminate_common_subexpressions, erase

from . import c4_fusion
from .c1_capture import Program
from .c2_tensors import coordinates_of
from .c3_nests import add
from .c4_fusion import extents_of_indices


@dataclass(frozen=True)
class Schedule:
    """Division of the elements of a tensor among threads. Each thread computes equally many.

    Attributes:
        blocks: number of blocks.
        warps: warps of a block.
        lanes: threads of a warp: 32 on a GPU, 1 on a CPU.
    """

    blocks: int = 1
    warps: int = 1
    lanes: int = 1

    @property
    def threads(self) -> int:
        """Returns the number of threads of a block."""
        return self.warps * self.lanes


SERIAL = Schedule()
"""Schedule of one thread, which computes everything."""


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> Program:
    """Compiles a PyTorch program to kernels of one thread, which a simulator executes."""
    program = c4_fusion.compile(function, inputs)
    make_kernels(program.module, lambda nest: SERIAL)
    return replace(program, run=run)


def run(module: ModuleOp, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Executes a module at the kernel level by the simulator, which reports illegal accesses."""
    result = simulate(module, [argument.detach().numpy() for argument in arguments])
    result.report.raise_errors()
    return [torch.from_numpy(output) for output in result.outputs]


def make_kernels(module: ModuleOp, schedule: Callable[[loop.NestOp], Schedule]) -> None:
    """Lowers a module from the loop level to the kernel level.

    `@main` gets its results as arguments, allocates the other tensors, and launches one kernel for each nest.

    Args:
        module: the module.
        schedule: returns the schedule of a nest.
    """
    old = main_function(module)
    *nests, end = old.body.block.ops
    main = Block(arg_types=[buffer_of(value) for value in (*old.args, *end.operands)])
    buffers = dict(zip((*old.args, *end.operands), main.args))
    for number, nest in enumerate(nests):
        result = nest.res[0]
        result.name_hint = "out" if result in buffers else f"t{number}"
        if result not in buffers:
            buffers[result] = add(main, kernel.AllocOp(buffer_of(result)))
        sources = list(dict.fromkeys(op.source for op in nest.walk() if isinstance(op, loop.LoadOp)))
        module.body.block.insert_op_before(kernel_of(nest, f"k{number}", sources, schedule(nest)), old)
        main.add_op(kernel.LaunchOp(f"k{number}", [buffers[value] for value in (*sources, result)]))
    main.add_op(ReturnOp())
    for value, buffer in buffers.items():
        buffer.name_hint = value.name_hint
    erase(old)
    module.body.block.add_op(FuncOp("main", ([a.type for a in main.args], []), Region(main)))


def buffer_of(value: SSAValue) -> MemRefType:
    """Returns the type of the memory that holds a tensor."""
    return MemRefType(f32, value.type.get_shape())


def kernel_of(nest: loop.NestOp, name: str, sources: list[SSAValue], schedule: Schedule) -> kernel.FuncOp:
    """Returns the kernel of a nest.

    Args:
        nest: the nest.
        name: name of the kernel.
        sources: tensors that the nest reads. The kernel takes their buffers, then the buffer of the result.
        schedule: number of blocks and threads.
    """
    block = Block(arg_types=[buffer_of(value) for value in (*sources, nest.res[0])])
    *inputs, out = block.args
    for value, buffer in zip((*sources, nest.res[0]), block.args):
        buffer.name_hint = value.name_hint
    emitter = Emitter(block, dict(zip(sources, inputs)))
    size, threads = prod(nest.shape), schedule.threads
    share = -(-size // (schedule.blocks * threads))
    block_id, thread_id = emitter.add(kernel.IdOp("block")), emitter.add(kernel.IdOp("thread"))

    def element(step: SSAValue) -> None:
        step.name_hint = "step"
        # Threads with consecutive numbers compute consecutive elements in each step.
        formula = (AffineExpr.dimension(0) * share + AffineExpr.dimension(1)) * threads + AffineExpr.dimension(2)
        extents = schedule.blocks, share, threads
        (number,) = emitter.affine([formula], [block_id, step, thread_id], extents)
        predicate = None
        if prod(extents) != size:
            # The last threads have no element. They compute the last one, so that every load is legal.
            predicate = emitter.add(CmpOp("lt", number, emitter.index(size)))
            number = emitter.add(arith.MinUIOp(number, emitter.index(size - 1)))
        at = emitter.coordinates(number, nest.body.block.args, nest.shape)
        result = emitter.add(kernel.SplatOp(emitter.lower(nest.body.block), 1))
        emitter.block.add_op(kernel.StoreOp(result, out, at, predicate=predicate))

    emitter.repeat(share, element)
    eliminate_common_subexpressions(region := Region(block))
    return kernel.FuncOp(name, [schedule.blocks], schedule.warps, schedule.lanes, body=region)


INDEX_OPS = {
    AffineBinaryOpKind.Add: arith.AddiOp,
    AffineBinaryOpKind.Mul: arith.MuliOp,
    AffineBinaryOpKind.FloorDiv: arith.DivUIOp,
    AffineBinaryOpKind.Mod: arith.RemUIOp,
}
"""Kind of an affine expression -> its operation. Indices are never negative."""


class Emitter:
    """Builder of the body of a kernel.

    Attributes:
        block: block that receives operations.
        buffers: tensor of the nest -> buffer of the kernel.
        values: value of the nest -> value of the kernel.
    """

    def __init__(self, block: Block, buffers: dict[SSAValue, SSAValue]) -> None:
        self.block, self.buffers = block, buffers
        self.values = dict[SSAValue, SSAValue]()

    def add(self, op: Operation) -> SSAValue:
        """Appends an operation and returns its result."""
        return add(self.block, op)

    def index(self, number: int) -> SSAValue:
        """Returns a number as an index."""
        return self.add(ConstantOp(number, IndexType()))

    def affine(
        self, expressions: Sequence[AffineExpr], indices: Sequence[SSAValue], extents: Sequence[int]
    ) -> list[SSAValue]:
        """Returns the values of affine expressions.

        Args:
            expressions: the expressions.
            indices: values of their dimensions.
            extents: bounds of the dimensions, by which the expressions are simplified.
        """

        def value(expr: AffineExpr) -> SSAValue:
            if isinstance(expr, AffineConstantExpr):
                return self.index(expr.value)
            if isinstance(expr, AffineDimExpr):
                return indices[expr.position]
            return self.add(INDEX_OPS[expr.kind](value(expr.lhs), value(expr.rhs)))

        map = AffineMap(len(indices), 0, tuple(expressions))
        return [value(result) for result in simplify_map(map, extents).results]

    def coordinates(self, number: SSAValue, indices: Sequence[SSAValue], shape: Sequence[int]) -> list[SSAValue]:
        """Defines the indices of a loop over elements, and returns their values.

        Args:
            number: number of the element in row-major order.
            indices: the indices.
            shape: their extents.
        """
        values = self.affine(coordinates_of(AffineExpr.dimension(0), shape), [number], [prod(shape)])
        for index, value in zip(indices, values):
            value.name_hint = index.name_hint
        self.values |= zip(indices, values)
        return values

    def repeat(self, count: int, body: Callable[..., SSAValue | None], *start: SSAValue) -> SSAValue | None:
        """Emits a loop and returns the value that it carries.

        Args:
            count: number of iterations.
            body: takes the number of the iteration and the carried value, and returns the next one.
            start: value before the first iteration; left out for a loop that carries none.
        """
        zero, one = self.index(0), self.index(1)
        if count == 1:
            return body(zero, *start)
        block = Block(arg_types=[IndexType(), *(value.type for value in start)])
        outer, self.block = self.block, block
        result = body(*block.args)
        block.add_op(scf.YieldOp(*([] if result is None else [result])))
        self.block = outer
        end = self.index(count)
        self.block.add_op(repeated := scf.ForOp(zero, end, one, start, block))
        return repeated.results[0] if start else None

    def lower(self, body: Block) -> SSAValue:
        """Emits the operations of a body of a nest and returns the value that it yields."""
        *ops, end = body.ops
        for op in ops:
            self.values[op.results[0]] = LOWERINGS.get(type(op), Emitter.payload)(self, op)
        return self.values[end.operands[0]]

    def payload(self, op: Operation) -> SSAValue:
        """Emits the same operation on values of the kernel."""
        return self.add(retyped(op, [self.values[operand] for operand in op.operands], f32))

    def load(self, op: loop.LoadOp) -> SSAValue:
        """Emits a load of one element into a register."""
        indices, extents = [self.values[index] for index in op.indices], extents_of_indices(op.indices)
        coordinates = self.affine(op.map.data.results, indices, extents)
        return self.add(kernel.ExtractOp(self.add(kernel.LoadOp(self.buffers[op.source], coordinates, [])), 0))

    def reduce(self, op: loop.ReduceOp) -> SSAValue:
        """Emits a reduction as a loop that carries the partial result."""

        def step(number: SSAValue, partial: SSAValue) -> SSAValue:
            self.coordinates(number, op.body.block.args, op.shape)
            return self.add(combine(op.kind.data, partial, self.lower(op.body.block)))

        return self.repeat(prod(op.shape), step, self.add(ConstantOp(identity(op.kind.data, f32), f32)))


LOWERINGS = {loop.LoadOp: Emitter.load, loop.ReduceOp: Emitter.reduce}
"""Operation of the loop level -> its lowering. All others are arithmetic, which stays as it is."""
