"""Grouped matmuls: one matmul for each group of rows, where the ends of the groups are data.

The rows of `x` are ordered by group, and `offs[g]` is the end of group g. Each group starts at a multiple of `TILE`
rows in a padded copy of `x` that exists only as index arithmetic. So all rows of a tile belong to one group, and a
grouped matmul is a batch of matmuls whose right operand is gathered along the batch:

    y[t, r, n] = sum over k of x[row[t, r], k] * w[group[t], k, n]

The number of tiles is at most rows / TILE plus the number of groups, so the work grows with the rows, and not with rows
times groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects.payload import element_type
from ....dialects.shapes.extents import Extent, extents_of, most, typical
from ....dialects.tensor import ReductionKind, ScatterOp
from ....dialects.tensor.builder import Builder, dims
from ....dialects.tensor.views import gathered, permuted, pick, reshape_to
from ....errors import ShapeError
from .matmul import product
from .registry import decomposes

MIN_TILE, MAX_TILE = 8, 64
"""Bounds of the rows of a tile. A tile has about as many rows as an average group. Tuned by hand: 64 is the number of
rows of a wgmma instruction, and below 8 rows each block reloads the operand of its group too often."""


def average_rows(rows: Extent, groups: int) -> int:
    """Returns the average number of rows of a group, rounded up to a power of 2, and at least `MIN_TILE`."""
    return max(MIN_TILE, 1 << (max(typical(rows) // max(groups, 1), 1) - 1).bit_length())


@dataclass(frozen=True)
class Groups:
    """Positions of groups of rows, as integer tensors with one element for each group.

    Attributes:
        starts: first row of a group.
        ends: row after the last one of a group.
        first: number of the first tile of a group.
        last: number of tiles up to the end of a group.
        tile: rows of a tile.
        element: element type of the tensors.
        tiles: bound of the number of tiles. Each group that is not empty ends with a partial tile.
    """

    starts: SSAValue
    ends: SSAValue
    first: SSAValue
    last: SSAValue
    tile: int
    element: Attribute
    tiles: Extent

    @staticmethod
    def at(b: Builder, offs: SSAValue, rows: Extent, largest: int | None = None) -> Groups:
        """Returns the groups that end at `offs`.

        Args:
            b: Builder of the operator.
            offs: Ends of the groups, ascending, of shape [groups].
            rows: Number of rows.
            largest: Maximum number of rows of a tile, or None for no maximum.
        """
        (groups,) = extents_of(offs.type)
        if not isinstance(groups, int):
            raise b.unsupported("offs", "a number of groups that varies is not supported")
        tile = average_rows(rows, groups)
        tile = tile if largest is None else min(tile, largest)
        element = i32 if most(rows) + groups * tile < 1 << 31 else i64
        ends, (d,) = b.cast(offs, element), dims(1)
        starts = b.map(ends, [d - 1], [groups], [(d, 1, groups)], 0)
        of_group = b.div(b.plus(b.sub(ends, starts), tile - 1), b.constant(tile, [groups], element))
        last = b.scan("add", of_group, 0)
        if isinstance(rows, int):
            tiles = (rows + min(groups, rows) * (tile - 1)) // tile
        else:
            tiles = b.algebra.quotient(rows, groups * (tile - 1), tile, f"{rows.hint}_tiles")
        return Groups(starts, ends, b.sub(last, of_group), last, tile, element, tiles)

    def count(self, b: Builder, values: SSAValue, size: Extent) -> SSAValue:
        """Returns the number of elements of `values` that are at most n, for each n below `size`.

        For ascending ends, this is the number of the group that contains n.

        Args:
            b: Builder of the operator.
            values: Tensor with one element for each group.
            size: Number of elements of the result.
        """
        groups = extents_of(values.type)[0]
        space = [size, groups]
        ended = b.cmp("le", b.place(values, [1], space), b.iota(0, space, self.element))
        return b.reduce("add", b.cast(ended, self.element), [1])

    def rows(self, b: Builder) -> tuple[SSAValue, SSAValue]:
        """Returns the group of each tile, and the row of each place in each tile, which is -1 for padding."""
        space = [self.tiles, self.tile]
        # A tile without a group has a number that is outside of the tensors. For it, a gather reads 0.
        group = self.count(b, self.last, self.tiles)
        number = b.sub(b.iota(0, space[:1], self.element), pick(b, self.first, 0, group))
        begin = b.add(pick(b, self.starts, 0, group), b.scaled(number, self.tile))
        row = b.add(b.place(begin, [0], space), b.iota(1, space, self.element))
        inside = b.cmp("lt", row, b.place(pick(b, self.ends, 0, group), [0], space))
        # A gather reads 0 at a row that is outside of the tensor.
        return group, b.select(inside, row, b.like(row, -1))


def grouped_rows(b: Builder, x: SSAValue, w: SSAValue, offs: SSAValue) -> SSAValue:
    """Returns `x[rows of g] @ w[g]` for each group g of rows; rows after the last group are 0.

    Args:
        b: Builder of the operator.
        x: Tensor of shape [rows, k].
        w: Tensor of shape [groups, k, n].
        offs: Ends of the groups, of shape [groups].
    """
    (rows, inner), (groups, depth, columns) = extents_of(x.type), extents_of(w.type)
    if inner != depth or extents_of(offs.type) != (groups,):
        raise ShapeError(
            f"expected x[rows, k], w[groups, k, n] and offs[groups], but got {x.type}, {w.type} and {offs.type}"
        )
    at = Groups.at(b, offs, rows, MAX_TILE)
    group, row = at.rows(b)
    space = at.tiles, at.tile
    s, (_, d1, d2) = AffineExpr.symbol(0), dims(3)
    of_rows, of_groups = [*space, inner], [space[0], inner, columns]
    lhs = gathered(b, x, [s, d2], of_rows, [b.place(row, [0, 1], of_rows)])
    rhs = gathered(b, w, [s, d1, d2], of_groups, [b.place(group, [0], of_groups)])
    return _at_rows(b, b.cast(product(b, lhs, rhs), b.result_element), at, rows)


def _at_rows(b: Builder, y: SSAValue, at: Groups, rows: Extent) -> SSAValue:
    """Returns the rows of `y`, a tensor of shape [tiles, tile, n], in their order before the padding."""
    tiles, tile, columns = extents_of(y.type)
    group = at.count(b, at.ends, rows)
    first, start = (b.place(pick(b, v, 0, group), [0], [rows]) for v in (at.first, at.starts))
    place = b.add(b.scaled(first, tile), b.sub(b.iota(0, [rows], at.element), start))
    exists = b.cmp("lt", group, extents_of(at.ends.type)[0])
    place = b.select(exists, place, b.like(place, -1))
    shape = [rows, columns]
    index = b.place(place, [0], shape)
    if isinstance(tiles, int):
        return pick(b, reshape_to(b, y, [tiles * at.tile, columns]), 0, index)
    size = b.constant(at.tile, shape, at.element)
    quotient = b.floordiv(index, size)
    coordinates = [AffineExpr.symbol(0), AffineExpr.symbol(1), AffineExpr.dimension(1)]
    return gathered(b, y, coordinates, shape, [quotient, b.sub(index, b.mul(quotient, size))])


def grouped_sums(b: Builder, x: SSAValue, y: SSAValue, offs: SSAValue) -> SSAValue:
    """Returns `x[:, columns of g] @ y[rows of g]` for each group g, a tensor of shape [groups, m, n].

    Args:
        b: Builder of the operator.
        x: Tensor of shape [m, k].
        y: Tensor of shape [k, n].
        offs: Ends of the groups along k, of shape [groups].
    """
    (m, inner), (depth, n) = extents_of(x.type), extents_of(y.type)
    if inner != depth or len(extents_of(offs.type)) != 1:
        raise ShapeError(f"expected x[m, k], y[k, n] and offs[groups], but got {x.type}, {y.type} and {offs.type}")
    at = Groups.at(b, offs, inner)
    group, row = at.rows(b)
    s, (_, d1, d2) = AffineExpr.symbol(0), dims(3)
    of_columns, of_rows = [at.tiles, m, at.tile], [at.tiles, at.tile, n]
    lhs = gathered(b, x, [d1, s], of_columns, [b.place(row, [0, 2], of_columns)])
    rhs = gathered(b, y, [s, d2], of_rows, [b.place(row, [0, 1], of_rows)])
    parts = product(b, lhs, rhs)
    # A group has few tiles. A tile without a group has a number that is outside of the result, and is dropped.
    shape, space = [*extents_of(offs.type), m, n], extents_of(parts.type)
    init, index = b.constant(0, shape, element_type(parts.type)), b.place(group, [0], space)
    map = AffineMap(3, 1, (s, d1, d2))
    return b.insert(ScatterOp(ReductionKind.ADD, init=init, values=parts, map=map, indices=[index]))


@decomposes("_grouped_mm")
def grouped_mm(
    b: Builder,
    self: SSAValue,
    mat2: SSAValue,
    offs: SSAValue | None,
    bias: SSAValue | None,
    out_dtype: Attribute | None,
) -> SSAValue:
    """Returns a grouped matmul. The groups are rows of a matrix `self`, columns of a matrix `mat2`, or the index of the
    sum if both are matrices.

    Args:
        b: Builder of the operator.
        self: Tensor of 2 or 3 dimensions.
        mat2: Tensor of 2 or 3 dimensions.
        offs: Ends of the groups; None if both tensors have 3 dimensions.
        bias: None. PyTorch does not support it either.
        out_dtype: Type of the result.
    """
    if bias is not None:
        raise b.unsupported("bias", "a bias of a grouped matmul is not supported")
    ranks = len(extents_of(self.type)), len(extents_of(mat2.type))
    if ranks == (3, 3):
        return product(b, self, mat2)
    if offs is None:
        raise b.unsupported("offs", "expected the ends of the groups, but got None")
    if ranks == (2, 3):
        return grouped_rows(b, self, mat2, offs)
    if ranks == (3, 2):
        return transposed(b, grouped_rows(b, transposed(b, mat2), transposed(b, self), offs))
    if ranks == (2, 2):
        return grouped_sums(b, self, mat2, offs)
    raise ShapeError(f"expected operands of 2 or 3 dimensions, but got {self.type} and {mat2.type}")


def transposed(b: Builder, x: SSAValue) -> SSAValue:
    """Returns `x` with its last two dimensions exchanged."""
    rank = len(extents_of(x.type))
    return permuted(b, x, [*range(rank - 2), rank - 1, rank - 2])
