"""A stub of libcuda for `backend/cuda/runtime/driver.py`: the version, and tensor maps with checked arguments."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graph_calls import GraphCalls
from .state import DEVICE, StubError

ITEMS = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}
"""Bytes of an element, by CUtensorMapDataType."""

SWIZZLED = {1: 32, 2: 64, 3: 128}
"""Bytes of a row of a box, by CUtensorMapSwizzle."""

INVALID_VALUE = 1
MAP_WORD = 0x5441474D41505354
"""What an encoded map begins with here; its number follows."""


@dataclass(frozen=True)
class EncodedMap:
    """Arguments of a call of cuTensorMapEncodeTiled; the fastest dimension comes first."""

    type: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int

    def problems(self) -> list[str]:
        """Returns violations of the rules in the reference of the driver API."""
        item, row = ITEMS.get(self.type, 0), SWIZZLED.get(self.swizzle)
        inner = self.box[0] * item
        span = [e * s for e, s in zip(self.extents, (item, *self.strides), strict=True)]
        room = DEVICE.memory.after(self.address)
        rules = {
            f"data type {self.type}": not item,
            f"rank {len(self.extents)}": not 1 <= len(self.extents) <= 5,
            f"address {self.address:#x} is no multiple of 16": self.address % 16 != 0,
            f"extents {self.extents}": not all(0 < n <= 2**32 for n in self.extents),
            f"strides {self.strides}": not all(s % 16 == 0 and 0 < s < 2**40 for s in self.strides),
            f"strides {self.strides} are shorter than rows": any(
                a > b for a, b in zip(span[:-1], self.strides, strict=True)
            ),
            f"box {self.box}": not all(0 < n <= 256 for n in self.box),
            f"{inner} bytes of a row of a box are no multiple of 16": inner % 16 != 0,
            f"element strides {self.element_strides}": any(s != 1 for s in self.element_strides),
            f"interleave {self.interleave}": self.interleave != 0,
            f"swizzle {self.swizzle}": self.swizzle not in (0, *SWIZZLED),
            f"{inner} bytes of a row of a box, swizzled by {row}": row is not None and inner > row,
            f"promotion {self.promotion}": self.promotion not in range(4),
            f"fill {self.fill}": self.fill not in (0, 1) or self.fill == 1 and self.type not in range(6, 13),
            f"memory at {self.address:#x} ends before it": room is None or max(span) > room,
        }
        return [text for text, broken in rules.items() if broken]


MAPS: list[EncodedMap] = []
"""All maps that were encoded."""


class Library(GraphCalls):
    """The result of `ctypes.CDLL("libcuda.so.1")`."""

    def __init__(self) -> None:
        super().__init__()
        DEVICE.opened += 1
        self.refused = ""

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = DEVICE.driver
        return 0

    def cuTensorMapEncodeTiled(self, result: Any, kind: Any, rank: Any, address: Any, *rest: Any) -> int:
        """Records the arguments, and encodes their index in `MAPS` as the map. Types are those of the C declaration."""
        if status := DEVICE.status():
            return status
        extents, strides, box, steps, *modes = rest
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        words = [(result, ctypes.c_void_p), (rank, u32), (address, ctypes.c_void_p)]
        arrays = [(extents, u64, rank.value), (strides, u64, max(rank.value - 1, 1)), (box, u32, rank.value)]
        arrays += [(steps, u32, rank.value)]
        if not all(isinstance(v, t) for v, t in words) or not all(isinstance(v, t * n) for v, t, n in arrays):
            raise StubError(f"cuTensorMapEncodeTiled is called with {(result, kind, rank, address, *rest)}")
        if result.value % 64:
            raise StubError("a tensor map is encoded to an address that is no multiple of 64")
        numbers = (tuple(extents), tuple(strides)[: rank.value - 1], tuple(box), tuple(steps))
        found = EncodedMap(int(kind), address.value or 0, *numbers, *map(int, modes))
        if problems := found.problems():
            self.refused = "; ".join(problems)
            return INVALID_VALUE
        words = (ctypes.c_uint64 * 16).from_address(result.value)
        words[0], words[1] = MAP_WORD, len(MAPS)
        MAPS.append(found)
        return 0


def decoded(record: np.ndarray) -> EncodedMap:
    """Returns the tensor map in an argument of a launch. Raises StubError if it is none."""
    words = np.frombuffer(record.tobytes(), np.uint64)
    if record.nbytes != 128 or record.ctypes.data % 64 or words[0] != MAP_WORD:
        raise StubError("an argument that should be an encoded tensor map, 128 bytes at a multiple of 64, is none")
    return MAPS[int(words[1])]


def open_library(name: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces `ctypes.CDLL`: returns the stub for libcuda."""
    return Library() if name == "libcuda.so.1" else _CDLL(name, *args, **kwargs)


_CDLL = ctypes.CDLL
