"""Layout attributes of tile types, and functions that read and check the layout of a value.

A layout specifies which thread holds which element of a tile. Every layout is linear over GF(2): each bit of the
register, lane and warp number has a *basis*, a coordinate of the tile. A thread's register holds the element at the
exclusive or (XOR) of the bases of all set bits. An example, an 8x8 tile in one warp:

```
#tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
register 1 of lane 6 (binary 00110): [0, 1] ^ [0, 4] ^ [1, 0] = element [1, 5]
```

A zero basis replicates the element (broadcast). A basis with two nonzero coordinates swizzles. Slices and the fragments
of tensor-core instructions are also of this form. See Zhou et al., "Linear Layouts: Robust Code Generation of Efficient
Tensor Computation Using F2", 2025. `linear.py` has the algebra, `mma.py` the layouts of tensor-core instructions,
`conversion.py` the conversion of layouts by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias, overload

from xdsl.dialects.builtin import ArrayAttr, IntAttr, TensorType
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser

from ...errors import CompileError
from ..support.attribute_format import FormattedAttr, Parameter
from ..support.locations import refused
from .linear import LANES, Bases, Linear, Shared

BasesAttr: TypeAlias = ArrayAttr[ArrayAttr[IntAttr]]


@lru_cache(1024)
def bases_attr(bases: Bases) -> BasesAttr:
    """Returns the attribute of `bases`. Cached, because a kernel has few layouts and looks them up often."""
    return ArrayAttr([ArrayAttr([IntAttr(c) for c in b]) for b in bases])


def bases_of(attr: BasesAttr) -> Bases:
    return tuple(tuple(c.data for c in b) for b in attr)


def parse_bases(parser: AttrParser) -> BasesAttr:
    def vector() -> tuple[int, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer))

    return bases_attr(tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, vector)))


def format_bases(bases: Bases) -> str:
    """Returns `bases` as the text that `parse_bases` reads, such as `[[0, 1], [0, 2]]`."""
    return "[" + ", ".join(str(list(b)) for b in bases) + "]"


BASES = Parameter(parse_bases, lambda printer, bases: printer.print_string(format_bases(bases_of(bases))))


@irdl_attr_definition
class LayoutAttr(FormattedAttr):
    """Layout of a tile in the registers of a block: a map from registers of threads to elements.

    ```
    #tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[8, 0]]>
    ```

    The bases are coordinates of the tile. A register holds the element at the exclusive or (XOR) of the bases of all
    set bits of its register, lane and warp number. A zero basis replicates elements.

    reg: `reg[i]` is the basis of bit `i` of the register number.
    lane: `lane[i]` is the basis of bit `i` of the lane number.
    warp: `warp[i]` is the basis of bit `i` of the warp number.

    Constraints: the kernel has this number of lanes and warps; every basis is inside of the tile; every element is in a
    register.
    """

    name = "tile.layout"
    FORMAT = ("reg = ", BASES, ", lane = ", BASES, ", warp = ", BASES)
    reg: BasesAttr
    lane: BasesAttr
    warp: BasesAttr


@irdl_attr_definition
class SharedAttr(FormattedAttr):
    """Layout of a tile in shared memory: a map from offsets to elements.

    ```
    #tile.shared<offset = [[0, 1], [0, 2], [1, 1], [2, 2]]>
    ```

    An offset holds the element at the exclusive or (XOR) of the bases of its set bits. The example is a 4x4 tile whose
    rows are swizzled: row 1 is stored in the order 1, 0, 3, 2.

    offset: `offset[i]` is the basis of bit `i` of the element offset.

    Constraints: in a kernel, the map from offsets to coordinates is a bijection.
    """

    name = "tile.shared"
    FORMAT = ("offset = ", BASES)
    offset: BasesAttr


def encoding_of(t: Attribute) -> Attribute | None:
    """Returns the layout attribute of a tile type (`LayoutAttr` or `SharedAttr`), or None if it has none."""
    return t.encoding if isinstance(t, TensorType) and isinstance(t.encoding, LayoutAttr | SharedAttr) else None


def is_in_shared(t: Attribute) -> bool:
    """Returns true if a tile type has a shared layout: the tile is in shared memory, or a copy to it is outstanding."""
    return isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr)


@irdl_attr_definition
class AsyncAccumulatorsType(ParametrizedAttribute, TypeAttribute):
    """Type of the accumulators of asynchronous dots in flight: `!tile.async_accumulators<tensor<64x64xf32>>`.

    tile: type of the accumulator after `tile.dot_wait`.
    """

    name = "tile.async_accumulators"
    tile: TensorType[Attribute]


def without_flight(t: Attribute) -> Attribute:
    """Returns the tile type of `t`, also if `t` is a type of accumulators in flight."""
    return t.tile if isinstance(t, AsyncAccumulatorsType) else t


def linear_of(t: Attribute) -> Linear | None:
    """Returns the register layout of a tile type or of accumulators in flight, or None if it has none."""
    t = without_flight(t)
    if isinstance(t, TensorType) and isinstance(e := t.encoding, LayoutAttr):
        return Linear(t.get_shape(), bases_of(e.reg), bases_of(e.lane), bases_of(e.warp))
    return None


def shared_of(t: Attribute) -> Shared | None:
    """Returns the shared layout of a tile type, or None if it has none."""
    if isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr):
        return Shared(t.get_shape(), bases_of(t.encoding.offset))
    return None


def shared_of_type(t: Attribute) -> Shared:
    """Returns the shared layout of a type that must have one."""
    layout = shared_of(t)
    assert layout is not None
    return layout


@overload
def attr_of(layout: Linear) -> LayoutAttr: ...
@overload
def attr_of(layout: Shared) -> SharedAttr: ...
def attr_of(layout: Linear | Shared) -> LayoutAttr | SharedAttr:
    """Returns the IR attribute of a layout."""
    if isinstance(layout, Shared):
        return SharedAttr(bases_attr(layout.offset))
    return LayoutAttr(*map(bases_attr, layout.parts))


def layout_in_registers(value: SSAValue, warps: int, lanes: int = LANES) -> Linear:
    """Returns the register layout of a tile, after checking it.

    Args:
        value: the tile.
        warps: number of warps of the block.
        lanes: number of lanes of a warp.

    Raises:
        ScheduleError: the layout is missing, has another number of lanes or warps, has a basis outside of the tile, or
            leaves out elements.
    """
    layout = linear_of(value.type)
    if layout is None:
        raise _refused(value, "a register layout", f"{value.type}; run tile-assign-layouts")
    if (layout.lanes, layout.warps) != (lanes, warps):
        raise _refused(value, f"{lanes} lanes and {warps} warps", f"{layout.lanes} and {layout.warps} in {value.type}")
    _verify_bases(value, layout.shape, layout.bases)
    if not layout.is_surjective:
        raise _refused(value, "every element in a register", f"a layout that leaves out elements, {value.type}")
    return layout


def layout_in_shared(value: SSAValue) -> Shared:
    """Returns the shared layout of a tile, after checking it.

    Raises:
        ScheduleError: the layout is missing, has a basis outside of the tile, or is not a bijection.
    """
    layout = shared_of(value.type)
    if layout is None:
        raise _refused(value, "a shared layout", f"{value.type}; run tile-stage-dot-operands")
    _verify_bases(value, layout.shape, layout.offset)
    if not layout.is_bijective:
        raise _refused(value, "a bijective shared layout", value.type)
    return layout


def _verify_bases(value: SSAValue, shape: Sequence[int], bases: Bases) -> None:
    if any(len(b) != len(shape) or any(not 0 <= c < n for c, n in zip(b, shape, strict=True)) for b in bases):
        raise _refused(value, "bases inside of the tile", value.type)


def _refused(value: SSAValue, expected: str, actual: object) -> CompileError:
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    name = f"tile %{value.name_hint}" if value.name_hint else "tile"
    return refused(op, f"expected {expected} of the {name}, but got {actual}")
