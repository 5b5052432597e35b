"""Products of a warpgroup in the kernel dialect: `wgmma`, asynchronous, with operands in shared memory.

A warpgroup is four consecutive warps, the first one's number a multiple of four; all its threads execute these
operations together. One `kernel.wgmma` computes acc + A * B for A of 64 x K and B of K x N elements of two bytes, with
K = 16 * `slices`, or of f32 with K = 8 * `slices`, of which the last 13 bits do not count (tf32), summed in f32. What
it works on is in flight from there until a wait: the accumulators are a `!kernel.pending<vector<...>>`, which nothing
but these operations takes.

Accumulators: N / 2 registers. In register r, lane t of warp w of the warpgroup holds row 16 * w + t / 4 (+ 8 if bit 1
of r is set) and column 8 * (r / 4) + 2 * (t % 4) + bit 0 of r. As a layout of 64 x N:
`reg = [[0, 1], [8, 0], [0, 8], [0, 16], ...], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
warp = [[16, 0], [32, 0]]`.

A in registers: 8 * `slices` of them; in register e of slice s the lane holds row 16 * w + t / 4 (+ 8 if bit 1 of e is
set) and k = 16 * s + 2 * (t % 4) + bit 0 of e (+ 8 if bit 2 is set): eight consecutive accumulators,
narrowed, are one slice. Of f32 there are 4 * `slices`; register e of slice s is row 16 * w + t / 4 (+ 8 if bit 0 of e
is set) and k = 8 * s + t % 4 (+ 4 if bit 1 is set).

Operands in shared memory lie as `kernel.tma_load` puts boxes with the same `swizzle` W (see kernel_tma.py). A and B may
lie along k: 64 (A) or N (B) rows of W bytes, W / 2 elements of k, of which the product takes the first 16 * `slices`.
Or, `transposed`, across: panels of W / 2 rows of A or columns of B, each panel with one row of W bytes for each k;
panel p + 1 starts `panel` elements behind panel p. The operand's place is where its first element lies, in a tile that
starts at a multiple of 1024 bytes (8 * W would do); along k a place may be a multiple of 16 elements into the row.
f32 lie along k, W / 4 of them in a row, and a place may be a multiple of 8 of them into the row.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    Float32Type,
    IndexType,
    IntAttr,
    MemRefType,
    UnitAttr,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from .kernel_access import element_of_memory, shape_of_memory
from .kernel_matrix import WORD_BYTES, is_factor
from .kernel_tma import is_shared_line
from .payload import element_bytes, element_type, is_vector, shape_of

ROWS = 64
"""Rows of a warpgroup's product."""

SLICE_BYTES = 32
"""Extent along k of one instruction, in bytes."""

MOST_COLUMNS = 256
"""Columns of a warpgroup's product, at most."""

SWIZZLES = (32, 64, 128)
"""Row widths, in bytes, of operands in shared memory."""


def slice_elements(t: Attribute) -> int:
    """Extent along k of one instruction, in elements of `t`: 16, or 8 of f32."""
    return SLICE_BYTES // element_bytes(t)


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """Accumulators of products in flight: `!kernel.pending<vector<64xf32>>`."""

    name = "kernel.pending"
    registers: VectorType[Attribute]

    def verify(self) -> None:
        if not isinstance(element_type(self.registers), Float32Type):
            raise VerifyException(f"accumulators are f32, not {self.registers}")
        (count,) = shape_of(self.registers)
        if count % 4 or not 4 <= count <= MOST_COLUMNS // 2:
            raise VerifyException(f"4 to 128 accumulators, in steps of 4, not {count}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.registers)


class _InOrder(IRDLOperation):
    """What keeps its place among the operations of the warpgroup: nothing may move across it."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())


@irdl_op_definition
class WgmmaStartOp(_InOrder):
    """Accumulators without values: the first product into them must not accumulate.

    ```
    %p = kernel.wgmma_start : !kernel.pending<vector<64xf32>>
    ```
    """

    name = "kernel.wgmma_start"
    result = result_def(base(PendingType))
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, result_type: PendingType):
        super().__init__(result_types=[result_type])


@irdl_op_definition
class WgmmaResumeOp(_InOrder):
    """Registers become accumulators; `kernel.wgmma_fence` comes before the first product into them.

    ```
    %p = kernel.wgmma_resume %acc : vector<64xf32>
    ```
    """

    name = "kernel.wgmma_resume"
    source = operand_def(base(VectorType))
    result = result_def(base(PendingType))

    def __init__(self, source: SSAValue):
        assert isinstance(source.type, VectorType)
        super().__init__(operands=[source], result_types=[PendingType(source.type)])  # pyright: ignore

    def verify_(self) -> None:
        assert isinstance(self.result.type, PendingType)
        if self.result.type.registers != self.source.type:
            raise VerifyException(f"{self.source.type} become accumulators of that type, not {self.result.type}")

    @classmethod
    def parse(cls, parser: Parser) -> WgmmaResumeOp:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        return cls(parser.resolve_operand(source, parser.parse_type()))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)


@irdl_op_definition
class WgmmaFenceOp(_InOrder):
    """Order what the warpgroup has done with its registers before the products that follow.

    Comes before the first product, and again whenever registers of accumulators or of A were written in between.

    ```
    kernel.wgmma_fence
    ```
    """

    name = "kernel.wgmma_fence"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class WgmmaOp(_InOrder):
    """Start a product: see the module's docstring.

    `fresh`: the accumulators' old values do not count; `if`: they count where the condition, the same in the whole
    warpgroup, holds.

    ```
    %q = kernel.wgmma %a[%i], %b[%j] into %p slices 4 swizzle 128 if %more
        : memref<12288xbf16, "shared">, memref<12288xbf16, "shared">, !kernel.pending<vector<32xf32>>
    %r = kernel.wgmma %regs, %b[%j] transposed panel 4096 into %q slices 4 swizzle 128
        : vector<32xbf16>, memref<12288xbf16, "shared">, !kernel.pending<vector<64xf32>>
    ```
    """

    name = "kernel.wgmma"
    lhs = operand_def(base(MemRefType) | base(VectorType))
    lhs_place = opt_operand_def(IndexType())
    rhs = operand_def(base(MemRefType))
    rhs_place = operand_def(IndexType())
    acc = operand_def(base(PendingType))
    accumulate = opt_operand_def(i1)
    slices = prop_def(IntAttr)
    swizzle = prop_def(IntAttr)
    lhs_transposed = opt_prop_def(UnitAttr)
    rhs_transposed = opt_prop_def(UnitAttr)
    panel = opt_prop_def(IntAttr)
    fresh = opt_prop_def(UnitAttr)
    result = result_def(base(PendingType))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        lhs: SSAValue,
        lhs_place: SSAValue | None,
        rhs: SSAValue,
        rhs_place: SSAValue,
        acc: SSAValue,
        *,
        slices: int,
        swizzle: int = 128,
        lhs_transposed: bool = False,
        rhs_transposed: bool = False,
        panel: int | None = None,
        fresh: bool = False,
        accumulate: SSAValue | None = None,
    ):
        """`lhs` is registers, without a place, or a shared buffer with one."""
        super().__init__(
            operands=[lhs, lhs_place, rhs, rhs_place, acc, accumulate],
            properties={
                "slices": IntAttr(slices),
                "swizzle": IntAttr(swizzle),
                "lhs_transposed": UnitAttr() if lhs_transposed else None,
                "rhs_transposed": UnitAttr() if rhs_transposed else None,
                "panel": None if panel is None else IntAttr(panel),
                "fresh": UnitAttr() if fresh else None,
            },
            result_types=[acc.type],
        )

    @property
    def columns(self) -> int:
        """N, the columns of the product."""
        assert isinstance(self.acc.type, PendingType)
        return 2 * shape_of(self.acc.type.registers)[0]

    @property
    def element(self) -> Attribute:
        """The type of the operands' elements."""
        return element_of_memory(self.rhs.type)

    @property
    def row(self) -> int:
        """Elements of a row of an operand in shared memory."""
        return self.swizzle.data // element_bytes(self.element)

    @property
    def depth(self) -> int:
        """K."""
        return slice_elements(self.element) * self.slices.data

    def verify_(self) -> None:
        if self.result.type != self.acc.type:
            raise VerifyException("a product keeps the type of its accumulators")
        if self.swizzle.data not in SWIZZLES or self.slices.data < 1:
            raise VerifyException(f"{self.slices.data} slices swizzled by {self.swizzle.data} bytes")
        if self.fresh is not None and self.accumulate is not None:
            raise VerifyException("a fresh product has no condition for accumulating")
        if not is_factor(self.element):
            raise VerifyException(f"the operands are bf16, f16 or f32, not {self.element}")
        if element_bytes(self.element) == WORD_BYTES and (self.lhs_transposed or self.rhs_transposed) is not None:
            raise VerifyException("operands of f32 lie along k")
        self._verify_shared(self.rhs, self.columns, self.rhs_transposed is not None, "right")
        t: Attribute = self.lhs.type
        if isinstance(t, MemRefType):
            self._verify_shared(self.lhs, ROWS, self.lhs_transposed is not None, "left")
            if self.lhs_place is None or t.element_type != self.element:  # pyright: ignore
                raise VerifyException(f"the left operand is a place in a shared buffer of {self.element}")
        elif (
            self.lhs_place is not None
            or self.lhs_transposed is not None
            or not is_vector(self.lhs.type)
            or element_type(self.lhs.type) != self.element
            or shape_of(self.lhs.type) != (self.depth // 2,)
        ):
            raise VerifyException(f"the left operand is {self.depth // 2} registers of {self.element}")

    def _verify_shared(self, memory: SSAValue, extent: int, transposed: bool, side: str) -> None:
        t: Attribute = memory.type
        if not is_shared_line(t):
            raise VerifyException(f"the {side} operand lies in a shared buffer of one dimension, not in {t}")
        depth, row = self.depth, self.row
        if not transposed:
            if depth > row:
                raise VerifyException(f"{depth} elements of k in rows of {row}")
            needed = (extent - 1) * row + depth
        else:
            panels = -(-extent // row)
            if extent % min(row, extent) or extent > row and self.panel is None:
                raise VerifyException(f"the {side} operand has {extent} elements across: {panels} panels of {row}")
            step = 0 if self.panel is None else self.panel.data
            if panels > 1 and (step < depth * row or step % (8 * row)):
                raise VerifyException(f"panels {step} elements apart, of {depth} rows of {row} each")
            needed = (panels - 1) * step + depth * row
        if shape_of_memory(t)[0] < needed:
            raise VerifyException(f"the {side} operand takes {needed} elements of {t}")

    @classmethod
    def parse(cls, parser: Parser) -> WgmmaOp:
        lhs, lhs_place, lhs_transposed, _ = _parse_side(parser)
        parser.parse_punctuation(",")
        rhs, rhs_place, rhs_transposed, panel = _parse_side(parser)
        parser.parse_keyword("into")
        acc = parser.parse_unresolved_operand()
        parser.parse_keyword("slices")
        slices = parser.parse_integer()
        parser.parse_keyword("swizzle")
        swizzle = parser.parse_integer()
        fresh = parser.parse_optional_keyword("fresh") is not None
        condition = parser.parse_unresolved_operand() if parser.parse_optional_keyword("if") else None
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if len(types) != 3 or rhs_place is None:
            parser.raise_error("a product has a left operand, a place in a shared buffer, accumulators and three types")
        return cls(
            parser.resolve_operand(lhs, types[0]),
            None if lhs_place is None else parser.resolve_operand(lhs_place, IndexType()),
            parser.resolve_operand(rhs, types[1]),
            parser.resolve_operand(rhs_place, IndexType()),
            parser.resolve_operand(acc, types[2]),
            slices=slices,
            swizzle=swizzle,
            lhs_transposed=lhs_transposed,
            rhs_transposed=rhs_transposed,
            panel=panel,
            fresh=fresh,
            accumulate=None if condition is None else parser.resolve_operand(condition, i1),
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_side(printer, self.lhs, self.lhs_place, self.lhs_transposed is not None, None)
        printer.print_string(", ")
        _print_side(printer, self.rhs, self.rhs_place, self.rhs_transposed is not None, self.panel)
        printer.print_string(" into ")
        printer.print_ssa_value(self.acc)
        printer.print_string(f" slices {self.slices.data} swizzle {self.swizzle.data}")
        printer.print_string(" fresh" if self.fresh is not None else "")
        if self.accumulate is not None:
            printer.print_string(" if ")
            printer.print_ssa_value(self.accumulate)
        printer.print_string(" : ")
        printer.print_list([self.lhs.type, self.rhs.type, self.acc.type], printer.print_attribute)


def _parse_side(parser: Parser):  # pyright: ignore[reportUnknownParameterType]
    """`%x[%i] transposed panel 4096`: the value, its place, whether it is transposed, the panel."""
    value, place = parser.parse_unresolved_operand(), None
    if parser.parse_optional_punctuation("["):
        place = parser.parse_unresolved_operand()
        parser.parse_punctuation("]")
    transposed = parser.parse_optional_keyword("transposed") is not None
    panel = parser.parse_integer() if parser.parse_optional_keyword("panel") else None
    return value, place, transposed, panel


def _print_side(
    printer: Printer, value: SSAValue, place: SSAValue | None, transposed: bool, panel: IntAttr | None
) -> None:
    printer.print_ssa_value(value)
    if place is not None:
        with printer.in_square_brackets():
            printer.print_ssa_value(place)
    printer.print_string(" transposed" if transposed else "")
    printer.print_string("" if panel is None else f" panel {panel.data}")


@irdl_op_definition
class WgmmaCommitOp(_InOrder):
    """Close the group of the warpgroup's products since the last group.

    ```
    kernel.wgmma_commit
    ```
    """

    name = "kernel.wgmma_commit"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class WgmmaWaitOp(_InOrder):
    """Wait until all groups of products of the warpgroup but the `pending` newest are done; then they no longer read
    shared memory. With 0 the accumulators may become registers again; otherwise they stay accumulators.

    ```
    %q = kernel.wgmma_wait 1, %p : !kernel.pending<vector<64xf32>>
    %acc = kernel.wgmma_wait 0, %q : !kernel.pending<vector<64xf32>> -> vector<64xf32>
    ```
    """

    name = "kernel.wgmma_wait"
    pending = prop_def(IntAttr)
    acc = operand_def(base(PendingType))
    result = result_def(base(PendingType) | base(VectorType))

    def __init__(self, pending: int, acc: SSAValue, keep: bool = False):
        """Once nothing is pending the accumulators become registers, unless told to `keep` them."""
        assert isinstance(acc.type, PendingType)
        result = acc.type if pending or keep else acc.type.registers
        super().__init__(operands=[acc], properties={"pending": IntAttr(pending)}, result_types=[result])

    def verify_(self) -> None:
        assert isinstance(self.acc.type, PendingType)
        if not 0 <= self.pending.data < 8:
            raise VerifyException(f"waits until 0 to 7 groups are left, not {self.pending.data}")
        if self.result.type == self.acc.type:
            return
        if self.pending.data or self.result.type != self.acc.type.registers:
            raise VerifyException("accumulators become registers of their type once nothing is pending")

    @classmethod
    def parse(cls, parser: Parser) -> WgmmaWaitOp:
        pending = parser.parse_integer()
        parser.parse_punctuation(",")
        acc = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(acc, parser.parse_type())
        result = parser.parse_type() if parser.parse_optional_punctuation("->") else value.type
        return cls.create(operands=[value], properties={"pending": IntAttr(pending)}, result_types=[result])

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.pending.data}, ")
        printer.print_ssa_value(self.acc)
        printer.print_string(" : ")
        printer.print_attribute(self.acc.type)
        if self.result.type != self.acc.type:
            printer.print_string(" -> ")
            printer.print_attribute(self.result.type)
