"""Sizes that are known only at run time: symbols for the sizes of arguments, and integer tensors of sizes.

A program with symbolic shapes computes the shapes of its tensors by operations on small integer tensors. `Sizes`
evaluates them during the import, as polynomials of the sizes of arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxlib.mlir import ir

from ...dialects.shapes.binding import Algebra, DerivedAttr, Polynomial, constant
from ...dialects.shapes.extents import Extent
from .operation import HloOperation
from .types import type_of

if TYPE_CHECKING:
    from .importer import Frame

MOST_KNOWN = 64
"""Elements of the largest integer tensor that is evaluated during the import."""


@dataclass
class ArgumentSizes:
    """Extents of the arguments of `@main`, and the definitions of sizes that are computed from others."""

    extents: list[tuple[Extent, ...]]
    derived: list[DerivedAttr]


def argument_extents(main: ir.Operation, block: ir.Block) -> ArgumentSizes:
    return ArgumentSizes([tuple(type_of(a).shape) for a in block.arguments], [])


class Sizes:
    """Evaluator of integer tensors in one frame."""

    def __init__(self, frame: Frame, algebra: Algebra) -> None:
        self.frame, self.algebra = frame, algebra

    def of(self, value: ir.Value) -> list[Polynomial] | None:
        """Returns the elements of a tensor in row-major order, or None if they are not known."""
        type = type_of(value)
        if (
            not type.is_static
            or len(type.dims) > 1
            or np.prod(type.shape) > MOST_KNOWN
            or isinstance(value, ir.BlockArgument)
        ):
            return None
        op = HloOperation(cast(ir.OpView, value.owner).operation, self.frame)
        if op.name == "stablehlo.constant":
            from .rules.constants import array_of

            a = array_of(op)
            return [constant(int(v)) for v in a.reshape(-1)] if a.dtype.kind in "iub" else None
        return None
