"""Index values that are equal in all blocks of a cluster, against the values that every block computes."""

from __future__ import annotations

import itertools

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import SSAValue

from deplodock.dialects import make_context, payload, tile
from deplodock.dialects.shapes.affine import Form, add
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.analysis.async_copies import RANK, ClusterUniformity

BODIES = {
    "plain": (
        [3, 8],
        """
  %a = tile.affine %i * 64 : index
  %b = tile.affine %j * 64 : index
  %c = tile.affine %i * 8 + %j : index
  %d = tile.affine %i * 3 + %j : index
  %e = tile.affine %j floordiv 4 : index
  %f = tile.affine %j mod 4 : index
  %g = tile.affine (%j + 1) floordiv 4 : index
  %h = tile.affine %j mod 3 : index
  %k = tile.affine (%i * 8 + %j) floordiv 8 + (%j floordiv 8) * 5 : index""",
    ),
    "persistent, in patches": (
        [8],
        """
  %zero = payload.constant 0 : index
  %step = payload.constant 8 : index
  %end = payload.constant 48 : index
  scf.for %t = %i to %end step %step {
    %a = tile.affine %t floordiv 24 : index
    %b = tile.affine (%t floordiv 4) mod 6 : index
    %c = tile.affine %t mod 4 : index
    %d = tile.affine %a * 4 + %c : index
    %e = tile.affine (%t floordiv 3) mod 6 : index
  }""",
    ),
}


def same(form: Form) -> bool:
    """Returns true if a form does not depend on the rank of the block in its cluster."""
    return RANK.terms[0][0] not in form.atoms()


def values(kernel: tile.KernelOp, block: list[int]) -> dict[SSAValue, list[int]]:
    """Returns the index values of all iterations of one block."""
    found: dict[SSAValue, list[int]] = {}
    entry: dict[SSAValue, int] = dict(zip(kernel.blocks, block, strict=True))

    def run(ops, known: dict[SSAValue, int]) -> None:
        for op in ops:
            if isinstance(op, payload.ConstantOp) and isinstance(op.value, IntegerAttr):
                known[op.result] = op.value.value.data
            elif isinstance(op, tile.AffineOp):
                (known[op.result],) = op.map.data.eval([], [known[s] for s in op.symbols])
                found.setdefault(op.result, []).append(known[op.result])
            elif isinstance(op, scf.ForOp):
                for i in range(known[op.lb], known[op.ub], known[op.step]):
                    run(op.body.block.ops, {**known, op.body.block.args[0]: i})

    run(kernel.body.block.ops, entry)
    return found


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", BODIES)
def test_forms_are_what_blocks_compute(name: str, size: int) -> None:
    grid, body = BODIES[name]
    names = ", ".join(("%i", "%j")[: len(grid)])
    module = parse_module(
        make_context(), f"tile.kernel @k(%x: memref<8xf32>) blocks ({names}) in {grid} warps 1 {{{body}\n}}", "t.mlir"
    )
    (kernel,) = module.ops
    assert isinstance(kernel, tile.KernelOp)
    uniformity = ClusterUniformity(kernel, size)
    *outer, last = grid
    seen = set()
    for before in itertools.product(*map(range, outer)):
        for first in range(0, last, size):
            found = [values(kernel, [*before, first + rank]) for rank in range(size)]
            for value in found[0]:
                form = uniformity.of(value)
                ranks = form is not None and RANK.terms[0] in form.terms and same(add(form, RANK, -1))
                seen.add("same" if uniformity.same(value) else "ranks" if ranks else "other")
                for each in zip(*(f[value] for f in found), strict=True):
                    if uniformity.same(value):
                        assert len(set(each)) == 1
                    elif ranks:
                        assert list(each) == list(range(each[0], each[0] + size))
    assert len(seen) == 3 or size == 8
