"""Exercises of chapter 5: patterns in Python and in PDL."""

from __future__ import annotations

import ast

from xdsl.dialects import pdl
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.apply_pdl import ApplyPDLPass
from xdsl.utils.exceptions import VerifyException

from .....dialects import make_context
from .....dialects.support.parsing import parse_module
from .....errors import DeplodockError
from .....passes.pipelines import defined_passes
from ...answers import Answer
from ...course import Chapter, Exercise
from ...rewrites import Case, require_rewrites
from ...verdicts import Wrong

VECTOR = "tensor<10xf32>"


def program(*lines: str) -> str:
    """Returns a program of two vectors, `%x` and `%y`, that returns the value `%r`.

    Args:
        lines: operations without their type, in which `N` means `payload.constant`: `%c = N 1.0`.
    """
    lines = tuple(line.replace("N ", "payload.constant ") for line in lines)
    body = "".join(f"  {line} : {VECTOR}\n" for line in (*lines, "func.return %r"))
    return f"func.func @main(%x: {VECTOR}, %y: {VECTOR}) -> {VECTOR} {{\n{body}}}\n"


def pass_named(answer: Answer, name: str) -> ModulePass:
    """Returns the pass of a Python file. Raises Wrong if the file does not define it."""
    try:
        classes = {cls.name: cls for cls in defined_passes(answer.namespace(), answer.path.name)}
    except DeplodockError as error:
        raise Wrong(str(error)) from None
    if name not in classes:
        raise Wrong(f"expected a pass with the name {name!r}, but the file defines {', '.join(classes)}")
    return classes[name]()


def _advice(answer: Answer) -> str:
    """Returns the end of the verdict on a Python file whose pass fires nowhere."""
    methods = [n for n in ast.walk(ast.parse(answer.text)) if getattr(n, "name", "") == "match_and_rewrite"]
    for node in (n for method in methods for n in ast.walk(method)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Attribute | ast.Name):
            return f"; line {node.lineno}: a value that the method returns has no effect: call rewriter.replace"
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.Eq)
            and {"lhs", "rhs"} & {getattr(n, "attr", "") for n in _sides(node)}
        ):
            return f"; line {node.lineno}: a value of the program equals no number: constant(...) reads the number"
    return "; does the condition ever hold, and is rewriter.replace called?"


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _has_minus_zero(node: ast.Compare) -> bool:
    """Returns true if a comparison names the number -0.0."""
    return any(ast.unparse(side) in ("-0.0", "-0") for side in _sides(node))


TIMES_ONE = (
    Case("x * 1.0", program("%c = N 1.0", "%r = arith.mulf %x, %c"), "arith.mulf"),
    Case("1.0 * x, with the constant first", program("%c = N 1.0", "%r = arith.mulf %c, %x"), "arith.mulf"),
    Case("(x * 1.0) * 1.0", program("%c = N 1.0", "%0 = arith.mulf %x, %c", "%r = arith.mulf %0, %c"), "arith.mulf"),
    Case("1.0 * 1.0", program("%c = N 1.0", "%r = arith.mulf %c, %c"), "arith.mulf"),
    Case("x * y", program("%r = arith.mulf %x, %y")),
    Case("x * 2.0", program("%c = N 2.0", "%r = arith.mulf %x, %c")),
    Case("x * (-1.0)", program("%c = N -1.0", "%r = arith.mulf %x, %c")),
    Case("x * 0.0", program("%c = N 0.0", "%r = arith.mulf %x, %c")),
    Case("2.0 * x", program("%c = N 2.0", "%r = arith.mulf %c, %x")),
    Case("x * 1.5", program("%c = N 1.5", "%r = arith.mulf %x, %c")),
    Case("0.5 * x", program("%c = N 0.5", "%r = arith.mulf %c, %x")),
    Case("x * 1.0000001", program("%c = N 1.0000001", "%r = arith.mulf %x, %c")),
    Case("0.9999999 * x", program("%c = N 0.9999999", "%r = arith.mulf %c, %x")),
    Case("x + 1.0", program("%c = N 1.0", "%r = arith.addf %x, %c")),
)


def judge_times_one(answer: Answer) -> str:
    return require_rewrites(pass_named(answer, "fold-times-one"), TIMES_ONE, advice=_advice(answer))


MINUS_ZERO_EQUALS_ZERO = "in Python -0.0 == 0.0 is true, so this comparison is true for both zeros"

PLUS_ZERO = (
    Case("x + (-0.0)", program("%c = N -0.0", "%r = arith.addf %x, %c"), "arith.addf"),
    Case("-0.0 + x", program("%c = N -0.0", "%r = arith.addf %c, %x"), "arith.addf"),
    Case("x - 0.0", program("%c = N 0.0", "%r = arith.subf %x, %c"), "arith.subf"),
    Case("-0.0 + (-0.0)", program("%c = N -0.0", "%r = arith.addf %c, %c"), "arith.addf"),
    Case("x + 0.0", program("%c = N 0.0", "%r = arith.addf %x, %c")),
    Case("0.0 + x", program("%c = N 0.0", "%r = arith.addf %c, %x")),
    Case("x - (-0.0)", program("%c = N -0.0", "%r = arith.subf %x, %c")),
    Case("0.0 - x", program("%c = N 0.0", "%r = arith.subf %c, %x")),
    Case("-0.0 - x", program("%c = N -0.0", "%r = arith.subf %c, %x")),
    Case("x + 1.0", program("%c = N 1.0", "%r = arith.addf %x, %c")),
    Case("-1.0 + x", program("%c = N -1.0", "%r = arith.addf %c, %x")),
    Case("x + (-1.0)", program("%c = N -1.0", "%r = arith.addf %x, %c")),
    Case("x + (-1e-30)", program("%c = N -1.0e-30", "%r = arith.addf %x, %c")),
    Case("x - 1.0", program("%c = N 1.0", "%r = arith.subf %x, %c")),
    Case("x - 1e-30", program("%c = N 1.0e-30", "%r = arith.subf %x, %c")),
    Case("x + y", program("%r = arith.addf %x, %y")),
    Case("x - y", program("%r = arith.subf %x, %y")),
)


def judge_plus_zero(answer: Answer) -> str:
    try:
        fires = require_rewrites(pass_named(answer, "fold-plus-zero"), PLUS_ZERO, advice=_advice(answer))
    except Wrong as wrong:
        lines = [
            n.lineno for n in ast.walk(ast.parse(answer.text)) if isinstance(n, ast.Compare) and _has_minus_zero(n)
        ]
        raise Wrong(f"{wrong}; line {lines[0]}: {MINUS_ZERO_EQUALS_ZERO}" if lines else str(wrong)) from None
    return f"{fires}. PyTorch's x + 0.0 stays an addition: its only effect is to turn -0.0 into 0.0"


def _maximum(first: str, second: str, *constants: str) -> str:
    return program(*constants, f"%0 = arith.maximumf {first}", f"%r = arith.maximumf {second}")


MAXIMUM_TWICE = (
    Case(
        "relu(relu(x))",
        _maximum("%x, %c", "%0, %c", "%c = N 0.0"),
        "arith.maximumf",
        leaves=1,
        twin=(
            "the pattern fires where %inner is the second operand; PDL compares operands in their order",
            _maximum("%x, %c", "%c, %0", "%c = N 0.0"),
        ),
    ),
    Case("maximum(maximum(x, y), y)", _maximum("%x, %y", "%0, %y"), "arith.maximumf", leaves=1),
    Case(
        "relu(relu(relu(x)))",
        program(
            "%c = N 0.0", "%0 = arith.maximumf %x, %c", "%1 = arith.maximumf %0, %c", "%r = arith.maximumf %1, %c"
        ),
        "arith.maximumf",
        leaves=1,
    ),
    Case("relu(x)", program("%c = N 0.0", "%r = arith.maximumf %x, %c")),
    Case("maximum(maximum(x, 0.0), 1.0)", _maximum("%x, %c", "%0, %d", "%c = N 0.0", "%d = N 1.0")),
    Case("maximum(maximum(x, 1.0), y)", _maximum("%x, %c", "%0, %y", "%c = N 1.0")),
    Case("maximum(x - 1.0, 1.0)", program("%c = N 1.0", "%0 = arith.subf %x, %c", "%r = arith.maximumf %0, %c")),
    Case("minimum(maximum(x, 1.0), 1.0)",
         program("%c = N 1.0", "%0 = arith.maximumf %x, %c", "%r = arith.minimumf %0, %c")),
)  # fmt: skip


def judge_maximum_twice(answer: Answer) -> str:
    try:
        module = parse_module(make_context(), answer.text, answer.path.name)
    except DeplodockError as error:
        raise Wrong(f"the pattern is not valid: {error}") from None
    try:
        module.verify()
    except VerifyException as error:
        raise Wrong(f"the pattern is not valid: {_unused(module) or error}") from None
    advice = "; does the pattern describe two maxima, the second with the operands %inner and %c?"
    return require_rewrites(ApplyPDLPass(str(answer.path)), MAXIMUM_TWICE, advice=advice)


def _unused(module: ModuleOp) -> str:
    """Returns a sentence about a part of a pattern that nothing uses, or an empty text."""
    rewritten = [op.root.name_hint for op in module.walk() if isinstance(op, pdl.RewriteOp) and op.root]
    for op in module.walk():
        if op.results and isinstance(op.parent_op(), pdl.PatternOp) and not any(r.uses for r in op.results):
            name = f"%{op.results[0].name_hint}"
            if isinstance(op, pdl.OperationOp) and rewritten:
                return f"{name} is described, but nothing uses it: should pdl.rewrite name it, and not %{rewritten[0]}?"
            return f"{name} is described, but nothing uses it"
    return ""


def _exp_log(*lines: str) -> str:
    return program(*lines, "%log = math.log %a", "%r = math.exp %log")


EXP_LOG = (
    Case("exp(log(exp(x)))", _exp_log("%a = math.exp %x"), "math.log"),
    Case("exp(log(abs(x)))", _exp_log("%a = math.absf %x"), "math.log"),
    Case("exp(log(x * x))", _exp_log("%a = arith.mulf %x, %x"), "math.log"),
    Case("exp(log(x))", program("%log = math.log %x", "%r = math.exp %log")),
    Case("exp(log(x * y))", _exp_log("%a = arith.mulf %x, %y")),
    Case("exp(log((x * x) * x))", _exp_log("%0 = arith.mulf %x, %x", "%a = arith.mulf %0, %x")),
    Case("exp(log(exp(x) * y))", _exp_log("%0 = math.exp %x", "%a = arith.mulf %0, %y")),
    Case("exp(log(x + y))", _exp_log("%a = arith.addf %x, %y")),
    Case("exp(log(x + x))", _exp_log("%a = arith.addf %x, %x")),
    Case("exp(log(exp(x) - abs(y)))",
         _exp_log("%0 = math.exp %x", "%1 = math.absf %y", "%a = arith.subf %0, %1")),
    Case("exp(log(max(x, y)))", _exp_log("%a = arith.maximumf %x, %y")),
    Case("exp(log(max(x, x)))", _exp_log("%a = arith.maximumf %x, %x")),
    Case("exp(log(sin(x)))", _exp_log("%a = math.sin %x")),
    Case("exp(log(log(x)))", _exp_log("%a = math.log %x")),
    Case("exp(log(-1.0))", _exp_log("%a = N -1.0")),
    Case("exp(log(-exp(x)))", _exp_log("%0 = math.exp %x", "%a = arith.negf %0")),
    Case("exp(log(sqrt(x)))", _exp_log("%a = math.sqrt %x")),
    Case("exp(log(rsqrt(x)))", _exp_log("%a = math.rsqrt %x")),
    Case("exp(sin(exp(x)))", program("%0 = math.exp %x", "%1 = math.sin %0", "%r = math.exp %1")),
)  # fmt: skip


def judge_exp_log(answer: Answer) -> str:
    return require_rewrites(pass_named(answer, "fold-exp-log"), EXP_LOG, relative=1e-4, advice=_advice(answer))


def _maps(*maps: str, sizes: tuple[str, ...], fill: bool = False) -> str:
    """Returns a program of a chain of index maps; `sizes` are the shapes of the argument and of each result."""
    types = [f"tensor<{size}xf32>" for size in sizes]
    lines = ["  %zero = payload.constant 0.0 : f32\n"] if fill else []
    source = "%x"
    for n, (text, before, after) in enumerate(zip(maps, types[:-1], types[1:], strict=True)):
        lines.append(f"  %{n} = tensor.index_map {source}{text} : {before} -> {after}\n")
        source = f"%{n}"
    return (
        f"func.func @main(%x: {types[0]}) -> {types[-1]} {{\n{''.join(lines)}  func.return {source} : {types[-1]}\n}}\n"
    )


PADDED = ("if one of the two maps has a domain, leave both", "")

INDEX_MAPS = (
    Case("a transpose of a transpose", _maps("[d1, d0]", "[d1, d0]", sizes=("3x4", "4x3", "3x4")), "tensor.index_map"),
    Case("a transpose of a rotation of three dimensions", _maps("[d2, d0, d1]", "[d1, d0, d2]", sizes=("3x3x3",) * 3),
         "tensor.index_map", 1, ("the maps are composed in the other order",
                                 _maps("[d1, d0, d2]", "[d2, d0, d1]", sizes=("3x3x3",) * 3))),
    Case("a slice of a transpose", _maps("[d1, d0]", "[d0 + 1, d1]", sizes=("3x4", "4x3", "2x3")),
         "tensor.index_map", leaves=1),
    Case("a transpose of a slice", _maps("[d0 + 1, d1]", "[d1, d0]", sizes=("3x4", "2x4", "4x2")),
         "tensor.index_map", leaves=1),
    Case("a row of a broadcast", _maps("[d1]", "[1, d0]", sizes=("4", "3x4", "4")), "tensor.index_map"),
    Case("three maps", _maps("[d1, d0]", "[-d0 + 3, d1]", "[d1, d0]", sizes=("3x4", "4x3", "4x3", "3x4")),
         "tensor.index_map", leaves=1),
    Case("one transpose", _maps("[d1, d0]", sizes=("3x4", "4x3"))),
    Case("a slice, which has the map of the identity", _maps("[d0, d1]", sizes=("3x4", "2x4"))),
    Case("a transpose of a padded tensor",
         _maps("[d0 - 1, d1] where 0 <= d0 - 1 < 3 else %zero", "[d1, d0]", sizes=("3x4", "5x4", "4x5"), fill=True),
         mistake=PADDED),
    Case("a padded transpose",
         _maps("[d1, d0]", "[d0 - 1, d1] where 0 <= d0 - 1 < 4 else %zero", sizes=("3x4", "4x3", "6x3"), fill=True),
         mistake=PADDED),
)  # fmt: skip


def judge_index_maps(answer: Answer) -> str:
    return require_rewrites(pass_named(answer, "compose-index-maps"), INDEX_MAPS, advice=_advice(answer))


CHAPTER = Chapter(
    __package__ or "",
    "A first rewrite",
    [
        Exercise(
            "times_one",
            "x * 1 becomes x",
            ".py",
            judge_times_one,
            (
                "`constant(op.rhs)` is 1.0 if the right operand is the constant 1.",
                "`rewriter.replace(op, [], [op.lhs])` makes all users of the product read the left operand.",
                "The constant may be either operand. In 1 * x the value that remains is `op.rhs`.",
            ),
            seconds=3,
        ),
        Exercise(
            "plus_zero",
            "x + 0 becomes x, for one of two zeros",
            ".py",
            judge_plus_zero,
            (
                "Floats have two zeros, 0.0 and -0.0. What is -0.0 + 0.0? Ask Python.",
                "x + -0.0 is x for every x. x + 0.0 is not. x - 0.0 means x + -0.0.",
                "`constant(v) == 0.0` is true for both zeros. `math.copysign(1.0, number) < 0` is true for -0.0 only.",
                "A subtraction is not commutative: 0.0 - x is not x.",
            ),
            seconds=3,
        ),
        Exercise(
            "maximum_twice",
            "relu(relu(x)) becomes relu(x), in PDL",
            ".mlir",
            judge_maximum_twice,
            (
                "The result of the inner operation, `%inner`, is an operand of the outer one.",
                "The same name in two places means the same value: use `%c` in both operations.",
                "The rewrite replaces the outer operation by `%inner`; the inner one stays.",
            ),
            seconds=3,
        ),
        Exercise(
            "exp_log",
            "exp(log(x)) becomes x, where that is right",
            ".py",
            judge_exp_log,
            (
                "log(x) is NaN for x < 0, and so is exp(log(x)). The pattern is right only where x cannot be negative.",
                "`value.owner` is the operation that computes a value. The results of exp and abs are never negative.",
                "x * x is never negative, but x * y may be: compare the operands with `is`.",
                "A square root may be -0.0: sqrt(-0.0) is -0.0, and exp(log(-0.0)) is 0.0.",
            ),
            seconds=3,
        ),
        Exercise(
            "index_maps",
            "Two index maps become one",
            ".py",
            judge_index_maps,
            (
                "An index map reads: result[d] = source[map(d)]. Write this equation for both maps and substitute.",
                "result[d] = source[inner.map(outer.map(d))]: the map of the inner operation is applied last.",
                "`inner.map.data.compose(op.map.data)` is that map. The shape is that of the result of `op`.",
                "A map with a domain reads the fill value outside of it. If one of the two has a domain, leave both.",
            ),
            seconds=3,
        ),
    ],
)
