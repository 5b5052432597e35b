"""Exercises of chapter 1: origins of the operations of a level, levels of an operation, and loop IR by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from .....dialects.loop import LoadOp, NestOp
from .....dialects.support.calls import main_function
from .....dialects.support.locations import ancestors, line_text, location_of, operator_text
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import PASSES, lowered, operations, parsed, require_equal, require_signature, with_mistakes
from ...verdicts import Wrong

LEVELS = {
    "torch": "verify-level{level=torch}",
    "tensor": "torch-to-tensor",
    "loop": "tensor-to-loop",
    "tile": "loop-to-tile",
    "kernel": "tile-to-kernel",
}
"""Name of a level -> the passes that lead to it from the level before."""


def _layer() -> ModuleOp:
    return parsed((Path(__file__).parent / "layer.mlir").read_text(encoding="utf-8"))


def _levels() -> Iterator[tuple[str, ModuleOp]]:
    """Lowers the layer and yields it at each level."""
    module = _layer()
    for name, passes in LEVELS.items():
        yield name, lowered(module, passes)


def _loop_values() -> dict[str, Operation]:
    """Returns the printed names of the values of the layer at the loop level, with their operations."""
    module = lowered(_layer(), f"{LEVELS['tensor']},{LEVELS['loop']}")
    ops = (op for op in main_function(module).body.walk() if op.results)
    return {f"%{number}": op for number, op in enumerate(ops)}


def judge_origins(answer: Answer) -> str:
    origins = answer.value(answer.namespace(), "ORIGINS")
    names = ("%1", "%4", "%6", "%8", "%9", "%10", "%11", "%12", "%14")
    if not isinstance(origins, dict) or {*origins} != {*names}:
        raise Wrong(f"expected ORIGINS to have the keys {', '.join(names)}")
    values = _loop_values()
    right = {name: operator_text(location_of(values[name])) for name in names}
    for name in names:
        op, operator = values[name], origins[name]
        if operator is ...:
            raise Wrong(f"ORIGINS[{name!r}] is still a hole (...): replace it")
        if operator not in right.values():
            raise Wrong(f"ORIGINS[{name!r}]: expected one of the five torch operations, but got {operator!r}")
        if operator != right[name]:
            count = sum(origin == operator for origin in right.values())
            raise Wrong(
                f"{name} ({op.name}) does not come from {operator}, which became {count} of the nine values: "
                f"follow the operands of {name} back, and ask what is computed up to there"
            )
    most = max(right.values(), key=[*right.values()].count)
    return (
        f"right: {len({*right.values()})} torch operations became {len(names)} values in one nest; {most} alone "
        f"({line_text(location_of(values['%9']))}) became {[*right.values()].count(most)}. The operands "
        "distinguish two operations of one name: %6 adds %5, an element of %b, and %10 adds %9, an exponential"
    )


def judge_spans(answer: Answer) -> str:
    spans = answer.value(answer.namespace(), "SPANS")
    names = ("torch.sigmoid", "tensor.index_map", "loop.load", "tile.dot", "kernel.barrier", "math.exp", "scf.for")
    if not isinstance(spans, dict) or {*spans} != {*names}:
        raise Wrong(f"expected SPANS to have the keys {', '.join(names)}")
    for name, span in spans.items():
        if span is ...:
            raise Wrong(f"SPANS[{name!r}] is still a hole (...): replace it")
        if not isinstance(span, tuple | list) or len(span) != 2 or not {*span} <= {*LEVELS}:
            raise Wrong(f'SPANS[{name!r}]: expected two levels such as ("tensor", "loop"), but got {span!r}')
    occurrences: dict[str, list[str]] = {name: [] for name in names}
    for level, module in _levels():
        for name in {op.name for op in module.walk()} & {*names}:
            occurrences[name].append(level)
    for name in names:
        first, last = spans[name]
        levels = occurrences[name]
        if first != levels[0]:
            earlier = [*LEVELS].index(first) > [*LEVELS].index(levels[0])
            why = "it occurs at a level before" if earlier else "it does not occur there yet"
            raise Wrong(f"{name}: the first level is not {first}; {why}")
        if last != levels[-1]:
            later = [*LEVELS].index(last) < [*LEVELS].index(levels[-1])
            why = "it occurs at a level after" if later else "there it is replaced already"
            if not later and name.startswith("torch."):
                why += '. A name inside of loc("...") is a location, not an operation'
            raise Wrong(f"{name}: the last level is not {last}; {why}")
    longest = max(names, key=lambda name: len(occurrences[name]))
    return f"right: {longest} occurs at {len(occurrences[longest])} levels, and only the types of its operands change"


def judge_transposed(answer: Answer) -> str:
    program, expected = answer.program(), parsed(CHAPTER.exercises[2].solution)
    require_signature(program, expected)
    w = main_function(program).body.block.args[1]
    for load in operations(program, lambda op: isinstance(op, LoadOp) and op.source is w):
        nest = next((op for op in ancestors(load) if isinstance(op, NestOp)), None)
        if nest is not None and len(nest.body.block.args) == 2 and nest.body.block.args[1] not in load.operands:
            raise Wrong(
                "the load of %w does not use the column index of the nest: all columns would be equal without %b"
            )
    require_equal(program, expected)
    count, least = len(operations(program)), len(operations(expected))
    if count > least:
        raise Wrong(f"right, but with {count} operations in place of {least}: change the load of %w")
    return (
        f"right, with the same {count} operations: a transposition is another order of the indices of a load. It costs "
        "no operation and no copy"
    )


def judge_norms(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[3].solution
    last = "%4 = math.sqrt %1 : f32\n"
    mistakes = with_mistakes(
        solution,
        ("reduce add", "reduce max", "this is the largest |x| of a row; the reduction must add"),
        (
            "mulf %2, %2 : f32\n      loop.yield %3",
            "mulf %2, %2 : f32\n      loop.yield %2",
            "this is the root of the sum of x, which may be negative; the elements are not squared",
        ),
        ("in [40]", "in [12]", "the sum ends after 12 of the 40 columns"),
    )
    roots = solution.replace("loop.yield %3", "%5 = math.sqrt %3 : f32\n      loop.yield %5")
    roots = roots.replace(last, "").replace("loop.yield %4", "loop.yield %1")
    mistakes.append((roots, "this is the sum of the roots; take the root of the sum, after the reduction"))
    require_equal(program, parsed(solution), mistakes=mistakes)
    nests, loads = (operations(program, lambda op, kind=kind: isinstance(op, kind)) for kind in (NestOp, LoadOp))
    if len(nests) != 1:
        raise Wrong(f"the result is right, but it takes {len(nests)} nests; one suffices")
    if len(loads) != 1:
        raise Wrong(f"the result is right, but {len(loads)} loads read the same element: use the first value twice")
    return (
        "right: one nest, which becomes one kernel, and one load. In CUDA several threads sum parts of a row in a "
        "`for` loop. With `__shfl_xor_sync` each then reads the sum of another thread of its row, and adds it"
    )


CHAPTER = Chapter(
    __package__ or "",
    "Five levels, one program",
    [
        Exercise(
            "origins",
            "Where does each value come from?",
            ".py",
            judge_origins,
            (
                "The sum of products is one torch operation, and two of the nine values.",
                "sigmoid(y) is 1 / (1 + exp(-y)). Which values compute it?",
                "The file layer.py is on the page. `deplodock compile layer.py --ir loop` prints the locations: "
                "loc(#loc3) at the end of a line refers to the line `#loc3 = ...` at the end.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "spans",
            "At which levels does an operation occur?",
            ".py",
            judge_spans,
            (
                "The part before the dot is a dialect. Five dialects have the names of the levels; `arith`, `math` and "
                "`scf` do not.",
                "Print the five levels of layer.py, and search for each operation.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "transposed",
            "A transposed operand",
            ".mlir",
            judge_transposed,
            (
                "Row j of w.T is column j of w. Which element of the new %w does iteration (%i, %j), %k multiply?",
                "Three places change: the type in the signature, the indices of the load, and its type.",
            ),
        ),
        Exercise(
            "norms",
            "A nest of your own",
            ".mlir",
            judge_norms,
            (
                "The page has a nest with a `loop.reduce`. Here the nest has one index, and the reduction is over the "
                "40 columns.",
                "A value may be used twice: `arith.mulf %v, %v : f32`.",
                "`loop.yield` in the reduction yields the term of the sum. The result of `loop.reduce` is the sum, "
                "and the nest yields its root.",
            ),
        ),
    ],
)
