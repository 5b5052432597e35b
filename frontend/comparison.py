"""Comparison of results with PyTorch's: tolerances, and differences.

The tolerance of a result follows from the rounding of the data types in the program and from the lengths of its
reductions. With unit roundoff u, a sum of n terms in any order is off by about
u * sqrt(n) relative to the size of its terms (Higham, "Accuracy and Stability of Numerical Algorithms", section 2.8).
Each narrowing cast adds the u of the narrower type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ..backend.dtypes import DTYPES
from ..dialects import tensor
from ..dialects.loop.work import reduced_terms
from ..dialects.payload import CastOp, element_type
from ..dialects.shapes.binding import Sizes
from ..dialects.support.calls import without_calls
from .capture.arrays import describe_tensor

HEADROOM = 8.0
"""Ratio of the tolerance to the typical error. Errors of single elements scatter, and PyTorch's result has one too.
Set by hand."""

_ROUNDOFF = {row.name: row.roundoff for row in DTYPES.values() if row.fraction is not None}


def tolerances(module: ModuleOp, sizes: Sizes | None = None, operand_error: float = 0.0) -> list[float]:
    """Returns the relative tolerance of every result of `@main`; 0 for integers.

    The error of an operation is the largest error of its operands plus its own. n steps of a recurrence (`tensor.scan`)
    add sqrt(n) times the error of one step.

    Args:
        module: the program at the tensor or the loop level.
        sizes: values of the symbols.
        operand_error: relative error of the operands of matmuls if they are rounded to tf32, else 0
            (`backend.check_each.operand_roundoff`).
    """
    flat = without_calls(module)
    functions = {op.sym_name.data: op for op in flat.ops if isinstance(op, FuncOp)}
    end = functions["main"].body.block.last_op
    assert end is not None
    errors = _errors(functions["main"], functions, sizes or Sizes(), operand_error)
    return [HEADROOM * e if _is_float(v) else 0.0 for e, v in zip(errors, end.operands, strict=True)]


def _errors(function: FuncOp, functions: Mapping[str, FuncOp], sizes: Sizes, operand_error: float) -> list[float]:
    """Returns the relative error of every result of a function, for exact arguments."""
    errors: dict[SSAValue, float] = {}

    def follow(block: Block) -> list[float]:
        """Returns the errors of the values that the terminator of `block` returns or yields."""
        for op in block.ops:
            inner = [follow(region.block) for region in op.regions]
            worst = max((errors.get(v, 0.0) for v in op.operands), default=0.0)
            if isinstance(op, tensor.ScanOp):
                step = _errors(functions[op.step.string_value()], functions, sizes, operand_error)
                added = [math.sqrt(op.steps) * e for e in step]
            else:
                added = [_added_error(op, r, sizes, operand_error) for r in op.results]
            inherited = inner[0] if inner else [worst] * len(added)
            errors.update({r: e + more for r, e, more in zip(op.results, inherited, added, strict=True)})
        assert block.last_op is not None
        return [errors.get(v, 0.0) for v in block.last_op.operands]

    return follow(function.body.block)


def _is_float(value: SSAValue) -> bool:
    return isinstance(element_type(value.type), AnyFloat)


def _added_error(op: Operation, result: SSAValue, sizes: Sizes, operand_error: float) -> float:
    """Returns the relative error that one operation adds to those of its operands."""
    roundoff = _ROUNDOFF.get(str(element_type(result.type)), 0.0)
    if (terms := reduced_terms(op, sizes)) is not None:
        is_contraction = isinstance(op, tensor.ReduceOp) and isinstance(op.source.owner, arith.MulfOp)
        return roundoff * math.sqrt(max(terms, 1)) + (2 * operand_error if is_contraction else 0.0)
    if isinstance(op, CastOp):
        return roundoff if roundoff > _ROUNDOFF.get(str(element_type(op.operand.type)), 0.0) else 0.0
    moves = op.name in ("payload.constant", "payload.select") or op.name.startswith(("tensor.", "loop."))
    return 0.0 if moves else roundoff


@dataclass(frozen=True)
class Difference:
    """Difference of one result to the expected result.

    Attributes:
        index: index of the result.
        type: type and shape of the expected result.
        error: largest error of an element, relative to max(|expected element|, RMS of the result).
        tolerance: largest permitted error.
        reason: why the result is wrong regardless of the error, such as another shape; empty if there is no reason.
        where: index and values of the worst element of a wrong result; empty for a right one.
    """

    index: int
    type: str
    error: float
    tolerance: float
    reason: str = ""
    where: str = ""

    @property
    def ok(self) -> bool:
        """True if the result is within the tolerance."""
        return not self.reason and self.error <= self.tolerance


def compare(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: Sequence[float]
) -> list[Difference]:
    """Compares results with the expected results: types, shapes, positions of NaN and infinities, then values.

    Args:
        actual: the results.
        expected: the expected results.
        allowed: relative tolerance of each result (`tolerances`).
    """
    if not len(actual) == len(expected) == len(allowed):
        return [Difference(0, "", math.inf, 0.0, f"expected {len(expected)} results, but got {len(actual)}")]
    pairs = zip(actual, expected, allowed, strict=True)
    differences = [_difference(i, a.detach().cpu(), e.detach().cpu(), t) for i, (a, e, t) in enumerate(pairs)]
    both = zip(differences, actual, expected, strict=True)
    return [d if d.ok else replace(d, where=_where(a, e)) for d, a, e in both]


def _where(a: torch.Tensor, e: torch.Tensor) -> str:
    """Returns the index and the values of the worst element as text, or an empty text for other shapes."""
    if (index := worst_element(a, e)) is None:
        return ""
    return f"{a[index].item():.6g} instead of {e[index].item():.6g} at {list(index)}"


def worst_element(actual: torch.Tensor, expected: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the position of the element with the largest error (`Difference.error`), one index for each dimension.

    An element that is NaN in one tensor and a number in the other has an infinite error, and so has an infinity that
    the other tensor does not have. Returns None if the shapes differ, or if the tensors have no elements.
    """
    if actual.shape != expected.shape or not expected.numel():
        return None
    x, y = actual.detach().cpu().double(), expected.detach().cpu().double()
    typical = y.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    error = torch.where((x == y) | x.isnan() & y.isnan(), 0.0, (x - y).abs() / torch.maximum(y.abs(), typical))
    worst = error.nan_to_num(math.inf, posinf=math.inf).argmax()
    return tuple(int(i) for i in torch.unravel_index(worst, y.shape))


def _difference(index: int, a: torch.Tensor, e: torch.Tensor, tolerance: float) -> Difference:
    kind = describe_tensor(e)
    if a.dtype != e.dtype or a.shape != e.shape:
        return Difference(index, kind, math.inf, tolerance, f"is {a.dtype} of shape {list(a.shape)}")
    if not e.dtype.is_floating_point:
        wrong = int((a != e).sum())
        return Difference(index, kind, wrong / max(e.numel(), 1), 0.0, f"{wrong} elements differ" if wrong else "")
    x, y = a.double(), e.double()
    error = (x - y).abs_()
    if not error.isfinite().all():
        if not torch.equal(x.isnan(), y.isnan()):
            return Difference(index, kind, math.inf, tolerance, "NaN in other elements")
        infinite = y.isinf() | x.isinf()
        if not torch.equal(x[infinite], y[infinite]):
            return Difference(index, kind, math.inf, tolerance, "infinities in other elements")
        finite = ~(infinite | y.isnan())
        error, y = error[finite], y[finite]
    if not y.numel():
        return Difference(index, kind, 0.0, tolerance)
    typical = float(torch.linalg.vector_norm(y)) / math.sqrt(y.numel())
    scale = y.abs().clamp_(min=max(typical, torch.finfo(torch.float64).tiny))
    return Difference(index, kind, float(error.div_(scale).max()), tolerance)
