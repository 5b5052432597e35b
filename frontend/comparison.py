"""How far a result may be from PyTorch's, and how far it is.

The tolerance is not a constant: it follows from the rounding of the data types that the program computes and stores
in, and from the lengths of its reductions. With unit roundoff u, a sum of n terms in any order is off by about
u * sqrt(n) relative to the size of its terms (Higham, "Accuracy and Stability of Numerical Algorithms", section 2.8),
each narrowing cast by the narrower type's u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
"""How often the typical error may be exceeded: errors of single elements scatter, and both sides have one."""

_ROUNDOFF = {row.name: row.roundoff for row in DTYPES.values() if row.fraction is not None}


def tolerances(module: ModuleOp, sizes: Sizes | None = None, factors: float = 0.0) -> list[float]:
    """The relative tolerance of every result of `@main`, from the module at the tensor or the loop level, where symbols
    have the values `sizes`; 0 for integers. `factors` is by how much products round their factors (tf32, where that was
    permitted: `backend.check_each`).

    Roundings are followed from the arguments to each result: an operation's error is the largest of its operands' plus
    its own. What n steps of a recurrence add grows with sqrt(n), as that of n terms of a sum.
    """
    flat = without_calls(module)
    functions = {op.sym_name.data: op for op in flat.ops if isinstance(op, FuncOp)}
    end = functions["main"].body.block.last_op
    assert end is not None
    errors = _errors(functions["main"], functions, sizes or Sizes(), factors)
    return [HEADROOM * e if _is_float(v) else 0.0 for e, v in zip(errors, end.operands, strict=True)]


def _errors(function: FuncOp, functions: Mapping[str, FuncOp], sizes: Sizes, factors: float) -> list[float]:
    """The relative error of every result of `function`, whose arguments have none."""
    errors: dict[SSAValue, float] = {}

    def follow(block: Block) -> list[float]:
        """Of what the last operation of `block` returns or yields."""
        for op in block.ops:
            inner = [follow(region.block) for region in op.regions]
            worst = max((errors.get(v, 0.0) for v in op.operands), default=0.0)
            if isinstance(op, tensor.ScanOp):
                step = _errors(functions[op.step.string_value()], functions, sizes, factors)
                own = [math.sqrt(op.steps) * e for e in step]
            else:
                own = [_own_error(op, r, sizes, factors) for r in op.results]
            given = inner[0] if inner else [worst] * len(own)
            errors.update({r: e + more for r, e, more in zip(op.results, given, own, strict=True)})
        assert block.last_op is not None
        return [errors.get(v, 0.0) for v in block.last_op.operands]

    return follow(function.body.block)


def _is_float(value: SSAValue) -> bool:
    return isinstance(element_type(value.type), AnyFloat)


def _own_error(op: Operation, result: SSAValue, sizes: Sizes, factors: float) -> float:
    """The relative error that one operation adds."""
    roundoff = _ROUNDOFF.get(str(element_type(result.type)), 0.0)
    if (terms := reduced_terms(op, sizes)) is not None:
        is_contraction = isinstance(op, tensor.ReduceOp) and isinstance(op.source.owner, arith.MulfOp)
        return roundoff * math.sqrt(max(terms, 1)) + (2 * factors if is_contraction else 0.0)
    if isinstance(op, CastOp):
        return roundoff if roundoff > _ROUNDOFF.get(str(element_type(op.operand.type)), 0.0) else 0.0
    moves = op.name in ("payload.constant", "payload.select") or op.name.startswith(("tensor.", "loop."))
    return 0.0 if moves else roundoff


@dataclass(frozen=True)
class Difference:
    """One result against the expected one. `error` and `tolerance` are relative to max(|expected|, its RMS)."""

    index: int
    type: str
    error: float
    tolerance: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return not self.reason and self.error <= self.tolerance


def compare(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: Sequence[float]
) -> list[Difference]:
    """Every result against the expected one: data type, shape, NaN and infinities in the same places, then values."""
    if not len(actual) == len(expected) == len(allowed):
        return [Difference(0, "", math.inf, 0.0, f"{len(actual)} results for {len(expected)}")]
    pairs = zip(actual, expected, allowed, strict=True)
    return [_difference(i, a.detach().cpu(), e.detach().cpu(), t) for i, (a, e, t) in enumerate(pairs)]


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
            return Difference(index, kind, math.inf, tolerance, "NaN in other places")
        infinite = y.isinf() | x.isinf()
        if not torch.equal(x[infinite], y[infinite]):
            return Difference(index, kind, math.inf, tolerance, "infinities in other places")
        finite = ~(infinite | y.isnan())
        error, y = error[finite], y[finite]
    if not y.numel():
        return Difference(index, kind, 0.0, tolerance)
    typical = float(torch.linalg.vector_norm(y)) / math.sqrt(y.numel())
    scale = y.abs().clamp_(min=max(typical, torch.finfo(torch.float64).tiny))
    return Difference(index, kind, float(error.div_(scale).max()), tolerance)
