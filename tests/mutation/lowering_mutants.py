"""Bugs in lowerings: each changes one expression of a pass."""

from __future__ import annotations

from .editing import Code, in_pass

allocate_shared, place_barriers, rescaling, moving = (
    Code(f"passes.{name}")
    for name in ("kernel.allocate_shared", "kernel.insert_barriers", "analysis.rescaling", "loop.staged_reduce")
)
hoist_factors = Code("passes.loop.hoist_reduction_factors").hoist_factors
Simplifier = Code("dialects.shapes.affine").Simplifier
Pull = Code("passes.tensor.fusion.inline").Pull
attention, reductions = (Code(f"passes.convert.torch_to_tensor.{name}") for name in ("attention", "reductions"))
lower_tile_to_kernel = Code("passes.convert.tile_to_kernel")
dots, emitter, exchanges, memory = (
    Code(f"passes.convert.tile_to_kernel.{name}") for name in ("dots", "emitter", "exchanges", "memory")
)
accesses, ranges = Code("passes.analysis.memory_access"), Code("dialects.shapes.ranges")
collapsing = Code("passes.loop.dimensions")
delay, pipeline, fma, lane_sums = (
    Code(f"passes.tile.{name}") for name in ("delay_dots", "pipeline_dots", "fuse_fma", "defer_lane_sums")
)
Emitter = emitter.Emitter
tiling = Code("passes.convert.loop_to_tile.emitter")
Tiling, Coordinates, Dim = tiling.Emitter, tiling.Coordinates, tiling.Dim
kernels = Code("passes.convert.loop_to_tile")
Reducer = Code("passes.convert.loop_to_tile.reductions").Reducer

COLLAPSING = [
    in_pass(
        "part of a dimension as all of it",
        "part of images",
        collapsing._without_digits,
        "shape[_] == extent",
        "True",
        number=0,
    ),
    in_pass("dimensions as the first of them", "part of images", collapsing._collapsed, "_ * _", "fixed(shape[at])"),
    in_pass("a row more than there are", "part of images", collapsing._collapse, "outer * inner", "outer * inner + 1"),
]

TO_TILES = [
    in_pass("reductions without masks", "layer_norm", Reducer._masked, "not _", "True"),
    in_pass("mask le", "layer_norm", Tiling.within, "'lt'", "'le'"),
    in_pass("mask at the tile's extent", "layer_norm", Tiling.within, "A.extent", "A.tile", number=1),
    in_pass("mask reversed", "layer_norm", Tiling.within, "'lt'", "'ge'"),
    in_pass(
        "mask without its index's offset",
        "chunked softmax",
        Tiling.index_tile,
        "(_,)",
        "(at.index(dim) * 2,)",
        number=1,
    ),
    in_pass("masked with 1", "layer_norm", Tiling.within, "A.constant(_, B, C, D)", "A.constant(1, B, C, D)"),
    in_pass(
        "chunks without a tail",
        "chunked softmax",
        Reducer._counts,
        "count_of(A, B)",
        "A // B",
    ),
    in_pass("chunks not combined", "column sums", Reducer._by_elements, "_.combine(_, _, A)", "A"),
    in_pass(
        "products of chunks not combined",
        "chunked matmul",
        Reducer._in_chunks,
        "self._combined(A, B, _)",
        "self._combined(A, B)",
    ),
    in_pass("sums start at 1", "column sums", Reducer._loops, "identity(_, _)", "1"),
    in_pass(
        "staged reductions start at 0",
        "chunked attention",
        Reducer.staged,
        "identity(_, _)",
        "0",
    ),
    in_pass(
        "stages not combined with what they were",
        "chunked softmax",
        Reducer._stages,
        "_ if old else None",
        "None",
    ),
    in_pass(
        "combined as sums",
        "chunked softmax",
        Reducer._combined,
        "A.data",
        "type(A.data).ADD",
    ),
    in_pass(
        "no rescaling",
        "chunked attention",
        Reducer._rescaling,
        "_[_[A]]",
        "old[A]",
    ),
    in_pass(
        "rescaling between the wrong frames",
        "chunked attention",
        Reducer._rescaling,
        "zip(A, B, strict=False)",
        "zip(A, [*new, *B[len(new):]], strict=False)",
    ),
    in_pass(
        "a dimension of the sum kept",
        "layer_norm",
        Reducer._finish,
        "A.data",
        "type(A.data).MAX",
    ),
    in_pass("loads without the ends of their ranges", "transpose", Tiling.load, "_ and _", "False", number=1),
    in_pass(
        "loads one past the ends",
        "relu matmul",
        Tiling.load,
        "A.extent",
        "A.extent + 1",
    ),
    in_pass(
        "loads one short of the ends",
        "gather and pad",
        Tiling.load,
        "A.extent",
        "A.extent - 1",
    ),
    in_pass("the domain of a load dropped", "gather and pad", Tiling.load, "op.domain is not None", "False"),
    in_pass("stores without the ends of their ranges", "attention", Coordinates.tails, "_.has_tail", "False"),
    in_pass("stores one short of the ends", "transpose", Coordinates.tails, "A.extent", "A.extent - 1"),
    in_pass(
        "another fill value",
        "gather and pad",
        Tiling._fill,
        "A.tile_of(B)",
        "A.constant(1, B.type, (), 0)",
    ),
    in_pass("tiles that all start at 0", "relu matmul", Coordinates.index, "_ * _", "0", number=1),
    in_pass("tiles that overlap", "chunked softmax", Coordinates.index, "A * B.ranks", "A - 1"),
    in_pass("no tails", "layer_norm", Dim.has_tail.fget, "_ != 0", "False"),
    in_pass(
        "a grid without the last block", "transpose", kernels.KernelBuilder.build, "count_of(A, B)", "max(A // B, 1)"
    ),
    in_pass(
        "loops of one iteration less",
        "column sums",
        Reducer._visited,
        "self.emitter.range(A)",
        "self.emitter.range(A - 1)",
    ),
    in_pass("broadcast along another dimension", "attention", Tiling.spread, "A not in B", "A in B"),
    in_pass("frames without repair", "chunked softmax", moving.finite_reference, "A or B", "True or A or B"),
    in_pass(
        "the old frame taken for the new one",
        "chunked softmax",
        moving.RescalingBuilder.value_at,
        "A.old if _ else B",
        "B",
    ),
    in_pass(
        "moves reversed",
        "chunked attention",
        rescaling.Typing._move_of,
        "('sub', A, B)",
        "('sub', B, A)",
    ),
    in_pass(
        "moves without their guard",
        "chunked softmax",
        rescaling.Typing._exponential,
        "('guard', A.bound, B)",
        "B",
    ),
]

TO_THREADS = [
    in_pass("no checks", "softmax", accesses.plan_access, "_.within(_, _, _)", "True"),
    in_pass("checks one too far", "softmax", accesses.plan_access, "(lo, hi)", "(lo, hi + 1)", number=1),
    in_pass("checks of the first register", "transpose", accesses.Access.steps, "0 if _ else _", "0"),
    in_pass(
        "steps in one dimension",
        "relu matmul",
        accesses.Access.regs,
        "A[_]",
        "A[0]",
    ),
    in_pass(
        "coordinates reversed",
        "transpose",
        memory.Places.described,
        "A.coordinates",
        "A.coordinates[::-1]",
        number=0,
    ),
    in_pass("wide rows that are not aligned", "sliced norm", accesses._width, "A.divisor", "0"),
    in_pass("memory whose rows are not aligned", "sliced norm", accesses._width, "_ if isinstance(_, int) else 1", "0"),
    in_pass(
        "wide checks that vary",
        "bf16 rms_norm",
        accesses._is_uniform,
        "_ or _",
        "True",
    ),
    in_pass("no fill", "softmax", memory.load, "_ if _ else None", "None"),
    in_pass("held by everybody but the first", "argmax", memory._first_holder, "A.EQ", "A.NE"),
    in_pass(
        "reductions without their last shuffle",
        "layer_norm",
        exchanges.reduce,
        "A.shuffles",
        "A.shuffles[:-1]",
    ),
    in_pass("reductions without shuffles", "attention", exchanges.reduce, "_.shuffles", "()"),
    in_pass("reductions that stay in the warp", "rms_norm", exchanges.reduce, "_.warps", "False"),
    in_pass(
        "reductions of the first register",
        "softmax",
        exchanges.reduce,
        "A.ReduceRegistersOp(_, B, _)",
        "A.ShuffleRegistersOp(B, [0])",
    ),
    in_pass(
        "lanes combined with themselves",
        "softmax",
        exchanges.reduce,
        "combine(A, B, _)",
        "combine(A, B, B)",
    ),
    in_pass("warps in one slot", "rms_norm", exchanges.gathered_from_warps, "1 << _", "0", number=1),
    in_pass(
        "the first warp's part only",
        "column sums",
        exchanges.gathered_from_warps,
        "A + B",
        "tuple(((0,) * len(shape) for _ in A)) + B",
    ),
    in_pass(
        "swizzled places as sums",
        "transpose",
        memory.shared_place,
        "_ or _",
        "False",
    ),
    in_pass(
        "slices that do not move",
        "relu matmul",
        memory.shared_place,
        "_.add(A, _) if _ else _.xor(A, _)",
        "A",
    ),
    in_pass(
        "slices moved by sums",
        "chunked matmul",
        memory.shared_place,
        "A if _ else B.xor(C, D)",
        "A",
    ),
    in_pass(
        "wide shared accesses everywhere",
        "transpose",
        memory.shared_place,
        "register_width(A, _, B)",
        "min(1 << len(A), B)",
    ),
    in_pass(
        "a contraction one short",
        "relu matmul",
        dots._fma,
        "A.accumulate(B, C, D, E, F)",
        "A.accumulate(B, C - 4, D, E, F)",
    ),
    in_pass(
        "rows taken for columns",
        "relu matmul",
        dots._fma,
        "A.OuterFmaOp(B, C, D, E, F)",
        "A.OuterFmaOp(B, C, D, F, E)",
    ),
    in_pass(
        "operands of a contraction swapped",
        "attention",
        dots._fma,
        "part(1, A)",
        "part(1, 0)",
    ),
    in_pass(
        "blocks numbered with the wrong extent",
        "transpose",
        Emitter.block_indices,
        "A.count(B)",
        "A.add(A.count(B), 1)",
        number=1,
    ),
    in_pass("blocks without remainder", "relu matmul", Emitter.block_indices, "A if _ else B", "A if False else B"),
    in_pass("fields of one bit more", "relu matmul", Emitter._field, "1", "2", number=1),
    in_pass("fields from one bit lower", "attention", Emitter.thread_field, "A - B", "max(A - B - 1, 0)", number=1),
    in_pass(
        "overlapping bits as sums",
        "transpose",
        Emitter._combined,
        "is_disjoint(_)",
        "True",
    ),
    in_pass("constant parts of places dropped", "gather and pad", memory.Places._sum, "[*A, _]", "A"),
    in_pass(
        "strides dropped",
        "relu matmul",
        memory.Places._term,
        "A.out.mul(B, _)",
        "B",
    ),
    in_pass(
        "loop counters with a range too short",
        "column sums",
        ranges._counter,
        "max(_, A)",
        "A",
    ),
    in_pass(
        "blocks with a range too short",
        "softmax",
        ranges._block_index,
        "most_tiles(_)",
        "1",
    ),
    in_pass(
        "loop carried values forgotten",
        "column sums",
        lower_tile_to_kernel.lower_for,
        "[_ for _ in A]",
        "[body.args[1 + n] for n in range(len(A))]",
        number=1,
    ),
    in_pass(
        "results of launches swapped",
        "two kernels",
        lower_tile_to_kernel._Host._add_launch,
        "[A, B]",
        "[B, A]",
    ),
    in_pass(
        "barriers for writes after writes only",
        "rms_norm",
        place_barriers.Access.conflicts,
        "A or B",
        "A and B",
    ),
    in_pass(
        "barriers for reads after writes only",
        "matmul of relus",
        place_barriers.Access.conflicts,
        "A or B",
        "B and (not A)",
    ),
    in_pass(
        "barriers within an iteration only",
        "matmul of relus",
        place_barriers._Placement._loop,
        "_.covers(_)",
        "True",
    ),
    in_pass("buffers on the same bytes", "relu matmul", allocate_shared.place, "max(_, _)", "0"),
    in_pass(
        "buffers that are not aligned",
        "attention",
        allocate_shared.place,
        "-(-A // _) * _",
        "A - 8",
    ),
    in_pass(
        "lifetimes that never overlap",
        "matmul softmax",
        allocate_shared.Lifetime.overlaps,
        "_ and _",
        "False",
    ),
]

TO_TENSORS = [
    in_pass(
        "softmax without its maximum",
        "softmax",
        attention.shifted_exp,
        "_.sub(A, _.keep(_, _, _))",
        "A",
        "torch",
    ),
    in_pass("softmax shifted by its minimum", "softmax", attention.shifted_exp, "'max'", "'min'", "torch"),
    in_pass(
        "not normalised",
        "softmax",
        attention.softmax,
        "_.div(A, _, permit=_)",
        "A",
        "torch",
    ),
    in_pass(
        "a mean over one element less", "layer_norm", reductions.count, "A.product(B)", "-1 + A.product(B)", "torch"
    ),
    in_pass(
        "causal mask that always holds",
        "attention",
        attention._masked,
        "2",
        "1",
        "torch",
    ),
]

TO_LOOPS = [
    in_pass("domains dropped", "padding", Pull._view, "_ is None", "True"),
    in_pass(
        "bounds one too far",
        "padding",
        Pull._view,
        "(A, *B)",
        "(A, B[0], B[1] + 1)",
    ),
    in_pass(
        "bounds one short",
        "padding",
        Pull._view,
        "(A, *B)",
        "(A, B[0], B[1] - 1)",
    ),
    in_pass(
        "padding of another value",
        "padding",
        Pull._guarded,
        "_.value(_, _, _)",
        "graph.number(1, element_type(source.type))",
    ),
    in_pass(
        "coordinates in another order",
        "transpose",
        Pull._view,
        "A.results",
        "A.results[::-1]",
    ),
    in_pass(
        "a sum over every element twice",
        "layer_norm",
        Pull._reduce,
        "tuple(A)",
        "tuple((graph.simplifier.floordiv(c, 2) for c in A))",
    ),
    in_pass("domains that hold by one", "relu matmul", Simplifier.within, "A < least(B)", "A <= B + 20"),
    in_pass(
        "factors moved out of every sum",
        "attention",
        hoist_factors,
        "_ = [_ for A, _ in B.denominators if not is_in(A, _)]",
        "if True: outer_under = list[SSAValue](); outer_over = outer_over + over[1:]; over = over[:1]",
    ),
]

WARPGROUPS = [
    in_pass("the first chunk twice", "attention of warpgroups", delay._delay, "lower + step", "lower", "loop"),
    in_pass(
        "the last chunk with the first weights",
        "attention of warpgroups",
        delay._delay,
        "{d.dot.lhs: carried, _: _}",
        "{d.dot.lhs: inits[count], d.dot.acc: results[d.position]}",
        "loop",
    ),
    in_pass(
        "the last sums not rescaled",
        "attention of warpgroups",
        delay._delay,
        "yielded[d.position] = d.dot.acc",
        "yielded[d.position] = d.dot.result",
        "loop",
    ),
    in_pass(
        "scores are taken before they are complete",
        "attention of warpgroups",
        pipeline._start_early,
        "tile.DotWaitOp(A, 1, done=True)",
        "tile.DotWaitOp(A, 2, done=True)",
        "loop",
    ),
    in_pass("frames of the other sign", "attention of warpgroups", fma._fuse, "negated.result", "shift.result", "loop"),
    in_pass("moved the wrong way", "attention of warpgroups", fma._distribute, "_(a, b)", "arith.SubfOp(b, a)", "loop"),
    in_pass("columns left out", "attention of warpgroups", lane_sums._sum_columns, "parts[1:]", "parts[2:]", "loop"),
    in_pass("columns not moved", "attention of warpgroups", lane_sums._sum_columns, "old[1:]", "[]", "loop"),
    in_pass("powers of two for all rows", "attention of warpgroups", fma._rounded, "'lt'", "'gt'", "loop"),
]

LOWERING_MUTANTS = [*TO_TENSORS, *TO_LOOPS, *COLLAPSING, *TO_TILES, *TO_THREADS, *WARPGROUPS]
