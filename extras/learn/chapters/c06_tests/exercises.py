"""Exercises of chapter 6: tests that must fail on passes with a planted fault."""

from __future__ import annotations

from .....tools import dl_opt
from ...answers import Answer
from ...course import Chapter, Exercise, exercises
from ...lit_tests import Mutant, call, require_catches
from ...verdicts import Wrong

RIGHT_SIDE = "if constant(op.rhs) == 1.0:\n            rewriter.replace(op, [], [op.lhs])"
LEFT_SIDE = "elif constant(op.lhs) == 1.0:\n            rewriter.replace(op, [], [op.rhs])"

TIMES_ONE = (
    Mutant("never fires", "[TimesOne()]", "[]"),
    Mutant("ignores 1 * x", LEFT_SIDE, ""),
    Mutant("replaces x * 1 by 1", RIGHT_SIDE, RIGHT_SIDE.replace("[op.lhs]", "[op.rhs]")),
    Mutant("replaces 1 * x by 1", LEFT_SIDE, LEFT_SIDE.replace("[op.rhs]", "[op.lhs]")),
    Mutant("fires on every constant", "constant(op.rhs) == 1.0", "constant(op.rhs) is not None"),
    Mutant("replaces x * 1 by x + 1", RIGHT_SIDE, RIGHT_SIDE.replace("[], [op.lhs]", "AddfOp(op.lhs, op.rhs)")),
)
"""Faults of the pass of exercise 5.1."""

DIFFERENCE = "if is_positive_zero(op.rhs):\n            rewriter.replace(op, [], [op.lhs])"
DIFFERENCE_LEFT = "\n        elif is_positive_zero(op.lhs):\n            rewriter.replace(op, [], [op.rhs])"

PLUS_ZERO = (
    Mutant("never fires", "[PlusZero(), MinusZero()]", "[]"),
    Mutant("ignores differences", "[PlusZero(), MinusZero()]", "[PlusZero()]"),
    Mutant(
        "replaces x + 0.0 by x, which is wrong for -0.0", "if is_negative_zero(op.rhs)", "if constant(op.rhs) == 0.0"
    ),
    Mutant("replaces 0.0 - x by x", DIFFERENCE, DIFFERENCE + DIFFERENCE_LEFT),
    Mutant("replaces -0.0 + x by -0.0", "[op.rhs]", "[op.lhs]"),
)
"""Faults of the pass of exercise 5.2."""

INDEX_MAPS = (
    Mutant("never composes", "[ComposeMaps(), DropIdentity()]", "[DropIdentity()]"),
    Mutant("composes in the other order", "inner.map.data.compose(op.map.data)", "op.map.data.compose(inner.map.data)"),
    Mutant("loses the domain of the inner map", " or inner.domain is not None", ""),
    Mutant("keeps maps that change nothing", "[ComposeMaps(), DropIdentity()]", "[ComposeMaps()]"),
    Mutant("loses the inner map", "inner.map.data.compose(op.map.data)", "op.map.data"),
)
"""Faults of the pass of exercise 5.5."""


def judge_times_one(answer: Answer) -> str:
    right = _solution("5.1").replace("arith import MulfOp", "arith import AddfOp, MulfOp")
    return require_catches(answer.path, "times_one.py", right, TIMES_ONE)


def judge_plus_zero(answer: Answer) -> str:
    return require_catches(answer.path, "plus_zero.py", _solution("5.2"), PLUS_ZERO)


def judge_index_maps(answer: Answer) -> str:
    return require_catches(answer.path, "index_maps.py", _solution("5.5"), INDEX_MAPS)


def _solution(number: str) -> str:
    return exercises(number)[0].solution


EXECUTED = """func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %minus_zero = payload.constant -0.0 : tensor<16xf32>
  %zero = payload.constant 0.0 : tensor<16xf32>
  %0 = arith.addf %x, %zero : tensor<16xf32>
  %1 = arith.addf %minus_zero, %0 : tensor<16xf32>
  %2 = arith.subf %zero, %1 : tensor<16xf32>
  %3 = arith.subf %2, %zero : tensor<16xf32>
  func.return %3 : tensor<16xf32>
}
"""
"""Program of exercise 6.4: it contains an operation for each fault of `PLUS_ZERO`."""

REASONS = (
    "a pass that does nothing keeps the results",
    "a pass that does too little keeps the results",
    "only the results for -0.0 differ, and no random input is -0.0",
    "the sign of all results differs",
    "the results do not depend on x any more",
)
"""Reasons why `--check-each` catches each fault of `PLUS_ZERO` or not, in the same order."""


def judge_executed(answer: Answer) -> str:
    names = answer.namespace()
    predictions = answer.value(names, "CAUGHT")
    if not isinstance(predictions, dict) or set(predictions) != {m.noun for m in PLUS_ZERO}:
        raise Wrong("expected CAUGHT to be the dictionary of the template, with the same keys")
    program, source = answer.path.parent / "program.mlir", answer.path.parent / "plus_zero.py"
    program.write_text(EXECUTED, encoding="utf-8")
    for mutant, reason in zip(PLUS_ZERO, REASONS, strict=True):
        if (predicted := predictions[mutant.noun]) not in (True, False):
            raise Wrong(f"{mutant.noun!r} is still a hole (...): write True or False")
        source.write_text(mutant.of(_solution("5.2")), encoding="utf-8")
        arguments = [str(program), "--load", str(source), "-p", "fold-plus-zero,dce", "--check-each"]
        caught = call(dl_opt.main, arguments, b"")[0] != 0
        if predicted != caught:
            does = "catches" if caught else "does not catch"
            raise Wrong(f"--check-each {does} the pass that {mutant.noun}: {reason}")
    return "right: execution catches wrong results, and only for the inputs that it tries; lines CHECK catch the others"


CHAPTER = Chapter(
    __package__ or "",
    "A test that can fail",
    [
        Exercise(
            "times_one",
            "A test of fold-times-one",
            ".mlir",
            judge_times_one,
            (
                "One function for each behaviour: x * 1, 1 * x, and a product that must stay.",
                "`CHECK-NEXT: func.return %x` directly after the label says that no operation is left before it.",
                "For a product that must stay, name its operands: `arith.mulf %x, %` and the constant.",
            ),
        ),
        Exercise(
            "plus_zero",
            "Repair a test that cannot fail",
            ".mlir",
            judge_plus_zero,
            (
                "Run the test on a pass that does nothing: `-p dce`. Which lines should have failed?",
                "filecheck ignores a line whose word it does not know, such as CHECK-NXT.",
                "A CHECK-NOT with a misspelled operation is always true. So is a CHECK for text of the signature.",
                "`CHECK-NEXT: func.return %x` leaves no room for a remaining operation.",
            ),
        ),
        Exercise(
            "index_maps",
            "A test of compose-index-maps",
            ".mlir",
            judge_index_maps,
            (
                "Two transposes cannot show the order of the composition. A slice and a transpose can.",
                "`CHECK-SAME:` continues the line of the last match; `%[[V:.*]]` gives a name to a part of a line.",
                "A map with a domain needs a function of its own, in which two maps remain.",
                "A transpose of a transpose must leave `func.return %x` alone.",
            ),
        ),
        Exercise(
            "executed",
            "What does execution catch?",
            ".py",
            judge_executed,
            (
                "--check-each compares results. Which of the faults changes a result?",
                "The inputs are random numbers. Is one of them -0.0?",
            ),
        ),
    ],
)
