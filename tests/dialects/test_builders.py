"""Builders that are derived from the definitions of operations."""

from __future__ import annotations

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import IndexType, IntAttr, VectorType, f32
from xdsl.ir.affine import AffineMap

from deplodock.dialects import kernel, payload, tile
from deplodock.dialects.tensor import ReductionKind


def values(*types):
    return test.TestOp(result_types=types).results


def test_positions_are_those_of_the_text_and_types_follow_from_operands():
    x, lane = values(VectorType(f32, [4]), IndexType())
    op = kernel.ShuffleOp(x, lane, [0, 2])
    op.verify()
    assert (op.source, op.lane, op.lane_xor.get_values(), op.result.type) == (x, lane, (0, 2), x.type)
    assert kernel.ExtractOp(x).result.type == f32


def test_what_is_left_out_is_missing_or_has_its_default():
    (acc,) = values(tile.AsyncAccumulatorsType(tile.tile_type(f32, [64, 64])))  # pyright: ignore
    lhs, rhs = values(tile.tile_type(f32, [64, 16]), tile.tile_type(f32, [16, 64]))
    plain, zero = tile.DotAsyncOp(lhs, rhs, acc), tile.DotAsyncOp(lhs, rhs, acc, scale_d_zero=True)
    assert (plain.scale_d_zero, plain.use_acc) == (None, None)
    assert zero.scale_d_zero is not None
    assert tile.DotAsyncOp(lhs, rhs, acc, scale_d_zero=False).scale_d_zero is None
    assert kernel.ExtractOp(values(VectorType(f32, [4]))[0]).register == IntAttr(0)


def test_attributes_and_members_of_enumerations_are_taken_as_they_are():
    (x,) = values(VectorType(f32, [4]))
    for kind in ("add", ReductionKind.ADD, kernel.ReduceRegistersOp("add", x, [0]).kind):
        assert kernel.ReduceRegistersOp(kind, x, [0]).kind.data == ReductionKind.ADD


def test_what_an_operation_does_not_have_is_refused():
    (x,) = values(f32)
    with pytest.raises(TypeError, match="payload.select takes each of \\(cond, lhs, rhs, result\\) once"):
        payload.SelectOp(x, x, x, other=x)
    with pytest.raises(TypeError, match="once"):
        payload.SelectOp(x, x, x, lhs=x)
    with pytest.raises(TypeError, match="the type of `result` does not follow from the operands"):
        kernel.AllocOp()
    with pytest.raises(TypeError, match="expected a .*, but got 2"):
        tile.StoreOp(x, x, AffineMap.identity(0), [], 2)
