"""Bugs in the lowering of schedules: prefetches, circular buffers, waits, swizzles, split reductions, masks."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp

from deplodock.dialects.kernel import BarrierOp, CopyAsyncOp
from deplodock.dialects.kernel.mma import LdMatrixOp

from .editing import Code, Mutant, in_ir_text, in_module, in_pass, nth
from .kernel_mutants import Change, drop, later

ChunkBounds, support = Code("passes.convert.loop_to_tile.chunk_bounds").ChunkBounds, Code("passes.analysis.masks")
Pipeline = Code("passes.tile.pipeline_loads")._Pipeline
rings, split = Code("passes.convert.tile_to_kernel.cp_async_pipeline"), Code("passes.loop.split_k")
promote, slots = Code("passes.tile.promote_sums"), Code("passes.kernel.ring_slots")
Placement = Code("passes.kernel.insert_barriers")._Placement

PLAIN, CORES, SUMS, WEIGHTS = "three stages", "four stages of tensor cores", "split sums", "split attention"

MASKED = [
    in_pass("a loop that ends too early", "banded attention", ChunkBounds._limit, "A + 1", "A"),
    in_pass(
        "a loop that starts too late",
        "banded attention",
        ChunkBounds._limit,
        "(highest + coefficient * (chunk - 1)) // step * -1",
        "(highest + coefficient * (chunk - 1)) // step * -1 + 1",
    ),
    in_pass("the first row of a block for all", "banded attention", ChunkBounds._highest, "max(0, _)", "0"),
    in_pass("bounds of the first block", "banded attention", ChunkBounds._highest, "_ * _", "0", number=2),
    in_pass("a border off by one", "banded attention", support._half_spaces, "1", "2"),
    in_pass(
        "the other side of the mask",
        "chunked attention",
        support._half_spaces,
        "add(_, A, _)",
        "A",
    ),
    in_pass("the first bound for both", "banded attention", ChunkBounds.of, "_ > 0", "start is stop"),
]


def pipeline(name: str, function: Code, old: str, new: str, subject: str = PLAIN, number: int = 0) -> Mutant:
    """Returns a bug in a lowering from the loop level, at which the schedule is set."""
    return in_pass(name, subject, function, old, new, start="loop", number=number)


AHEAD = [
    pipeline("a wait for one copy too few", Pipeline._await, "2", "1"),
    pipeline("a wait for none", Pipeline._await, "max(_, 0)", "8"),
    pipeline("one stage too few", Pipeline.build, "1", "2"),
    pipeline("copies of a chunk that is there", Pipeline._ahead, "A * B", "(A - inside) * B"),
    pipeline("copies of a chunk too far", Pipeline._ahead, "A * B", "(A + inside) * B", CORES),
    pipeline("copies past the last chunk", Pipeline._ahead, "'lt'", "'le'", CORES),
    pipeline("no copies at the end", Pipeline._ahead, "'lt'", "'gt'"),
    pipeline("the first chunk in all slots", Pipeline._ahead, "A + B", "(A if inside else 0) + B"),
    pipeline("groups that stay open", Pipeline._insert, "insert_before(A, tile.CommitOp(), source=_)", "A"),
    pipeline("the newest tile first", Pipeline.build, "[*A, B]", "[B, *A]", number=1),
    pipeline("no tile moves up", Pipeline.build, "A[B * C + 1 : _]", "A[B * C : (B + 1) * C - 1]"),
    pipeline(
        "the other factor's tile",
        Pipeline.build,
        "zip(A, B, strict=True)",
        "zip(A, B[::-1], strict=True)",
        CORES,
        number=1,
    ),
    pipeline("copies without a predicate", Pipeline._insert, "A.make(B, C, _)", "A.make(B, C, None)", CORES),
]

RINGS = [
    pipeline("one slot too few", rings.Rings._make, "A + 1", "A"),
    pipeline("all copies into the first slot", rings.Rings.destination, "_.size", "0"),
    pipeline("the free slot is the first", rings.Carried.entry, "_ * _", "0"),
    pipeline("the slot of the newest tile is freed", rings.Carried.next, "0", "-1"),
    pipeline(
        "slots that overlap",
        rings.Ring.size.fget,
        "A.size",
        "A.size // 2",
    ),
    pipeline(
        "copies without their predicate",
        rings.stage_async,
        "A.maybe(_)",
        "None",
        CORES,
    ),
    pipeline("registers in each other's place", rings.stage_async, "A.regs", "A.regs[::-1]"),
    pipeline(
        "copies without their checks",
        rings.stage_async,
        "A.described(B)",
        "A.described(replace(B, checks=[], bounds=[]))",
    ),
    pipeline("waits that wait for one less", rings.await_copies, "A.data", "A.data + 1"),
    pipeline("slots that stand still", rings.Carried.next, "_.of(_[A.positions[0]])", "self.out.value(A.ring.free)"),
]

BARRIERS = [
    pipeline("nothing behind the back edge", Placement._loop, "_.covers(_)", "True"),
]

SPLIT = [
    pipeline("parts of the first part", split._shifted_load, "_ + A", "A", SUMS),
    pipeline("parts that overlap", split._shifted_load, "A * B", "A * (B - 1)", SUMS),
    pipeline(
        "positions without their part",
        split._shift_cast,
        "start.result",
        "own.result",
        WEIGHTS,
    ),
    pipeline("positions of parts of one", split._shift_cast, "A.ConstantOp(_, B)", "A.ConstantOp(1, B)", WEIGHTS),
    pipeline(
        "parts in frames of their own",
        split.combine_parts,
        "_[_[A]]",
        "loaded[A]",
        WEIGHTS,
    ),
    pipeline("the last part forgotten", split.combine_parts, "A.parts", "A.parts - 1", SUMS),
    pipeline("the first part for all", split._load_part, "_.args", "indices", SUMS, number=1),
    pipeline("sums of parts as maxima", split.combine_parts, "_.data", "'max'", SUMS),
    pipeline("a part that is one short", split.Split.length.fget, "A // B", "A // B - 1", SUMS),
]


PARTIAL, PARKED, CHAIN = "partial sums", "partial sums beside shared memory", "partial sums of tensor cores"

PROMOTED = [
    pipeline("a partial sum that goes on", promote._divide, "A if i in others else _", "values[i]", PARTIAL),
    pipeline("partial sums added twice", promote._divide, "arith.AddfOp(_, A)", "arith.AddfOp(A, A)", PARTIAL),
    pipeline("partial sums subtracted", promote._divide, "arith.AddfOp", "arith.SubfOp", PARTIAL),
    pipeline(
        "partial sums that overlap",
        promote._divide,
        "Q.ForOp(A, B, stride.result, C, D)",
        "Q.ForOp(A, B, loop.step, C, D)",
        PARTIAL,
    ),
    pipeline("only the first partial sum", promote._divide, "A.ub", "stride.result", PARTIAL, number=1),
    pipeline("a partial sum to the end", promote._divide, "arith.MinSIOp", "arith.MaxSIOp", PARTIAL),
    pipeline(
        "each partial sum from the first chunk",
        promote._divide,
        "rebuilt(loop, A, first, B)",
        "rebuilt(loop, A, loop.lb, B)",
        PARTIAL,
    ),
    pipeline("sums that start as nothing", promote._divide, "[p.row, *_]", "[p.row]", PARKED),
    pipeline("sums that are not put back", promote._divide, "buffers[n].store(_) if _ else []", "[]", PARKED),
    pipeline("the first sums put back", promote._divide, "A.store(total.result)", "A.store(starts[i])", PARKED),
    pipeline("a chain that goes on", promote._promote_chain, "zero.result", "start", CHAIN),
    pipeline("a chain from one", promote._promote_chain, "0.0", "1.0", CHAIN),
    pipeline("a chain without its start", promote._promote_chain, "A.AddfOp(start, B)", "A.AddfOp(B, B)", CHAIN),
    pipeline(
        "slots that start anew", rings.Rings._pass_on, "replace(p, goes_on=A)", "replace(p, goes_on=False)", PARTIAL
    ),
    pipeline("free slots of the last iteration", rings.Carried.next, "A.passes_on", "False", PARTIAL),
    pipeline("slots of another place", slots._slots_of, "A[v.index - 1]", "A[0]", PARTIAL),
]


def _here(name: str, subject: str, change: Change) -> Mutant:
    return in_module(name, subject, "kernel", change)


def unswizzled(kind: type[CopyAsyncOp] | type[LdMatrixOp], number: int) -> Change:
    """Removes the last term of the swizzle of a shared-memory address."""

    def change(m: ModuleOp) -> None:
        op = nth(m, kind, number)
        place = op.place if isinstance(op, CopyAsyncOp) else op.operands[1]
        assert isinstance(place.owner, arith.XOrIOp)
        op.operands[list(op.operands).index(place)] = place.owner.lhs

    return change


KERNELS = [
    *(
        in_ir_text("a wait for one copy less", s, "kernel", rf"async_wait {n}", f"async_wait {n + 1}")
        for s, n in ((PLAIN, 1), (CORES, 2))
    ),
    *(in_ir_text("a wait dropped", s, "kernel", rf"kernel\.async_wait {p}\n", "") for s, p in ((PLAIN, 1), (CORES, 2))),
    *(in_ir_text("a group that is not closed", s, "kernel", r"kernel\.async_commit\n", "") for s in (PLAIN, CORES)),
    in_ir_text("copies past the end", PLAIN, "kernel", r"< 72 steps", "< 73 steps"),
    in_ir_text("copies into the slot in use", PLAIN, "kernel", r"constant 512 : index", "constant 256 : index"),
    in_ir_text("a slot between two", CORES, "kernel", r"constant 1024 : index", "constant 1032 : index"),
    in_ir_text("the wrong free slot", PLAIN, "kernel", r"%free = %\d+", "%free = %1"),
    *(_here(f"barrier {n} of a pipeline dropped", s, drop(BarrierOp, n)) for s, n in ((PLAIN, 0), (CORES, 0))),
    _here("a barrier behind the copies that it orders", PLAIN, later(BarrierOp, 0, CopyAsyncOp)),
    in_ir_text(
        "a rotation the wrong way",
        CORES,
        "kernel",
        r"scf\.yield (%\w+), (%\w+), (%\w+), (%\w+), (%\w+)",
        r"scf.yield \1, \2, \4, \3, \5",
    ),
    *(_here(f"copy {n} without its swizzle", CORES, unswizzled(CopyAsyncOp, n)) for n in (0, 7)),
    *(_here(f"matrix {n} without its swizzle", CORES, unswizzled(LdMatrixOp, n)) for n in (0, 1)),
    in_ir_text("a transposed matrix that is not", CORES, "kernel", r"ldmatrix count (\d) trans", r"ldmatrix count \1"),
    in_ir_text("a loop of one chunk less", PLAIN, "tile", r"to %c5 step", "to %c1 step"),
]

SCHEDULE_MUTANTS = [
    replace(m, area="schedules") for m in (*MASKED, *AHEAD, *RINGS, *BARRIERS, *SPLIT, *PROMOTED, *KERNELS)
]
