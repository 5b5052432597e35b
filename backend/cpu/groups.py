"""Operations on many registers of a block that is one thread, as loops over SIMD vectors.

A group of pointwise operations, loads and stores on equally many registers prints as one loop, whose body computes
`lanes` registers at a time: the lowest bits of a register's number are the lanes of a vector. What is read from memory
that way is contiguous there; a value that is the same in all lanes stays a scalar; what has no vector instruction is
computed lane by lane, in the words of the CUDA printer.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce

from xdsl.dialects.builtin import f32, i1
from xdsl.dialects.scf import IfOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.cores import PAGE
from ...dialects.kernel.memory import GLOBAL, LoadOp, StoreOp, space_of
from ...dialects.payload import CastOp, CmpOp, SelectOp, element_bytes, element_type, is_float
from ...dialects.shapes.extents import Extent, least
from ...dialects.shapes.ranges import span
from ...dialects.tensor import identity
from ..cuda.expressions import (
    ADD,
    AND,
    COMPARISONS,
    FLOAT_FUNCTIONS,
    MUL,
    RELATION,
    UNARY,
    Expr,
    add,
    c_type,
    call,
    infix,
    literal,
)
from ..cuda.memory import condition, element_at, guard
from ..cuda.names import hint_of
from ..cuda.ordering import Group, registers
from ..cuda.statements import Statements, add_printer
from ..cuda.writer import Place, terms
from ..dtypes import STRUCTS
from .dots import PAIRS, Factor
from .ends import End, Limit, end_of_access
from .folds import combiner, combining, row_of
from .ordering import WIDEST, VectorOrdering, lanes_of, varies
from .panels import extents, is_bf16, is_read_by_columns, is_zero, operands
from .squares import Squares, squares_of
from .writer import LANE, VECTOR, Local, VectorWriter

UNROLLED = 64
"""Registers of a group at most whose loop is unrolled, so that arrays of its results become registers."""

ACCUMULATORS = 4
"""Vectors that a reduction adds to in turn, where what is added is ready before the last sum is."""

SIDE_BY_SIDE = 256 * WIDEST
"""Elements at most of rows that are summed side by side, each in one vector: rounding errors grow with the terms of a
sum. Of products of bf16, which is rounded itself, there may be four times as many."""

LANES, PAIRED = "lanes", "2 * lanes"
"""How many elements a loop over vectors takes at a time; of dot products of bf16 two in each lane."""

NEXT = 512
"""Elements of bf16 that a dot product asks for ahead of those that it multiplies."""

AHEAD = 1 << 16
"""Bytes of a row at most that are asked for a row ahead."""


class VectorStatements(Statements):
    """Prints groups of whole vectors as loops over these."""

    ordering = VectorOrdering

    def __init__(self, writer: VectorWriter, block: Block) -> None:
        super().__init__(writer, block)
        self.vectors = writer
        self.at_once, self.step, self.row = 1, LANES, 0

    def identify(self, op: kernel.IdOp) -> None:
        """Which block it is; there is one thread."""
        self.writer.places[op.result] = Place(self.writer.ids[op.kind.data.value], 1)

    def panel_fma(self, op: kernel.PanelFmaOp) -> None:
        """A product of matrices, into the accumulator's own memory where nobody else reads that, or as it is where the
        accumulator is zero."""
        writer = self.vectors
        given, matrices = list[str](), operands(op)
        for matrix in matrices:
            if matrix.load is None and matrix.source not in writer.places:
                self.array_of(matrix.source)
            given.append(f"{matrix.pointer(writer)}, {matrix.row}, {matrix.column}")
        ends = extents(writer, op, matrices)
        fresh = ends is None and is_zero(op.acc)
        target = writer.declare(op.result) if fresh else self.taken_over(op.acc, op.result)
        (rows, columns), depth = op.extents, op.depth.data
        writer.use("vector.panel_fma.bf16" if is_bf16(matrices[0]) else "vector.panel_fma")
        if ends is not None:
            given.append(ends)
        step = matrices[0].row if is_read_by_columns(matrices[0]) else 0
        how = f", {step}, true" if fresh else f", {step}" if step else ""
        writer.line(f"panel_fma<{rows}, {columns}, {depth}{how}>({', '.join([target.name, *given])});")

    def fold(self, op: kernel.ReduceRegistersOp) -> None:
        """Registers combined into fewer: whole vectors, where those that are combined lie far apart."""
        writer, bits = self.writer, sorted(op.bits.get_values())
        size, left = registers(op.source), registers(op.result)
        each = size // left
        if combining(op) is None or left < WIDEST or not bits or bits[0] != left.bit_length() - 1:
            super().fold(op)
            return
        source = writer.places.get(op.source) or self.array_of(op.source)
        place = writer.declare(op.result)
        writer.line(f"reduced_rows<{each}, {left}>({place.name}, {source.name}, {combiner(op)});")

    def _group(self, group: Group) -> None:
        if group.size < WIDEST:
            super()._group(group)
            return
        writer, order = self.vectors, self.order
        assert isinstance(order, VectorOrdering)
        folds = [op for op in group.ops if isinstance(op, kernel.ReduceRegistersOp)]
        self.row = row = (row_of(folds[0]) if folds else None) or group.size
        kept_of = [r for op in group.ops if op not in folds for r in op.results if order.is_kept(r, group)]
        if not folds and not kept_of and not any(isinstance(op, StoreOp) for op in group.ops):
            return  # each of its readers computes it again
        squares = self._squares(group)
        kept: dict[SSAValue, Place] = {}
        for result in kept_of:
            kept[result] = writer.preferred.get(result) or writer.declare(result)
            writer.places.pop(result, None)
        several = bool(folds) and row >= ACCUMULATORS * WIDEST and not any(map(_takes_long, group.ops))
        dots = bool(folds) and folds[0] in order.dots
        self.step = PAIRED if dots else LANES
        results = {op: writer.declare(op.result) for op in folds if row < group.size}
        self.limit = limit = Limit("0", row) if squares else self._limit(group, list(kept), row)
        alone = not kept and not any(isinstance(op, StoreOp) for op in group.ops)
        self.rows = writer.ends.of_results([op.result for op in results], group.size // row) if alone else None
        most = SIDE_BY_SIDE * (4 if dots else 1)
        side_by_side = several and bool(results) and not limit.checked and self.rows is None and row <= most
        self.at_once = ACCUMULATORS if side_by_side and group.size // row % ACCUMULATORS == 0 else 1
        with self._each_row(group, row) if results else nullcontext():
            sums = {op: self._accumulators(op, ACCUMULATORS if several else 1) for op in folds}
            vectors = self._vectors(group, limit, several)
            with self._in_squares(group, squares) if squares else vectors:
                for op in group.ops:
                    writer.comment_place(op)
                    if isinstance(op, kernel.ReduceRegistersOp):
                        at = f"{sums[op]}[{'n' if several else 0}]"
                        if dots:
                            writer.comment_place(order.dots[op].product)
                            lhs, rhs = map(self._pairs, order.dots[op].factors)
                            writer.line(f"{at} = fused({lhs}, {rhs}, {at});")
                            continue
                        text, is_vector = writer.read_vector(op.source)
                        both = (combining(op) or "").format(a=self._all(text, is_vector, op.source).at(UNARY), b=at)
                        writer.line(f"{at} = {both};")
                    elif isinstance(op, StoreOp):
                        self._store(op)
                    else:
                        if folds and self.at_once == 1 and isinstance(op, LoadOp):
                            self._prefetch(op)
                        self._compute(op, kept.get(op.results[0]), group)
            for op, name in sums.items():
                text = f"reduced_lanes({name if self.at_once == 1 else f'{{{name}[n]}}'}, {combiner(op)})"
                if self.at_once > 1:
                    writer.line(f"#pragma GCC unroll {self.at_once}")
                    writer.line(f"for (int n = 0; n < {self.at_once}; ++n)")
                    each = group.size // row // self.at_once
                    writer.line(f"  {results[op].name}[rows / {row} + n * {each}] = {text};")
                elif op in results:
                    writer.line(f"{results[op].name}[row / {row}] = {text};")
                else:
                    writer.start(op.result, text)
        for op in group.ops:
            for result in op.results:
                writer.locals.pop(result, None)
        writer.places.update(kept)

    @contextmanager
    def _each_row(self, group: Group, row: int) -> Generator[None]:
        """A loop over the rows of a group that there are, several at once where all are whole: what they are combined
        with is read once. Each comes from a part of the rows of its own, whose memory is read from its begin to its
        end: that is what the processor foresees, where it loses a place that skips rows."""
        writer, more, name = self.vectors, "", "row" if self.at_once == 1 else "rows"
        if self.rows is not None:
            at, bound = self._end(self.rows)
            more = f" && {add(at, Expr(f'row / {row}', MUL)).text} < {bound}"
        with writer.braces(f"for (int {name} = 0; {name} < {group.size // self.at_once}{more}; {name} += {row})"):
            writer.row = row
            yield
            writer.row = 0

    @contextmanager
    def _vectors(self, group: Group, limit: Limit, several: bool) -> Generator[None]:
        """A loop over the vectors of a group, of which `several` sums take one each in turn, number `n`: of one row, or
        of the same place in several rows."""
        writer, step, widest = self.vectors, self.step, PAIRS if self.step == PAIRED else WIDEST
        if self.at_once > 1:
            writer.line(f"for (int first = 0; first < {limit.length}; first += {step})")
            writer.line(f"#pragma GCC unroll {ACCUMULATORS}")
            part = group.size // ACCUMULATORS
            head = f"for (int n = 0, row = rows, i = rows + first; n < {ACCUMULATORS}; ++n, row += {part}, i += {part})"
        elif several:
            writer.line(f"for (int first = {limit.start}; {limit.below('first')}; first += {ACCUMULATORS} * {step})")
            writer.line(f"#pragma GCC unroll {ACCUMULATORS}")
            ended = "" if limit.divides(ACCUMULATORS * widest) else f" && {limit.below('i')}"
            head = f"for (int i = first, n = 0; n < {ACCUMULATORS}{ended}; i += {step}, ++n)"
        else:
            if group.size <= UNROLLED:
                writer.line(f"#pragma GCC unroll {group.size // 4}")
            head = f"for (int i = {limit.start}; {limit.below('i')}; i += {step})"
        with writer.braces(head):
            yield

    @contextmanager
    def _in_squares(self, group: Group, squares: Mapping[SSAValue, Squares]) -> Generator[None]:
        """A loop over the vectors of a group whose operands are transposed, square by square."""
        writer, across = self.vectors, next(iter(squares.values())).across
        with writer.braces(f"for (int first = 0; first < {group.size}; first += lanes)"):
            writer.line(f"if (first & {across} * (lanes - 1)) continue;")
            for value, square in squares.items():
                name = writer.names.mint(hint_of(value))
                writer.line(f"alignas(64) {writer.type_of(value)} {name}[lanes * lanes];")
                writer.line(f"transpose({name}, lanes, {square.source(writer, 'first')});")
                writer.locals[value] = Local(f"load(&{name}[n * lanes])", True)
            with writer.braces(f"for (int i = first, n = 0; n < lanes; i += {across}, ++n)"):
                yield
        for value in squares:
            writer.locals.pop(value)

    def _squares(self, group: Group) -> dict[SSAValue, Squares]:
        """The transposed operands of a group, if all are so in the same way."""
        places = self.writer.places
        found = {v: s for op in group.ops for v in op.operands if v not in places and (s := squares_of(v))}
        ready = {v: s for v, s in found.items() if s.source(self.writer, "first") is not None}
        if (
            any(isinstance(op, kernel.ReduceRegistersOp) for op in group.ops)
            or len({s.across for s in ready.values()}) > 1
        ):
            for load in dict.fromkeys(s.shuffle.source.owner for s in ready.values()):
                if isinstance(load, LoadOp) and load.result not in places:
                    self._group(Group(load.registers, [load]))
            return {}
        return ready

    def _accumulators(self, op: kernel.ReduceRegistersOp, count: int) -> str:
        """Declare the vectors that a reduction adds to; their name."""
        writer = self.vectors
        name, element = writer.names.mint(hint_of(op.result)), writer.type_of(op.result)
        t = element_type(op.result.type)
        start, helper = literal(identity(op.kind.data, t), t)
        if helper is not None:
            writer.use(helper)
        one = f"all(({element}){start.at(UNARY)})"
        writer.line(f"vec<{element}> {name}[{count}] = {{{', '.join([one] * count)}}};")
        return name

    def _limit(self, group: Group, kept: Sequence[SSAValue], row: int) -> Limit:
        """Where the loop along a row of a group ends."""
        writer, start = self.vectors, "row" if row < group.size else "0"
        end = writer.ends.of(group.ops, kept, row)
        if end is None:
            return Limit(start, row)
        if isinstance(end.origin, int) and isinstance(end.bound, int):
            return Limit(start, min(row, end.bound - end.origin), end=end)
        origin, bound = self._end(end)
        at = add(origin, Expr("{i}" if start == "0" else "{i} - row", ADD))
        return Limit(start, row, f"{at.text} < {bound}", end)

    def _end(self, end: End) -> tuple[Expr, str]:
        """Where registers begin to count, and up to where."""
        origin = Expr(str(end.origin)) if isinstance(end.origin, int) else self.writer.read(end.origin)
        return origin, str(end.bound) if isinstance(end.bound, int) else self.writer.size(end.bound).text

    def _is_limit(self, value: SSAValue, steps: Sequence[int], bound: Extent) -> bool:
        """Whether a check holds for all vectors of the loops that are being printed, as these end there."""
        if not steps:
            return False
        end, low = self.limit.end, next((bit for bit, step in enumerate(steps) if step), len(steps))
        if 1 << low >= self.row:
            return self.rows is not None and End.at(value, steps[low:], bound) == self.rows
        return end is not None and self.limit.divides(WIDEST) and End.at(value, steps, bound) == end

    def _prefetch(self, op: LoadOp) -> None:
        """Ask for the next row while this one is reduced, which takes a moment only, and what follows reads no memory:
        of rows within a page the processor does not foresee the next one. Of longer ones that a loop reduces it falls
        behind where they and what they are multiplied with leave no room in the nearest cache: into the one behind."""
        writer, end = self.vectors, end_of_access(op)
        length = writer.row or op.registers
        if end is not None and isinstance(end.bound, int) and isinstance(end.origin, int):
            length = min(length, end.bound - end.origin)
        size = length * element_bytes(op.result.type)
        one_row = _is_outside_of_loops(op) and size <= (AHEAD if writer.row else PAGE)
        if one_row and lanes_of(op) == 1 and op not in writer.prefetched:
            writer.prefetched.add(op)
            how = "" if size <= PAGE else ", 0, 2"
            writer.line(f"__builtin_prefetch(&{element_at(writer, op, VECTOR)} + {length}{how});")

    def _pairs(self, factor: Factor) -> str:
        """A vector of pairs of what a dot product multiplies; of what lies in memory the next ones are asked for."""
        writer, load = self.vectors, factor.load
        writer.use("vector.pairs.bf16")
        if load is None:
            return f"pairs(&{writer.places[factor.value][terms(VECTOR, factor.steps).text].text})"
        at = f"&{element_at(writer, load, VECTOR)}"
        begin, end = self._inside(load) or ("", "")
        if space_of(load.memory.type) is GLOBAL and load not in writer.prefetched:
            writer.prefetched.add(load)
            writer.line(f"__builtin_prefetch({at} + {NEXT}, 0, 2);")
        return f"pairs({at})" if begin == end == "" else f"pairs({at}, {begin or 0}, {end or self.step})"

    def _compute(self, op: Operation, place: Place | None, group: Group) -> None:
        """A vector of results, into `place` as well if that is given."""
        writer, result = self.vectors, op.results[0]
        text, is_vector = self._load(op) if isinstance(op, LoadOp) else self._vector(op)
        if place is None or any(u.operation in group.ops for u in result.uses):
            name = writer.names.mint(hint_of(result))
            writer.line(f"const auto {name} = {text.text};")
            writer.locals[result] = Local(name, is_vector)
            text = Expr(name)
        if place is not None:
            writer.line(f"store(&{place.name}[i], {self._all(text, is_vector, result).text});")

    def _vector(self, op: Operation) -> tuple[Expr, bool]:
        """The vector of an operation's results, or the scalar, if they are all the same."""
        writer = self.vectors
        read = [writer.read_vector(v) for v in op.operands]
        if not any(is_vector for _, is_vector in read):
            return writer.scalars.print(op, [e for e, _ in read]), False
        text = self._instructions(op, read)
        if text is not None:
            return text, True
        single = writer.scalars.print(op, [writer.read(v, LANE) for v in op.operands])
        return writer.by_lanes(op.results[0], single.text), True

    def _instructions(self, op: Operation, read: Sequence[tuple[Expr, bool]]) -> Expr | None:
        """The operation on vectors; None for one that has no such form."""
        t, source = element_type(op.results[0].type), element_type(op.operands[0].type)
        operands = [e for e, _ in read]
        if isinstance(op, CmpOp):
            symbol, level = COMPARISONS[op.predicate.data]
            compared = infix(operands[0], symbol, operands[1], level)
            return (
                Expr(compared.text, compared.level)
                if c_type(source, self.writer.index) in ("float", "int")
                else call("as_mask", [compared])
            )
        if isinstance(op, SelectOp):
            (test, by_lane), *both = read
            a, b = (self._all(e, v, x) for (e, v), x in zip(both, op.operands[1:], strict=True))
            return call("choose", [test, a, b]) if by_lane else Expr(f"({test.at(AND)} ? {a.text} : {b.text})")
        if isinstance(op, CastOp):
            return self._cast(operands[0], source, t)
        if t == i1:
            symbol = {"arith.andi": "&", "arith.ori": "|", "arith.xori": "^"}.get(op.name)
            both = [self._all(e, v, x) for (e, v), x in zip(read, op.operands, strict=True)]
            return None if symbol is None else Expr(f"({both[0].at(UNARY)} {symbol} {both[1].at(UNARY)})")
        c = c_type(t, self.writer.index)
        if op.name in _INFIX and (is_float(t) or c in ("int", "long long")):
            symbol, level = _INFIX[op.name]
            return infix(operands[0], symbol, operands[1], level)
        if op.name == "arith.negf":
            return Expr(f"-{operands[0].at(UNARY)}", UNARY)
        if c == "float":
            name = {"arith.maximumf": "max_nan", "arith.minimumf": "min_nan"}.get(
                op.name, FLOAT_FUNCTIONS.get(op.name, "")
            )
            if name in VECTOR_FUNCTIONS:
                always, name = name in _ALWAYS, name + ("" if name.endswith("_nan") else "f")
                if not always:
                    self.writer.use(f"vector.{name}")
                return call(name, [self._all(e, v, x) for (e, v), x in zip(read, op.operands, strict=True)])
        return None

    def _all(self, text: Expr, is_vector: bool, value: SSAValue) -> Expr:
        """A vector, also of what is the same in all lanes."""
        return text if is_vector else Expr(f"all(({self.writer.type_of(value)}){text.at(UNARY)})")

    def _cast(self, a: Expr, source: object, target: object) -> Expr | None:
        c_source, c_target = (c_type(t, self.writer.index) for t in (source, target))  # pyright: ignore
        if c_source == c_target:
            return a
        stored = next((c for c in (c_source, c_target) if c in STRUCTS), None)
        if stored is not None:
            if "float" not in (c_source, c_target):
                between = self._cast(a, source, f32)
                return None if between is None else self._cast(between, f32, target)
            name = "to_f32" if c_source == stored else f"to_{stored}"
            self.writer.use(f"vector.{name}.{stored}")
            return call(name, [a])
        if c_target == "bool":
            return call("as_mask", [infix(a, "!=", Expr("0"), RELATION)])
        a = Expr(f"({a.at(UNARY)} & 1)") if c_source == "bool" else a
        return Expr(f"convert<{c_target}>({a.text})")

    def _load(self, op: LoadOp) -> tuple[Expr, bool]:
        """A vector from memory, if it is contiguous there; the element that all lanes have; or lane by lane."""
        writer = self.vectors
        element = writer.type_of(op.result)
        lanes, met = lanes_of(op), condition(writer, op, VECTOR)
        if lanes == 0 and not varies(op):
            text = Expr(element_at(writer, op, VECTOR))
            if met is not None and op.fill is not None:
                text = Expr(f"({met.at(AND)} ? {text.text} : {writer.read(op.fill).text})")
            return text, False
        fill = "0" if op.fill is None else writer.read(op.fill).text
        if lanes == 1 and (inside := self._inside(op)) is not None:
            at, (begin, end) = f"&{element_at(writer, op, VECTOR)}", inside
            some = f"load_first({at}, {end}" if begin == "" else f"load_between({at}, {begin}, {end or 'lanes'}"
            return Expr(f"load({at})" if begin == end == "" else f"{some}, ({element}){fill})"), True
        single, own = element_at(writer, op, LANE), condition(writer, op, LANE)
        return writer.by_lanes(op.result, single if own is None else f"{own.at(AND)} ? {single} : {fill}"), True

    def _store(self, op: StoreOp) -> None:
        writer = self.vectors
        text, is_vector = writer.read_vector(op.value)
        begin, end = (self._inside(op) if lanes_of(op) == 1 else None) or ("no", "lanes")
        if begin:
            one = f"{guard(writer, op, LANE)}{element_at(writer, op, LANE)} = {writer.read(op.value, LANE).text};"
            writer.line(f"PER_LANE {one}")
            return
        head = "" if op.predicate is None else f"if ({writer.read(op.predicate).text}) "
        at, whole = f"&{element_at(writer, op, VECTOR)}", self._all(text, is_vector, op.value).text
        writer.line(f"{head}store({at}, {whole});" if end == "" else f"{head}store_first({at}, {end}, {whole});")

    def _inside(self, op: LoadOp | StoreOp) -> tuple[str, str] | None:
        """From which lane of a vector up to which one all checks hold, "" where they do from the first, or to the last,
        lane on; None if these lanes are not side by side."""
        writer, begins, ends, all_or_none = self.vectors, list[str](), list[str](), list[str]()
        for c, (value, (lo, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
            if registers(value) > 1:
                return None
            steps = [basis[c] for basis in op.check_steps]
            (below, above), (first, last) = span(steps), writer.ranges.of(value)
            under, over = first + below < lo, last + above >= least(hi)
            if not under and (not over or self._is_limit(value, steps, hi)):
                continue
            at = add(writer.read(value), terms(VECTOR, steps))
            end = Expr(str(hi)) if isinstance(hi, int) else writer.size(hi)
            if not any(steps[:4]):
                all_or_none += [infix(Expr(str(lo)), "<=", at, RELATION).text] if under else []
                all_or_none += [infix(at, "<", end, RELATION).text] if over else []
            elif steps[:4] != [1, 2, 4, 8]:
                return None
            else:
                begins += [infix(Expr(str(lo)), "-", at, ADD).text] if under else []
                ends += [infix(end, "-", at, ADD).text] if over else []
        count = reduce(lambda a, b: f"min<long>({a}, {b})", ends) if ends else ""
        begin = reduce(lambda a, b: f"max<long>({a}, {b})", begins) if begins else ""
        return begin, f"{' && '.join(all_or_none)} ? {count or self.step} : 0" if all_or_none else count


def _is_outside_of_loops(op: Operation) -> bool:
    """Whether a block computes an operation at most once."""
    around = op.parent_op()
    while isinstance(around, IfOp):
        around = around.parent_op()
    return isinstance(around, kernel.FuncOp)


def _takes_long(op: Operation) -> bool:
    """Whether a vector takes longer to compute than to add to a sum."""
    return op.name.startswith("math.") or op.name == "arith.divf"


_INFIX = {
    "arith.addf": ("+", ADD),
    "arith.subf": ("-", ADD),
    "arith.mulf": ("*", MUL),
    "arith.divf": ("/", MUL),
    "arith.addi": ("+", ADD),
    "arith.subi": ("-", ADD),
    "arith.muli": ("*", MUL),
}

VECTOR_FUNCTIONS = frozenset(
    "max_nan min_nan sqrt fabs floor ceil trunc rint rsqrt exp exp2 log log2 tanh erf sin cos".split()
)
"""Functions of vectors of f32."""

_ALWAYS = frozenset("max_nan min_nan sqrt fabs floor ceil trunc rint".split())
"""Those that the text has without being asked."""


add_printer(kernel.PanelFmaOp, VectorStatements.panel_fma)
