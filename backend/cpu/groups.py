"""Operations on many registers of a block that is one thread, as loops over SIMD vectors.

A group of pointwise operations, loads and stores on equally many registers prints as one loop, whose body computes
`lanes` registers at a time: the lowest bits of a register's number are the lanes of a vector. What is read from memory
that way is contiguous there; a value that is the same in all lanes stays a scalar; what has no vector instruction is
computed lane by lane, in the words of the CUDA printer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import GLOBAL, LoadOp, StoreOp, space_of
from ...dialects.payload import CastOp, CmpOp, SelectOp, element_type, is_float
from ...dialects.shapes.extents import least
from ...dialects.shapes.ranges import span
from ...dialects.tensor.reduction_kinds import MONOIDS
from ..cuda.expressions import (
    ADD,
    AND,
    COMPARISONS,
    EQUALITY,
    FLOAT_FUNCTIONS,
    MUL,
    RELATION,
    UNARY,
    Expr,
    add,
    c_type,
    call,
    infix,
)
from ..cuda.memory import condition, element_at, guard, memory_extents, pitches
from ..cuda.names import hint_of
from ..cuda.ordering import Group, Ordering, is_view, linear_steps, registers, roots
from ..cuda.statements import Statements, add_printer
from ..cuda.writer import Place, Writer, terms
from ..dtypes import STRUCTS
from .panels import is_read_in_place, operands, plain_load

WIDEST = 16
"""Lanes of the widest vectors (AVX-512, of f32); so many registers are a whole number of vectors of any machine."""

UNROLLED = 64
"""Registers of a group at most whose loop is unrolled, so that arrays of its results become registers."""

VECTOR, LANE = "i", "i + l"
"""The first register of a vector in a loop over them, and the register of one lane."""


@dataclass(frozen=True)
class Local:
    """A value inside of a group's loop: a vector, or a scalar."""

    name: str
    is_vector: bool


class VectorOrdering(Ordering):
    """Statements of which groups take in loads and stores as well."""

    def _place(self, op: Operation) -> None:
        size = _size(op)
        if isinstance(op, LoadOp) and size is not None and is_read_in_place(op):
            return
        if not isinstance(op, LoadOp | StoreOp) or size is None:
            if isinstance(op, kernel.AtomicRmwOp | LoadOp | StoreOp):
                self._flush(list(self._pending.values()))
            super()._place(op)
            return
        direct = [self._maker.get(v) for v in op.operands]
        apart = [self._maker[r] for v in op.operands if v not in self._maker for r in roots(v) if r in self._maker]
        needed = [g for g in direct if g is not None and g.size != size] + apart
        needed += [g for g in self._pending.values() if any(_conflict(op, other) for other in g.ops)]
        self._flush(list(dict.fromkeys(needed)))
        group = self._pending.setdefault(size, Group(size))
        group.ops.append(op)
        if isinstance(op, LoadOp):
            self._maker[op.result] = group


def _size(op: Operation) -> int | None:
    """How many registers an access moves, if these are vectors."""
    value = op.result if isinstance(op, LoadOp) else op.value if isinstance(op, StoreOp) else None
    size = 1 if value is None else registers(value)
    return size if size >= WIDEST else None


def _conflict(op: LoadOp | StoreOp, other: Operation) -> bool:
    """Whether `op` has to stay behind `other`: one of them writes the memory of the other. All of a block's own memory
    is one, as buffers may lie in the same place."""
    if not isinstance(other, LoadOp | StoreOp) or isinstance(op, LoadOp) and isinstance(other, LoadOp):
        return False
    spaces = [space_of(o.memory.type) for o in (op, other)]
    if GLOBAL in spaces:
        return op.memory is other.memory
    return True


class VectorStatements(Statements):
    """Prints groups of whole vectors as loops over these."""

    ordering = VectorOrdering

    def __init__(self, writer: VectorWriter, block: Block) -> None:
        super().__init__(writer, block)
        self.vectors = writer

    def identify(self, op: kernel.IdOp) -> None:
        """Which block it is; there is one thread."""
        self.writer.places[op.result] = Place(self.writer.ids[op.kind.data.value], 1)

    def fold(self, op: kernel.ReduceRegistersOp) -> None:
        """Registers combined into fewer: whole vectors, where those that are combined lie side by side or far apart."""
        writer, bits = self.writer, sorted(op.bits.get_values())
        size, left = registers(op.source), registers(op.result)
        c, each = writer.type_of(op.result), size // left
        combiner = MONOIDS[op.kind.data].combiner(op.result.type).name
        known = c in ("float", "double", "int", "long long") and combiner in _COMBINED
        if each < WIDEST and left < WIDEST or each == 1 or not known:
            super().fold(op)
            return
        source = writer.places.get(op.source) or self.array_of(op.source)
        combine = f"[](auto a, auto b) {{ return {_COMBINED[combiner]}; }}"
        if each >= WIDEST and bits == list(range(len(bits))):
            if left == 1:
                writer.start(op.result, f"reduced<{each}>({source.name}, {combine})")
                return
            place = writer.declare(op.result)
            one = f"reduced<{each}>(&{source.name}[i * {each}], {combine})"
            writer.line(f"for (int i = 0; i < {left}; ++i) {place.name}[i] = {one};")
        elif left >= WIDEST and bits[0] == left.bit_length() - 1:
            place = writer.declare(op.result)
            writer.line(f"reduced_rows<{each}, {left}>({place.name}, {source.name}, {combine});")
        else:
            super().fold(op)

    def panel_fma(self, op: kernel.PanelFmaOp) -> None:
        """A product of matrices, into the accumulator's own memory where nobody else reads that."""
        writer = self.vectors
        matrices = list[str]()
        for matrix in operands(op):
            if plain_load(matrix.source) is None and matrix.source not in writer.places:
                self.array_of(matrix.source)
            matrices.append(f"{matrix.pointer(writer)}, {matrix.row}, {matrix.column}")
        target = self.taken_over(op.acc, op.result)
        rows, columns = op.extents
        writer.use("vector.panel_fma")
        writer.line(f"panel_fma<{rows}, {columns}, {op.depth.data}>({', '.join([target.name, *matrices])});")

    def _group(self, group: Group) -> None:
        if group.size < WIDEST:
            super()._group(group)
            return
        writer, inside = self.vectors, set(group.ops)
        kept: dict[SSAValue, Place] = {}
        for op in group.ops:
            for result in op.results:
                if any(u.operation not in inside for u in result.uses):
                    place = writer.preferred.get(result)
                    kept[result] = place or writer.declare(result)
                    writer.places.pop(result, None)
        if group.size <= UNROLLED:
            writer.line(f"#pragma GCC unroll {group.size // 4}")
        with writer.braces(f"for (int i = 0; i < {group.size}; i += lanes)"):
            if (
                not kept
                and (ends := {self._begun(op) for op in group.ops if isinstance(op, StoreOp)})
                and None not in ends
            ):
                writer.line(f"if (!({' || '.join(sorted(e for e in ends if e))})) continue;")
            for op in group.ops:
                writer.comment_place(op)
                if isinstance(op, StoreOp):
                    self._store(op)
                    continue
                result = op.results[0]
                text, is_vector = self._load(op) if isinstance(op, LoadOp) else self._vector(op)
                if result in kept:
                    target = f"&{kept[result].name}[i]"
                    if not list(u for u in result.uses if u.operation in inside):
                        writer.line(f"store({target}, {self._all(text, is_vector, result).text});")
                        continue
                name = writer.names.mint(hint_of(result))
                writer.line(f"const auto {name} = {text.text};")
                writer.locals[result] = Local(name, is_vector)
                if result in kept:
                    writer.line(f"store({target}, {self._all(Expr(name), is_vector, result).text});")
        for op in group.ops:
            for result in op.results:
                writer.locals.pop(result, None)
        writer.places.update(kept)

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
                if c_type(source) in ("float", "int")
                else call("as_mask", [compared])
            )
        if isinstance(op, SelectOp):
            condition, *both = read
            if not condition[1]:
                return None
            return call(
                "choose", [condition[0], *(self._all(e, v, x) for (e, v), x in zip(both, op.operands[1:], strict=True))]
            )
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
                return None
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
        writer.type_of(op.result)
        lanes = _lanes_of(op)
        met, full = condition(writer, op, VECTOR), self._whole(op)
        if lanes == 0 and not _varies(op):
            text, uniform = Expr(element_at(writer, op, VECTOR)), met
            if uniform is not None and op.fill is not None:
                text = Expr(f"({uniform.at(AND)} ? {text.text} : {writer.read(op.fill).text})")
            return text, False
        fill = None if op.fill is None else writer.read(op.fill).text
        single = element_at(writer, op, LANE)
        own = condition(writer, op, LANE)
        single = single if own is None or fill is None else f"{own.at(AND)} ? {single} : {fill}"
        each = writer.by_lanes(op.result, single)
        if lanes != 1:
            return each, True
        whole = f"load(&{element_at(writer, op, VECTOR)})"
        return (Expr(whole) if full is None else Expr(f"({full.at(AND)} ? {whole} : {each.text})")), True

    def _store(self, op: StoreOp) -> None:
        writer = self.vectors
        text, is_vector = writer.read_vector(op.value)
        lanes, full = _lanes_of(op), self._whole(op)
        one = f"{guard(writer, op, LANE)}{element_at(writer, op, LANE)} = {writer.read(op.value, LANE).text};"
        if lanes == 1:
            head = "" if op.predicate is None else f"if ({writer.read(op.predicate).text}) "
            whole = f"store(&{element_at(writer, op, VECTOR)}, {self._all(text, is_vector, op.value).text});"
            if full is None:
                writer.line(head + whole)
                return
            writer.line(f"{head}if ({full.text}) {whole}")
            writer.line(f"else PER_LANE {one}" if not head else f"if (!({full.text})) PER_LANE {one}")
        else:
            writer.line(f"PER_LANE {one}")

    def _begun(self, op: StoreOp) -> str | None:
        """When the first lane of a vector is stored, if none is where that one is not: where the lanes only go towards
        the ends of the checks; None where that is not so, or all are stored."""
        writer = self.vectors
        for c, (value, (lo, _)) in enumerate(zip(op.checks, op.bounds, strict=True)):
            below, _ = span([basis[c] for basis in op.check_steps])
            if below < 0 or writer.ranges.of(value)[0] < lo or registers(value) > 1:
                return None
        met = condition(writer, op, VECTOR)
        return None if met is None else met.text

    def _whole(self, op: LoadOp | StoreOp) -> Expr | None:
        """When all lanes of a vector are inside of all checks; None if always."""
        writer, found = self.vectors, None
        for c, (value, (lo, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
            if registers(value) > 1:
                return Expr("false")
            steps = [basis[c] for basis in op.check_steps]
            own, (below, above) = span(steps[:4]), span(steps)
            first, last = writer.ranges.of(value)
            at = add(writer.read(value), terms(VECTOR, steps))
            if first + below < lo:
                part = infix(_plus(at, own[0], steps), ">=", Expr(str(lo)), RELATION)
                found = part if found is None else infix(found, "&&", part, AND)
            if last + above >= least(hi):
                end = Expr(str(hi)) if isinstance(hi, int) else writer.size(hi)
                part = infix(_plus(at, own[1], steps), "<", end, RELATION)
                found = part if found is None else infix(found, "&&", part, AND)
        return found


def _plus(at: Expr, reach: int, steps: Sequence[int]) -> Expr:
    """The check of the lane that is furthest: `reach` for sixteen lanes."""
    if reach == 0:
        return at
    if list(steps[:4]) == [1, 2, 4, 8]:
        return Expr(f"{at.at(ADD)} + lanes - 1", ADD)
    return add(at, Expr(str(reach)) if reach > 0 else Expr(str(reach), UNARY))


def _varies(op: LoadOp | StoreOp) -> bool:
    """Whether the lanes of a vector differ in their coordinates or checks by more than the register bases say."""
    own = any(registers(v) > 1 for v in (*op.coordinates, *op.checks))
    return own or any(any(basis) for basis in op.check_steps[:4]) or op.xor is not None


def _lanes_of(op: LoadOp | StoreOp) -> int | None:
    """How the lanes of a vector lie in memory: 1 side by side, 0 in one place, None otherwise."""
    if any(registers(v) > 1 for v in op.coordinates) or op.xor is not None:
        return None
    bases, pitch = op.reg_bases[:4], pitches(memory_extents(op.memory.type))
    if all(not any(b) for b in bases):
        return 0
    if any(b and symbols for basis in bases for b, (_, symbols) in zip(basis, pitch, strict=True)):
        return None
    apart = [sum(b * n for b, (n, _) in zip(basis, pitch, strict=True)) for basis in bases]
    return 1 if apart == [1, 2, 4, 8] else None


_COMBINED = {
    **dict.fromkeys(("arith.addf", "arith.addi"), "a + b"),
    **dict.fromkeys(("arith.mulf", "arith.muli"), "a * b"),
    "arith.maximumf": "max_nan(a, b)",
    "arith.minimumf": "min_nan(a, b)",
    **dict.fromkeys(("arith.maxsi",), "a > b ? a : b"),
    **dict.fromkeys(("arith.minsi",), "a < b ? a : b"),
}
"""Operations of vectors as of single elements; integers wrap."""

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


class VectorWriter(Writer):
    """The text of a kernel whose blocks are one thread."""

    def __init__(self, func: kernel.FuncOp) -> None:
        super().__init__(func)
        self.locals: dict[SSAValue, Local] = {}

    def read(self, value: SSAValue, register: int | str = 0) -> Expr:
        local = self.locals.get(value)
        if local is not None:
            return self._lane(local, value) if local.is_vector and register == LANE else Expr(local.name)
        return super().read(value, register)

    def unroll(self, times: str = "", pad: str = "") -> None:
        """Compilers for CPUs know when to unroll loops over single elements."""

    def _lane(self, local: Local, value: SSAValue) -> Expr:
        if element_type(value.type) == i1:
            return Expr(f"{local.name}[l] != 0", EQUALITY)
        return Expr(f"lane({local.name}, l)" if self.type_of(value) in STRUCTS else f"{local.name}[l]")

    def read_vector(self, value: SSAValue) -> tuple[Expr, bool]:
        """A vector of registers of a value, from `VECTOR` on; or a scalar, if they are all the same, and which of the
        two it is."""
        local = self.locals.get(value)
        if local is not None:
            return Expr(local.name), local.is_vector
        op = value.owner
        if value in self.places or not isinstance(op, Operation) or not is_view(op):
            if registers(value) == 1:
                return self.read(value), False
            return Expr(f"load(&{self.read(value, VECTOR).text})"), True
        if isinstance(op, kernel.ShuffleRegistersOp) and registers(op.source) > 1:
            steps = linear_steps(op.registers.get_values())
            assert steps is not None
            low = steps[1][:4]
            if not any(low):
                return self.read(value, VECTOR), False
            if low == [1, 2, 4, 8] and op.source in self.places:
                return Expr(f"load(&{self.read(value, VECTOR).text})"), True
            return self.by_lanes(value, self.read(value, LANE).text), True
        if isinstance(op, kernel.IndicesOp):
            steps = list(op.steps.get_values())
            low, step = steps[:4], steps[0]
            if not any(low):
                return self.read(value, VECTOR), False
            if low == [step << n for n in range(4)]:
                base = add(self.read(op.origin), terms(VECTOR, steps))
                own = Expr(f"numbers<{self.index}>()")
                own = own if step == 1 else infix(own, "*", Expr(str(step), UNARY if step < 0 else UNARY + 5), MUL)
                return (own if base.text == "0" else infix(base, "+", own, ADD)), True
            return self.by_lanes(value, self.read(value, LANE).text), True
        return self.read(value), False

    def by_lanes(self, value: SSAValue, single: str) -> Expr:
        """A vector of the registers of `value`, each computed by the text `single`."""
        return Expr(f"each<{self.type_of(value)}>([&](int l) {{ return {single}; }})")
