"""Loads, stores and atomic operations on global memory."""

from __future__ import annotations

from functools import partial

from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts.linear import Linear
from ....dialects.payload import Predicate
from ...analysis.memory_access import Access, Write, memory_type, plan_access
from .emitter import Emitter, Index
from .register_coordinates import Places


def holder_predicate(out: Emitter, layout: Linear) -> SSAValue | None:
    """True in the threads that hold an element nobody before them holds; None if that is every thread."""
    redundant, lanes = layout.redundant(), len(layout.lane)
    bits = sorted((*redundant.lane, *(lanes + b for b in redundant.warp)))
    if not bits:
        return None
    total = lanes + len(layout.warp)
    if bits == list(range(bits[0], bits[-1] + 1)):
        mask = out.thread_field(bits[0], len(bits), total)
    else:
        mask = out.thread_bits([1 << b if b in bits else 0 for b in range(total)])[0]
    return out.emit(payload.CmpOp(Predicate.EQ, out.value(mask), out.value(0)), "first")


def origins(access: Access, places: Places) -> tuple[list[Index], list[Index]]:
    """The coordinates and the checks of an access."""
    return [places.origin(c) for c in access.coordinates], [places.origin(c) for c in access.checks]


def load(out: Emitter, op: tile.LoadOp, source: SSAValue, places: Places, fill: SSAValue | None) -> SSAValue:
    """Emit the load; a vector with the registers of the tile's layout."""
    memory, bits = memory_type(source), len(places.layout.reg)
    access = plan_access(op, places, memory)
    coordinates, checks = origins(access, places)
    if access.never and fill is not None:
        return out.emit(kernel.SplatOp(fill, places.layout.registers))
    return out.emit(
        kernel.LoadOp(
            source,
            [out.value(c) for c in coordinates],
            access.regs(bits),
            vec=access.vec,
            checks=[out.value(c) for c in checks],
            steps=access.steps(bits),
            bounds=access.bounds,
            fill=fill if checks else None,
        )
    )


def store(out: Emitter, op: Write, value: SSAValue, target: SSAValue, places: Places) -> None:
    """Emit the store of the registers of a layout that holds nothing twice; every element is written by one thread."""
    access = plan_access(op, places, memory_type(target))
    where = origins(access, places)
    if access.never:
        return
    coordinates, checks = ([out.value(index) for index in part] for part in where)
    atomic = isinstance(op, tile.AtomicRmwOp)
    access.vec = 1 if atomic else access.vec
    predicate = holder_predicate(out, places.layout)
    bits = len(places.layout.reg)
    regs, steps, bounds = access.regs(bits), access.steps(bits), access.bounds
    made = partial(kernel.AtomicRmwOp, op.kind.data) if atomic else partial(kernel.StoreOp, vec=access.vec)
    checked = partial(made, checks=checks, steps=steps, bounds=bounds, predicate=predicate)
    out.add_op(checked(value, target, coordinates, regs=regs))
