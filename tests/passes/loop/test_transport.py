"""Reductions in chunks: the result for every chunk size equals that of the whole row, also for unusual rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from deplodock.backend.reference import run
from deplodock.dialects import loop, make_context, payload
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import collect_remarks, run_passes
from deplodock.passes.pipelines import parse_passes

K = 37
CHUNKS = [1, 2, 4, 5, 16, 36, 37]

ROWS = """
  %m = tensor.reduce max %s over [1] : tensor<12x37xf32> -> tensor<12xf32>
  %mb = tensor.index_map %m[d0] : tensor<12xf32> -> tensor<12x37xf32>
  %d = arith.subf %s, %mb : tensor<12x37xf32>
  %e = math.exp %d : tensor<12x37xf32>
  %l = tensor.reduce add %e over [1] : tensor<12x37xf32> -> tensor<12xf32>
  %lb = tensor.index_map %l[d0] : tensor<12xf32> -> tensor<12x37xf32>
  %lnl = math.log %lb : tensor<12x37xf32>
"""
"""Maximum, differences, exponentials and their sum along the rows of %s; the input is %s, and %w for weights."""

PROGRAMS = {
    "logsumexp": """
  %g = math.log %l : tensor<12xf32>
  %y = arith.addf %m, %g : tensor<12xf32>
""",
    "weighted": """
  %p = arith.divf %e, %lb : tensor<12x37xf32>
  %q = arith.mulf %p, %w : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "soft targets": """
  %z = arith.subf %d, %lnl : tensor<12x37xf32>
  %q = arith.mulf %z, %w : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "entropy": """
  %z = arith.subf %d, %lnl : tensor<12x37xf32>
  %q = arith.mulf %z, %e : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "third moment": """
  %c = arith.mulf %d, %d : tensor<12x37xf32>
  %c1 = arith.mulf %c, %d : tensor<12x37xf32>
  %q = arith.mulf %c1, %e : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "squares below the maximum": """
  %q = arith.mulf %d, %d : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "least difference": """
  %y = tensor.reduce min %d over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "scaled differences": """
  %two = payload.constant 2.0 : tensor<12x37xf32>
  %h = arith.divf %d, %two : tensor<12x37xf32>
  %f = math.exp2 %h : tensor<12x37xf32>
  %q = arith.mulf %f, %w : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
    "selected": """
  %zero = payload.constant 0.0 : tensor<12x37xf32>
  %c = payload.cmp lt %w, %zero : tensor<12x37xf32>
  %q = payload.select %c, %e, %zero : tensor<12x37xf32>
  %y = tensor.reduce add %q over [1] : tensor<12x37xf32> -> tensor<12xf32>
""",
}

SMOOTH = ("logsumexp", "weighted", "selected", "scaled differences")
"""Programs whose value on the awkward rows is that of the formula; in the others a masked element is 0 * inf."""


def _program(name: str) -> ModuleOp:
    text = f"""
func.func @main(%s: tensor<12x37xf32>, %w: tensor<12x37xf32>) -> tensor<12xf32> {{
{ROWS}{PROGRAMS[name]}
  func.return %y : tensor<12xf32>
}}"""
    return parse_module(make_context(), text, name)


def _merged(module: ModuleOp) -> ModuleOp:
    passes = (
        "tensor-plan-fusion{strategy=all},convert-tensor-to-loop,loop-hoist-reduction-factors,"
        "loop-fuse-reductions,cse,dce"
    )
    result = module.clone()
    with collect_remarks() as remarks:
        run_passes(make_context(), result, parse_passes(passes))
    assert remarks == []
    assert sum(isinstance(op, loop.StagedReduceOp) for op in result.walk()) == 1
    return result


def _inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((12, K)).astype(np.float32) for _ in range(2)]


def _awkward() -> list[np.ndarray]:
    """Returns rows with fully masked chunks, fully masked rows, infinities, NaN, and values far apart."""
    s, w = _inputs()
    inf = np.float32(np.inf)
    s[0, 4:9] = -inf
    s[1, :30] = -inf
    s[2, :] = -inf
    s[3, 20] = np.nan
    s[4, 20] = inf
    s[5, :16], s[5, 16:] = -inf, -1000
    s[6, :] = np.finfo(np.float32).min
    s[7, 7:] = -inf
    s[8, :18] += 1000
    s[9, 1::2] = -inf
    s[10, :36] = -inf
    s[11, :] = -1000
    return [s, w]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_chunk_size(name: str) -> None:
    module = _program(name)
    merged = _merged(module)
    for domain, tolerance in (("real", 2e-12), ("typed", 2e-4), ("exact", None)):
        if domain == "exact" and name == "least difference":
            continue  # in a finite field, the least element plus a number is not the least of the sums
        (whole,) = run(module, _inputs(), domain)
        for chunk in CHUNKS if domain == "real" else (5, 36):
            (parts,) = run(merged, _inputs(), domain, chunk=chunk)
            if tolerance is None:
                np.testing.assert_array_equal(parts, whole)
            else:
                np.testing.assert_allclose(parts, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SMOOTH)
def test_awkward_rows(name: str) -> None:
    module = _program(name)
    merged = _merged(module)
    with np.errstate(all="ignore"):
        (whole,) = run(module, _awkward(), "real")
        results = [run(merged, _awkward(), "real", chunk=chunk)[0] for chunk in CHUNKS]
    for parts in results:
        kept = ~np.isnan(whole) | (
            np.arange(12) != 2
        )  # where all is masked, exp(-inf + inf) is NaN, a sum of nothing 0
        np.testing.assert_allclose(parts[kept], whole[kept], rtol=1e-12, atol=1e-12)
        assert np.isnan(parts[2]) or parts[2] in (0.0, -np.inf)


def test_a_fully_masked_row_of_a_softmax_is_nan() -> None:
    """As in PyTorch, a fully masked row divides by the sum 0."""
    merged = _merged(_program("weighted"))
    with np.errstate(all="ignore"):
        assert all(np.isnan(run(merged, _awkward(), "typed", chunk=chunk)[0][2]) for chunk in CHUNKS)


def _staged(module: ModuleOp) -> loop.StagedReduceOp:
    return next(op for op in module.walk() if isinstance(op, loop.StagedReduceOp))


def _drop_rescale(staged: loop.StagedReduceOp) -> None:
    end = staged.rescale.block.last_op
    assert end is not None
    for i in range(len(end.operands)):
        end.operands[i] = staged.rescale.block.args[i]


def _swap(staged: loop.StagedReduceOp, kind: type[Operation]) -> None:
    op = next(op for op in staged.rescale.block.ops if isinstance(op, kind))
    op.operands[0], op.operands[1] = op.operands[1], op.operands[0]


def _drop_guard(staged: loop.StagedReduceOp) -> None:
    select = next(op for op in staged.rescale.block.ops if isinstance(op, payload.SelectOp))
    select.result.replace_all_uses_with(select.rhs)


def _drop_repair(staged: loop.StagedReduceOp) -> None:
    select = next(op for op in staged.stages.block.ops if isinstance(op, payload.SelectOp))
    select.result.replace_all_uses_with(select.rhs)


def _drop_term(staged: loop.StagedReduceOp) -> None:
    add = next(op for op in staged.rescale.block.ops if isinstance(op, arith.AddfOp))
    add.result.replace_all_uses_with(add.lhs)


def _other_base(staged: loop.StagedReduceOp) -> None:
    exp = next(op for op in staged.rescale.block.ops if isinstance(op, math.ExpOp))
    other = math.Exp2Op(exp.operand)
    staged.rescale.block.insert_op_after(other, exp)
    exp.result.replace_all_uses_with(other.result)


BUGS: dict[str, tuple[str, Callable[[loop.StagedReduceOp], None], bool]] = {
    "no rescaling": ("weighted", _drop_rescale, False),
    "the wrong sign": ("weighted", lambda s: _swap(s, arith.SubfOp), False),
    "another base": ("logsumexp", _other_base, False),
    "a dropped term of the matrix": ("entropy", _drop_term, False),
    "no guard": ("weighted", _drop_guard, True),
    "no repair": ("weighted", _drop_repair, True),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_seen(name: str) -> None:
    """The comparison above detects each bug, the last two only for fully masked rows."""
    program, plant, on_masked_rows = BUGS[name]
    module = _program(program)
    broken = _merged(module)
    plant(_staged(broken))
    inputs = _awkward() if on_masked_rows else _inputs()
    with np.errstate(all="ignore"):
        (whole,) = run(module, inputs, "real")
        (parts,) = run(broken, inputs, "real", chunk=5)
        assert not np.allclose(np.delete(parts, 2), np.delete(whole, 2), rtol=1e-9, equal_nan=True)
        if not on_masked_rows:
            assert (run(broken, inputs, "exact", chunk=5)[0] != run(module, inputs, "exact")[0]).any()


def test_narrowing_needs_permission() -> None:
    """A sum of rounded exponentials is merged only if `permit_narrowing` is set."""
    text = f"""
func.func @main(%s: tensor<12x37xf32>, %w: tensor<12x37xf32>) -> tensor<12xf32> {{
{ROWS}
  %n = payload.cast %e : tensor<12x37xf32> -> tensor<12x37xbf16>
  %f = payload.cast %n : tensor<12x37xbf16> -> tensor<12x37xf32>
  %y = tensor.reduce add %f over [1] : tensor<12x37xf32> -> tensor<12xf32>
  func.return %y : tensor<12xf32>
}}"""
    for permitted, groups in (("false", 0), ("true", 1)):
        module = parse_module(make_context(), text, "narrow")
        fuse = f"loop-fuse-reductions{{permit_narrowing={permitted}}}"
        passes = f"tensor-plan-fusion{{strategy=all}},convert-tensor-to-loop,{fuse}"
        with collect_remarks() as remarks:
            run_passes(make_context(), module, parse_passes(passes))
        assert sum(isinstance(op, loop.StagedReduceOp) for op in module.walk()) == groups
        assert [("rounding commutes" in r.why, "rounding to bf16" in r.why) for r in remarks] == [
            (groups == 1, groups == 0)
        ]
    (whole,) = run(parse_module(make_context(), text, "narrow"), _inputs())
    np.testing.assert_allclose(run(module, _inputs(), chunk=5)[0], whole, rtol=1e-2)
