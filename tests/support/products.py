"""Base of the products of two matrices that tests run under schedules."""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.interpreter.domains import Array
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes


class MatrixProduct:
    """A product of an m x k matrix and a k x n matrix. `left` is `mk`, or `km` if the left matrix is stored transposed;
    `right` is `nk` or `kn`."""

    m: int
    n: int
    k: int
    left: str
    right: str

    passes: ClassVar[str] = "loop-to-tile,tile-to-kernel"
    """Passes from the loop nest to the kernel."""

    @property
    def text(self) -> str:
        """The loop nest."""
        raise NotImplementedError

    @property
    def shapes(self) -> list[list[int]]:
        """Shapes of both operands as they are stored."""
        extents = {"m": self.m, "n": self.n, "k": self.k}
        return [[extents[d] for d in side] for side in (self.left, self.right)]

    @property
    def words(self) -> dict[str, Any]:
        """Words of a program: the sizes, the shapes `x` and `w` of the operands, and their indices `xi` and `wi`."""
        x, w = ("x".join(map(str, shape)) for shape in self.shapes)
        indices = {"m": "%i", "n": "%j", "k": "%k"}
        xi, wi = (", ".join(indices[d] for d in side) for side in (self.left, self.right))
        return {"m": self.m, "n": self.n, "k": self.k, "x": x, "w": w, "xi": xi, "wi": wi}

    def multiplied(self, x: Any, w: Any) -> Any:
        """Returns the product of operands as they are stored."""
        return (x if self.left == "mk" else x.T) @ (w.T if self.right == "nk" else w)

    def inputs(self) -> list[Array]:
        """Returns the operands."""
        raise NotImplementedError

    def parse(self) -> ModuleOp:
        """Returns the loop nest as IR."""
        return parse_module(make_context(), self.text, "product.mlir")

    def lowered(self) -> ModuleOp:
        """Returns the kernel."""
        module = self.parse()
        run_passes(make_context(), module, parse_passes(self.passes))
        return module
