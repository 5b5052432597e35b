"""Exercises of chapter 12: an operation of the reader."""

from __future__ import annotations

import ast
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect
from xdsl.utils.exceptions import VerifyException

from .....backend.check_each import input_types, interpret, make_inputs
from .....backend.interpreter.exact import ExactDomain
from .....dialects import get_all_dialects, make_context
from .....dialects.support.parsing import parse_module
from .....errors import CompileError, DeplodockError
from .....passes.pass_manager import InvalidIRError
from .....passes.pipelines import get_all_passes, parse_passes
from ...answers import HOLE, Answer
from ...course import Chapter, Exercise, exercises
from ...judges import lowered, operations, parsed, require_equal
from ...lit_tests import Mutant, require_catches
from ...preloaded import __name__ as PRELOADED
from ...verdicts import Wrong

OPERATION, PASS = "mine.squared_relu", "lower-mine"

TYPE = "tensor<8x4xf32>"


def program(body: str, type_text: str = TYPE) -> str:
    """Returns a program with one argument `%x` and one result `%y` of the same type.

    Args:
        body: operations; `T` is the type.
        type_text: the type.
    """
    text = f"func.func @main(%x: T) -> T {{\n{body}\nfunc.return %y : T\n}}"
    return text.replace("T", type_text)


USES = {
    "one operation": ("%y = mine.squared_relu %x : T", 1),
    "two in a row": ("%0 = mine.squared_relu %x : T\n%y = mine.squared_relu %0 : T", 2),
    "two users": ("%0 = mine.squared_relu %x : T\n%y = arith.addf %0, %0 : T", 1),
}
"""Program in words -> its operations, and the number of operations of the reader."""

ONE = USES["one operation"][0]

EXPANDED = """
%zero{n} = payload.constant 0.0 : T
%max{n} = arith.maximumf {x}, %zero{n} : T
{y} = arith.mulf %max{n}, %max{n} : T"""


def expanded(body: str) -> str:
    """Returns a body with `mine.squared_relu` replaced by a maximum and a multiplication."""
    lines: list[str] = []
    for n, line in enumerate(body.splitlines()):
        result, _, words = line.partition(" = ")
        name, operand, *_ = words.split()
        lines.append(EXPANDED.format(n=n, x=operand, y=result) if name == OPERATION else line)
    return "\n".join(lines)


def require_no_hole(answer: Answer) -> None:
    """Requires that a file of Python has no `...` except in annotations. Raises Wrong with the line."""
    try:
        tree = ast.parse(answer.text)
    except SyntaxError:
        return
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    skipped = {id(inner) for node in parts for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in (..., HOLE) and id(node) not in skipped:
            raise Wrong(f"line {node.lineno} is still a hole (...): replace it")


def defined(answer: Answer) -> None:
    """Executes a file that declares the dialect and the interpreter of `mine.squared_relu`.

    Raises:
        Wrong: it does not declare them, or the definition is not valid.
    """
    answer.namespace()
    _require_declared()
    read(program(ONE))


def _require_declared() -> None:
    """Requires that the dialect and its operation are declared."""
    if "mine" not in get_all_dialects():
        raise Wrong('the file must declare the dialect: declare("deplodock.dialects", "mine", Dialect("mine", [...]))')
    dialect = get_all_dialects()["mine"]()
    if not isinstance(dialect, Dialect) or OPERATION not in [op.name for op in dialect.operations]:
        raise Wrong(f"the dialect mine has no operation {OPERATION}")


def read(text: str) -> ModuleOp:
    """Parses and verifies a program that uses the operation.

    Raises:
        Wrong: it is refused.
    """
    try:
        module = parse_module(make_context(), text, "program.mlir")
        module.verify()
    except (DeplodockError, VerifyException) as error:
        raise Wrong(f"a right program is refused: {error}. The program:\n{text}") from None
    return module


def judge_meaning(answer: Answer) -> str:
    """Judges the definition of the operation and its function of the interpreter."""
    require_no_hole(answer)
    _require_types(answer)
    for noun, (body, _) in USES.items():
        for element in ("f32", "f16"):
            kind = f"tensor<8x4x{element}>"
            try:
                require_equal(read(program(body, kind)), parsed(program(expanded(body), kind)))
            except Wrong as wrong:
                advice = _domain_advice(str(wrong)) or _mistake(read(program(ONE)))
                raise Wrong(f"{noun}, {element}: {wrong}{advice}") from None
    return "right: the types are checked, and the results are equal in all domains, exact, float64, f32 and f16"


def _require_types(answer: Answer) -> None:
    generic = '%y = "mine.squared_relu"(%x) : (tensor<8x4xf32>) -> tensor<8x5xf32>'
    answer.namespace()
    try:
        module = parse_module(make_context(), f"func.func @main(%x: {TYPE}) {{\n{generic}\nfunc.return\n}}", "program")
        module.verify()
    except (DeplodockError, VerifyException):
        pass
    else:
        raise Wrong(f"{OPERATION} accepts a result of another type than its operand: use one constraint for both")
    defined(answer)
    unused = read(program("%0 = mine.squared_relu %x : T\n%y = arith.negf %x : T"))
    if any(op.name == OPERATION for op in lowered(unused, "dce").walk()):
        raise Wrong(
            f"an unused {OPERATION} survives dce, which erases operations without effects: derive the class from PureOp"
        )


MISTAKES = {
    "it is the maximum, which is not squared": "%0 = payload.constant 0.0 : T\n%y = arith.maximumf %x, %0 : T",
    "it is the square of x, also where x is negative": "%y = arith.mulf %x, %x : T",
    "it is the maximum of the square and 0: the maximum must come before the square": (
        "%0 = payload.constant 0.0 : T\n%1 = arith.mulf %x, %x : T\n%y = arith.maximumf %1, %0 : T"
    ),
}
"""Mistake in words -> operations of a program with the results of the mistake."""


def _mistake(actual: ModuleOp) -> str:
    """Returns words for the mistake whose results a program of one operation has, or an empty text."""
    for words, body in MISTAKES.items():
        try:
            require_equal(actual, parsed(program(body)))
        except Wrong:
            continue
        return f"; {words}"
    return ""


def _domain_advice(text: str) -> str:
    if "not for all numbers" in text or "integer" in text:
        return (
            "; in the exact domain the arguments are residues and no floats: compute with the methods of self.domain,"
            " not with NumPy"
        )
    return ""


def judge_lowering(answer: Answer) -> str:
    """Judges the pass that lowers the operation."""
    require_no_hole(answer)
    defined(answer)
    _require_lowered()
    _require_kernel(lowered(read(program(ONE)), f"{PASS},tensor-to-loop,loop-to-tile,tile-to-kernel"))
    return "right: two operations for each, for f32 and f16; the kernel that the compiler makes of it is right, too"


def _require_lowered() -> None:
    """Requires that the pass removes the operation and keeps the results."""
    if PASS not in get_all_passes():
        raise Wrong(f'the file must declare the pass: declare("deplodock.passes", "{PASS}", LowerMine)')
    for noun, (body, count) in USES.items():
        for element in ("f32", "f16"):
            kind, place = f"tensor<8x4x{element}>", f"{noun}, {element}"
            module = _lowered(read(program(body, kind)), place)
            if any(op.name == OPERATION for op in module.walk()):
                raise Wrong(f"{place}: {OPERATION} is still in the program after {PASS}: replace it")
            try:
                require_equal(module, parsed(program(expanded(body), kind)))
            except Wrong as wrong:
                raise Wrong(f"{place}: {wrong}{_mistake(lowered(read(program(ONE)), PASS))}") from None
            others = body.count("\n") + 1 - count
            if (number := len(operations(module)) - others) > 2 * count:
                raise Wrong(f"{place}: the results are right, with {number} operations; {2 * count} are enough")


def _require_kernel(module: ModuleOp) -> None:
    """Requires that the kernel of a program with one operation computes it, by the simulator in the exact domain."""
    expected, exact = parsed(program(expanded(ONE))), ExactDomain()
    inputs = make_inputs(input_types(expected))
    (actual,), (right,) = interpret(module, inputs, exact), interpret(expected, inputs, exact)
    if not (actual == right).all():
        raise Wrong("the kernel that the compiler makes of the program has other results")


def _lowered(module: ModuleOp, place: str) -> ModuleOp:
    try:
        return lowered(module, PASS)
    except (InvalidIRError, VerifyException, CompileError) as error:
        raise Wrong(f"{place}: the program is not valid after {PASS}: {error}{_validity_advice(str(error))}") from None


def _validity_advice(text: str) -> str:
    if "before it is defined" in text:
        return "; an operation whose result is used is not inserted: list all new operations in rewriter.replace"
    if "expected from variable" in text:
        return "; the constant must have the type of the operand, `op.x.type`"
    return ""


RIGHT = "[zero, positive, MulfOp(positive.result, positive.result)]"

MUTANTS = (
    Mutant("never fires", "[LowerSquaredRelu()]", "[]"),
    Mutant("returns the maximum without squaring it", RIGHT, "[zero, positive]"),
    Mutant("squares x instead of the maximum", "MulfOp(positive.result, positive.result)", "MulfOp(op.x, op.x)"),
    Mutant("compares with 1.0", "ConstantOp(0.0,", "ConstantOp(1.0,"),
    Mutant("adds instead of multiplying", "MulfOp(positive", "AddfOp(positive"),
    Mutant(
        "lowers f32 only",
        "        zero = ConstantOp",
        '        if str(element_type(op.x.type)) != "f32":\n            return\n        zero = ConstantOp',
    ),
)
"""Faults of the pass of exercise 12.2."""


def judge_test(answer: Answer) -> str:
    """Judges a lit test of the pass."""
    right = exercises("12.2")[0].solution.replace("import MaximumfOp", "import AddfOp, MaximumfOp")
    return require_catches(answer.path, "operation.py", right, MUTANTS)


def judge_operator(answer: Answer) -> str:
    """Judges the whole way of an operator of PyTorch: schema, decomposition, position, and a compiled module."""
    from .....dialects.torch import SCHEMAS
    from .....passes.convert.torch_to_tensor.conversion import get_decompositions

    require_no_hole(answer)
    names = answer.namespace()
    get_decompositions.cache_clear()
    _require_declared()
    if OPERATION not in SCHEMAS:
        raise Wrong(f"the compiler does not know the operator: add its schema, which begins with {OPERATION}(")
    if [*SCHEMAS[OPERATION].names] != ["x"]:
        raise Wrong(
            f"the schema has the arguments {', '.join(SCHEMAS[OPERATION].names)}, but in the definition of PyTorch the"
            " argument is called x: names must be equal, because operations of the torch level have all arguments by"
            " name"
        )
    text = program("%y = torch.mine.squared_relu(x = %x) : (T) -> T")
    converted = lowered(read(text), "convert-torch-to-tensor")
    if not any(op.name == OPERATION for op in converted.walk()):
        raise Wrong(f"the decomposition does not insert {OPERATION}: the operation would never occur")
    try:
        module = lowered(read(text), "default")
    except CompileError as error:
        raise Wrong(f"the default pipeline refuses the program: {error}{_position_advice(str(error))}") from None
    _require_kernel(module)
    return _compiled(names)


def _position_advice(text: str) -> str:
    if "not legal" not in text:
        return ""
    passes = [p.name for p in parse_passes("default")]
    at, source = passes.index(PASS) if PASS in passes else -1, passes.index("convert-torch-to-tensor")
    if at < 0:
        return f"; {PASS} is not in the default pipeline: declare an insertion"
    if at < source:
        return f"; {PASS} runs too early, before convert-torch-to-tensor has made the operation"
    return f"; {PASS} runs too late: verify-level at the end of the tensor level sees the operation before it"


def _compiled(names: dict[str, Any]) -> str:
    """Requires that a compiled module has the results of PyTorch."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return names["squared_relu"](self.linear(x)) + 1

    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(8, 16)
    with torch.no_grad():
        actual = torch.compile(layer, backend="deplodock", options={"target": "cpu"})(x)
        error = float((actual - layer(x)).abs().max())
    if error > 1e-5:
        raise Wrong(f"the compiled module differs from PyTorch by {error:.1e}")
    return f"right: from torch.compile to a kernel; the largest difference from PyTorch is {error:.1e}"


CHAPTER = Chapter(
    __package__ or "",
    "Your own operation",
    [
        Exercise(
            "meaning",
            "An operation and its meaning",
            ".py",
            judge_meaning,
            (
                "`operand_def(SAME_TYPE)` and `result_def(SAME_TYPE)`: one variable for both types, which must agree.",
                "The interpreter runs a program in several domains. Only the methods of the domain know how its numbers"
                " are represented.",
                'maximum: `self.domain.binary("arith.maximumf", args[0], zero, element)`, then multiply the result by'
                " itself.",
            ),
            modules=(PRELOADED,),
        ),
        Exercise(
            "lowering",
            "Lower it",
            ".py",
            judge_lowering,
            (
                "Which operations of chapter 2 compute max(x, 0) ** 2?",
                "The type of the zero is the type of the operand: `ConstantOp(0.0, op.x.type)`.",
                "`rewriter.replace(op, [zero, positive, square])` with all three operations.",
            ),
            modules=(PRELOADED,),
        ),
        Exercise(
            "test",
            "A lit test of the lowering",
            ".mlir",
            judge_test,
            (
                "Chapter 6: which line of the output would be different with each fault?",
                "Name values in CHECK lines, `%[[max:[a-z0-9_]+]]`, and use the names in later lines: `%[[max]]`.",
                "A second function with another element type finds a pass that handles only one.",
            ),
            modules=(PRELOADED,),
        ),
        Exercise(
            "operator",
            "From PyTorch to a kernel",
            ".py",
            judge_operator,
            (
                "The schema repeats the signature of the function in PyTorch: `mine.squared_relu(Tensor x) -> Tensor`.",
                "`return b.insert(SquaredReluOp(b.working(x)))`.",
                "The pass must run after the one that makes the operation, and before the end of the tensor level.",
            ),
            modules=(PRELOADED, "torch", "torch._dynamo", "deplodock.frontend.dynamo"),
            seconds=10,
        ),
    ],
)
