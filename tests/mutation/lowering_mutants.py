"""Bugs in lowerings: one line of a pass changed."""

from __future__ import annotations

from .editing import Code, in_pass

allocate_shared, lower_tile_to_kernel, place_barriers, transport, moving = (
    Code(f"passes.{name}")
    for name in ("allocate_shared", "lower_tile_to_kernel", "place_barriers", "transport", "moving")
)
HoistFactors = Code("passes.hoist_invariant_factors").HoistFactors
Simplifier = Code("passes.index_simplify").Simplifier
Pull = Code("passes.fusion.pull").Pull
attention, normalization, reductions = (
    Code(f"passes.decomposition.{name}") for name in ("attention", "normalization", "reductions")
)
accesses, dots, emitter, host, places, shared = (
    Code(f"passes.tile_to_kernel.{name}") for name in ("accesses", "dots", "emitter", "host", "places", "shared")
)
Emitter = emitter.Emitter
Tiling = Code("passes.tiling.emitter").Emitter
kernels = Code("passes.tiling.kernels")
Reducer = Code("passes.tiling.reductions").Reducer
Coordinates, Dim = Code("passes.tiling.tiles").Coordinates, Code("passes.tiling.tiles").Dim

TO_TILES = [
    in_pass("reductions without masks", "layer_norm", Reducer._masked, "if not missing:", "if True:"),
    in_pass("mask le", "layer_norm", Tiling.within, '"lt"', '"le"'),
    in_pass("mask at the tile's extent", "layer_norm", Tiling.within, "dim.extent", "dim.tile"),
    in_pass("mask reversed", "layer_norm", Tiling.within, '"lt"', '"ge"'),
    in_pass(
        "mask without its index's offset",
        "chunked softmax",
        Tiling.index_tile,
        "at.map((expr,))",
        "at.map((at.index(dim) * 2,))",
    ),
    in_pass("masked with 1", "layer_norm", Tiling.within, "self.constant(beyond,", "self.constant(1,"),
    in_pass(
        "chunks without a tail",
        "chunked softmax",
        Reducer._counts,
        "count_of(n, self.chunks[a])",
        "n // self.chunks[a]",
    ),
    in_pass("chunks not combined", "column sums", Reducer.reduce, "new = e.combine(kind, old, value)", "new = value"),
    in_pass(
        "products of chunks not combined",
        "chunked matmul",
        Reducer.reduce,
        "new = e.combine(kind, old, value)",
        "new = value",
    ),
    in_pass(
        "sums start at 1",
        "column sums",
        Reducer.reduce,
        "start = e.constant(identity(kind, element),",
        "start = e.constant(1,",
    ),
    in_pass(
        "staged reductions start at 0",
        "chunked attention",
        Reducer.staged,
        "identity(stage.kind.data, stage.result.type)",
        "0",
    ),
    in_pass(
        "stages not combined with what they were",
        "chunked softmax",
        Reducer._stages,
        "e.combine(inner.kind.data, moved, here)",
        "here",
    ),
    in_pass(
        "combined as sums",
        "chunked softmax",
        Reducer._stages,
        "e.combine(inner.kind.data, moved, here)",
        "e.combine(type(inner.kind.data).ADD, moved, here)",
    ),
    in_pass(
        "no transport",
        "chunked attention",
        Reducer._transport,
        "return e.tiles[yielded(op.transport.block)[result]]",
        "return old[result]",
    ),
    in_pass(
        "transport between the wrong frames",
        "chunked attention",
        Reducer._transport,
        "zip(args, old, strict=False)",
        "zip(args, [*new, *old[len(new):]], strict=False)",
    ),
    in_pass(
        "a dimension of the sum kept",
        "layer_norm",
        Reducer._finish,
        "op.kind.data, source,",
        "type(op.kind.data).MAX, source,",
    ),
    in_pass(
        "loads without the ends of their ranges", "transpose", Tiling.load, "if d.has_tail and d in own]", "if False]"
    ),
    in_pass(
        "loads one past the ends",
        "relu matmul",
        Tiling.load,
        "(at.index(d), 0, d.extent) for d in dims",
        "(at.index(d), 0, d.extent + 1) for d in dims",
    ),
    in_pass(
        "loads one short of the ends",
        "gather and pad",
        Tiling.load,
        "(at.index(d), 0, d.extent) for d in dims",
        "(at.index(d), 0, d.extent - 1) for d in dims",
    ),
    in_pass("the domain of a load dropped", "gather and pad", Tiling.load, "if op.domain is not None:", "if False:"),
    in_pass("stores without the ends of their ranges", "attention", Tiling.store, "if d.has_tail]", "if False]"),
    in_pass("stores one short of the ends", "transpose", Tiling.store, "0, d.extent)", "0, d.extent - 1)"),
    in_pass(
        "another fill value",
        "gather and pad",
        Tiling._fill,
        "self.tile_of(op.fill)",
        "self.constant(1, op.fill.type, (), 0)",
    ),
    in_pass("tiles that all start at 0", "relu matmul", Coordinates.index, "* (dim.tile * dim.ranks)", "* 0"),
    in_pass("tiles that overlap", "chunked softmax", Coordinates.index, "* (dim.tile * dim.ranks)", "* (dim.tile - 1)"),
    in_pass("no tails", "layer_norm", Dim.has_tail.fget, "self.extent % (self.tile * self.ranks) != 0", "False"),
    in_pass(
        "a grid without the last block", "transpose", kernels.KernelBuilder.build, "count_of(n, b)", "max(n // b, 1)"
    ),
    in_pass(
        "loops of one iteration less",
        "column sums",
        Code("passes.tiling.bounds").ChunkBounds.of,
        "e.number(0), e.count(count)",
        "e.number(0), e.count(count - 1)",
    ),
    in_pass("broadcast along another dimension", "attention", Tiling.spread, "if d not in t.dims]", "if d in t.dims]"),
    in_pass("frames without repair", "chunked softmax", moving.repaired, "if kind not in", "if True or kind not in"),
    in_pass(
        "the old frame taken for the new one",
        "chunked softmax",
        moving.Builder.frame,
        'self.old if side == "old" else self.new',
        "self.new",
    ),
    in_pass(
        "moves reversed",
        "chunked attention",
        transport.Typing._move_of,
        '("at", value, "new"), ("at", value, "old")',
        '("at", value, "old"), ("at", value, "new")',
    ),
    in_pass(
        "moves without their guard",
        "chunked softmax",
        transport.Typing._exponential,
        '("guard", type.bound, (name, type.by))',
        "(name, type.by)",
    ),
]

TO_THREADS = [
    in_pass("no checks", "softmax", accesses.plan_access, "if places.simplifier.within(form, lo, hi):", "if True:"),
    in_pass(
        "checks one too far", "softmax", accesses.plan_access, "bounds.append((lo, hi))", "bounds.append((lo, hi + 1))"
    ),
    in_pass("checks of the first register", "transpose", accesses.Access.steps, "0 if b < low else c.steps[b]", "0"),
    in_pass(
        "steps in one dimension",
        "relu matmul",
        accesses.Access.regs,
        "[p.steps[b] for p in self.coordinates]",
        "[p.steps[0] for p in self.coordinates]",
    ),
    in_pass(
        "coordinates reversed",
        "transpose",
        accesses.Access.origins,
        "for p in self.coordinates]",
        "for p in self.coordinates[::-1]]",
    ),
    in_pass("wide rows that are not aligned", "sliced norm", accesses._is_legal, "if last.divisor % vec or", "if"),
    in_pass("memory whose rows are not aligned", "sliced norm", accesses._is_legal, "shape[-1] % vec", "False"),
    in_pass(
        "wide checks that vary",
        "bf16 rms_norm",
        accesses._is_uniform,
        "return spread == 0 or grain > spread",
        "return True",
    ),
    in_pass("no fill", "softmax", accesses.load, "fill=fill if checks else None", "fill=None"),
    in_pass("held by everybody but the first", "argmax", accesses.holder_predicate, "Predicate.EQ", "Predicate.NE"),
    in_pass(
        "reductions without their last shuffle",
        "layer_norm",
        shared.reduce,
        "in plan.shuffles:",
        "in plan.shuffles[:-1]:",
    ),
    in_pass("reductions without shuffles", "attention", shared.reduce, "in plan.shuffles:", "in ():"),
    in_pass(
        "reductions that stay in the warp", "rms_norm", shared.reduce, "if plan.warps else value", "if False else value"
    ),
    in_pass(
        "reductions of the first register",
        "softmax",
        shared.reduce,
        "kernel.FoldOp(kind, value, plan.registers)",
        "kernel.PickOp(value, [0])",
    ),
    in_pass(
        "lanes combined with themselves",
        "softmax",
        shared.reduce,
        "combine(kind, value, other)",
        "combine(kind, value, value)",
    ),
    in_pass(
        "warps in one slot",
        "rms_norm",
        shared._across_warps,
        "along(1 << warps.index(i)) if i in warps",
        "along(0) if i in warps",
    ),
    in_pass(
        "the first warp's part only",
        "column sums",
        shared._across_warps,
        "Linear(shape, parts + reg, lane",
        "Linear(shape, tuple((0,) * len(shape) for _ in parts) + reg, lane",
    ),
    in_pass(
        "swizzled places as sums",
        "transpose",
        shared.shared_place,
        "xor = not is_disjoint(regs) or any(r & mixed for r in regs)",
        "xor = False",
    ),
    in_pass(
        "slices that do not move",
        "relu matmul",
        shared.shared_place,
        "out.add(origin, moved) if apart else out.xor(origin, moved)",
        "origin",
    ),
    in_pass(
        "slices moved by sums",
        "chunked matmul",
        shared.shared_place,
        "out.add(origin, moved) if apart else out.xor(origin, moved)",
        "out.add(origin, moved)",
    ),
    in_pass(
        "wide shared accesses everywhere",
        "transpose",
        shared.shared_place,
        "register_width(regs, (*threads, *moving), WIDEST // bytes_each)",
        "min(1 << len(regs), WIDEST // bytes_each)",
    ),
    in_pass(
        "a contraction one short",
        "relu matmul",
        dots.lower_dot,
        "out.value(depth), out.value(1)",
        "out.value(depth - 4), out.value(1)",
    ),
    in_pass(
        "rows taken for columns",
        "relu matmul",
        dots.lower_dot,
        "column, row, carried, rows, cols",
        "column, row, carried, cols, rows",
    ),
    in_pass(
        "operands of a contraction swapped",
        "attention",
        dots.lower_dot,
        "_slice(out, lhs, a, operand_layout(c, 0, depth), k, depth, 0)",
        "_slice(out, lhs, a, operand_layout(c, 0, depth), out.value(0), depth, 0)",
    ),
    in_pass(
        "blocks numbered with the wrong extent",
        "transpose",
        Emitter.block_indices,
        "inner, self.count(self.grid[i])",
        "inner, self.add(self.count(self.grid[i]), 1)",
    ),
    in_pass(
        "blocks without remainder", "relu matmul", Emitter.block_indices, "if outer else index", "if False else index"
    ),
    in_pass("fields of one bit more", "relu matmul", Emitter.thread_field, "1 << width", "2 << width"),
    in_pass(
        "fields from one bit lower",
        "attention",
        Emitter.thread_field,
        "1 << low - first)",
        "1 << max(low - first - 1, 0))",
    ),
    in_pass(
        "overlapping bits as sums",
        "transpose",
        Emitter.thread_bits,
        "disjoint = is_disjoint(images)",
        "disjoint = True",
    ),
    in_pass(
        "constant parts of places dropped", "gather and pad", places.Places.place, "[*terms, form.constant]", "terms"
    ),
    in_pass(
        "strides dropped",
        "relu matmul",
        places.Places.place,
        "self.out.mul(self._scalar(atom), factor)",
        "self._scalar(atom)",
    ),
    in_pass(
        "loop counters with a range too short",
        "column sums",
        places._range_of_counter,
        "return lb[0], max(last, lb[0]) + 1",
        "return lb[0], lb[0] + 1",
    ),
    in_pass(
        "blocks with a range too short",
        "softmax",
        places.range_of_value,
        "return 0, most_tiles(parent.grid_shape[value.index - len(parent.buffers)])",
        "return 0, 1",
    ),
    in_pass(
        "loop carried values forgotten",
        "column sums",
        lower_tile_to_kernel._Kernel.lower_for,
        "self.of(last.operands[i]) for i in kept",
        "body.args[1 + n] for n in range(len(kept))",
    ),
    in_pass(
        "results of launches swapped",
        "two kernels",
        host._add_launch,
        "[*(buffers[i] for i in op.inputs), *results]",
        "[*results, *(buffers[i] for i in op.inputs)]",
    ),
    in_pass(
        "barriers for writes after writes only",
        "rms_norm",
        place_barriers.Access.conflicts,
        "(self.writes or other.writes)",
        "(self.writes and other.writes)",
    ),
    in_pass(
        "barriers for reads after writes only",
        "matmul of relus",
        place_barriers.Access.conflicts,
        "(self.writes or other.writes)",
        "(other.writes and not self.writes)",
    ),
    in_pass(
        "barriers within an iteration only",
        "matmul of relus",
        place_barriers._Placement._loop,
        "if entry.covers(again):",
        "if True:",
    ),
    in_pass(
        "buffers on the same bytes",
        "relu matmul",
        allocate_shared.place,
        "offset = max(offset, -(-end // alignment) * alignment)",
        "offset = 0",
    ),
    in_pass(
        "buffers that are not aligned",
        "attention",
        allocate_shared.place,
        "-(-end // alignment) * alignment)",
        "end - 8)",
    ),
    in_pass(
        "lifetimes that never overlap",
        "matmul softmax",
        allocate_shared.Lifetime.overlaps,
        "return self.first <= other.last and other.first <= self.last",
        "return False",
    ),
]

TO_TENSORS = [
    in_pass(
        "softmax without its maximum",
        "softmax",
        normalization.shifted_exp,
        'distance = b.sub(x, b.keep(b.reduce("max", x, over), over, shape))',
        "distance = x",
        "torch",
    ),
    in_pass("softmax shifted by its minimum", "softmax", normalization.shifted_exp, '"max"', '"min"', "torch"),
    in_pass(
        "not normalised",
        "softmax",
        normalization.softmax,
        "b.div(e, b.keep(total, over, extents_of(x.type)))",
        "e",
        "torch",
    ),
    in_pass("a mean over one element less", "layer_norm", reductions.count, "return ", "return -1 + ", "torch"),
    in_pass(
        "causal mask that always holds",
        "attention",
        attention._masked,
        "b.iota(rank - 2, shape)",
        "b.iota(rank - 1, shape)",
        "torch",
    ),
]

TO_LOOPS = [
    in_pass("domains dropped", "padding", Pull._view, "if op.domain is None:", "if True:"),
    in_pass(
        "bounds one too far",
        "padding",
        Pull._view,
        "[(simplifier.read(e, at), *b) for e, b in bounds]",
        "[(simplifier.read(e, at), b[0], b[1] + 1) for e, b in bounds]",
    ),
    in_pass(
        "bounds one short",
        "padding",
        Pull._view,
        "[(simplifier.read(e, at), *b) for e, b in bounds]",
        "[(simplifier.read(e, at), b[0], b[1] - 1) for e, b in bounds]",
    ),
    in_pass(
        "padding of another value",
        "padding",
        Pull._guarded,
        "fill = self.value(fill_value, (), ())",
        "fill = graph.number(1, element_type(source.type))",
    ),
    in_pass(
        "coordinates in another order",
        "transpose",
        Pull._view,
        "for e in op.map.data.results)",
        "for e in op.map.data.results[::-1])",
    ),
    in_pass(
        "a sum over every element twice",
        "layer_norm",
        Pull._reduce,
        "body = self.value(op.source, tuple(coordinates), guard)",
        "body = self.value(op.source, tuple(graph.simplifier.floordiv(c, 2) for c in coordinates), guard)",
    ),
    in_pass(
        "domains that hold by one", "relu matmul", Simplifier.within, "bounds[1] < least(hi)", "bounds[1] <= hi + 20"
    ),
    in_pass(
        "factors moved out of every sum",
        "attention",
        HoistFactors.match_and_rewrite,
        "outer_under = [v for v in product.under if not _inside(v, block)]",
        "outer_under = list[SSAValue](); outer_over = outer_over + over[1:]; over = over[:1]",
    ),
]

LOWERING_MUTANTS = [*TO_TENSORS, *TO_LOOPS, *TO_TILES, *TO_THREADS]
