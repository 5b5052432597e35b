"""Borders between levels: `verify-level` accepts the operations of its level and refuses those of adjacent ones."""

from __future__ import annotations

import pytest
from xdsl.dialects import scf, test
from xdsl.dialects.arith import AddfOp
from xdsl.dialects.builtin import BFloat16Type, Float32Type, FloatAttr, IndexType, ModuleOp, bf16, f32
from xdsl.ir import Block, Operation

from deplodock.dialects import OWN_DIALECTS, get_all_dialects, make_context
from deplodock.dialects.payload import ConstantOp
from deplodock.errors import BorderError
from deplodock.passes import verify_level
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

LEVELS = ("torch", "tensor", "loop", "tile", "kernel")


def check(level: str, *ops: Operation) -> None:
    run_passes(make_context(), ModuleOp(list(ops)), parse_passes(f"verify-level{{level={level}}}"), verify=False)


def constant(kind: Float32Type | BFloat16Type = f32) -> ConstantOp:
    return ConstantOp(FloatAttr(1.0, kind), kind)


@pytest.mark.parametrize("level", LEVELS)
def test_every_op_of_a_level_belongs_to_it_alone(level: str) -> None:
    border = verify_level.BORDERS[level]
    for name in OWN_DIALECTS:
        for op in get_all_dialects()[name]().operations:
            allowed = (
                name == "host"
                or name in (level, "payload")
                and (name == level or level != "torch" or op.name == "payload.constant")
            )
            of_the_host = (op.name, level) in (
                ("tensor.scan", "torch"),
                ("tensor.scan", "loop"),
                ("tensor.scan", "tile"),
                ("tensor.scatter", "loop"),
            )
            assert border.allows(op.name) == (allowed or of_the_host), op.name


@pytest.mark.parametrize("level", LEVELS)
def test_foreign_ops_are_refused_at_every_level(level: str) -> None:
    with pytest.raises(BorderError, match=f"test.op: not legal at the {level} level"):
        check(level, test.TestOp())


@pytest.mark.parametrize("level", LEVELS)
def test_all_violations_are_reported(level: str) -> None:
    with pytest.raises(BorderError) as caught:
        check(level, test.TestOp(), constant(), test.TestOp())
    assert len(caught.value.others) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_constants_pass_everywhere(level: str) -> None:
    check(level, constant(), constant(bf16))


@pytest.mark.parametrize(("level", "legal"), [("tensor", False), ("loop", False), ("tile", True), ("kernel", True)])
def test_sequential_loops_begin_at_the_tile_level(level: str, legal: bool) -> None:
    bound = ConstantOp(1, IndexType())
    value = bound.result
    loop = scf.ForOp(value, value, value, [], Block([scf.YieldOp()], arg_types=[IndexType()]))
    if legal:
        check(level, bound, loop)
    else:
        with pytest.raises(BorderError, match="scf.for"):
            check(level, bound, loop)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_nothing_computes_in_narrow_floats(level: str) -> None:
    narrow = constant(bf16)
    with pytest.raises(BorderError, match="arith.addf: computes in bf16"):
        check(level, narrow, AddfOp(narrow, narrow))


@pytest.mark.parametrize("level", LEVELS)
def test_uses_in_front_of_definitions_are_refused(level: str) -> None:
    one = constant()
    total = AddfOp(one, one)
    with pytest.raises(BorderError, match="used before it is defined"):
        check(level, total, one)
