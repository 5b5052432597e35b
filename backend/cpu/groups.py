"""Printing of the statements of CPU kernels: groups of operations become loops over SIMD vectors.

A group has pointwise operations, loads, stores, reductions and scans on the same number of registers. An iteration of
its loop computes one vector of `lanes` contiguous registers:

    for (int i = 0; i < 256; i += lanes) {
      const auto x = load(&a[i]);
      store(&b[i], x * x);
    }

A value that is equal in all lanes stays a scalar. Operations without a vector form are computed lane by lane, by the
scalar expressions of `cpp`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce

from xdsl.dialects.arith import BitcastOp
from xdsl.dialects.builtin import f32, f64, i1
from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects import kernel
from ...dialects.kernel import AtomicRmwOp, LoadOp, ScanRegistersOp
from ...dialects.payload import CastOp, CmpOp, SelectOp, constant_of, element_bytes, element_type
from ...dialects.shapes.extents import Extent
from ...dialects.support.locations import enclosing
from ...target.model import MAX_LANES, PAGE
from ..cpp import reductions, statements
from ..cpp.expressions import (
    ADD,
    AND,
    ATOM,
    FLOAT_FUNCTIONS,
    RELATION,
    UNARY,
    Expr,
    add,
    c_size,
    c_type,
    call,
    infix,
    terms,
)
from ..cpp.memory import atomic_statement, element_at, load_expression, open_checks, store_statement
from ..cpp.ordering import Group, Statement, registers, roots
from ..cpp.writer import Variable, hint_of
from ..dtypes import STRUCTS
from .ends import End, Limit, Write
from .folds import (
    FUNCTIONS,
    HELPERS,
    RowScan,
    columns_of,
    combined,
    combiner,
    combining,
    operations,
    row_of,
    row_of_scan,
)
from .ordering import VectorOrdering, is_same_in_lanes, lane_steps
from .panels import SIDE_BY_SIDE, BlockTranspose, block_transpose, extents, is_read_by_columns, operands, packed_type
from .writer import LANE, VECTOR, Lanes, VectorWriter, gathered

WIDE = ("double", "long long", "unsigned long long")
"""C++ types of 8 bytes, whose vectors need two hardware registers."""

UNROLLED = 64
"""Largest group, in elements, whose loop is unrolled, so that g++ holds arrays of its results in registers."""

UNROLLED_OPERATIONS = 2048
"""Largest number of vector operations in all copies of an unrolled body; limits the compile time.

Measured with g++ 12.2 -O3, AVX-512: 0.3 s for twice as many additions, 3 s for 128 sines, and minutes for 64 bodies
with seven operations that are computed lane by lane.
"""

ACCUMULATORS = 4
"""Number of independent accumulators of a reduction, which hide the latency of the addition."""

MIN_ROW_PER_ACCUMULATOR = 4 * MAX_LANES
"""Elements of a row for each accumulator, at least. Shorter rows are reduced with fewer accumulators.

This holds for tiles of several rows.

The processor overlaps shorter rows, and combining the accumulators would take as long as the row.
"""

PREFETCH_BYTES = 2 * PAGE
"""Prefetch distance of reduced rows, in bytes: two pages. Tuned by hand."""


class VectorStatements(statements.Statements):
    """Printer of the statements of a CPU kernel.

    Attributes:
        common: values that are equal for all blocks, computed before the loop over blocks.
        row: number of registers of a row in the current group: the part that one vector loop visits.
        rows: end of the rows that hold live data, or None if all do. The other rows are padding.
        limit: bound of the current vector loop.
    """

    writer: VectorWriter
    order: VectorOrdering
    ordering = VectorOrdering
    printers = {**statements.PRINTERS, **reductions.PRINTERS, kernel.PanelFmaOp: lambda s, op: s.panel_fma(op)}
    common: frozenset[SSAValue] = frozenset()

    def print_blocks(self, block: str, begin: str, end: str) -> None:
        """Prints all statements for the blocks from `begin` to `end`, exclusive.

        Statements that compute the same values for all blocks are printed before the loop.

        Args:
            block: C++ of the block number.
            begin: C++ of the first block.
            end: C++ of the end of the blocks.
        """
        statements = self.order.statements
        are_common = [self._is_common(statement) for statement in statements]
        for common in (True, False):
            loop = f"for (int {block} = {begin}; {block} < {end}; ++{block})"
            with nullcontext() if common else self.writer.braces(loop):
                for self.number in (n for n, is_common in enumerate(are_common) if is_common == common):
                    self._print(statements[self.number])

    def _is_common(self, statement: Statement) -> bool:
        """Returns true if a statement computes the same values for all blocks, and adds these to `common`."""
        ops = statement.ops if isinstance(statement, Group) else [statement]
        inner = [op for top in ops for op in top.walk()]
        results = {r for op in inner for r in op.results}
        results |= {a for op in inner for r in op.regions for b in r.blocks for a in b.args}
        common_values = results | self.common | {*self.block.args}
        if any(isinstance(op, kernel.IdOp) or not is_side_effect_free(op) for op in inner) or any(
            root not in common_values for op in inner for v in op.operands for root in roots(v)
        ):
            return False
        self.common |= results
        return True

    def is_last_use(self, value: SSAValue) -> bool:
        return value not in self.common and super().is_last_use(value)

    def identify(self, op: kernel.IdOp) -> None:
        """Assigns `kernel.id` its expression: the loop variable for the block, 0 for thread, lane and warp."""
        self.writer.variables[op.result] = Variable(self.writer.ids[op.kind.data.value], 1)

    def panel_fma(self, op: kernel.PanelFmaOp) -> None:
        """Prints `kernel.panel_fma`, a matmul, in place if the accumulator may be overwritten."""
        writer, arguments, matrices = self.writer, list[str](), operands(op)
        for matrix in matrices:
            if matrix.load is None and matrix.source not in writer.variables:
                self.copy_to_array(matrix.source)
            arguments.append(f"{matrix.pointer(writer)}, {matrix.row}, {matrix.column}")
        ends = extents(writer, op, matrices)
        is_initial = ends is None and constant_of(op.acc) == 0
        target = writer.declare(op.result) if is_initial else self.reuse_or_copy(op.acc, op.result)
        writer.use("vector.panel_fma" if packed_type(matrices[0]) is None else "vector.panel_fma.words")
        step = matrices[0].row if is_read_by_columns(matrices[0]) else 0
        options = f", {step}, true" if is_initial else f", {step}" if step else ""
        sizes = ", ".join(map(str, (*op.extents, op.depth.data)))
        writer.line(f"panel_fma<{sizes}{options}>({', '.join([target.name, *arguments, *([ends] if ends else [])])});")

    def _group(self, group: Group) -> None:
        if group.size < MAX_LANES:
            super()._group(group)
            return
        writer, order = self.writer, self.order
        folds = [op for op in group.ops if isinstance(op, kernel.ReduceRegistersOp)]
        results = [op.results[0] for op in group.ops if op not in folds and op.results]
        stored = [r for r in results if r not in writer.variables and order.is_kept(r, group)]
        if not folds and not stored and not any(isinstance(op, Write | ScanRegistersOp) for op in group.ops):
            # Every user rematerializes the group, so it needs no storage.
            return
        columns = columns_of(folds[0]) if folds else None
        transposes = self._block_transposes(group)
        arrays = dict[SSAValue, Variable]()
        for result in stored:
            arrays[result] = (
                writer.preferred.get(result) or self._reused(result, group, arrays) or writer.declare(result)
            )
        if columns is None:
            self._rows(group, folds, arrays, transposes)
        else:
            self._columns(group, folds, arrays, columns)
        writer.locals.clear()
        writer.variables |= arrays

    def _reused(self, result: SSAValue, group: Group, arrays: Mapping[SSAValue, Variable]) -> Variable | None:
        """Returns the array of an operand that the result can overwrite, or None.

        Args:
            result: result of the group.
            group: the group.
            arrays: arrays that other results of the group have already.
        """
        for value in dict.fromkeys(v for op in group.ops for v in op.operands if v.type == result.type):
            variable, op = self.reusable_variable(value), result.owner
            if variable is None or variable in arrays.values() or not isinstance(value.owner, Operation):
                continue
            if (
                variable.size == group.size
                and isinstance(op, Operation)
                and self.order.is_last_reader(op, value, self.number)
            ):
                return variable
        return None

    def _columns(
        self, group: Group, folds: Sequence[kernel.ReduceRegistersOp], arrays: Mapping[SSAValue, Variable], columns: int
    ) -> None:
        """Prints reductions over rows: a loop over blocks of SIMD vectors in a row, with a loop over the rows inside.

        Args:
            group: the group.
            folds: its reductions.
            arrays: arrays of the results that later statements read.
            columns: row length in registers (`columns_of`).
        """
        writer, count, all_columns = self.writer, min(ACCUMULATORS, columns // MAX_LANES), registers(folds[0].result)
        self.row, self.rows, self.limit = group.size, None, Limit("0", group.size)
        results = {op: writer.declare(op.result) for op in folds}
        rows = group.size // all_columns
        start = "first" if columns == all_columns else f"first + (first & -{columns}) * {rows - 1}"
        side_by_side = f"for (int n = 0, i = {{}}; n < {count}; ++n, i += lanes)"
        # The limit of `first` shows compilers that `first` is less than `all_columns`. With one group of columns the
        # address of row `row` is then `first + row * columns`, without a division.
        with writer.braces(f"for (int first = 0; first <= {all_columns} - {count} * lanes; first += {count} * lanes)"):
            sums = {op: self._accumulators(op, count) for op in folds}
            with self._unrolled(rows, rows * count <= 2 * UNROLLED, count):
                writer.line(f"for (int row = 0; row < {rows}; ++row)")
                writer.line(f"#pragma GCC unroll {count}")
                with writer.braces(side_by_side.format(f"{start} + row * {columns}")):
                    self._body(group, arrays, {op: f"{name}[n]" for op, name in sums.items()})
            writer.line(f"#pragma GCC unroll {count}")
            with writer.braces(side_by_side.format("first")):
                for op, name in sums.items():
                    writer.line(f"store(&{results[op].name}[i], {name}[n]);")

    def _rows(
        self,
        group: Group,
        folds: Sequence[kernel.ReduceRegistersOp],
        arrays: Mapping[SSAValue, Variable],
        transposes: Mapping[SSAValue, BlockTranspose],
    ) -> None:
        """Prints a loop over the vectors of a group; for reductions and scans of rows, a loop for each row.

        Args:
            group: the group.
            folds: its reductions.
            arrays: arrays of the results that later statements read.
            transposes: operands that are transposed in blocks.
        """
        writer = self.writer
        scanned = [op for op in group.ops if isinstance(op, ScanRegistersOp)]
        scan_loop = row_of_scan(scanned[0]) if scanned else None
        self.row = row = (row_of(folds[0]) if folds else None) or (scan_loop.row if scan_loop else group.size)
        has_slow_operations = any(op.name.startswith("math.") or op.name == "arith.divf" for op in group.ops)
        results = {op: writer.declare(op.result) for op in folds if row < group.size}
        scans = {op: RowScan(self, op) for op in scanned}
        has_several_accumulators = (
            bool(folds)
            and row >= (MIN_ROW_PER_ACCUMULATOR if results else MAX_LANES) * ACCUMULATORS
            and not has_slow_operations
        )
        self.limit = limit = Limit("0", row) if transposes else self._limit(group, list(arrays), row)
        only_reduces = not arrays and not scans and not any(isinstance(op, Write) for op in group.ops)
        self.rows = writer.ends.of([], [op.result for op in results], group.size // row) if only_reduces else None
        with self._each_row(group, row) if (results or scans) and row < group.size else nullcontext():
            for scan in scans.values():
                scan.begin()
            sums = {op: self._accumulators(op, ACCUMULATORS if has_several_accumulators else 1) for op in folds}
            vectors = self._vectors(group, limit, has_several_accumulators)
            with self._transposed_blocks(group, transposes) if transposes else vectors:
                accumulators = {op: f"{name}[{'n' if has_several_accumulators else 0}]" for op, name in sums.items()}
                self._body(group, arrays, accumulators, bool(folds), scans)
            for scan in scans.values():
                scan.end()
            for op, name in sums.items():
                writer.begin(op)
                text = f"reduced_lanes({name}, {combiner(op)})"
                if op in results:
                    writer.line(f"{results[op].name}[row / {row}] = {text};")
                else:
                    writer.start(op.result, text)

    def _body(
        self,
        group: Group,
        arrays: Mapping[SSAValue, Variable],
        sums: Mapping[Operation, str],
        prefetch: bool = False,
        scans: Mapping[Operation, RowScan] = {},
    ) -> None:
        """Prints the operations of a group for one vector of each value.

        Args:
            group: the group.
            arrays: arrays of the results that later statements read.
            sums: C++ of the accumulator of each reduction.
            prefetch: whether loaded rows are prefetched.
            scans: printers of the scans.
        """
        writer = self.writer
        for op in group.ops:
            writer.comment_location(op)
            if isinstance(op, kernel.ReduceRegistersOp):
                source = writer.read_vector(op.source).whole.at(UNARY)
                writer.line(f"{sums[op]} = {combining(op, source, sums[op])};")
            elif isinstance(op, Write):
                self._write(op)
            elif op in scans:
                text = scans[op].next(writer.read_vector(op.operands[0]).whole.text)
                self._define(op, writer.lanes(op.results[0], Expr(text)), arrays.get(op.results[0]), group)
            else:
                if prefetch and isinstance(op, LoadOp):
                    self._prefetch(op)
                read = self._load(op) if isinstance(op, LoadOp) else self._vector(op)
                self._define(op, read, arrays.get(op.results[0]), group)

    @contextmanager
    def _each_row(self, group: Group, row: int) -> Generator[None]:
        writer = self.writer
        more = "" if self.rows is None else f" && {self._before(self.rows, f'row / {row}')}"
        with writer.braces(f"for (int row = 0; row < {group.size}{more}; row += {row})"):
            writer.row = row
            yield
            writer.row = 0

    @contextmanager
    def _vectors(self, group: Group, limit: Limit, has_several_accumulators: bool) -> Generator[None]:
        """Prints a loop over the vectors of a group around the lines of the `with` block.

        Args:
            group: the group.
            limit: bound of the loop.
            has_several_accumulators: whether to unroll by the accumulators. The variable `n` is then the accumulator.
        """
        writer = self.writer
        if has_several_accumulators:
            writer.line(f"for (int first = {limit.start}; {limit.below('first')}; first += {ACCUMULATORS} * lanes)")
            writer.line(f"#pragma GCC unroll {ACCUMULATORS}")
            ended = "" if limit.divides(ACCUMULATORS * MAX_LANES) else f" && {limit.below('i')}"
            with writer.braces(f"for (int i = first, n = 0; n < {ACCUMULATORS}{ended}; i += lanes, ++n)"):
                yield
            return
        with (
            self._unrolled(group.size // 4, group.size <= UNROLLED),
            writer.braces(f"for (int i = {limit.start}; {limit.below('i')}; i += lanes)"),
        ):
            yield

    @contextmanager
    def _unrolled(self, times: int, enabled: bool, inner: int = 1) -> Generator[None]:
        """Prints an unroll pragma for the loop that the `with` block prints.

        The unrolling is revoked if all copies together have more than `UNROLLED_OPERATIONS` operations.

        Args:
            times: number of copies of the body.
            enabled: whether to print the pragma.
            inner: number of copies of the body of an unrolled loop inside.
        """
        writer = self.writer
        if enabled:
            writer.line(f"#pragma GCC unroll {times}")
        begin = len(writer.lines)
        yield
        if enabled and times * inner * operations(writer.lines[begin:]) > UNROLLED_OPERATIONS:
            writer.lines[begin - 1] = writer.lines[begin - 1].replace(f"unroll {times}", "unroll 1")

    @contextmanager
    def _transposed_blocks(self, group: Group, transposes: Mapping[SSAValue, BlockTranspose]) -> Generator[None]:
        """Prints a loop over the vectors of a group, after transposes of its operands in blocks of lanes × lanes.

        Args:
            group: the group.
            transposes: the operands with their transposes, which all have the same stride in the result.
        """
        writer, across = self.writer, next(iter(transposes.values())).across
        with writer.braces(f"for (int first = 0; first < {group.size}; first += lanes)"):
            writer.line(f"if (first & {across} * (lanes - 1)) continue;")
            for value, transpose in transposes.items():
                name = writer.names.mint(hint_of(value))
                writer.line(f"alignas(64) {writer.type_of(value)} {name}[lanes * lanes];")
                writer.line(f"transpose({name}, lanes, {transpose.source(writer, 'first')});")
                writer.locals[value] = writer.lanes(value, Expr(f"load(&{name}[n * lanes])"))
            with writer.braces(f"for (int i = first, n = 0; n < lanes; i += {across}, ++n)"):
                yield

    def _block_transposes(self, group: Group) -> dict[SSAValue, BlockTranspose]:
        """Returns the operands of a group that its loop can transpose in blocks.

        Returns none, and prints their loads as separate groups, if the group reduces or scans, or if the transposes
        differ.
        """
        operands = dict.fromkeys(v for op in group.ops for v in op.operands if v not in self.writer.variables)
        transposes = {v: t for v in operands if (t := block_transpose(v.owner))}
        ready = {v: s for v, s in transposes.items() if s.source(self.writer, "first") is not None}
        reduced = any(isinstance(op, kernel.ReduceRegistersOp | ScanRegistersOp) for op in group.ops)
        if not reduced and len({s.across for s in ready.values()}) <= 1:
            return ready
        for load in dict.fromkeys(s.shuffle.source.owner for s in ready.values()):
            if isinstance(load, LoadOp) and load.result not in self.writer.variables:
                self._group(Group(load.registers, [load]))
        return {}

    def _accumulators(self, op: kernel.ReduceRegistersOp, count: int) -> str:
        """Declares `count` vectors as accumulators, initialised with the identity of `op`. Returns the array's name."""
        writer, name = self.writer, self.writer.names.mint(hint_of(op.result))
        start = ", ".join([f"all({writer.identity(op)})"] * count)
        writer.line(f"vec<{writer.type_of(op.result)}> {name}[{count}] = {{{start}}};")
        return name

    def _limit(self, group: Group, used: Sequence[SSAValue], row: int) -> Limit:
        """Returns the bound of the loop over one row of a group.

        Args:
            group: the group.
            used: results that later statements read.
            row: number of registers of a row.
        """
        writer, start = self.writer, "row" if row < group.size else "0"
        end = writer.ends.of(group.ops, used, row)
        length = None if end is None else end.length
        if end is None or length is not None:
            return Limit(start, row if length is None else min(row, length), end=end)
        return Limit(start, row, self._before(end, "{i}" if start == "0" else "{i} - row"), end)

    def _before(self, end: End, register: str) -> str:
        """Returns the C++ condition that a register is before `end`: the registers from there on are padding."""
        origin = Expr(str(end.origin)) if isinstance(end.origin, int) else self.writer.read(end.origin)
        return f"{add(origin, Expr(register, ADD)).text} < {self.writer.size(end.bound).text}"

    def _is_limit(self, value: SSAValue, steps: Sequence[int], bound: Extent) -> bool:
        """Returns true if a bounds check holds in all iterations, because the loop ends at the bound.

        Args:
            value: index that is checked, for the first register.
            steps: step of the index for each bit of a register number.
            bound: upper bound of the index.
        """
        end, low = self.limit.end, next((bit for bit, step in enumerate(steps) if step), len(steps))
        if not steps:
            return False
        if 1 << low >= self.row:
            return self.rows is not None and End.at(value, steps[low:], bound) == self.rows
        return end is not None and self.limit.divides(MAX_LANES) and End.at(value, steps, bound) == end

    def _prefetch(self, op: LoadOp) -> None:
        """Prints a prefetch of a reduced row, `PREFETCH_BYTES` after the load.

        The hardware prefetcher stops at the end of a page.
        """
        writer = self.writer
        if enclosing(op, ForOp) is None and lane_steps(op) == SIDE_BY_SIDE and op not in writer.prefetched:
            writer.prefetched.add(op)
            distance = PREFETCH_BYTES // element_bytes(op.result.type)
            writer.line(f"__builtin_prefetch(&{element_at(writer, op, VECTOR)} + {distance}, 0, locality);")

    def _define(self, op: Operation, read: Lanes, variable: Variable | None, group: Group) -> None:
        """Prints the definition of an operation's result: a local variable, a store to an array, or both.

        Args:
            op: the operation.
            read: C++ of the result vector.
            variable: array that holds the result for later statements, or None.
            group: the group of the operation.
        """
        writer, result = self.writer, op.results[0]
        if variable is None or any(u.operation in group.ops for u in result.uses):
            name = writer.names.mint(hint_of(result))
            writer.line(f"const auto {name} = {read.text.text};")
            read = writer.locals[result] = read._replace(text=Expr(name))
        if variable is not None:
            writer.line(f"store(&{variable.name}[i], {read.whole.text});")

    def _vector(self, op: Operation) -> Lanes:
        """Returns the C++ of an operation on vectors, or on scalars if no operand is a vector."""
        writer, result = self.writer, op.results[0]
        read = [writer.read_vector(v) for v in op.operands]
        if not any(r.is_vector for r in read):
            return writer.lanes(result, writer.scalars.print(op, [r.text for r in read]), False)
        text = self._instructions(op, read)
        if text is None:
            text = writer.by_lanes(result, writer.scalars.print(op, [writer.read(v, LANE) for v in op.operands]).text)
        return writer.lanes(result, text)

    def _instructions(self, op: Operation, read: Sequence[Lanes]) -> Expr | None:
        """Returns the C++ of an operation on whole vectors, or None if it must be computed lane by lane."""
        writer, t, source = self.writer, element_type(op.results[0].type), element_type(op.operands[0].type)
        operands, whole = [r.text for r in read], [r.whole for r in read]
        if isinstance(op, CmpOp):
            # In a mask true is -1, so comparisons of two masks swap their operands.
            if c_type(source, writer.index) in WIDE:
                function = f"[](auto a, auto b) {{ return {writer.scalars.print(op, [Expr('a'), Expr('b')]).text}; }}"
                return call("compare", [Expr(function), *whole])
            compared = writer.scalars.print(op, whole[::-1] if source == i1 else operands)
            return compared if c_type(source, writer.index) in ("float", "int") else call("as_mask", [compared])
        if isinstance(op, SelectOp):
            if read[0].is_vector:
                return call("choose", [operands[0], *whole[1:]])
            return Expr(f"({operands[0].at(AND)} ? {whole[1].text} : {whole[2].text})")
        if isinstance(op, CastOp):
            return self._cast(operands[0], source, t)
        if isinstance(op, BitcastOp) and c_size(t) >= 4:
            return Expr(f"(vec<{c_type(t, writer.index)}>){whole[0].at(UNARY)}")
        if op.name == "math.absi":
            return call("magnitude", whole)
        if op.name == "arith.negf":
            return writer.scalars.print(op, operands)
        if (both := combined(op.name, t, operands, whole)) is not None:
            if op.name in HELPERS:
                writer.use(HELPERS[op.name])
            return both
        name = FLOAT_FUNCTIONS.get(op.name, "") + {f32: "f", f64: ""}.get(t, "?")
        if name not in FUNCTIONS:
            return None
        writer.use(FUNCTIONS[name].format(name))
        return call(name, whole)

    def _cast(self, a: Expr, source: object, target: object) -> Expr:
        """Returns the C++ conversion of a vector from the element type `source` to `target`."""
        c_source, c_target = (c_type(t, self.writer.index) for t in (source, target))  # pyright: ignore
        if c_source == c_target:
            return a
        stored = next((c for c in (c_source, c_target) if c in STRUCTS), None)
        if stored is not None:
            if "float" not in (c_source, c_target):
                return self._cast(self._cast(a, source, f32), f32, target)
            name = "to_f32" if c_source == stored else f"to_{stored}"
            self.writer.use(f"vector.converted.{stored}")
            return call(name, [a])
        if c_target == "bool":
            return call("as_mask", [infix(a, "!=", Expr("0"), RELATION)])
        a = Expr(f"({a.at(UNARY)} & 1)") if c_source == "bool" else a
        return Expr(f"convert<{c_target}>({a.text})")

    def _load(self, op: LoadOp) -> Lanes:
        """Returns the C++ of a load.

        By the addresses of the lanes it is: a scalar (all equal), a vector (contiguous), two vectors and a permutation
        (every second element), a gather, or a loop over lanes.
        """
        writer, result, steps = self.writer, op.result, lane_steps(op)
        inside, at = self._inside(op) if steps else None, element_at(writer, op, VECTOR)
        if inside == ("", "") and (near := writer.near(result, steps or (), at)) is not None:
            return writer.lanes(result, near)
        if inside is not None and steps == SIDE_BY_SIDE:
            begin, end = inside
            call_head = f"first(&{at}, {end}" if begin == "" else f"between(&{at}, {begin}, {end or 'lanes'}"
            return writer.lanes(result, Expr(f"load_{call_head}, {writer.fill(op)})"))
        differ = any(registers(v) > 1 for v in op.checks) or any(map(any, op.check_steps[:4]))
        same = steps is not None and not any(steps) and not differ
        if not same and (read := gathered(writer, op, self._is_limit)) is not None:
            return writer.lanes(result, read)
        one = load_expression(writer, op, VECTOR if same else LANE)
        return writer.lanes(result, Expr(one.at(ATOM)) if same else writer.by_lanes(result, one.text), not same)

    def _write(self, op: Write) -> None:
        """Prints a store or an atomic operation. Kernels with atomics use one core, so these are plain accesses."""
        writer, combined = self.writer, isinstance(op, AtomicRmwOp)
        begin, end = (self._inside(op) if lane_steps(op) == SIDE_BY_SIDE else None) or ("no", "lanes")
        if begin or combined and combining(op) is None:
            one = atomic_statement(writer, op, LANE) if combined else store_statement(writer, op, LANE)
            writer.line(f"PER_LANE {one}")
            return
        head = "" if op.predicate is None else f"if ({writer.read(op.predicate).text}) "
        at, whole = f"&{element_at(writer, op, VECTOR)}", writer.read_vector(op.value).whole.text
        if combined:
            writer.line(f"{head}combine_first({at}, {end or 'lanes'}, {whole}, {combiner(op)});")
        else:
            writer.line(f"{head}store({at}, {whole});" if end == "" else f"{head}store_first({at}, {end}, {whole});")

    def _inside(self, op: LoadOp | Write) -> tuple[str, str] | None:
        """Returns the C++ of the range of lanes that are in bounds: first lane, and end (exclusive).

        An empty text stands for lane 0 or `lanes`. Returns None if the lanes in bounds are not a range.
        """
        writer, begins, ends, all_or_none = self.writer, list[str](), list[str](), list[str]()
        if not all(map(is_same_in_lanes, op.checks)):
            return None
        for value, steps, lo, hi, under, over in open_checks(writer, op):
            if not under and self._is_limit(value, steps, hi):
                continue
            at, end = add(writer.read(value, VECTOR), terms(VECTOR, steps)), writer.size(hi)
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
        return begin, f"{' && '.join(all_or_none)} ? {count or 'lanes'} : 0" if all_or_none else count
