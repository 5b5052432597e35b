"""Bugs in how schedules are carried out: copies ahead of their use, rings, waits, swizzles, split reductions, masks."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp

from deplodock.dialects.kernel import BarrierOp, CopyAsyncOp
from deplodock.dialects.kernel_matrix import LdMatrixOp

from .editing import Code, Mutant, in_ir_text, in_module, in_pass, nth
from .kernel_mutants import Change, drop, later

ChunkBounds, support = Code("passes.tiling.bounds").ChunkBounds, Code("passes.tiling.support")
Pipeline = Code("passes.tile_pipeline_loads")._Pipeline
rings, split = Code("passes.tile_to_kernel.rings"), Code("passes.split_reductions")
Placement = Code("passes.place_barriers")._Placement
Kernel = Code("passes.lower_tile_to_kernel")._Kernel

PLAIN, CORES, SUMS, WEIGHTS = "three stages", "four stages of tensor cores", "split sums", "split attention"

MASKED = [
    in_pass("a loop that ends too early", "banded attention", ChunkBounds._limit, "step + 1", "step"),
    in_pass("a loop that starts too late", "banded attention", ChunkBounds._limit, "* -1", "* -1 + 1"),
    in_pass("the first row of a block for all", "banded attention", ChunkBounds._highest, "max(0, factor * last)", "0"),
    in_pass("bounds of the first block", "banded attention", ChunkBounds._highest, "(factor * dim.tile)", "0"),
    in_pass("a border off by one", "banded attention", support.half_spaces, "constant(-1)", "constant(-2)"),
    in_pass(
        "the other side of the mask",
        "chunked attention",
        support.half_spaces,
        "add(constant(-1), assumed, -1)",
        "assumed",
    ),
    in_pass("the first bound for both", "banded attention", ChunkBounds.of, "if coefficient > 0", "if start is stop"),
]


def pipeline(name: str, function: Code, old: str, new: str, subject: str = PLAIN) -> Mutant:
    """A bug in a lowering from the loop level on, where the schedule is given."""
    return in_pass(name, subject, function, old, new, start="loop")


AHEAD = [
    pipeline("a wait for one copy too few", Pipeline._await, "self.stages - 2", "self.stages - 1"),
    pipeline("a wait for none", Pipeline._await, "max(self.stages - 2, 0)", "8"),
    pipeline("one stage too few", Pipeline.build, "self.stages - 1", "self.stages - 2"),
    pipeline("copies of a chunk that is there", Pipeline._next, "ahead * step", "(ahead - 1) * step"),
    pipeline("copies of a chunk too far", Pipeline._next, "ahead * step", "(ahead + 1) * step", CORES),
    pipeline("copies past the last chunk", Pipeline._next, '"lt"', '"le"', CORES),
    pipeline("no copies at the end", Pipeline._next, '"lt"', '"gt"'),
    pipeline("the first chunk in all slots", Pipeline._before, "lb + number * step", "lb"),
    pipeline("groups that stay open", Pipeline._insert, "block.insert_op_before(commit, before)", "commit"),
    pipeline("the newest tile first", Pipeline._finish, "(*tiles[1:], new)", "(new, *tiles[1:])"),
    pipeline("no tile moves up", Pipeline._finish, "(*tiles[1:], new)", "(*tiles[:-1], new)"),
    pipeline(
        "the other factor's tile", Pipeline._finish, "zip(self.copies, arrived", "zip(self.copies, arrived[::-1]", CORES
    ),
    pipeline("copies without a predicate", Pipeline._insert, "at, predicate", "at, None", CORES),
]

RINGS = [
    pipeline("one slot too few", rings.Rings._make, "len(chain) + 1", "len(chain)"),
    pipeline("all copies into the first slot", rings.Rings.destination, "* ring.size", "* 0"),
    pipeline("the free slot is the first", rings.Carried.entry, "len(p.positions) * p.ring.size", "0"),
    pipeline("the slot of the newest tile is freed", rings.Carried.freed, "p.positions[0]", "p.positions[-1]"),
    pipeline(
        "slots that overlap",
        rings.Ring.size.fget,
        "layout_in_shared(self.tile).size",
        "layout_in_shared(self.tile).size // 2",
    ),
    pipeline("copies without their predicate", rings.copy_async, "predicate=predicate", "predicate=holds", CORES),
    pipeline("registers in each other's place", rings.copy_async, "for r in place.regs]", "for r in place.regs[::-1]]"),
    pipeline("copies without their checks", rings.copy_async, "checks=checks", "checks=checks[:0]"),
    pipeline("waits that wait for one less", Kernel.lower_await, "op.pending.data", "op.pending.data + 1"),
    pipeline("slots that stand still", rings.Carried.freed, "values[tiles[p.positions[0]]]", "p.ring.free"),
]

BARRIERS = [
    pipeline("nothing behind the back edge", Placement._loop, "if entry.covers(again)", "if True"),
]

SPLIT = [
    pipeline("parts of the first part", split._shifted_load, "AffineExpr.dimension(count) * length + d", "d", SUMS),
    pipeline(
        "parts that overlap", split._shifted_load, "dimension(count) * length", "dimension(count) * (length - 1)", SUMS
    ),
    pipeline(
        "positions without their part",
        split._shift_cast,
        "arith.AddiOp(start.result, own.result)",
        "arith.AddiOp(own.result, own.result)",
        WEIGHTS,
    ),
    pipeline("positions of parts of one", split._shift_cast, "ConstantOp(length,", "ConstantOp(1,", WEIGHTS),
    pipeline(
        "parts in frames of their own",
        split.combine_parts,
        "value = values[yielded(reduction.transport.block)[i]]",
        "value = loaded[i]",
        WEIGHTS,
    ),
    pipeline("the last part forgotten", split.combine_parts, "[split.parts]", "[split.parts - 1]", SUMS),
    pipeline("the first part for all", split._load_part, "[block.args[0], *indices]", "[indices[0], *indices]", SUMS),
    pipeline("sums of parts as maxima", split.combine_parts, "stage.kind.data, [", '"max", [', SUMS),
    pipeline("a part that is one short", split.Split.length.fget, "// self.parts", "// self.parts - 1", SUMS),
]


def _here(name: str, subject: str, change: Change) -> Mutant:
    return in_module(name, subject, "kernel", change)


def unswizzled(kind: type[CopyAsyncOp] | type[LdMatrixOp], number: int) -> Change:
    """An address in shared memory without the last part of its swizzle."""

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
    in_ir_text("copies past the end", PLAIN, "kernel", r"0:72\]", "0:73]"),
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
    in_ir_text("a transposed matrix that is not", CORES, "kernel", r"ldmatrix x(\d) trans", r"ldmatrix x\1"),
    in_ir_text("a loop of one chunk less", PLAIN, "tile", r"to %c5 step", "to %c1 step"),
]

SCHEDULE_MUTANTS = [replace(m, area="schedules") for m in (*MASKED, *AHEAD, *RINGS, *BARRIERS, *SPLIT, *KERNELS)]
