"""Atomic operations of the kernel dialect: registers combined into what global memory holds."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, VectorType, i1
from xdsl.irdl import base, irdl_op_definition, operand_def, opt_operand_def, prop_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type, shape_of
from ..tensor import KindAttr, verify_atomic
from .memory import WRITE, MemoryAccess


@irdl_op_definition
class AtomicRmwOp(MemoryAccess):
    """Combine registers into memory, each element at once, in the threads where the predicate, if any, holds.

    Threads of any block may combine into one element, in an order that is open: no such access races with another, and
    nothing but these may touch the element in the same launch. Nothing is returned. It is relaxed, in the scope of the
    device: no other access is ordered by it.

    ```
    kernel.atomic_rmw add %v, %y[%i] where (%i) in [0:100] if %first : memref<100xf32> (index, index), vector<1xf32>
    ```
    """

    name = "kernel.atomic_rmw"
    kind = prop_def(KindAttr)
    value = operand_def(base(VectorType))
    predicate = opt_operand_def(i1)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = f"$kind {WRITE}"

    @property
    def registers(self) -> int:
        return shape_of(self.value.type)[0]

    def verify_(self) -> None:
        self.verify_access(self.value.type)
        verify_atomic(self.kind.data, element_type(self.value.type))
        if self.vec.data != 1:
            raise VerifyException("an atomic operation is on one element")
        space = getattr(self.memory.type, "memory_space", None)
        if isinstance(space, StringAttr):
            raise VerifyException(f"combines into global memory, not into {space.data} memory")
