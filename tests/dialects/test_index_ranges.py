"""Computed ranges of index arithmetic, against the values of random expressions in every thread."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.kernel import FuncOp
from deplodock.dialects.payload import CastOp
from deplodock.dialects.shapes.ranges import Ranges
from deplodock.dialects.support.parsing import parse_module

WARPS, GRID = 2, 3
THREADS = 32 * WARPS
OPERATIONS = ["addi", "subi", "muli", "divsi", "floordivsi", "remsi", "andi", "minsi", "maxsi", "shli", "shrsi"]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Draws a kernel in which every thread computes and stores an index."""
    lines = ["%v0 = kernel.id lane", "%v1 = kernel.id warp", "%v2 = kernel.id block", "%v3 = kernel.id thread"]
    values = [f"%v{i}" for i in range(4)]
    for number in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(OPERATIONS))
        constant = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 31, 32, 33, 64]))
        if name in ("shli", "shrsi"):
            constant = draw(st.integers(0, 5))
        elif name == "andi":
            constant = draw(st.sampled_from([0, 1, 3, 5, 31]))
        elif name in ("addi", "subi", "muli", "minsi", "maxsi") and draw(st.booleans()):
            constant = None
            if name == "muli":
                name = "addi"
        lines.append(f"%c{number} = payload.constant {1 if constant is None else constant} : index")
        other = draw(st.sampled_from(values)) if constant is None else f"%c{number}"
        lines.append(f"%w{number} = arith.{name} {draw(st.sampled_from(values))}, {other} : index")
        values.append(f"%w{number}")
    predicate = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
    lines.append(f"%p = payload.cmp {predicate} {draw(st.sampled_from(values))}, {values[-1]} : index")
    lines.append(f"%q = payload.select %p, {values[-1]}, {draw(st.sampled_from(values))} : index")
    return "\n".join(
        [
            f"kernel.func @k(%y: memref<{GRID}x{THREADS}xi64>) grid [{GRID}] warps {WARPS} {{",
            *lines,
            "%s = kernel.splat %q : index -> vector<1xindex>",
            "%r = payload.cast %s : vector<1xindex> -> vector<1xi64>",
            f"kernel.store %r, %y[%v2, %v3] : memref<{GRID}x{THREADS}xi64>, vector<1xi64>",
            "}",
            f"func.func @main(%y: memref<{GRID}x{THREADS}xi64>) {{",
            f"kernel.launch @k(%y) : memref<{GRID}x{THREADS}xi64>",
            "func.return",
            "}",
        ]
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs())
def test_numbers_are_in_their_ranges(text: str) -> None:
    module = parse_module(make_context(), text, "random.mlir")
    before = simulate(module, []).outputs[0]
    func = next(op for op in module.body.ops if isinstance(op, FuncOp))
    cast = next(op for op in func.walk() if isinstance(op, CastOp))
    lo, hi = Ranges(func).of(cast.operand)
    assert lo <= before.min()
    assert before.max() <= hi
