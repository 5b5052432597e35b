"""The text of `--explain`: plans of fusion and schedules that the planner considered."""

from __future__ import annotations

from collections.abc import Iterator

from ..dialects.loop import NestOp
from ..passes.planning.choose import explain_nest
from ..progress import counted
from .compilation import Compilation
from .tuning.fusion_space import explain_fusion


def planned_nests(compilation: Compilation) -> Iterator[tuple[str, NestOp]]:
    """Returns the nests of a program with the names of their kernels."""
    nests = [op for op in compilation.at("loop").walk() if isinstance(op, NestOp)]
    return ((f"k{i}", nest) for i, nest in enumerate(counted("scheduling", nests, "kernels")))


def precision_of(compilation: Compilation) -> str:
    """Returns the precision of matmuls of f32."""
    return compilation.f32_matmul_precision or "ieee"


def explain(compilation: Compilation) -> str:
    """Returns the plans of fusion and the schedules that the planner considered, the fastest first, as text."""
    target, precision = compilation.resolved, precision_of(compilation)
    texts = [explain_nest(name, nest, target, precision=precision) for name, nest in planned_nests(compilation)]
    return "\n".join(filter(None, [explain_fusion(compilation), *texts]))
