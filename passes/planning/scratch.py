"""What lies between the kernels that a nest becomes, where its schedule makes several of it, and how much may."""

from __future__ import annotations

from math import prod

import numpy as np

from ...dialects.kernel.host import aligned
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.host_memory import SCRATCH_LIMIT, HostMemory, set_limit
from ..analysis.nest_schedule import splittable, stages_of
from ..analysis.operand_types import PARTS, STORED, wide_factors
from ..analysis.packed_operands import copies
from .nest_info import NestInfo
from .points import Floats, Points, plan_of, points_of, total


def scratch_bytes(info: NestInfo, points: Points) -> Floats:
    """Bytes of the parts of a divided sum, of factors that are packed before, and of those that are split before."""
    divided = splittable(info.nest)
    stages = () if isinstance(divided, str) else stages_of(divided)
    results = prod(info.extents[i] for i in info.free if i in info.reduced)
    parts = total((aligned(points.split_k * results * element_bytes(op.result.type)) for op in stages), len(points))
    before = [
        aligned(tensor_bytes(r.type)) for i in points.pack for nest in copies(info.nest, info.free[i]) for r in nest.res
    ]
    if points.f32_matmul_precision == STORED:
        before.append(presplit_bytes(info))
    return sum(before) + np.where(points.split_k > 1, parts, 0.0)


def presplit_bytes(info: NestInfo) -> int:
    """Bytes of the factors in parts, of bf16 each, which has half of the bytes of f32."""
    sources = {load.source for load in wide_factors(info.nest)}
    return sum(PARTS * aligned(tensor_bytes(source.type) // 2) for source in sources)


def limit_scratch(info: NestInfo, schedule: ScheduleAttr, memory: HostMemory) -> bool:
    """Whether a nest takes more by `schedule` than there is room for: then it gets a limit."""
    (points,), room = points_of([plan_of(schedule)]), memory.room(info.nest)
    if room is None or scratch_bytes(info, points)[0] <= room:
        return False
    set_limit(info.nest, SCRATCH_LIMIT, room)
    return True
