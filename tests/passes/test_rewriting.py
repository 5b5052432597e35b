"""The pattern driver keeps locations, passes errors on unchanged, and touches no other operation."""

from __future__ import annotations

import pytest
from xdsl.dialects import builtin, scf, test
from xdsl.dialects.arith import AddfOp, ConstantOp, MulfOp
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32
from xdsl.ir import Block, Region
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.support.locations import file_line_of, file_location, location_of, location_text
from deplodock.errors import CompileError, UnsupportedError
from deplodock.passes.pass_manager import DominanceError, verify_dominance
from deplodock.passes.rewriting import rewrite_module


class AddToLoop(RewritePattern):
    """Replaces an addition by an op whose region holds a multiplication."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddfOp, rewriter: PatternRewriter, /) -> None:
        product = MulfOp(op.lhs, op.rhs)
        rewriter.replace(op, test.TestOp(result_types=[f32], regions=[Region(Block([product]))]))


class Refuse(RewritePattern):
    """Raises the error that it was constructed with."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddfOp, rewriter: PatternRewriter, /) -> None:
        raise self.error


@pytest.fixture
def module() -> ModuleOp:
    one = ConstantOp(FloatAttr(1.0, f32))
    add = AddfOp(one, one)
    add.location = file_location("model.py", 12, 4)
    return ModuleOp([one, add, test.TestOp([add.result])])


def test_inserted_ops_inherit_the_location(module: ModuleOp) -> None:
    assert rewrite_module(module, [AddToLoop()])
    held = [op for op in module.walk() if isinstance(op, test.TestOp | MulfOp)][:2]
    assert [location_text(op) for op in held] == ["model.py:12:4", "model.py:12:4"]
    assert location_text(next(iter(module.ops))) is None


def test_compile_errors_are_completed(module: ModuleOp) -> None:
    with pytest.raises(UnsupportedError) as caught:
        rewrite_module(module, [Refuse(UnsupportedError("not yet", argument="alpha"))])
    assert str(caught.value) == "model.py:12:4: arith.addf: alpha: not yet"


def test_errors_that_know_better_are_kept(module: ModuleOp) -> None:
    with pytest.raises(CompileError) as caught:
        rewrite_module(module, [Refuse(CompileError("no", operator="aten.add.Tensor", location="a.py:1"))])
    assert str(caught.value) == "a.py:1: aten.add.Tensor: no"


def test_bugs_arrive_as_themselves(module: ModuleOp) -> None:
    with pytest.raises(KeyError) as caught:
        rewrite_module(module, [Refuse(KeyError("x"))])
    assert caught.value.__notes__ == ["while rewriting arith.addf at model.py:12:4"]


def test_nothing_changes_without_a_match(module: ModuleOp) -> None:
    before = str(module)
    assert not rewrite_module(module, [])
    assert str(module) == before


def test_dead_ops_stay() -> None:
    dead = ModuleOp([ConstantOp(FloatAttr(1.0, f32))])
    assert not rewrite_module(dead, [])
    assert list(dead.ops)


def test_locations_inside_locations() -> None:
    inner = file_location("a.py", 3)
    assert file_line_of(builtin.NameLoc(builtin.StringAttr("n"), inner)) == inner
    assert file_line_of(builtin.CallSiteLoc(builtin.UnknownLoc(), inner)) == inner
    fused = builtin.FusedLoc(builtin.ArrayAttr([builtin.UnknownLoc(), inner]), builtin.NoneAttr())
    assert file_line_of(fused) == inner
    assert file_line_of(builtin.UnknownLoc()) is None


def test_an_op_without_location_has_that_of_its_parent() -> None:
    inner = test.TestOp()
    outer = test.TestOp(regions=[Region(Block([inner]))])
    outer.location = file_location("a.py", 5)
    assert location_of(inner) == outer.location
    assert location_text(inner) == "a.py:5"


def test_dominance_sees_uses_across_regions() -> None:
    inner = ConstantOp(FloatAttr(1.0, f32))
    outer = test.TestOp(regions=[Region(Block([inner]))])
    verify_dominance(ModuleOp([outer]))
    user = test.TestOp([inner.result])
    with pytest.raises(DominanceError, match="operand #0"):
        verify_dominance(ModuleOp([test.TestOp(regions=[Region(Block([ConstantOp(FloatAttr(2.0, f32))]))]), user]))


def test_dominance_knows_block_arguments() -> None:
    index = builtin.IndexType()
    bound = test.TestOp(result_types=[index])
    body = Block(arg_types=[index])
    loop = scf.ForOp(bound.res[0], bound.res[0], bound.res[0], [], body)
    body.add_ops([test.TestOp([body.args[0], bound.res[0]]), scf.YieldOp()])
    module = ModuleOp([bound, loop])
    verify_dominance(module)
    bound.detach()
    module.body.block.add_op(bound)
    with pytest.raises(DominanceError):
        verify_dominance(module)
