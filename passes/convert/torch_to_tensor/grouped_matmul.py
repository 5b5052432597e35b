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
from xdsl.ir.affine import AffineExpr

from ....dialects.shapes.extents import Extent, extents_of, most, typical
from ....dialects.tensor.builder import Builder, dims, work_type
from ....dialects.tensor.contraction import contract
from ....dialects.tensor.views import gathered, reshape_to
from ....errors import ShapeError
from .matmul import product
from .registry import decomposes

MIN_TILE, MAX_TILE = 8, 64
"""Bounds of the rows of a tile. A tile has about as many rows as an average group. Tuned by hand: 64 is the number of
rows of a wgmma instruction, and below 8 rows each block reloads the operand of its group too often."""


def tile_rows(rows: Extent, groups: int) -> int:
    """Returns the rows of a tile, a power of 2, for groups of average size."""
    average = max(typical(rows) // max(groups, 1), 1)
    return max(MIN_TILE, min(MAX_TILE, 1 << (average - 1).bit_length()))


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
    """

    starts: SSAValue
    ends: SSAValue
    first: SSAValue
    last: SSAValue
    tile: int
    element: Attribute

    @staticmethod
    def at(b: Builder, offs: SSAValue, rows: Extent) -> Groups:
        """Returns the groups that end at `offs`.

        Args:
            b: Builder of the operator.
            offs: Ends of the groups, ascending, of shape [groups].
            rows: Number of rows.
        """
        (groups,) = extents_of(offs.type)
        if not isinstance(groups, int):
            raise b.unsupported("offs", "a number of groups that varies is not supported")
        tile = tile_rows(rows, groups)
        element = i32 if most(rows) + groups * tile < 1 << 31 else i64
        ends, starts = group_bounds(b, offs, element)
        tiles = b.div(b.plus(b.sub(ends, starts), tile - 1), b.constant(tile, [groups], element))
        last = b.scan("add", tiles, 0)
        return Groups(starts, ends, b.sub(last, tiles), last, tile, element)

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

    def of_group(self, b: Builder, values: SSAValue, group: SSAValue) -> SSAValue:
        """Returns the element of `values` for each number in `group`, and 0 for a number that is no group.

        Args:
            b: Builder of the operator.
            values: Tensor with one element for each group.
            group: Numbers of groups.
        """
        return gathered(b, values, [AffineExpr.symbol(0)], extents_of(group.type), [group])


def group_bounds(b: Builder, offs: SSAValue, element: Attribute) -> tuple[SSAValue, SSAValue]:
    """Returns the ends and the starts of groups.

    Args:
        b: Builder of the operator.
        offs: Ends of the groups, of shape [groups].
        element: Element type of the results.
    """
    ends = b.cast(offs, element)
    shape, (d,) = extents_of(ends.type), dims(1)
    return ends, b.map(ends, [d - 1], shape, [(d, 1, shape[0])], 0)


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
    at = Groups.at(b, offs, rows)
    tile, space = at.tile, (tiles_of(b, rows, extents_of(offs.type)[0], at.tile), at.tile)
    group = at.count(b, at.last, space[0])
    number = b.sub(b.iota(0, space[:1], at.element), at.of_group(b, at.first, group))
    begin = b.add(at.of_group(b, at.starts, group), b.scaled(number, tile))
    row = b.add(b.place(begin, [0], space), b.iota(1, space, at.element))
    inside = b.cmp("lt", row, b.place(at.of_group(b, at.ends, group), [0], space))
    # A gather reads 0 at a row that is outside of `x`.
    row = b.select(inside, row, b.like(row, -1))
    s, (_, d1, d2) = AffineExpr.symbol(0), dims(3)
    of_rows, of_groups = [*space, inner], [space[0], inner, columns]
    lhs = gathered(b, x, [s, d2], of_rows, [b.place(row, [0, 1], of_rows)])
    rhs = gathered(b, w, [s, d1, d2], of_groups, [b.place(group, [0], of_groups)])
    y = contract(b, lhs, [0, 1, 3], rhs, [0, 3, 2], [*space, columns, inner], 1)
    y = b.cast(y, b.result_element)
    return _at_rows(b, y, at, rows)


def _at_rows(b: Builder, y: SSAValue, at: Groups, rows: Extent) -> SSAValue:
    """Returns the rows of `y`, a tensor of shape [tiles, tile, n], in their order before the padding."""
    tiles, tile, columns = extents_of(y.type)
    group = at.count(b, at.ends, rows)
    first, start = (b.place(at.of_group(b, v, group), [0], [rows]) for v in (at.first, at.starts))
    place = b.add(b.scaled(first, tile), b.sub(b.iota(0, [rows], at.element), start))
    exists = b.cmp("lt", group, extents_of(at.ends.type)[0])
    place = b.select(exists, place, b.like(place, -1))
    s, (_, d1) = AffineExpr.symbol(0), dims(2)
    shape = [rows, columns]
    index = b.place(place, [0], shape)
    if isinstance(tiles, int):
        return gathered(b, reshape_to(b, y, [tiles * at.tile, columns]), [s, d1], shape, [index])
    size = b.constant(at.tile, shape, at.element)
    quotient = b.floordiv(index, size)
    return gathered(b, y, [s, AffineExpr.symbol(1), d1], shape, [quotient, b.sub(index, b.mul(quotient, size))])


def tiles_of(b: Builder, rows: Extent, groups: Extent, tile: int) -> Extent:
    """Returns a bound of the number of tiles: each group that is not empty ends with a partial tile.

    Args:
        b: Builder of the operator.
        rows: Number of rows.
        groups: Number of groups.
        tile: Rows of a tile.
    """
    assert isinstance(groups, int), "Groups.at has checked it"
    if isinstance(rows, int):
        return (rows + min(groups, rows) * (tile - 1)) // tile
    return b.algebra.quotient(rows, groups * (tile - 1), tile, f"{rows.hint}_tiles")


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
    element = i32 if most(inner) < 1 << 31 else i64
    ends, starts = group_bounds(b, offs, element)
    (groups,) = extents_of(offs.type)
    space = [groups, m, inner]
    k = b.iota(2, space, element)
    inside = b.both(b.cmp("ge", k, b.place(starts, [0], space)), b.cmp("lt", k, b.place(ends, [0], space)))
    lhs = b.place(b.cast(x, work_type(b.result_element)), [1, 2], space)
    lhs = b.select(inside, lhs, b.like(lhs, 0))
    return contract(b, lhs, [0, 1, 3], y, [3, 2], [groups, m, n, inner], 1)


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
    *batch, rows, columns = extents_of(x.type)
    at = dims(len(batch) + 2)
    return b.map(x, [*at[:-2], at[-1], at[-2]], [*batch, columns, rows])
