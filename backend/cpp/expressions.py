"""C++ types, literals and expressions.

`Scalars.print` prints a payload operation on scalars as an `Expr`: a text with its precedence, so that parentheses are
printed only where they are needed. `terms` and `flips` print offsets that depend on the bits of a register's number, as
in `(i >> 1) * 8`. Here a register is one element of a value that a thread holds, numbered from 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from xdsl.dialects.arith import BitcastOp
from xdsl.dialects.builtin import IndexType, IntegerType, i1
from xdsl.dialects.math import Exp2Op
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from ...dialects.kernel import AsyncAccumulatorsType, MbarrierType
from ...dialects.layouts.linear import combine
from ...dialects.payload import AssertOp, CastOp, CmpOp, Predicate, SelectOp, element_type, is_float
from ...dialects.shapes.ranges import Ranges
from ...dialects.support.locations import refused
from ...errors import CompileError
from ...plugins import rule_of
from ..dtypes import STRUCTS, dtype_of

ATOM, UNARY, MUL, ADD, SHIFT, RELATION, EQUALITY, BIT_AND, BIT_XOR, BIT_OR, AND, OR, TERNARY = range(100, 35, -5)
"""Precedence levels of C++; a higher number binds more tightly."""


class Expr(NamedTuple):
    """C++ expression: its text, and its precedence `level`."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """Returns the text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def c_type(t: Attribute, index: str = "int") -> str:
    """Returns the C++ type of one element of `t`, where `index` is the C++ type of indices.

    Raises CompileError if the element type has no C++ type.
    """
    e = element_type(t.registers if isinstance(t, AsyncAccumulatorsType) else t)
    name = index if isinstance(e, IndexType) else "unsigned long long" if isinstance(e, MbarrierType) else dtype_of(e).c
    if not name:
        raise CompileError(f"expected an element type with a C++ type, but got {e}")
    return name


def c_size(t: Attribute) -> int:
    """Returns the bytes of one element of `t`."""
    return dtype_of(t.registers if isinstance(t, AsyncAccumulatorsType) else t).bytes


def _integer_literal(number: int, name: str, t: Attribute) -> Expr:
    if name == "bool":
        return Expr("true" if number else "false")
    suffix = "ll" if name == "long long" and not isinstance(element_type(t), IndexType) else ""
    if number in (-(2**63), -(2**31)):
        return Expr(f"(-{-number - 1}{suffix} - 1)")
    if name in ("unsigned int", "unsigned long long"):
        number, suffix = number % (1 << 8 * c_size(t)), "u" if name == "unsigned int" else "ull"
    return Expr(f"{number}{suffix}", ATOM if number >= 0 else UNARY)


def _float_literal(value: float, name: str) -> Expr:
    text = f"{np.float32(value)!s}f" if name == "float" else repr(value)
    return Expr(text, UNARY if text.startswith("-") else ATOM)


def _struct_literal(value: float, name: str, t: Attribute) -> Expr:
    number = np.float32(abs(value) if math.isnan(value) else value)
    with np.errstate(over="ignore"):
        bits = number.astype(dtype_of(t).numpy).tobytes()[::-1].hex()
    return Expr(f"{name}{{0x{bits}}}")


class Operator(NamedTuple):
    """C++ operator or function that computes an operation with two operands.

    Attributes:
        symbol: infix operator, or name of a function if `level` is ATOM.
        level: precedence level.
        helper: helper to call where C++ leaves the result undefined: overflow, a divisor of 0, a shift by more bits
            than the type has.
        on_bool: operator and level for operands of type `i1`, where arithmetic is modulo 2 and false < true.
    """

    symbol: str
    level: int
    helper: str = ""
    on_bool: tuple[str, int] | None = None


_AND, _OR, _XOR = ("&&", AND), ("||", OR), ("!=", EQUALITY)

OPERATORS = {
    "arith.addf": Operator("+", ADD),
    "arith.subf": Operator("-", ADD),
    "arith.mulf": Operator("*", MUL),
    "arith.divf": Operator("/", MUL),
    "arith.addi": Operator("+", ADD, "wrap_add", _XOR),
    "arith.subi": Operator("-", ADD, "wrap_sub", _XOR),
    "arith.muli": Operator("*", MUL, "wrap_mul", _AND),
    "arith.divsi": Operator("/", MUL, "int_div"),
    "arith.divui": Operator("/", MUL, "int_div"),
    "arith.remsi": Operator("%", MUL, "int_rem"),
    "arith.remui": Operator("%", MUL, "int_rem"),
    "arith.shli": Operator("<<", SHIFT, "shift_left"),
    "arith.shrsi": Operator(">>", SHIFT, "shift_right"),
    "arith.shrui": Operator(">>", SHIFT, "shift_right"),
    "arith.andi": Operator("&", BIT_AND, on_bool=_AND),
    "arith.ori": Operator("|", BIT_OR, on_bool=_OR),
    "arith.xori": Operator("^", BIT_XOR, on_bool=_XOR),
    **dict.fromkeys(("arith.minsi", "arith.minui"), Operator("min", ATOM, on_bool=_AND)),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), Operator("max", ATOM, on_bool=_OR)),
    "arith.maximumf": Operator("max_nan", ATOM),
    "arith.minimumf": Operator("min_nan", ATOM),
    "payload.logaddexp": Operator("log_add_exp", ATOM),
}
"""Operation with two operands -> its C++ operator."""

WRAPPING = ("arith.addi", "arith.subi", "arith.muli")
"""Operations that wrap around on overflow, which is undefined for signed integers of C++."""

UNSIGNED = ("arith.divui", "arith.remui", "arith.shrui", "arith.minui", "arith.maxui")
"""Operations that interpret their operands as unsigned, although IR integers are signless."""

COMPARISONS = {
    **{Predicate.EQ: ("==", EQUALITY), Predicate.NE: ("!=", EQUALITY)},
    **{Predicate.LT: ("<", RELATION), Predicate.LE: ("<=", RELATION)},
    **{Predicate.GT: (">", RELATION), Predicate.GE: (">=", RELATION)},
}

NARROW = ("signed char", "short", "unsigned char", "unsigned short")
"""Integer types that C++ promotes to `int` in arithmetic."""

INTEGER_FUNCTIONS = {"arith.floordivsi": "floor_div", "arith.ceildivsi": "ceil_div", "math.ipowi": "int_pow"}
"""Operation -> a helper that computes it in `long long`."""

BITS = {
    ("int", "float"): "bits_to_float",
    ("float", "int"): "bits_to_int",
    ("long long", "double"): "bits_to_double",
    ("double", "long long"): "bits_to_long",
}
"""(source type, result type) of a bitcast -> the helper that computes it."""

FLOAT_FUNCTIONS = {
    "arith.minnumf": "fmin",
    "arith.maxnumf": "fmax",
    "payload.fmod": "fmod",
    "math.absf": "fabs",
    "math.powf": "pow",
    "math.roundeven": "rint",
    **{
        f"math.{name}": name
        for name in (
            "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf exp exp2 expm1 floor fma log log10 "
            "log1p log2 round rsqrt sin sinh sqrt tan tanh trunc"
        ).split()
    },
}
"""Operation -> the CUDA math function on `double`. The function on `float` has the suffix `f`."""

_SUFFIX = {"float": "f", "double": ""}

_OPERANDS = {ADD: (ADD, MUL), MUL: (MUL, MUL + 1), AND: (EQUALITY, EQUALITY), OR: (EQUALITY, EQUALITY)}
_OPERANDS |= {RELATION: (ADD, ADD), EQUALITY: (ADD, ADD)}
"""Level of an operator -> lowest levels of its left and right operand without parentheses.

For other operators it is UNARY: compilers warn about `a & b + c`, which C++ would accept.
"""

ASSOCIATIVE = (BIT_AND, BIT_XOR, BIT_OR, AND, OR)
"""Levels with a single, associative operator: `a & b & c` needs no parentheses."""


def infix(a: Expr, operator: str, b: Expr, level: int) -> Expr:
    """Returns `a operator b`, with the parentheses that C++ needs or that make the precedence obvious.

    Args:
        a: left operand.
        operator: the operator.
        b: right operand.
        level: precedence level of the operator.
    """
    left_level, right_level = _OPERANDS.get(level, (UNARY, UNARY))
    if level in ASSOCIATIVE and a.level == level:
        left_level, right_level = level, level if level in (AND, OR) else right_level
    return Expr(f"{a.at(left_level)} {operator} {b.at(right_level)}", level)


def add(a: Expr, b: Expr) -> Expr:
    """Returns `a + b` for indices. Zeros are dropped, and `a + -b` becomes `a - b`."""
    if a.text == "0":
        return b
    if b.text == "0":
        return a
    if b.text.startswith("-"):
        return Expr(f"{a.at(ADD)} - {b.text[1:]}", ADD) if b.level == UNARY else infix(a, "+", b, ADD)
    return Expr(f"{a.at(ADD)} + {b.at(ADD)}", ADD)


def multiply(a: Expr, factor: int) -> Expr:
    """Returns `a * factor` for a constant, simplified for the factors 0 and 1."""
    if factor == 1 or a.text == "0":
        return a
    return Expr("0") if factor == 0 else infix(a, "*", Expr(str(factor), ATOM if factor > 0 else UNARY), MUL)


def call(name: str, operands: Sequence[Expr]) -> Expr:
    return Expr(f"{name}({', '.join(o.text for o in operands)})")


def _narrowed(a: Expr, c: str, name: str = "") -> Expr:
    """Returns `a` cast to its type `c`, if C++ has promoted it to `int` or `name` was computed as unsigned."""
    return Expr(f"({c}){a.at(UNARY)}", UNARY) if c in NARROW or name in UNSIGNED else a


def _unsigned(c: str) -> str:
    return "unsigned " + c.removeprefix("signed ").removeprefix("unsigned ")


@dataclass(frozen=True)
class Scalars:
    """Prints payload operations of one kernel on scalar operands.

    Attributes:
        index: C++ type of indices.
        use: called with the key of every helper that an expression calls.
        ranges: bounds of index values.
        exact: whether expressions must have exactly the C++ type of their IR type, because `auto` variables take their
            type from them.
    """

    index: str
    use: Callable[[str], None]
    ranges: Ranges
    exact: bool = False

    def print(self, op: Operation, operands: Sequence[Expr]) -> Expr:
        """Returns the C++ expression of an operation with one result.

        Raises CompileError if neither this class nor a plug-in can print the operation.
        """
        t, printer, result = element_type(op.results[0].type), _PRINTERS.get(op.name), None
        if len(op.results) == 1 and (op.name in _OF_ALL_TYPES or not is_float(t) or c_type(t) in ("float", "double")):
            result = self.combine(op.name, t, operands) if printer is None else printer(self, op, operands, t)
        return self._print_by_plugin(op, operands, t) if result is None else result

    def _print_by_plugin(self, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr:
        printer = rule_of(PRINTERS_GROUP, op.name)
        if printer is None:
            raise refused(op, "cannot be printed as C++", CompileError)
        return printer(self, op, operands, t)

    def literal(self, value: float, t: Attribute) -> Expr:
        """Returns a literal of type `t` that represents `value` exactly."""
        name = c_type(t, self.index)
        if name in STRUCTS:
            self.use(name)
            return _struct_literal(value, name, t)
        if name not in ("float", "double"):
            return _integer_literal(int(value), name, t)
        return _float_literal(float(value), name) if math.isfinite(value) else self._special_literal(value, name)

    def _special_literal(self, value: float, name: str) -> Expr:
        width = "32" if name == "float" else "64"
        if math.isnan(value):
            return self.helper(f"nan{width}", [])
        positive = self.helper(f"inf{width}", [])
        return positive if value > 0 else Expr(f"-{positive.text}", UNARY)

    def helper(self, name: str, operands: Sequence[Expr], c: str = "") -> Expr:
        """Returns a call of a helper, and marks the helper as used.

        Args:
            name: C++ name of the helper.
            operands: its arguments.
            c: C++ type that selects an overload, or "" if there is only one.
        """
        self.use(f"{name}.{c}" if c else name)
        return call(name, operands)

    def combine(self, name: str, t: Attribute, operands: Sequence[Expr]) -> Expr | None:
        """Returns the C++ of a binary operation that is defined for all operands, or None for other operations.

        Args:
            name: name of the operation.
            t: type of the operands.
            operands: both operands.
        """
        operator = OPERATORS.get(name)
        if operator is None:
            return None
        a, b = operands
        if isinstance(t, IndexType) and name == "arith.addi":
            return add(a, b)
        if operator.level != ATOM and (is_float(t) or isinstance(t, IndexType)):
            return infix(a, operator.symbol, b, operator.level)
        return self.helper(operator.symbol, operands, c_type(t)) if is_float(t) else self._integers(name, t, a, b)

    def combined(self, name: str, t: Attribute, a: Expr, b: Expr) -> Expr:
        """Returns the C++ that combines two partial results of a reduction.

        Booleans are combined by `&` and `|`: `&&` would skip the shuffle in its second operand in some lanes.

        Args:
            name: name of the combining operation.
            t: type of the operands.
            a: first operand.
            b: second operand.
        """
        if t == i1 and (on_bool := OPERATORS[name].on_bool) is not None:
            symbol = {"&&": "&", "||": "|"}.get(on_bool[0], on_bool[0])
            return Expr(f"(bool)({a.text} {symbol} {b.text})", UNARY)
        result = self.combine(name, t, (a, b))
        assert result is not None, name
        return result

    def _integers(self, name: str, t: Attribute, a: Expr, b: Expr) -> Expr | None:
        operator, c, operands = OPERATORS[name], c_type(t, self.index), [a, b]
        if t == i1:
            return None if operator.on_bool is None else infix(a, operator.on_bool[0], b, operator.on_bool[1])
        if name in WRAPPING and c in ("int", "long long"):
            return self.helper(operator.helper, operands, c)
        if operator.level != ATOM:
            return _narrowed(infix(a, operator.symbol, b, operator.level), c)
        wide = _unsigned(c) if name in UNSIGNED else "int" if c in NARROW else ""
        # The C++ literal of an index constant is an int, which min and max do not accept together with a long long.
        wide = "long long" if not wide and isinstance(t, IndexType) and c == "long long" else wide
        operands = [Expr(f"({wide}){o.at(UNARY)}", UNARY) if wide else o for o in operands]
        return _narrowed(call(operator.symbol, operands), c, name if self.exact else "")

    def cast(self, a: Expr, source: Attribute, target: Attribute) -> Expr:
        """Returns the C++ of `payload.cast`.

        Args:
            a: operand.
            source: type of the operand.
            target: type of the result.
        """
        c_source, c_target = c_type(source, self.index), c_type(target, self.index)
        if c_source == c_target:
            return a if source == target else self.as_index(a, source)
        if c_source in STRUCTS:
            if a.level == ATOM and c_target == "float" and (rounded := a.text.removeprefix("to_bf16(")) != a.text:
                return self.helper("round_bf16", [Expr(rounded.removesuffix(")"))])
            self.use(f"to_f32.{c_source}")
            a, c_source = call("to_f32", [a]), "float"
            if c_target == "float":
                return a
        if c_target in STRUCTS:
            return self.helper(f"to_{c_target}", [a if c_source == "float" else Expr(f"(float){a.at(UNARY)}", UNARY)])
        if c_target == "bool":
            return Expr(f"{a.at(ADD)} != 0", EQUALITY)
        return Expr(f"({c_target}){a.at(UNARY)}", UNARY)

    def as_index(self, a: Expr, t: Attribute) -> Expr:
        """Returns `a` cast to `long long` if `t` is a 64-bit index, else `a`.

        Literals and loop counters of such indices are printed as `int`, which would select the wrong overload.
        """
        wide = isinstance(element_type(t), IndexType) and self.index == "long long"
        return Expr(f"(long long){a.at(UNARY)}", UNARY) if wide else a


def _select(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr:
    condition, a, b = (o.at(OR) for o in operands)
    return Expr(f"{condition} ? {a} : {b}", TERNARY)


def _assert(scalars: Scalars, op: AssertOp, operands: Sequence[Expr], t: Attribute) -> Expr:
    checked = scalars.helper("asserted", [*operands, Expr(json.dumps(op.text))])
    c = c_type(t, scalars.index)
    return checked if c == "long long" else Expr(f"({c}){checked.text}", UNARY)


def _bitcast(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr | None:
    (a,), s = operands, element_type(op.operands[0].type)
    names = c_type(s), c_type(t)
    if names[0] == names[1]:
        return a
    if names in BITS:
        return scalars.helper(BITS[names], [a])
    if names[0] in STRUCTS and isinstance(t, IntegerType) and c_size(s) == c_size(t):
        return Expr(f"({names[1]}){a.at(ATOM)}.bits", UNARY)
    if names[1] in STRUCTS and isinstance(s, IntegerType) and c_size(s) == c_size(t):
        scalars.use(names[1])
        return Expr(f"{names[1]}{{({STRUCTS[names[1]]}){a.at(UNARY)}}}")
    return None


def _function(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr:
    if isinstance(op, Exp2Op) and c_type(t) == "float" and FastMathFlag.APPROX_FUNC in op.fastmath.data:
        return scalars.helper("exp2_approx", operands)
    return call(FLOAT_FUNCTIONS[op.name] + _SUFFIX[c_type(t)], operands)


def _integer(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr:
    c, ranges = c_type(t, scalars.index), scalars.ranges
    if op.name == "math.absi":
        return _narrowed(call("llabs" if c == "long long" else "abs", operands), c)
    if op.name == "arith.floordivsi" and ranges.is_natural(op.operands[0]) and ranges.of(op.operands[1])[0] > 0:
        return infix(operands[0], "/", operands[1], MUL)
    return Expr(f"({c}){scalars.helper(INTEGER_FUNCTIONS[op.name], operands).text}", UNARY)


def _divide(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr | None:
    """Returns a division, remainder or shift.

    Prints the C++ operator for a non-negative index if the divisor is positive, or the shift is less than 32 bits.
    """
    operator, (least, most) = OPERATORS[op.name], scalars.ranges.of(op.operands[1])
    defined = 0 <= least and most < 32 if operator.level == SHIFT else least > 0
    if isinstance(t, IndexType) and defined and scalars.ranges.is_natural(op.operands[0]):
        return infix(operands[0], operator.symbol, operands[1], operator.level)
    return _divide_safely(scalars, op, operands, t)


def _divide_safely(scalars: Scalars, op: Operation, operands: Sequence[Expr], t: Attribute) -> Expr | None:
    """Returns a division, remainder or shift, or None for `i1`.

    Calls a helper unless the ranges prove that the C++ operator is defined: the divisor is never 0 or -1, the shift is
    less than the width of the type, and a number that is shifted left is not negative.
    """
    if t == i1:
        return None
    ranges, narrow = scalars.ranges, c_type(t, scalars.index)
    operator, least, most = OPERATORS[op.name], *ranges.of(op.operands[1])
    c, natural = narrow, ranges.is_natural(op.operands[0])
    if op.name in UNSIGNED and not (isinstance(t, IndexType) and all(map(ranges.is_natural, op.operands))):
        c = _unsigned(c)
        operands = [Expr(f"({c}){o.at(UNARY)}", UNARY) for o in operands]
    name = op.name if c != narrow and scalars.exact else ""
    if operator.level == SHIFT:
        total = 0 <= least and most < (64 if "long" in c else 32) and (operator.symbol == ">>" or natural)
    else:
        total = least > 0 or most < -1
    if total:
        return _narrowed(infix(operands[0], operator.symbol, operands[1], operator.level), narrow, name)
    kind = c if "long" in c else "int" if c in NARROW or "unsigned" not in c else "unsigned"
    if c == narrow:
        operands = [scalars.as_index(o, t) for o in operands]
    return _narrowed(scalars.helper(operator.helper, operands, kind), narrow, name)


PRINTERS_GROUP = "deplodock.printers"
"""Group of entry points that print third-party operations; each entry point has the name of its operation.

An elementwise operation is printed by a function of `Scalars`, the operation, its operands and its element type. Any
other operation is printed by a function of `Statements` and the operation.
"""

_OF_ALL_TYPES = (CmpOp.name, SelectOp.name, AssertOp.name, CastOp.name, BitcastOp.name)
"""Operations that are also printed for narrow floats such as `bf16`; others only for `float` and `double`."""

_PRINTERS: dict[str, Callable[[Scalars, Any, Sequence[Expr], Attribute], Expr | None]] = {
    CmpOp.name: lambda _, op, o, t: infix(
        o[0], COMPARISONS[op.predicate.data][0], o[1], COMPARISONS[op.predicate.data][1]
    ),
    SelectOp.name: _select,
    AssertOp.name: _assert,
    CastOp.name: lambda scalars, op, operands, t: scalars.cast(operands[0], op.operands[0].type, t),
    BitcastOp.name: _bitcast,
    "arith.negf": lambda _, op, o, t: Expr(f"-({o[0].text})" if o[0].text[0] == "-" else f"-{o[0].at(UNARY)}", UNARY),
    "payload.combine_bf16x3": lambda _, op, o, t: infix(infix(o[2], "+", o[1], ADD), "+", o[0], ADD),
    "payload.round_tf32": lambda scalars, op, operands, t: scalars.helper("round_tf32", operands),
    **dict.fromkeys(FLOAT_FUNCTIONS, _function),
    "math.fpowi": lambda _, op, o, t: call(f"pow{_SUFFIX[c_type(t)]}", [o[0], Expr(f"({c_type(t)}){o[1].at(UNARY)}")]),
    **dict.fromkeys(("math.absi", *INTEGER_FUNCTIONS), _integer),
    **{f"arith.{name}": _divide for name in ("shli", "shrsi", "shrui", "divsi", "divui", "remsi", "remui")},
}
"""Operation -> its printer, for operations that need more than an operator of `OPERATORS`."""


Register = int | str
"""Number of a register: a constant, or the C++ loop variable that counts the registers."""


def offset_of(register: int, steps: Sequence[int]) -> int:
    """Returns the sum of `steps[b]` over the set bits b of `register`."""
    return sum(step for b, step in enumerate(steps) if register >> b & 1)


def without_parentheses(text: str) -> str:
    """Returns `text` without the pair of parentheses that encloses all of it, if there is one."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, c in enumerate(text):
            depth += {"(": 1, ")": -1}.get(c, 0)
            if depth == 0:
                return text[1:-1] if position == len(text) - 1 else text
    return text


def terms(register: Register, steps: Sequence[int], low: int = 0, top: int | None = None) -> Expr:
    """Returns the C++ sum of `steps[b]` over the set bits b of a register number.

    Adjacent bits whose steps double become one term: steps 1, 2, 16 give `(i & 3) + (i >> 2) * 16`.

    Args:
        register: number of the register.
        steps: offset of each bit.
        low: number of lowest bits that are known to be 0.
        top: number of bits of a register number; default: the length of `steps`.
    """
    bits = len(steps) if top is None else top
    if isinstance(register, int):
        number = offset_of(register, steps)
        return Expr(str(number), ATOM if number >= 0 else UNARY)
    if register != "i" and not register.isidentifier():
        register = f"({register})"
    result, b = Expr("0"), low
    while b < len(steps):
        end = b + 1
        while end < len(steps) and steps[end] == steps[b] << (end - b):
            end += 1
        if steps[b]:
            result = add(result, _run(register, b, end, steps[b], low, end == bits))
        b = end
    return result


def flips(register: Register, images: Sequence[int], low: int = 0) -> Expr:
    """Returns the C++ exclusive or of `images[b]` over the set bits b of a register number.

    Args:
        register: number of the register.
        images: number for each bit.
        low: number of lowest bits that are known to be 0.
    """
    if isinstance(register, int):
        return Expr(str(combine(images, register)))
    seen, parts = 0, list[list[int]]([[]])
    for bit, image in enumerate(images):
        if seen & image:
            seen = 0
            parts.append([0] * bit)
        seen |= image
        parts[-1].append(image)
    sums = [terms(register, part, low, len(images)) for part in parts]
    return reduce(lambda a, b: infix(a, "^", b, BIT_XOR), [s for s in sums if s.text != "0"] or [Expr("0")])


def _run(register: str, b: int, end: int, step: int, low: int, is_top: bool) -> Expr:
    """Returns `step` times the number in the bits [b, end) of a register number.

    `is_top` is true if no set bit is above these; the bits below `low` are 0.
    """
    if is_top and b == low and step % (1 << b) == 0:
        return multiply(Expr(register), step >> b)
    shifted = f"{register} >> {b}" if b else register
    if not is_top:
        shifted = f"{shifted} & {(1 << (end - b)) - 1}"
    return multiply(Expr(f"({shifted})" if shifted != register else register), step)
