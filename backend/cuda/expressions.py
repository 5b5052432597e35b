"""One payload operation on scalars as a C++ expression.

Adding an operation that CUDA spells in its own way means one line in a table here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import IndexType, IntegerType, i1
from xdsl.dialects.math import Exp2Op
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from ...dialects.kernel_ranges import Ranges
from ...dialects.locations import location_text
from ...dialects.payload import AssertOp, CastOp, CmpOp, Predicate, SelectOp, element_type, is_float
from ...errors import CompileError
from .types import (
    ADD,
    AND,
    ATOM,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    EQUALITY,
    MUL,
    OR,
    RELATION,
    SHIFT,
    TERNARY,
    UNARY,
    Expr,
    c_type,
)

Use = Callable[[str], None]
"""Called with the key of every helper that an expression calls."""

FLOAT_OPERATORS = {
    "arith.addf": ("+", ADD),
    "arith.subf": ("-", ADD),
    "arith.mulf": ("*", MUL),
    "arith.divf": ("/", MUL),
}

INTEGER_OPERATORS = {
    "arith.addi": ("+", ADD),
    "arith.subi": ("-", ADD),
    "arith.muli": ("*", MUL),
    "arith.divsi": ("/", MUL),
    "arith.remsi": ("%", MUL),
    "arith.shli": ("<<", SHIFT),
    "arith.shrsi": (">>", SHIFT),
    "arith.andi": ("&", BIT_AND),
    "arith.ori": ("|", BIT_OR),
    "arith.xori": ("^", BIT_XOR),
}
UNSIGNED_OPERATORS = {"arith.divui": ("/", MUL), "arith.remui": ("%", MUL), "arith.shrui": (">>", SHIFT)}
PARTIAL = {"/": "int_div", "%": "int_rem", "<<": "shift_left", ">>": "shift_right"}
"""Helpers for what C++ leaves undefined for some divisors and numbers of bits."""
BOOL_OPERATORS = {
    **dict.fromkeys(("arith.andi", "arith.muli", "arith.minsi", "arith.minui"), ("&&", AND)),
    **dict.fromkeys(("arith.ori", "arith.maxsi", "arith.maxui"), ("||", OR)),
    **dict.fromkeys(("arith.xori", "arith.addi", "arith.subi"), ("!=", EQUALITY)),
}
"""On i1: arithmetic modulo 2, and false < true as in `payload.cmp`."""
WRAPPING = {
    "arith.addi": "wrap_add",
    "arith.subi": "wrap_sub",
    "arith.muli": "wrap_mul",
}
COMPARISONS = {
    Predicate.EQ: ("==", EQUALITY),
    Predicate.NE: ("!=", EQUALITY),
    Predicate.LT: ("<", RELATION),
    Predicate.LE: ("<=", RELATION),
    Predicate.GT: (">", RELATION),
    Predicate.GE: (">=", RELATION),
}

NARROW = ("signed char", "short", "unsigned char", "unsigned short")
"""Integers that C++ computes on as `int`."""

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
"""Functions of CUDA on double; on float they end in `f`. All of them precise; only where an operation says that it may
be approximate, there is another one."""


def infix(a: Expr, operator: str, b: Expr, level: int) -> Expr:
    """`a operator b`, with parentheses where C++ needs them and where readers (and compilers) want them."""
    inner = level if level in (ADD, MUL) else ADD if level in (RELATION, EQUALITY) else UNARY
    if level in (AND, OR):
        inner = EQUALITY if a.level != level else level
    right = level + 5 if level in (ADD, MUL) and operator not in ("+",) else inner
    right = MUL if level == ADD else right
    if level in (BIT_AND, BIT_XOR, BIT_OR):
        return Expr(f"{a.at(UNARY if a.level != level else level)} {operator} {b.at(inner)}", level)
    return Expr(f"{a.at(inner)} {operator} {b.at(right)}", level)


def add(a: Expr, b: Expr) -> Expr:
    """`a + b` for indices, without zeros and parentheses."""
    if a.text == "0":
        return b
    if b.text == "0":
        return a
    if b.text.startswith("-"):
        return Expr(f"{a.at(ADD)} - {b.text[1:]}", ADD) if b.level == UNARY else infix(a, "+", b, ADD)
    return Expr(f"{a.at(ADD)} + {b.at(ADD)}", ADD)


def multiply(a: Expr, factor: int) -> Expr:
    """`a * factor` for a constant."""
    if factor == 1 or a.text == "0":
        return a
    return Expr("0") if factor == 0 else infix(a, "*", Expr(str(factor), ATOM if factor > 0 else UNARY), MUL)


def call(name: str, operands: Sequence[Expr]) -> Expr:
    """A function call."""
    return Expr(f"{name}({', '.join(o.text for o in operands)})")


def _result_type(op: Operation) -> Attribute:
    return element_type(op.results[0].type)


def payload_expression(op: Operation, operands: Sequence[Expr], index: str, use: Use, ranges: Ranges) -> Expr:
    """The C++ of a payload operation with one result, for operands that are scalars already.

    `index` is the C++ type of indices. Raises CompileError for an operation that has no C++.
    """
    if len(op.results) == 1:
        found = _expression(op, operands, index, use, ranges)
        if found is not None:
            return found
    raise CompileError("cannot be printed as CUDA", operator=op.name, location=location_text(op))


def _expression(op: Operation, operands: Sequence[Expr], index: str, use: Use, ranges: Ranges) -> Expr | None:
    if isinstance(op, CmpOp):
        operator, level = COMPARISONS[op.predicate.data]
        return infix(operands[0], operator, operands[1], level)
    if isinstance(op, SelectOp):
        condition, a, b = operands
        return Expr(f"{condition.at(OR)} ? {a.at(OR)} : {b.at(OR)}", TERNARY)
    if isinstance(op, AssertOp):
        use("asserted")
        checked = call("asserted", [*operands, Expr(json.dumps(op.text))])
        c = c_type(op.result.type, index)
        return checked if c == "long long" else Expr(f"({c}){checked.text}", UNARY)
    if isinstance(op, CastOp):
        return cast(operands[0], op.operand.type, op.result.type, index, use)
    t = _result_type(op)
    if op.name == "arith.bitcast":
        return _bitcast(operands[0], element_type(op.operands[0].type), t, use)
    return _float(op, operands, t, use) if is_float(t) else _integer(op, operands, t, index, use, ranges)


def _float(op: Operation, operands: Sequence[Expr], t: Attribute, use: Use) -> Expr | None:
    c = c_type(t)
    if c not in ("float", "double"):
        return None
    if op.name in FLOAT_OPERATORS:
        operator, level = FLOAT_OPERATORS[op.name]
        return infix(operands[0], operator, operands[1], level)
    if op.name == "arith.negf":
        return negate(operands[0])
    if op.name in ("arith.maximumf", "arith.minimumf"):
        name = "max_nan" if op.name == "arith.maximumf" else "min_nan"
        use(f"{name}.{c}")
        return call(name, operands)
    if op.name == "payload.join":
        operator, level = FLOAT_OPERATORS["arith.addf"]
        return infix(infix(operands[2], operator, operands[1], level), operator, operands[0], level)
    if op.name == "payload.round_tf32":
        use("round_tf32")
        return call("round_tf32", operands)
    if isinstance(op, Exp2Op) and c == "float" and FastMathFlag.APPROX_FUNC in op.fastmath.data:
        use("exp2_approx")
        return call("exp2_approx", operands)
    if op.name in FLOAT_FUNCTIONS:
        return call(FLOAT_FUNCTIONS[op.name] + ("f" if c == "float" else ""), operands)
    if op.name == "math.fpowi":
        return call("powf" if c == "float" else "pow", [operands[0], Expr(f"({c}){operands[1].at(UNARY)}", UNARY)])
    return None


def negate(a: Expr) -> Expr:
    """`-a`; never `--`."""
    return Expr(f"-({a.text})" if a.text.startswith("-") else f"-{a.at(UNARY)}", UNARY)


def _integer(
    op: Operation, operands: Sequence[Expr], t: Attribute, index: str, use: Use, ranges: Ranges
) -> Expr | None:
    c, name = c_type(t, index), op.name
    if t == i1:
        return _boolean(name, operands)
    is_index = isinstance(t, IndexType)
    if name in WRAPPING and not is_index and c in ("int", "long long"):
        use(f"{WRAPPING[name]}.{c}")
        return call(WRAPPING[name], operands)
    if name in UNSIGNED_OPERATORS:
        operator, level = UNSIGNED_OPERATORS[name]
        if is_index and all(ranges.is_natural(v) for v in op.operands):
            return _total(op, operands, operator, level, c, use, ranges)
        unsigned = "unsigned " + c.removeprefix("signed ").removeprefix("unsigned ")
        operands = [Expr(f"({unsigned}){o.at(UNARY)}", UNARY) for o in operands]
        return _narrowed(_total(op, operands, operator, level, unsigned, use, ranges), c)
    if is_index and name == "arith.addi":
        return add(operands[0], operands[1])
    if name in INTEGER_OPERATORS:
        operator, level = INTEGER_OPERATORS[name]
        return _narrowed(_total(op, operands, operator, level, c, use, ranges), c)
    if name in ("arith.floordivsi", "arith.ceildivsi"):
        if name == "arith.floordivsi" and ranges.is_natural(op.operands[0]) and ranges.of(op.operands[1])[0] > 0:
            return infix(operands[0], "/", operands[1], MUL)
        helper = "floor_div" if name == "arith.floordivsi" else "ceil_div"
        use(helper)
        return Expr(f"({c}){call(helper, operands).text}", UNARY)
    if name in ("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"):
        prefix = "" if name.endswith("si") else f"(unsigned {c.removeprefix('signed ').removeprefix('unsigned ')})"
        prefix = "(int)" if not prefix and c in NARROW else prefix
        prefix = "(long long)" if not prefix and is_index and c == "long long" else prefix  # a literal is an int
        return _narrowed(call(name[6:9], [Expr(prefix + o.at(UNARY), UNARY) if prefix else o for o in operands]), c)
    if name == "math.absi":
        return _narrowed(call("llabs" if c == "long long" else "abs", operands), c)
    if name == "math.ipowi":
        use("int_pow")
        return Expr(f"({c}){call('int_pow', operands).text}", UNARY)
    return None


def _total(
    op: Operation, operands: Sequence[Expr], operator: str, level: int, c: str, use: Use, ranges: Ranges
) -> Expr:
    """`a operator b` in the C++ type `c`; a division by something that may be 0 or -1 is a call, and so is a shift by
    something that may be more bits than there are, or to the left of what may be negative."""
    least, most = ranges.of(op.operands[1])
    shifts = level == SHIFT and 0 <= least and most < (64 if "long" in c else 32)
    known = operator == ">>" or ranges.is_natural(op.operands[0])
    if operator not in PARTIAL or (shifts and known if level == SHIFT else least > 0 or most < -1):
        return infix(operands[0], operator, operands[1], level)
    kind = c if "long" in c else "int" if c in NARROW or "unsigned" not in c else "unsigned"
    use(f"{PARTIAL[operator]}.{kind}")
    return call(PARTIAL[operator], operands)


def _boolean(name: str, operands: Sequence[Expr]) -> Expr | None:
    if name not in BOOL_OPERATORS:
        return None
    operator, level = BOOL_OPERATORS[name]
    return infix(operands[0], operator, operands[1], level)


def _narrowed(a: Expr, c: str) -> Expr:
    """C++ computes small integers in `int`: back to their own width."""
    return Expr(f"({c}){a.at(UNARY)}", UNARY) if c in NARROW else a


def cast(a: Expr, source: Attribute, target: Attribute, index: str, use: Use) -> Expr:
    """`a` converted as `payload.cast` does."""
    s, t = element_type(source), element_type(target)
    c_source, c_target = c_type(s, index), c_type(t, index)
    if c_source == c_target:
        return a
    if c_source in ("bf16", "f16"):
        use(f"to_f32.{c_source}")
        a, c_source = call("to_f32", [a]), "float"
        if c_target == "float":
            return a
    if c_target in ("bf16", "f16"):
        use(f"to_{c_target}")
        return call(f"to_{c_target}", [a if c_source == "float" else Expr(f"(float){a.at(UNARY)}", UNARY)])
    if c_target == "bool":
        return Expr(f"{a.at(ADD)} != 0", EQUALITY)
    return Expr(f"({c_target}){a.at(UNARY)}", UNARY)


def _bitcast(a: Expr, s: Attribute, t: Attribute, use: Use) -> Expr | None:
    names = c_type(s), c_type(t)
    words = {
        ("int", "float"): "float",
        ("float", "int"): "int",
        ("long long", "double"): "double",
        ("double", "long long"): "long",
    }
    if names[0] == names[1]:
        return a
    if names in words:
        use(f"bits_to_{words[names]}")
        return call(f"bits_to_{words[names]}", [a])
    if names[0] in ("bf16", "f16") and isinstance(t, IntegerType) and t.width.data == 16:
        return Expr(f"({names[1]}){a.at(ATOM)}.bits", UNARY)
    if names[1] in ("bf16", "f16") and isinstance(s, IntegerType) and s.width.data == 16:
        use(names[1])
        return Expr(f"{names[1]}{{(unsigned short){a.at(UNARY)}}}")
    return None
