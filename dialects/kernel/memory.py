"""Memory spaces of buffers; loads, stores and atomic operations of several registers.

An access moves one element for every register r of a thread. For example, `%x[%i, %j] regs [[0, 1], [0, 2], [8, 0]]`
accesses eight elements: columns %j to %j + 3 of the rows %i and %i + 8. The coordinate along dimension d is

    coordinate[d] + sum over the set bits b of r of regs[b][d]

With `xor` (shared memory only), XOR replaces both additions. A coordinate is an `index`, or a vector of `index` with
one entry for each register. `vec` consecutive registers are contiguous in memory and move as one aligned access.

An access happens only if all its checks hold. For every check c:

    lower[c] <= check[c] + sum over the set bits b of r of steps[b][c] < upper[c]

A check has the same result for each group of `vec` registers. If a check fails, a load returns its fill value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl import irdl
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    IndexType,
    IntAttr,
    IntegerType,
    MemRefType,
    NoneAttr,
    StringAttr,
    UnitAttr,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from ..layouts import Bases, bases_of
from ..payload import element_bytes, element_type, is_vector, shape_of
from ..shapes.extents import Extent, SymbolAttr, bounds_in, extents_of, static
from ..support.assembly import SAME_TYPE, FormattedOp, OrderedOp, WritingOp
from ..tensor import KindAttr, verify_atomic


@dataclass(frozen=True)
class MemorySpace:
    """Memory space of buffers.

    name: name in the memref type; empty for global memory.
    of_block: whether it is shared memory of a block. Then offsets may be combined by XOR, and a kernel may read its own
        stores.
    writable: whether threads may store to it.
    qualifier: text before the element type of a CUDA pointer.
    """

    name: str
    of_block: bool = False
    writable: bool = True
    qualifier: str = ""

    def buffer(self, element: Attribute, shape: Sequence[int]) -> MemRefType[Attribute]:
        return MemRefType(element, shape, memory_space=StringAttr(self.name) if self.name else NoneAttr())


GLOBAL = MemorySpace("")
SHARED = MemorySpace("shared", of_block=True)
CLUSTER = MemorySpace("cluster", of_block=True, writable=False, qualifier="const ")
"""Shared memory of another block of the cluster."""

_SPACES = {space.name: space for space in (GLOBAL, SHARED, CLUSTER)}


def space_of(t: Attribute | None) -> MemorySpace | None:
    """Returns the memory space of a buffer type, or None if `t` is not a memref or its space is unknown."""
    if not isinstance(t, MemRefType):
        return None
    name = t.memory_space.data if isinstance(t.memory_space, StringAttr) else ""
    return _SPACES.get(name) if name or isinstance(t.memory_space, NoneAttr) else None


def is_shared(t: Attribute) -> bool:
    """Returns true if `t` is a buffer in the block's shared memory."""
    return space_of(t) is SHARED


def is_shared_line(t: Attribute) -> bool:
    """Returns true if `t` is a one-dimensional buffer in the block's shared memory."""
    return space_of(t) is SHARED and isinstance(t, MemRefType) and t.get_num_dims() == 1  # pyright: ignore


class _ReadsSharedMemory(MemoryEffect):
    """Memory effect of loads: they read memory that a kernel may write only if it is shared memory.

    A kernel never reads its results, so loads from global memory are pure.
    """

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        space = space_of(op.memory.type if isinstance(op, LoadOp) else None)
        return {EffectInstance(MemoryEffectKind.READ)} if space is not None and space.of_block else set()


ACCESS = (
    "$memory `` `[` $coordinates `]` (`xor` $xor^)? (`regs` custom<Bases>($regs)^)? (`vec` custom<Int>($vec)^)?"
    " (`where` custom<Checks>($checks, $lower, $upper)^ (`steps` custom<Bases>($steps)^)?)?"
)
"""Assembly format of an access: memory, coordinates, registers and checks."""

ACCESS_TYPES = (
    "attr-dict `:` type($memory) custom<DefinedTypes>(type($coordinates)) custom<DefinedTypes>(type($checks))"
)
"""Assembly format of the types of an access."""


class MemoryAccess(FormattedOp):
    """Base class of loads, stores and atomics. The head of `dialects/kernel/memory.py` defines the address and
    the checks.

    memory: the buffer.
    coordinates: base coordinate of each dimension.
    checks: base value of each check.
    regs: for each bit of the register number, its step along each dimension.
    steps: for each bit of the register number, its step in each check.
    lower, upper: bounds of each check; an upper bound may be symbolic.
    vec: registers that one access moves.
    xor: combine offsets by XOR instead of addition.
    """

    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    memory = irdl.operand_def(irdl.base(MemRefType))
    coordinates = irdl.var_operand_def()
    checks = irdl.var_operand_def()
    regs = irdl.prop_def(ArrayAttr[ArrayAttr[IntAttr]], default_value=ArrayAttr(()))
    steps = irdl.prop_def(ArrayAttr[ArrayAttr[IntAttr]], default_value=ArrayAttr(()))
    lower = irdl.prop_def(ArrayAttr[IntAttr], default_value=ArrayAttr(()))
    upper = irdl.prop_def(ArrayAttr[IntAttr | SymbolAttr], default_value=ArrayAttr(()))
    vec = irdl.prop_def(IntAttr, default_value=IntAttr(1))
    xor = irdl.opt_prop_def(UnitAttr)

    @property
    def registers(self) -> int:
        """Returns the number of registers of the access."""
        raise NotImplementedError

    @property
    def reg_bases(self) -> Bases:
        """Returns, for every bit of the register number, its step along every dimension of the memory."""
        return bases_of(self.regs)

    @property
    def check_steps(self) -> Bases:
        """Returns, for every bit of the register number, its step in every check."""
        return bases_of(self.steps) or ((),) * len(self.regs)

    @property
    def bounds(self) -> tuple[tuple[int, Extent], ...]:
        """Returns (lower, upper) of every check; the upper bound may be a symbol."""
        return bounds_in(self.lower, self.upper)

    def verify_access(self, moved: Attribute) -> None:
        """Checks the access and the type `moved` of its registers. Raises VerifyException."""
        if not is_vector(moved):
            raise VerifyException(f"expected a vector of registers, but got {moved}")
        self.verify_places(element_type(moved))

    def verify_places(self, moved_element: Attribute) -> None:
        """Checks the coordinates and checks of the access, and its element type. Raises VerifyException."""
        bits, rank = self.registers.bit_length() - 1, len(extents_of(self.memory.type))
        if self.registers != 1 << bits or len(self.reg_bases) != bits or len(self.check_steps) != bits:
            raise VerifyException(
                f"expected a power of two of registers, and a basis and a step for each bit of their number, but got"
                f" {self.registers} registers, {len(self.reg_bases)} bases and {len(self.check_steps)} steps"
            )
        if len(self.coordinates) != rank or any(len(b) != rank for b in self.reg_bases):
            raise VerifyException(
                f"expected {rank} coordinates, one for each dimension, also in the bases, but got"
                f" {len(self.coordinates)} and {[list(b) for b in self.reg_bases]}"
            )
        if len(self.checks) != len(self.bounds) or any(len(b) != len(self.bounds) for b in self.check_steps):
            raise VerifyException(
                f"expected bounds and a step in every basis for each of {len(self.checks)} checks, but got"
                f" {len(self.bounds)} bounds and {[list(b) for b in self.check_steps]}"
            )
        for c in self.operand_indices:
            if c.type not in (IndexType(), VectorType(IndexType(), [self.registers])):
                raise VerifyException(
                    "expected an index, or a vector of index with one entry for each register, as coordinates and"
                    f" checks, but got {c.type}"
                )
        if moved_element != element_type(self.memory.type):
            raise VerifyException(
                f"expected one element type of memory and registers, but got {element_type(self.memory.type)} and"
                f" {moved_element}"
            )
        self._verify_width(rank)
        space = space_of(self.memory.type)
        if space is None:
            raise VerifyException(f"expected a buffer in global, shared or cluster memory, but got {self.memory.type}")
        if self.xor is not None and not space.of_block:
            raise VerifyException(f"expected a shared buffer for offsets with xor, but got {self.memory.type}")

    def _verify_width(self, rank: int) -> None:
        width = self.vec.data
        if width < 1 or width & (width - 1) or width > self.registers:
            raise VerifyException(
                f"expected a vec that is a power of two up to {self.registers} registers, but got {width}"
            )
        low = width.bit_length() - 1
        if any(self.reg_bases[b] != (0,) * (rank - 1) + (1 << b,) for b in range(low)):
            raise VerifyException(
                f"expected the first {low} register bits to be contiguous in memory, but got"
                f" {[list(b) for b in self.reg_bases[:low]]}"
            )
        if any(any(self.check_steps[b]) for b in range(low)):
            raise VerifyException(
                f"expected checks that are constant within an access of {width} elements, but got steps"
                f" {[list(b) for b in self.check_steps[:low]]}"
            )
        if width > 1 and any(c.type != IndexType() for c in self.operand_indices):
            raise VerifyException(f"expected vec 1, because coordinates differ between registers, but got {width}")

    @property
    def operand_indices(self) -> tuple[SSAValue, ...]:
        """Returns the coordinates and the checks."""
        return (*self.coordinates, *self.checks)


def shape_of_memory(t: Attribute) -> tuple[int, ...]:
    """Returns the shape of a memref type. Raises ExtentError for a symbolic size."""
    return static(extents_of(t))


@irdl.irdl_op_definition
class LoadOp(MemoryAccess):
    """Loads registers from memory.

    ```
    %v = kernel.load %x[%i, %j] regs [[0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps [[0], [0], [8]]
         else %zero : memref<100x64xf32> -> vector<8xf32>
    ```

    Registers whose checks fail get the fill value (`else`).

    Operands:
        fill: value of the registers whose checks fail (`else`).

    Constraints: the access is legal (`MemoryAccess`); there is a fill value if and only if there are checks.
    """

    name = "kernel.load"
    fill = irdl.opt_operand_def(SAME_TYPE)
    result = irdl.result_def(VectorType.constr(SAME_TYPE))
    traits = irdl.traits_def(_ReadsSharedMemory())
    assembly_format = f"{ACCESS} (`else` $fill^)? {ACCESS_TYPES} `->` type($result)"

    def __init__(self, memory: SSAValue, coordinates: Sequence[SSAValue], regs: Sequence[Sequence[int]], **more: Any):
        result = VectorType(element_type(memory.type), [1 << len(regs)])
        super().__init__(memory, coordinates, regs=regs, result=result, **more)

    @property
    def registers(self) -> int:
        return shape_of(self.result.type)[0]

    def verify_(self) -> None:
        self.verify_access(self.result.type)
        if bool(self.bounds) != (self.fill is not None):
            raise VerifyException(
                "expected both checks and a fill value, or neither, but got only"
                f" {'checks' if self.bounds else 'a fill value'}"
            )
        if self.fill is not None and self.fill.type != element_type(self.result.type):
            raise VerifyException(
                f"expected a fill value of the element type of {self.result.type}, but got {self.fill.type}"
            )


class _MemoryWrite(MemoryAccess):
    """Base class of operations that write registers to memory, in threads whose predicate (if any) is true.

    value: registers to write.
    predicate: the thread writes nothing if it is false (`if`).
    """

    value = irdl.operand_def(irdl.base(VectorType))
    predicate = irdl.opt_operand_def(i1)
    assembly_format = f"$value `,` {ACCESS} (`if` $predicate^)? {ACCESS_TYPES} `,` type($value)"

    @property
    def registers(self) -> int:
        return shape_of(self.value.type)[0]

    def verify_(self) -> None:
        self.verify_access(self.value.type)


@irdl.irdl_op_definition
class StoreOp(_MemoryWrite, WritingOp):
    """Stores registers to memory, in threads whose predicate (if any) is true.

    ```
    kernel.store %v, %y[%i, %j] regs [[0, 1], [0, 2]] vec 4 if %first : memref<100x64xf32>, vector<4xf32>
    ```

    Registers whose checks fail are not stored.

    Constraints: the access is legal (`MemoryAccess`); the memory does not belong to another block of the cluster.
    """

    name = "kernel.store"

    def verify_(self) -> None:
        super().verify_()
        space = space_of(self.memory.type)
        if space is None or not space.writable:
            raise VerifyException(
                f"expected a store to global memory or to the block's own shared memory, but got {self.memory.type}"
            )


@irdl.irdl_op_definition
class AtomicRmwOp(_MemoryWrite, OrderedOp):
    """Combines registers into elements of global memory atomically, in threads whose predicate (if any) is true.

    ```
    kernel.atomic_rmw add %v, %y[%i] where 0 <= %i < 100 if %first : memref<100xf32>, vector<1xf32>
    ```

    Threads of any block may combine into one element, in an unspecified order. In the same launch only atomics may
    access the element. The memory order is relaxed, with device scope: it orders no other access. There is no result.

    Attributes:
        kind: reduction kind that combines a register with an element.

    Constraints: `vec` is 1; the buffer is in global memory; kind and element type are ones that atomics support.
    """

    name = "kernel.atomic_rmw"
    kind = irdl.prop_def(KindAttr)
    assembly_format = f"$kind {_MemoryWrite.assembly_format}"

    def verify_(self) -> None:
        super().verify_()
        verify_atomic(self.kind.data, element_type(self.value.type))
        if self.vec.data != 1:
            raise VerifyException(f"expected vec 1 for an atomic operation, but got {self.vec.data}")
        space = getattr(self.memory.type, "memory_space", None)
        if isinstance(space, StringAttr):
            raise VerifyException(f"expected an atomic operation on global memory, but got {space.data} memory")


def memory_bytes(t: Attribute) -> int:
    """Returns the bytes of a memref of static shape. An i1 takes one byte, an index eight."""
    bytes_each = element_bytes(t) if isinstance(element_type(t), IntegerType | AnyFloat) else 8
    return bytes_each * math.prod(shape_of_memory(t))
