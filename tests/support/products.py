"""Base class of the matmuls with schedules in `f64_products.py`, `tf32_products.py` and others."""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.interpreter.domains import Array
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes


class MatrixProduct:
    """A matmul of an m x k matrix and a k x n matrix, with a schedule.

    Attributes:
        m, n, k: sizes.
        left: dimensions of the left operand as it is stored: `mk`, or `km` (transposed).
        right: dimensions of the right operand as it is stored: `nk` or `kn`.
    """

    m: int
    n: int
    k: int
    left: str
    right: str

    passes: ClassVar[str] = "loop-to-tile,tile-to-kernel"
    """Passes that lower the loop nest to a kernel."""

    @property
    def text(self) -> str:
        """Loop IR of the matmul."""
        raise NotImplementedError

    @property
    def shapes(self) -> list[list[int]]:
        """Shapes of the left and right operand as they are stored."""
        extents = {"m": self.m, "n": self.n, "k": self.k}
        return [[extents[d] for d in side] for side in (self.left, self.right)]

    @property
    def words(self) -> dict[str, Any]:
        """Values of the template's placeholders: sizes, operand shapes `x` and `w`, and their indices `xi` and `wi`."""
        x, w = ("x".join(map(str, shape)) for shape in self.shapes)
        indices = {"m": "%i", "n": "%j", "k": "%k"}
        xi, wi = (", ".join(indices[d] for d in side) for side in (self.left, self.right))
        return {"m": self.m, "n": self.n, "k": self.k, "x": x, "w": w, "xi": xi, "wi": wi}

    def multiplied(self, x: Any, w: Any) -> Any:
        """Returns the product of two operands, given as they are stored."""
        return (x if self.left == "mk" else x.T) @ (w.T if self.right == "nk" else w)

    def inputs(self) -> list[Array]:
        """Returns the operands."""
        raise NotImplementedError

    def parse(self) -> ModuleOp:
        """Returns the parsed loop IR."""
        return parse_module(make_context(), self.text, "product.mlir")

    def lowered(self) -> ModuleOp:
        """Returns the matmul lowered to a kernel."""
        module = self.parse()
        run_passes(make_context(), module, parse_passes(self.passes))
        return module
