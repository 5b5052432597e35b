"""Bugs in kernels, planted in the operations of the kernel level.

Each function below returns a `Change`: a function that plants the bug in a module. `kind` and `number` select an
operation: number `number` of the class `kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IndexType, IntAttr, ModuleOp, i64
from xdsl.ir import Operation

from deplodock.dialects import kernel, payload
from deplodock.dialects.kernel.memory import LoadOp, StoreOp
from deplodock.dialects.layouts.linear import Bases
from deplodock.dialects.shapes.extents import extents_attr
from deplodock.dialects.tensor import KindAttr, ReductionKind

from .editing import Mutant, in_module, nth

Change = Callable[[ModuleOp], None]
Access = LoadOp | StoreOp


def drop(kind: type[Operation], number: int = 0) -> Change:
    """Deletes an operation. Its operand replaces its result."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        if op.results:
            op.results[0].replace_all_uses_with(op.operands[0])
        op.detach()
        op.erase()

    return change


def later(kind: type[Operation], number: int, past: type[Operation]) -> Change:
    """Moves an operation after the next one of class `past` in its block."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        target = op.next_op
        while target is not None and not isinstance(target, past):
            target = target.next_op
        assert target is not None
        op.detach()
        assert target.parent is not None
        target.parent.insert_op_after(op, target)

    return change


def earlier(kind: type[Operation], number: int, past: type[Operation]) -> Change:
    """Moves an operation before the previous one of class `past` in its block."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        target = op.prev_op
        while target is not None and not isinstance(target, past):
            target = target.prev_op
        assert target is not None
        op.detach()
        assert target.parent is not None
        target.parent.insert_op_before(op, target)

    return change


def shuffle_by(number: int, mask: int) -> Change:
    """Changes the lane distance of a shuffle."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.ShuffleXorOp, number).mask = IntAttr(mask)

    return change


def fold_kind(number: int, kind: str) -> Change:
    """Changes the combining operation of a reduction of registers."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.ReduceRegistersOp, number).kind = KindAttr(ReductionKind(kind))

    return change


def fold_bits(number: int, bits: list[int]) -> Change:
    """Changes the registers that a reduction combines."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.ReduceRegistersOp, number).bits = DenseArrayBase.from_list(i64, bits)

    return change


def picks(number: int, registers: list[int]) -> Change:
    """Changes the registers that an operation selects."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.ShuffleRegistersOp, number).registers = DenseArrayBase.from_list(i64, registers)

    return change


def bound(kind: type[Access], number: int, check: int, lower: int, upper: int) -> Change:
    """Moves the bounds of one check of an access."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        lows, highs = [a.data for a in op.lower], [a.data for a in op.upper]
        lows[check] += lower
        highs[check] += upper
        op.lower, op.upper = (ArrayAttr([IntAttr(n) for n in ns]) for ns in (lows, highs))

    return change


def rebuilt(kind: type[Access], number: int, **changes: object) -> Change:
    """Rebuilds an access with changed parts, each a function of the operation.

    The parts are `checks`, `regs`, `steps`, `vec`, `fill`, `xor`, `coordinates` and `predicate`.
    """

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        parts: dict[str, object] = {
            "regs": op.reg_bases,
            "vec": op.vec.data,
            "checks": list(op.checks),
            "steps": op.check_steps,
            "lower": op.lower,
            "upper": op.upper,
            "xor": op.xor is not None,
            "coordinates": list(op.coordinates),
        }
        parts |= {"fill": op.fill} if isinstance(op, LoadOp) else {"predicate": op.predicate}
        parts |= {name: f(op) if callable(f) else f for name, f in changes.items()}
        coordinates, regs = parts.pop("coordinates"), parts.pop("regs")
        if isinstance(op, LoadOp):
            new = LoadOp(op.memory, coordinates, regs, **parts)  # pyright: ignore
        else:
            new = StoreOp(op.value, op.memory, coordinates, regs=regs, **parts)  # pyright: ignore
        assert op.parent is not None
        op.parent.insert_op_before(new, op)
        if isinstance(op, LoadOp):
            op.result.replace_all_uses_with(new.results[0])
        op.detach()
        op.erase()

    return change


def unchecked(kind: type[Access], number: int) -> Change:
    """Removes the checks of an access."""
    fill: dict[str, object] = {"fill": None} if kind is LoadOp else {}
    return rebuilt(kind, number, checks=(), steps=(), lower=(), upper=(), **fill)


def moved(kind: type[Access], number: int, coordinate: int, by: int) -> Change:
    """Moves a coordinate of an access by some elements."""

    def coordinates(op: Access) -> list[object]:
        step = payload.ConstantOp(by, IndexType())
        total = arith.AddiOp(op.coordinates[coordinate], step.result)
        assert op.parent is not None
        op.parent.insert_ops_before([step, total], op)
        return [total.result if i == coordinate else c for i, c in enumerate(op.coordinates)]

    return rebuilt(kind, number, coordinates=coordinates)


def swapped_bases(a: int, b: int) -> Callable[[Access], Bases]:
    """Swaps the steps of two register bits."""

    def regs(op: Access) -> Bases:
        found = list(op.reg_bases)
        found[a], found[b] = found[b], found[a]
        return tuple(found)

    return regs


def no_steps(op: Access) -> Bases:
    """Checks each register as if it were the first one."""
    return tuple((0,) * len(s) for s in op.check_steps)


def filled_with(value: float) -> Callable[[LoadOp], object]:
    """Changes the fill value of masked elements."""

    def fill(op: LoadOp) -> object:
        assert op.fill is not None
        constant = payload.ConstantOp(value, op.fill.type)
        assert op.parent is not None
        op.parent.insert_op_before(constant, op)
        return constant.result

    return fill


def operands(kind: type[Operation], number: int, order: list[int]) -> Change:
    """Changes the order of operands."""

    def change(m: ModuleOp) -> None:
        op: Operation = nth(m, kind, number)
        old = list(op.operands)
        for i, n in enumerate(order):
            op.operands[i] = old[n]

    return change


def replaced(kind: type[Operation], number: int, new: Callable[..., Operation]) -> Change:
    """Replaces an operation by another one on the same operands."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        other = new(*op.operands)
        assert op.parent is not None
        op.parent.insert_op_before(other, op)
        op.results[0].replace_all_uses_with(other.results[0])
        op.detach()
        op.erase()

    return change


def compared(number: int, predicate: str) -> Change:
    """Changes the predicate of a comparison."""
    return replaced(payload.CmpOp, number, lambda a, b: payload.CmpOp(predicate, a, b))


def kept(number: int, side: int) -> Change:
    """Makes a select return always one of its operands."""

    def change(m: ModuleOp) -> None:
        op = nth(m, payload.SelectOp, number)
        op.result.replace_all_uses_with(op.operands[side])
        op.detach()
        op.erase()

    return change


def constant(value: float, new: float, kind: str, number: int = 0) -> Change:
    """Changes a constant `value` of the type `kind`."""

    def change(m: ModuleOp) -> None:
        equal = [
            op for op in m.walk() if isinstance(op, payload.ConstantOp) and isclose(op.scalar, value, rel_tol=1e-6)
        ]
        op = [op for op in equal if str(op.result.type) == kind][number]
        other = payload.ConstantOp(new, op.result.type)
        assert op.parent is not None
        op.parent.insert_op_before(other, op)
        op.result.replace_all_uses_with(other.result)

    return change


def trips(number: int, *, first: int = 0, end: int = 0, step: int = 1) -> Change:
    """Moves the start and end of a loop, and multiplies its step."""

    def change(m: ModuleOp) -> None:
        loop = nth(m, scf.ForOp, number)
        assert loop.parent is not None
        for position, by in ((0, first), (1, end)):
            by_op = payload.ConstantOp(by, IndexType())
            total = arith.AddiOp(loop.operands[position], by_op.result)
            if by:
                loop.parent.insert_ops_before([by_op, total], loop)
                loop.operands[position] = total.result
        if step != 1:
            by_op = payload.ConstantOp(step, IndexType())
            loop.parent.insert_op_before(by_op, loop)
            loop.operands[2] = by_op.result

    return change


def yields(number: int, position: int, argument: int) -> Change:
    """Makes a loop yield one of its arguments instead of a new value."""

    def change(m: ModuleOp) -> None:
        loop = nth(m, scf.ForOp, number)
        last = loop.body.block.last_op
        assert last is not None
        last.operands[position] = loop.body.block.args[argument + 1]

    return change


def grid(number: int, by: int) -> Change:
    """Changes the number of blocks."""

    def change(m: ModuleOp) -> None:
        func = nth(m, kernel.FuncOp, number)
        func.grid = extents_attr([func.blocks + by])

    return change


def warps(number: int, count: int) -> Change:
    """Changes the number of warps."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.FuncOp, number).warps = IntAttr(count)

    return change


def offset(number: int, at: int) -> Change:
    """Changes the address of a shared buffer."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.SharedOp, number).offset = IntAttr(at)

    return change


def shared_size(number: int, size: int) -> Change:
    """Reduces the shared memory of a kernel."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.FuncOp, number).shared = IntAttr(size)

    return change


def identity(number: int, kind: str) -> Change:
    """Changes the kind of a `kernel.id`, for example from warp to lane."""
    return lambda m: setattr(nth(m, kernel.IdOp, number), "kind", kernel.IdAttr(kernel.Id(kind)))


def indices(number: int, steps: list[int]) -> Change:
    """Changes the index steps between registers."""

    def change(m: ModuleOp) -> None:
        nth(m, kernel.IndicesOp, number).steps = DenseArrayBase.from_list(i64, steps)

    return change


def outer(number: int, rows: list[int], cols: list[int]) -> Change:
    """Changes the register numbering of a contraction."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kernel.OuterFmaOp, number)
        op.rows, op.cols = (DenseArrayBase.from_list(i64, v) for v in (rows, cols))

    return change


def _here(name: str, subject: str, change: Change) -> Mutant:
    return in_module(name, subject, "kernel", change)


BARRIER, SHUFFLE = kernel.BarrierOp, kernel.ShuffleXorOp

BARRIERS = [
    *(
        _here(f"barrier {n} dropped", subject, drop(BARRIER, n))
        for subject, count in {
            "rms_norm": 1,
            "chunked softmax": 2,
            "column sums": 1,
            "relu matmul": 1,
            "chunked matmul": 1,
            "matmul of relus": 2,
            "attention": 3,
            "chunked attention": 2,
            "transpose": 1,
            "matmul softmax": 5,
        }.items()
        for n in range(count)
    ),
    _here("barrier after the load that needs it", "rms_norm", later(BARRIER, 0, LoadOp)),
    _here("barrier before the store that it orders", "chunked softmax", earlier(BARRIER, 1, StoreOp)),
    _here("barrier behind the loop that needs it", "relu matmul", later(BARRIER, 0, scf.ForOp)),
    _here("barrier between the two stores that it follows", "relu matmul", earlier(BARRIER, 0, StoreOp)),
]

EXCHANGES = [
    *(_here(f"shuffle {n} dropped", "softmax", drop(SHUFFLE, n)) for n in (0, 4, 5, 9)),
    _here("shuffle dropped", "column sums", drop(SHUFFLE, 1)),
    _here("shuffle by 1 instead of 2", "rms_norm", shuffle_by(1, 1)),
    _here("shuffle by 8 instead of 16", "layer_norm", shuffle_by(4, 8)),
    _here("shuffle by 4 instead of 1, out of the row", "attention", shuffle_by(0, 4)),
    _here("combine of a shuffle dropped", "argmax", replaced(arith.MinSIOp, 2, lambda a, b: arith.MinSIOp(a, a))),
    _here("minimum instead of maximum", "softmax", replaced(arith.MaximumfOp, 1, arith.MinimumfOp)),
    _here("maximum that drops NaN", "argmax", replaced(arith.MaximumfOp, 3, arith.MaxnumfOp)),
    _here("maximum instead of sum", "rms_norm", replaced(arith.AddfOp, 1, arith.MaximumfOp)),
    _here("difference instead of sum", "layer_norm", replaced(arith.AddfOp, 2, arith.SubfOp)),
    _here("fold by minimum", "softmax", fold_kind(0, "min")),
    _here("fold by product", "rms_norm", fold_kind(0, "mul")),
    _here("fold across warps by maximum", "rms_norm", fold_kind(1, "max")),
    _here("fold over the columns", "column sums", fold_bits(0, [0, 1, 2])),
    _here("fold over the columns, second", "column sums", fold_bits(1, [2, 3])),
    _here("fold over the rows", "attention", fold_bits(0, [1, 2, 3])),
    _here("registers of another row", "attention", picks(-1, [1, 1, 1, 1, 0, 0, 0, 0])),
    _here("transposed registers", "attention", picks(-1, [0, 1, 0, 1, 0, 1, 0, 1])),
]

ACCESSES = [
    _here("load bound + 1", "softmax", bound(LoadOp, 0, 0, 0, 1)),
    _here("load bound - 1", "transpose", bound(LoadOp, 0, 0, 0, -1)),
    _here("load bound - 4", "softmax", bound(LoadOp, 0, 0, 0, -4)),
    _here("load bound + 4", "softmax", bound(LoadOp, 0, 0, 0, 4)),
    _here("row bound + 1", "relu matmul", bound(LoadOp, 0, 0, 0, 1)),
    _here("column bound + 1", "relu matmul", bound(LoadOp, 0, 1, 0, 1)),
    _here("padding starts one later", "gather and pad", bound(LoadOp, 1, 0, 1, 0)),
    _here("padding starts one earlier", "gather and pad", bound(LoadOp, 1, 0, -1, 0)),
    _here("gather bound - 1", "gather and pad", bound(LoadOp, 1, 1, 0, -1)),
    _here("store bound + 1", "transpose", bound(StoreOp, -1, 1, 0, 1)),
    _here("store bound - 1", "transpose", bound(StoreOp, -1, 0, 0, -1)),
    _here("store bound + 4", "layer_norm", bound(StoreOp, 0, 0, 0, 4)),
    _here("load without its check", "layer_norm", unchecked(LoadOp, 0)),
    _here("weights without their check", "bf16 rms_norm", unchecked(LoadOp, 1)),
    _here("store without its check", "attention", unchecked(StoreOp, -1)),
    _here("coordinate + 1", "transpose", moved(LoadOp, 0, 1, 1)),
    _here("coordinate + 4", "rms_norm", moved(LoadOp, 0, 1, 4)),
    _here("coordinate + 1 of a wide load", "rms_norm", moved(LoadOp, 0, 1, 1)),
    _here("row + 1", "matmul softmax", moved(LoadOp, 0, 0, 1)),
    _here("slot of another warp", "rms_norm", moved(LoadOp, 1, 0, 4)),
    _here("shared coordinate + 1", "relu matmul", moved(StoreOp, 0, 0, 1)),
    _here("store coordinate + 1", "transpose", moved(StoreOp, -1, 1, 1)),
    _here("coordinates swapped", "transpose", rebuilt(StoreOp, -1, coordinates=lambda op: list(op.coordinates)[::-1])),
    _here("bases of registers swapped", "transpose", rebuilt(LoadOp, 0, regs=swapped_bases(0, 1))),
    _here("bases of registers swapped, wide", "rms_norm", rebuilt(LoadOp, 0, regs=swapped_bases(2, 3))),
    _here("bases of stored registers swapped", "rms_norm", rebuilt(StoreOp, -1, regs=swapped_bases(2, 3))),
    _here("bases inside a wide access swapped", "softmax", rebuilt(LoadOp, 0, regs=swapped_bases(0, 1))),
    _here("check without steps", "argmax", rebuilt(LoadOp, 0, steps=no_steps)),
    _here("stored rows checked as the first", "transpose", rebuilt(StoreOp, -1, steps=no_steps)),
    _here("exclusive or as sum", "relu matmul", rebuilt(StoreOp, 0, xor=False)),
    _here("exclusive or of a slice as sum", "attention", rebuilt(LoadOp, 4, xor=False)),
    _here("wider than memory is", "gather and pad", rebuilt(LoadOp, 1, vec=4)),
    _here("wider than registers are consecutive", "transpose", rebuilt(StoreOp, 0, vec=2)),
    _here("wider than the check", "bf16 rms_norm", rebuilt(LoadOp, 0, vec=8)),
    _here("padding of 1", "layer_norm", rebuilt(LoadOp, 0, fill=filled_with(1.0))),
    _here("padding of a maximum with 0", "argmax", rebuilt(LoadOp, 0, fill=filled_with(0.0))),
    _here("padding of the gathered rows", "gather and pad", rebuilt(LoadOp, 1, fill=filled_with(1.0))),
    _here("first thread does not store", "column sums", compared(0, "ne")),
    _here("every other thread stores the result", "argmax", compared(-1, "ne")),
    _here("store into the slot of lane", "rms_norm", identity(2, "lane")),
    _here("thread instead of lane", "transpose", identity(2, "thread")),
]

PAYLOAD = [
    _here("mask lt as le", "layer_norm", compared(0, "le")),
    _here("mask negated", "layer_norm", compared(0, "ge")),
    _here("mask of a sum of squares dropped", "layer_norm", kept(0, 1)),
    _here("causal mask as lt", "attention", compared(1, "lt")),
    _here("causal mask reversed", "attention", compared(1, "ge")),
    _here("causal mask dropped", "attention", kept(0, 1)),
    _here("masked where it is not", "argmax", operands(payload.SelectOp, 1, [0, 2, 1])),
    _here("mask one short", "softmax", constant(200, 199, "vector<8xindex>")),
    _here("mask indices with other steps", "layer_norm", indices(0, [1, 64])),
    _here("mean of one more", "layer_norm", constant(100.0, 101.0, "f32")),
    _here("no epsilon", "layer_norm", constant(1e-5, 0.0, "f32")),
    _here("square root, not its inverse", "rms_norm", replaced(math.RsqrtOp, 0, math.SqrtOp)),
    _here("difference reversed", "softmax", operands(arith.SubfOp, 0, [1, 0])),
    _here("quotient reversed", "softmax", operands(arith.DivfOp, 0, [1, 0])),
    _here("frame without repair", "chunked softmax", kept(0, 2)),
    _here("rescaling without repair", "chunked softmax", kept(1, 2)),
    _here("partial sum not rescaled", "chunked softmax", drop(arith.MulfOp, 1)),
    _here("partial product not rescaled", "chunked attention", drop(arith.MulfOp, 13)),
    _here("rescaled the wrong way", "chunked attention", operands(arith.SubfOp, 3, [1, 0])),
    _here("chunk's maximum instead of the running one", "chunked softmax", yields(0, 0, 0)),
    _here("running sum forgotten", "chunked softmax", yields(0, 1, 1)),
    _here("contraction without its accumulator", "chunked matmul", yields(1, 0, 0)),
    _here("rounded before it is multiplied", "bf16 rms_norm", drop(math.RsqrtOp, 0)),
    _here("relu dropped", "relu matmul", drop(arith.MaximumfOp, 0)),
]

CONTROL = [
    _here("loop stops one early", "chunked softmax", trips(0, end=-1)),
    _here("loop stops one early, without a tail", "column sums", trips(0, end=-1)),
    _here("loop starts one late", "relu matmul", trips(0, first=1)),
    _here("inner loop stops one early", "chunked matmul", trips(1, end=-1)),
    _here("loop with double step", "chunked attention", trips(4, step=2)),
    _here("start of a maximum is 0", "chunked attention", operands(scf.ForOp, 0, [0, 1, 2, 5, 4, 5])),
    _here("carried values swapped", "chunked softmax", operands(scf.ForOp, 0, [0, 1, 2, 4, 3])),
    _here("yielded values swapped", "chunked softmax", operands(scf.YieldOp, 0, [1, 0])),
    _here("rows and columns of a contraction swapped", "relu matmul", outer(0, [0], [1])),
    _here("factors of a contraction swapped", "relu matmul", operands(kernel.OuterFmaOp, 0, [1, 0, 2])),
    _here("one block less", "softmax", grid(0, -1)),
    _here("one block more", "softmax", grid(0, 1)),
    _here("half the warps", "rms_norm", warps(0, 2)),
    _here("twice the warps", "rms_norm", warps(0, 8)),
    _here("shared buffers on the same bytes", "relu matmul", offset(1, 0)),
    _here("shared buffers that overlap", "attention", offset(2, 256 + 1024)),
    _here("shared buffers of two reductions on the same bytes", "chunked softmax", offset(1, 0)),
    _here("misaligned shared buffer", "chunked matmul", offset(1, 2052)),
    _here("too little shared memory", "relu matmul", shared_size(0, 1536)),
    _here("arguments of a launch swapped", "layer_norm", operands(kernel.LaunchOp, 0, [0, 2, 1, 3])),
    _here("launch dropped", "two kernels", drop(kernel.LaunchOp, 0)),
    _here("launches in the other order", "two kernels", later(kernel.LaunchOp, 0, kernel.LaunchOp)),
]

KERNEL_MUTANTS = [*BARRIERS, *EXCHANGES, *ACCESSES, *PAYLOAD, *CONTROL]
