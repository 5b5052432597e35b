"""The C++ type of a printed expression is that of its IR type, so that C++ chooses the right overloads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IndexType, IntegerType, Signedness, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute, Block, Operation

import deplodock
from deplodock.backend.cpp.expressions import Expr, Scalars, c_type
from deplodock.backend.cpu.printer import helper_section
from deplodock.dialects.payload import CastOp, CmpOp, SelectOp
from deplodock.dialects.shapes.ranges import Ranges

INDEX = IndexType()
INTEGERS = (i1, i8, i16, i32, i64, INDEX)
UNSIGNED = IntegerType(8, Signedness.UNSIGNED)

OF_TWO = (
    *(arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp),
    *(arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp),
    *(arith.MinSIOp, arith.MaxSIOp, arith.MinUIOp, arith.MaxUIOp, arith.FloorDivSIOp, arith.CeilDivSIOp, math.IPowIOp),
)
ON_TRUTHS = (arith.AddiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.MinUIOp, arith.MaxUIOp)


def _name(t: Attribute) -> str:
    return f"v_{t}"


def _forms(t: Attribute, scalars: Scalars) -> list[Expr]:
    """Returns the printed forms of a value: a variable, a literal, and for an index the int counter of a loop."""
    counter = [Expr("counter")] if t == INDEX else []
    return [Expr(_name(t)), scalars.literal(1 if t == i1 else 3, t), *counter]


def _operations(scalars: Scalars, index: str) -> Iterator[tuple[Operation, list[Expr]]]:
    values = {t: Block(arg_types=[t, t]).args for t in (*INTEGERS, UNSIGNED, f32, f64)}
    truth = values[i1][0]
    for t in INTEGERS:
        a, b = values[t]
        for x in _forms(t, scalars):
            for y in _forms(t, scalars):
                yield from ((op(a, b), [x, y]) for op in (ON_TRUTHS if t == i1 else OF_TWO))
                yield SelectOp(truth, a, b), [Expr(_name(i1)), x, y]
                yield from ((CmpOp(how, a, b), [x, y]) for how in ("lt", "eq"))
            if t != i1:
                yield math.AbsIOp(a), [x]
    for source, (value, _) in values.items():
        for target in values:
            if target != source and not (INDEX in (source, target) and {source, target} & {f32, f64, UNSIGNED, i1}):
                yield from ((CastOp(value, target), [form]) for form in _forms(source, scalars))


@pytest.mark.parametrize("index", ["int", "long long"])
def test_types(index: str, tmp_path: Path) -> None:
    """An index may have any C++ integer type, and a narrow integer may be an int.

    Results of i64 are also printed as operands of overloaded functions, so that an ambiguous call does not compile.
    """
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    used, lines = set[str](), list[str]()
    scalars = Scalars(index, used.add, Ranges(), exact=True)
    wide = [Expr("x"), Expr("3ll")]
    for op, operands in _operations(scalars, index):
        t = op.results[0].type
        text = scalars.print(op, operands)
        expected = c_type(t, index)
        types = [expected, *(["int", "long", "long long"] if t == INDEX else ["int"] if t in (i8, i16) else [])]
        holds = " || ".join(f"same<decltype({text.text}), {expected}>" for expected in types)
        lines.append(f'static_assert({holds}, "{op.name} of {[str(v.type) for v in op.operands]}");')
        if t == i64:  # as an operand of overloaded functions
            block = Block(arg_types=[i64, i64])
            for further in (arith.AddiOp, arith.DivSIOp, arith.ShLIOp):
                lines.append(f"{scalars.print(further(*block.args), [text, wide[1]]).text};")
    declared = [f"{c_type(t, index)} {_name(t)} = 3;" for t in (*INTEGERS, UNSIGNED, f32, f64)]
    overloads = {f"{h}.{c}" for h in ("wrap_add", "int_div", "int_rem", "shift_left") for c in ("int", "long long")}
    same = "template <class A, class B> constexpr bool same = std::is_same_v<std::decay_t<A>, B>;"
    source = tmp_path / "types.cpp"
    body = "\n".join(["int counter = 3;", *declared, *lines])
    source.write_text(f"#include <type_traits>\n{helper_section(used | overloads)}\n{same}\nvoid f() {{\n{body}\n}}\n")
    done = subprocess.run(
        ["g++", "-std=c++17", "-w", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[:3000]


def test_indices_of_mixed_types() -> None:
    """A narrow integer is converted to a 64-bit index and added to a loop counter."""
    x = torch.randn(8)
    for narrow in (torch.int32, torch.int16, torch.uint8):
        i = torch.tensor(1, dtype=narrow)

        def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            near = torch.clamp((i + 1).long(), 0, 4) + torch.arange(2)
            return x[near] + x[near // 3] + x[(near << 1) % 7] + x[torch.where(near > 2, near, 1)]

        compiled = deplodock.compile(function, (x, i), target="cpu")
        torch.testing.assert_close(compiled(x, i), function(x, i))
