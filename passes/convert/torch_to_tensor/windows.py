"""Windows that slide over the last dimensions of a tensor: what convolutions and poolings share.

Output position `o` and offset `k` inside the window address one input position, or none. Reading all of them is one
index map to the space (leading..., output..., offsets...); what is done with the offsets is up to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Extent, extents_of, fixed
from ....dialects.shapes.polynomial import Algebra, constant, divided, plus
from ....dialects.tensor.builder import Builder, Number, dims
from .slicing import shifted

Bound = tuple[AffineExpr, int, Extent]
"""`lo <= expression < hi`."""


@dataclass(frozen=True)
class Strided:
    """Along one dimension of `extent` elements: `size` positions, `dilation` apart, moving on by `stride`. `whole` says
    that no window sticks out over the padding on the right, whatever the extent is."""

    extent: Extent
    outputs: Extent
    size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    whole: bool = False

    @staticmethod
    def over(
        algebra: Algebra, extent: Extent, size: int, stride: int, padding: int, dilation: int, output_padding: int
    ) -> Strided:
        """As many positions as there are whole windows."""
        room = plus(algebra.of(extent), constant(2 * padding - dilation * (size - 1) - 1))
        outputs = algebra.extent(plus(divided("div", room, stride), constant(1)))
        return Strided(extent, outputs, size, stride, padding, dilation, whole=True)

    def place(self, o: AffineExpr, k: AffineExpr) -> AffineExpr:
        """The input position of output `o` at offset `k`."""
        scaled = o if self.stride == 1 else o * self.stride
        step = k if self.dilation == 1 else k * self.dilation
        return shifted(scaled + step, -self.padding)

    def bounds(self, o: AffineExpr, k: AffineExpr) -> list[Bound]:
        """Where that position exists; nothing if it always does."""
        if self.inside:
            return []
        return [(self.place(o, k), 0, self.extent)]

    @property
    def inside(self) -> bool:
        """Whether every window lies wholly on the input."""
        if not isinstance(self.extent, int) or not isinstance(self.outputs, int):
            return self.padding == 0 and self.whole
        last = (self.outputs - 1) * self.stride + (self.size - 1) * self.dilation - self.padding
        return self.padding == 0 and last < self.extent


@dataclass(frozen=True)
class Adaptive:
    """Along one dimension: `outputs` windows that together cover `extent` elements as evenly as may be."""

    extent: Extent
    outputs: int

    @property
    def size(self) -> Extent:
        """Elements of the largest window."""
        if self.outputs == 1:
            return self.extent
        extent, outputs = fixed(self.extent), self.outputs
        return max((-(-(o + 1) * extent // outputs) - o * extent // outputs for o in range(outputs)), default=0)

    @property
    def inside(self) -> bool:
        """Whether all windows have the same number of elements."""
        return self.outputs <= 1 or fixed(self.extent) % self.outputs == 0

    def place(self, o: AffineExpr, k: AffineExpr) -> AffineExpr:
        """The input position of output `o` at offset `k`."""
        if self.outputs == 1:
            return k
        extent = fixed(self.extent)
        return o * (extent // max(self.outputs, 1)) + k if self.inside else (o * extent) // self.outputs + k

    def bounds(self, o: AffineExpr, k: AffineExpr) -> list[Bound]:
        """Where offset `k` belongs to window `o`; nothing if it always does."""
        if self.inside:
            return []
        extent = fixed(self.extent)
        end = (o * extent + (extent + self.outputs - 1)) // self.outputs
        return [(end + self.place(o, k) * -1, 1, extent + 1)]


Window = Strided | Adaptive


@dataclass(frozen=True)
class Upsampled:
    """The reverse of `Strided`: output `o` receives input `(o + padding - k * dilation) / stride` if whole."""

    extent: Extent
    outputs: Extent
    size: int
    stride: int
    padding: int
    dilation: int

    @staticmethod
    def over(
        algebra: Algebra, extent: Extent, size: int, stride: int, padding: int, dilation: int, output_padding: int
    ) -> Upsampled:
        """As many outputs as receive an input, and `output_padding` more."""
        last = constant(-stride - 2 * padding + dilation * (size - 1) + 1 + output_padding)
        return Upsampled(
            extent, algebra.extent(plus(last, algebra.of(extent), stride)), size, stride, padding, dilation
        )

    def _spread(self, o: AffineExpr, k: AffineExpr) -> AffineExpr:
        return shifted(o + k * -self.dilation, self.padding)

    def place(self, o: AffineExpr, k: AffineExpr) -> AffineExpr:
        """The input position that offset `k` brings to output `o`."""
        return self._spread(o, k) // self.stride if self.stride > 1 else self._spread(o, k)

    def bounds(self, o: AffineExpr, k: AffineExpr) -> list[Bound]:
        """Where there is such a position."""
        whole: list[Bound] = [(self._spread(o, k) % self.stride, 0, 1)] if self.stride > 1 else []
        return [*whole, (self.place(o, k), 0, self.extent)]


def domain_of(bounds: Sequence[Bound], rank: int) -> DomainAttr | None:
    """The conjunction of `bounds` over `rank` indices; None if there are none."""
    if not bounds:
        return None
    return DomainAttr.get(AffineMap(rank, 0, tuple(e for e, _, _ in bounds)), [(lo, hi) for _, lo, hi in bounds])


def sliding(b: Builder, x: SSAValue, windows: Sequence[Window], fill: Number) -> SSAValue:
    """The windows over the last dimensions of `x`, as (leading..., outputs..., offsets...); `fill` outside of `x`."""
    shape = extents_of(x.type)
    lead, n = len(shape) - len(windows), len(windows)
    space = [*shape[:lead], *(w.outputs for w in windows), *(w.size for w in windows)]
    index = dims(len(space))
    exprs, bounds = index[:lead], list[Bound]()
    for i, window in enumerate(windows):
        o, k = index[lead + i], index[lead + n + i]
        exprs.append(window.place(o, k))
        bounds += window.bounds(o, k)
    return b.map(x, exprs, space, domain_of(bounds, len(space)), fill)


def offsets(b: Builder, x: SSAValue, windows: Sequence[Window]) -> list[int]:
    """The dimensions of `sliding(b, x, windows, ...)` that run inside the windows."""
    rank = len(extents_of(x.type))
    return list(range(rank, rank + len(windows)))
