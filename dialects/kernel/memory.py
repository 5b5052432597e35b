"""The memories that the buffers of a kernel lie in, and loads, stores and atomic operations: n-dimensional, checked,
several registers wide.

These operations access one element for every register r of a thread. Its coordinate along dimension d is

    coordinate[d] + sum over the set bits b of r of regs[b][d]

(with `xor`, in shared memory only, exclusive or instead of both sums), where a coordinate is an `index`, or a vector of
`index` with one entry a register. `vec` consecutive registers are consecutive in memory and move as one access of
`vec` elements, aligned to its size. The access happens where all checks hold: for every check c,

    lower[c] <= check[c] + sum over the set bits b of r of steps[b][c] < upper[c]

with checks constant over each group of `vec` registers. Elsewhere a load gives the fill value.
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
    """A memory, by the `name` in the types of its buffers, which global memory has none of.

    `of_block`: it is the shared memory of a block, so that offsets may combine by exclusive or, and a kernel may read
    what it wrote. `writable`: threads may store there. `qualifier`: what stands in front of the element type of a
    pointer in CUDA.
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
"""The shared memory of another block of the cluster."""

_SPACES = {space.name: space for space in (GLOBAL, SHARED, CLUSTER)}


def space_of(t: Attribute | None) -> MemorySpace | None:
    """The memory of a buffer of type `t`; None for what is no buffer, or lies in no memory that there is."""
    if not isinstance(t, MemRefType):
        return None
    name = t.memory_space.data if isinstance(t.memory_space, StringAttr) else ""
    return _SPACES.get(name) if name or isinstance(t.memory_space, NoneAttr) else None


def is_shared(t: Attribute) -> bool:
    return space_of(t) is SHARED


def is_shared_line(t: Attribute) -> bool:
    return space_of(t) is SHARED and isinstance(t, MemRefType) and t.get_num_dims() == 1  # pyright: ignore


class _ReadsSharedMemory(MemoryEffect):
    """A load reads memory that the kernel may write only if that memory is shared, its block's or that of another block
    of the cluster: a kernel never reads its results."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        space = space_of(op.memory.type if isinstance(op, LoadOp) else None)
        return {EffectInstance(MemoryEffectKind.READ)} if space is not None and space.of_block else set()


ACCESS = (
    "$memory `` `[` $coordinates `]` (`xor` $xor^)? (`regs` custom<Bases>($regs)^)? (`vec` custom<Int>($vec)^)?"
    " (`where` custom<Checks>($checks, $lower, $upper)^ (`steps` custom<Bases>($steps)^)?)?"
)
"""The text of an access: memory, coordinates, registers and checks."""

ACCESS_TYPES = (
    "attr-dict `:` type($memory) custom<DefinedTypes>(type($coordinates)) custom<DefinedTypes>(type($checks))"
)
"""The types of an access."""


class MemoryAccess(FormattedOp):
    """What loads and stores share: see the module's docstring."""

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
        raise NotImplementedError

    @property
    def reg_bases(self) -> Bases:
        """For every bit of the register number, its step along every dimension of the memory."""
        return bases_of(self.regs)

    @property
    def check_steps(self) -> Bases:
        """For every bit of the register number, its step in every check."""
        return bases_of(self.steps) or ((),) * len(self.regs)

    @property
    def bounds(self) -> tuple[tuple[int, Extent], ...]:
        """(lower, upper) of every check; the upper bound may be a size known only at run time."""
        return bounds_in(self.lower, self.upper)

    def verify_access(self, moved: Attribute) -> None:
        """Check the access against the type it moves. Raises `VerifyException`."""
        if not is_vector(moved):
            raise VerifyException(f"an access moves a vector of registers, not {moved}")
        self.verify_places(element_type(moved))

    def verify_places(self, moved_element: Attribute) -> None:
        """Check where the access goes, and that `moved_element` is what lies there. Raises `VerifyException`."""
        bits, rank = self.registers.bit_length() - 1, len(extents_of(self.memory.type))
        if self.registers != 1 << bits or len(self.reg_bases) != bits or len(self.check_steps) != bits:
            raise VerifyException(f"one basis for each bit of the number of {self.registers} registers")
        if len(self.coordinates) != rank or any(len(b) != rank for b in self.reg_bases):
            raise VerifyException(f"one coordinate for each of {rank} dimensions")
        if len(self.checks) != len(self.bounds) or any(len(b) != len(self.bounds) for b in self.check_steps):
            raise VerifyException("one [lower:upper] and one step for each check")
        if any(c.type not in (IndexType(), VectorType(IndexType(), [self.registers])) for c in self.operand_indices):
            raise VerifyException("coordinates and checks are index, or a vector of index with one entry a register")
        if moved_element != element_type(self.memory.type):
            raise VerifyException("memory and registers have one element type")
        self._verify_width(rank)
        space = space_of(self.memory.type)
        if space is None:
            raise VerifyException(f"there is no such memory: {self.memory.type}")
        if self.xor is not None and not space.of_block:
            raise VerifyException("only offsets in shared memory combine by exclusive or")

    def _verify_width(self, rank: int) -> None:
        width = self.vec.data
        if width < 1 or width & (width - 1) or width > self.registers:
            raise VerifyException(f"an access {width} elements wide of {self.registers} registers")
        low = width.bit_length() - 1
        if any(self.reg_bases[b] != (0,) * (rank - 1) + (1 << b,) for b in range(low)):
            raise VerifyException(f"the first {low} register bits are not consecutive in memory")
        if any(any(self.check_steps[b]) for b in range(low)):
            raise VerifyException("a check changes within one access")
        if width > 1 and any(c.type != IndexType() for c in self.operand_indices):
            raise VerifyException("a coordinate for every register allows no wide access")

    @property
    def operand_indices(self) -> tuple[SSAValue, ...]:
        return (*self.coordinates, *self.checks)


def shape_of_memory(t: Attribute) -> tuple[int, ...]:
    """The shape of a memref type. Raises ExtentError for a size known only at run time."""
    return static(extents_of(t))


@irdl.irdl_op_definition
class LoadOp(MemoryAccess):
    """Registers from memory.

    ```
    %v = kernel.load %x[%i, %j] regs [[0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps [[0], [0], [8]]
         else %zero : memref<100x64xf32> -> vector<8xf32>
    ```
    The types in parentheses are those of the coordinates and the checks. Shared memory has one dimension.
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
            raise VerifyException("checks and a fill value come together")
        if self.fill is not None and self.fill.type != element_type(self.result.type):
            raise VerifyException(f"fill of type {self.fill.type} in registers of {self.result.type}")


class _MemoryWrite(MemoryAccess):
    """What writes registers to memory, in the threads where the predicate, if any, holds."""

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
    """Registers to memory, in the threads where the predicate, if any, holds.

    ```
    kernel.store %v, %y[%i, %j] regs [[0, 1], [0, 2]] vec 4 if %first : memref<100x64xf32>, vector<4xf32>
    ```
    """

    name = "kernel.store"

    def verify_(self) -> None:
        super().verify_()
        space = space_of(self.memory.type)
        if space is None or not space.writable:
            raise VerifyException("a block stores to its own shared memory, not to that of others in the cluster")


@irdl.irdl_op_definition
class AtomicRmwOp(_MemoryWrite, OrderedOp):
    """Combine registers into memory, each element at once, in the threads where the predicate, if any, holds.

    Threads of any block may combine into one element, in an order that is open: no such access races with another, and
    nothing but these may touch the element in the same launch. Nothing is returned. It is relaxed, in the scope of the
    device: no other access is ordered by it.

    ```
    kernel.atomic_rmw add %v, %y[%i] where 0 <= %i < 100 if %first : memref<100xf32>, vector<1xf32>
    ```
    """

    name = "kernel.atomic_rmw"
    kind = irdl.prop_def(KindAttr)
    assembly_format = f"$kind {_MemoryWrite.assembly_format}"

    def verify_(self) -> None:
        super().verify_()
        verify_atomic(self.kind.data, element_type(self.value.type))
        if self.vec.data != 1:
            raise VerifyException("an atomic operation is on one element")
        space = getattr(self.memory.type, "memory_space", None)
        if isinstance(space, StringAttr):
            raise VerifyException(f"combines into global memory, not into {space.data} memory")


def memory_bytes(t: Attribute) -> int:
    """How many bytes a memref of static shape takes; a truth value takes one."""
    each = element_bytes(t) if isinstance(element_type(t), IntegerType | AnyFloat) else 8
    return each * math.prod(shape_of_memory(t))
