"""The kernel dialect: one thread's program in hardware primitives.

Registers are SSA vectors: `vector<8xf32>` is eight registers of each thread, whose number's bits are the register bits
of the tile layout it came from. The payload computes on them; `scf.for` with the same bounds in all threads loops.
Accesses stay n-dimensional; a register's place is the base coordinate plus a constant for every set bit of its number.
Shared memory is `memref<..., "shared">`. The host side, `func.func @main`, is a list of allocations and launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntAttr,
    MemRefType,
    StringAttr,
    SymbolRefAttr,
    VectorType,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Operation, Region, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    EffectInstance,
    IsolatedFromAbove,
    MemoryEffect,
    MemoryEffectKind,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from .kernel_access import LoadOp, StoreOp
from .payload import element_type, shape_of
from .tensor import Kind, KindAttr, verify_kind


class Id(StrEnum):
    """Who a thread is: its block in the grid, itself in the block, its lane in the warp, its warp in the block."""

    BLOCK = "block"
    THREAD = "thread"
    LANE = "lane"
    WARP = "warp"


@irdl_attr_definition
class IdAttr(EnumAttribute[Id], SpacedOpaqueSyntaxAttribute):
    """`#kernel<id lane>`"""

    name = "kernel.id"


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A kernel: the program of every thread of a one-dimensional grid of blocks.

    ```
    kernel.func @k0(%x: memref<32x2048xf32>, %y: memref<32x2048xf32>) grid 32 warps 8 {
      %lane = kernel.id lane
      ...
    }
    ```
    `shared N` says how many bytes of shared memory a block has, once they are allocated.
    """

    name = "kernel.func"
    sym_name = prop_def(StringAttr)
    grid = prop_def(IntAttr)
    warps = prop_def(IntAttr)
    shared = opt_prop_def(IntAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    def __init__(self, name: str, grid: int, warps: int, body: Region, shared: int | None = None):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "grid": IntAttr(grid),
                "warps": IntAttr(warps),
                "shared": None if shared is None else IntAttr(shared),
            },
            regions=[body],
        )

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps.data

    def verify_(self) -> None:
        if any(not isinstance(a.type, MemRefType) for a in self.body.block.args):
            raise VerifyException("the arguments of a kernel are memrefs")
        if self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"a block has 1, 2, 4, 8, 16 or 32 warps, not {self.warps.data}")
        if self.grid.data < 1 or self.grid.data >= 2**31:
            raise VerifyException(f"a grid has 1 to 2^31 - 1 blocks, not {self.grid.data}")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        name = parser.parse_symbol_name()
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        parser.parse_keyword("grid")
        grid = parser.parse_integer()
        parser.parse_keyword("warps")
        warps = parser.parse_integer()
        shared = parser.parse_integer() if parser.parse_optional_keyword("shared") else None
        attrs = parser.parse_optional_attr_dict_with_keyword()
        op = cls(name.data, grid, warps, parser.parse_region(args), shared)
        op.attributes.update(attrs.data if attrs else {})
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(f" grid {self.grid.data} warps {self.warps.data}")
        if self.shared is not None:
            printer.print_string(f" shared {self.shared.data}")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class IdOp(IRDLOperation):
    """Who this thread is.

    ```
    %lane = kernel.id lane
    ```
    """

    name = "kernel.id"
    kind = prop_def(IdAttr)
    result = result_def(IndexType())
    traits = traits_def(Pure())
    assembly_format = "$kind attr-dict"

    def __init__(self, kind: str | Id):
        super().__init__(properties={"kind": IdAttr(Id(kind))}, result_types=[IndexType()])
        self.result.name_hint = Id(kind).value


class _Allocates(MemoryEffect):
    """The operation allocates its result: unused, it disappears."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


@irdl_op_definition
class SharedOp(IRDLOperation):
    """A buffer in the block's shared memory; `at` is its byte offset, once allocated.

    Inside a loop it is a new buffer, with undefined contents, in every iteration.

    ```
    %s = kernel.shared at 1024 : memref<8xf32, "shared">
    ```
    """

    name = "kernel.shared"
    offset = opt_prop_def(IntAttr)
    result = result_def(base(MemRefType))
    traits = traits_def(_Allocates())

    def __init__(self, element: Attribute, size: int, offset: int | None = None):
        super().__init__(
            properties={"offset": None if offset is None else IntAttr(offset)},
            result_types=[MemRefType(element, [size], memory_space=StringAttr("shared"))],
        )

    def verify_(self) -> None:
        if not is_shared(self.result.type):
            raise VerifyException(f'a shared buffer is a memref in space "shared", not {self.result.type}')

    @classmethod
    def parse(cls, parser: Parser) -> SharedOp:
        offset = parser.parse_integer() if parser.parse_optional_keyword("at") else None
        parser.parse_punctuation(":")
        t = parser.parse_type()
        return cls.create(properties={} if offset is None else {"offset": IntAttr(offset)}, result_types=[t])

    def print(self, printer: Printer) -> None:
        if self.offset is not None:
            printer.print_string(f" at {self.offset.data}")
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


def is_shared(t: Attribute) -> bool:
    """Whether a memref type lies in shared memory."""
    return isinstance(t, MemRefType) and t.memory_space == StringAttr("shared")


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """All threads of the block wait for each other (`__syncthreads`); shared accesses before are seen after."""

    name = "kernel.barrier"
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class ShuffleXorOp(IRDLOperation):
    """The value of the lane whose number differs by the bits of `mask`, register by register, within a warp.

    ```
    %t = kernel.shuffle_xor %s by 16 : vector<2xf32>
    ```
    """

    name = "kernel.shuffle_xor"
    source = operand_def()
    mask = prop_def(IntAttr)
    result = result_def()
    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, mask: int):
        super().__init__(operands=[source], properties={"mask": IntAttr(mask)}, result_types=[source.type])

    def verify_(self) -> None:
        if not 0 < self.mask.data < 32:
            raise VerifyException(f"a shuffle reaches lanes 1 to 31 away, not {self.mask.data}")
        if self.source.type != self.result.type:
            raise VerifyException("a shuffle keeps the type")

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleXorOp:
        source = parser.parse_unresolved_operand()
        parser.parse_keyword("by")
        mask = parser.parse_integer()
        parser.parse_punctuation(":")
        return cls(parser.resolve_operand(source, parser.parse_type()), mask)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(f" by {self.mask.data} : ")
        printer.print_attribute(self.source.type)


@irdl_op_definition
class FoldOp(IRDLOperation):
    """Combine registers whose numbers differ in the given bits; the other bits, in order, number the result.

    ```
    %s = kernel.fold add %x over [0, 1] : vector<8xf32> -> vector<2xf32>
    ```
    """

    name = "kernel.fold"
    kind = prop_def(KindAttr)
    source = operand_def(base(VectorType))
    bits = prop_def(DenseArrayBase.constr(i64))
    result = result_def(base(VectorType))
    traits = traits_def(Pure())
    assembly_format = "$kind $source `over` $bits attr-dict `:` type($source) `->` type($result)"

    def __init__(self, kind: str | Kind, source: SSAValue, bits: Sequence[int]):
        size = shape_of(source.type)[0] >> len(bits)
        super().__init__(
            operands=[source],
            properties={"kind": KindAttr(Kind(kind)), "bits": DenseArrayBase.from_list(i64, list(bits))},
            result_types=[VectorType(element_type(source.type), [size])],
        )

    def verify_(self) -> None:
        (n,), bits = shape_of(self.source.type), set(self.bits.get_values())
        if any(not 0 <= b < n.bit_length() - 1 for b in bits):
            raise VerifyException(f"register bits {sorted(bits)} of {n} registers")
        if shape_of(self.result.type) != (n >> len(bits),):
            raise VerifyException(f"folding {len(bits)} bits of {n} registers leaves {n >> len(bits)}")
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl_op_definition
class PickOp(IRDLOperation):
    """Renumber registers: register r of the result is register `from[r]` of the source.

    ```
    %b = kernel.pick %r from [0, 0, 1, 1] : vector<2xf32> -> vector<4xf32>
    ```
    """

    name = "kernel.pick"
    source = operand_def(base(VectorType))
    registers = prop_def(DenseArrayBase.constr(i64))
    result = result_def(base(VectorType))
    traits = traits_def(Pure())
    assembly_format = "$source `from` $registers attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, registers: Sequence[int]):
        super().__init__(
            operands=[source],
            properties={"registers": DenseArrayBase.from_list(i64, list(registers))},
            result_types=[VectorType(element_type(source.type), [len(registers)])],
        )

    def verify_(self) -> None:
        n = shape_of(self.source.type)[0]
        picked = self.registers.get_values()
        if shape_of(self.result.type) != (len(picked),) or any(not 0 <= r < n for r in picked):
            raise VerifyException(f"picks {list(picked)} of {n} registers")


@irdl_op_definition
class SplatOp(IRDLOperation):
    """The same scalar in all registers.

    ```
    %v = kernel.splat %s : f32 -> vector<8xf32>
    ```
    """

    name = "kernel.splat"
    source = operand_def()
    result = result_def(base(VectorType))
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, size: int):
        super().__init__(operands=[source], result_types=[VectorType(source.type, [size])])

    def verify_(self) -> None:
        if element_type(self.result.type) != self.source.type:
            raise VerifyException(f"{self.source.type} in all registers is not {self.result.type}")


@irdl_op_definition
class ExtractOp(IRDLOperation):
    """One register as a scalar.

    ```
    %s = kernel.extract %v[0] : vector<1xf32>
    ```
    """

    name = "kernel.extract"
    source = operand_def(base(VectorType))
    register = prop_def(IntAttr)
    result = result_def()
    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, register: int = 0):
        super().__init__(
            operands=[source],
            properties={"register": IntAttr(register)},
            result_types=[element_type(source.type)],
        )

    def verify_(self) -> None:
        if not 0 <= self.register.data < shape_of(self.source.type)[0]:
            raise VerifyException(f"register {self.register.data} of {self.source.type}")

    @classmethod
    def parse(cls, parser: Parser) -> ExtractOp:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        register = parser.parse_integer()
        parser.parse_punctuation("]")
        parser.parse_punctuation(":")
        return cls(parser.resolve_operand(source, parser.parse_type()), register)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(f"[{self.register.data}] : ")
        printer.print_attribute(self.source.type)


@irdl_op_definition
class IndicesOp(IRDLOperation):
    """An index for every register: base plus the step of every set bit of the register's number.

    ```
    %k = kernel.indices %base steps [1, 2, 64] : vector<8xindex>
    ```
    """

    name = "kernel.indices"
    origin = operand_def(IndexType())
    steps = prop_def(DenseArrayBase.constr(i64))
    result = result_def(base(VectorType))
    traits = traits_def(Pure())
    assembly_format = "$origin `steps` $steps attr-dict `:` type($result)"

    def __init__(self, origin: SSAValue, steps: Sequence[int]):
        super().__init__(
            operands=[origin],
            properties={"steps": DenseArrayBase.from_list(i64, list(steps))},
            result_types=[VectorType(IndexType(), [1 << len(steps)])],
        )

    def verify_(self) -> None:
        if self.result.type != VectorType(IndexType(), [1 << len(self.steps.get_values())]):
            raise VerifyException("one step for each bit of the register number")


@irdl_op_definition
class OuterFmaOp(IRDLOperation):
    """acc[r] + lhs[i] * rhs[j] for every register r, fused: bit `rows[p]` of r is bit p of i, `cols[q]` is bit q of j.

    ```
    %c = kernel.outer_fma %a, %b, %acc rows [3, 4, 5] cols [0, 1, 2] : vector<8xf32>, vector<8xf32>, vector<64xf32>
    ```
    """

    name = "kernel.outer_fma"
    lhs = operand_def(base(VectorType))
    rhs = operand_def(base(VectorType))
    acc = operand_def(base(VectorType))
    rows = prop_def(DenseArrayBase.constr(i64))
    cols = prop_def(DenseArrayBase.constr(i64))
    result = result_def(base(VectorType))
    traits = traits_def(Pure())

    def __init__(self, lhs: SSAValue, rhs: SSAValue, acc: SSAValue, rows: Sequence[int], cols: Sequence[int]):
        super().__init__(
            operands=[lhs, rhs, acc],
            properties={
                "rows": DenseArrayBase.from_list(i64, list(rows)),
                "cols": DenseArrayBase.from_list(i64, list(cols)),
            },
            result_types=[acc.type],
        )

    def verify_(self) -> None:
        rows, cols = list(self.rows.get_values()), list(self.cols.get_values())
        (a,), (b,), (c,) = (shape_of(v.type) for v in (self.lhs, self.rhs, self.acc))
        if sorted(rows + cols) != list(range(c.bit_length() - 1)) or a != 1 << len(rows) or b != 1 << len(cols):
            raise VerifyException(f"rows {rows} and cols {cols} do not number {c} registers from {a} and {b}")
        if len({element_type(v.type) for v in self.operands}) != 1 or self.result.type != self.acc.type:
            raise VerifyException("operands and accumulator have one element type")

    @classmethod
    def parse(cls, parser: Parser) -> OuterFmaOp:
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_keyword("rows")
        rows = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        parser.parse_keyword("cols")
        cols = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if len(operands) != 3 or len(types) != 3:
            parser.raise_error("an outer_fma has three operands and their three types")
        a, b, c = (parser.resolve_operand(o, t) for o, t in zip(operands, types, strict=True))
        return cls(a, b, c, rows, cols)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(f" rows {list(self.rows.get_values())} cols {list(self.cols.get_values())} : ")
        printer.print_list(self.operand_types, printer.print_attribute)


@irdl_op_definition
class AllocOp(IRDLOperation):
    """Host: a buffer in global memory.

    ```
    %t = kernel.alloc : memref<32x2048xf32>
    ```
    """

    name = "kernel.alloc"
    result = result_def(base(MemRefType))
    traits = traits_def(_Allocates())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, result_type: Attribute):
        super().__init__(result_types=[result_type])


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """Host: run a kernel on buffers, after everything launched before.

    ```
    kernel.launch @k0(%x, %t) : memref<32x2048xf32>, memref<32x2048xf32>
    ```
    """

    name = "kernel.launch"
    kernel = prop_def(SymbolRefAttr)
    buffers = var_operand_def(base(MemRefType))
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$kernel `` `(` $buffers `)` attr-dict `:` type($buffers)"

    def __init__(self, kernel: str, buffers: Sequence[SSAValue]):
        super().__init__(operands=[list(buffers)], properties={"kernel": SymbolRefAttr(kernel)})


Kernel = Dialect(
    "kernel",
    [
        FuncOp,
        IdOp,
        SharedOp,
        LoadOp,
        StoreOp,
        BarrierOp,
        ShuffleXorOp,
        FoldOp,
        PickOp,
        SplatOp,
        ExtractOp,
        IndicesOp,
        OuterFmaOp,
        AllocOp,
        LaunchOp,
    ],
    [IdAttr],
)
