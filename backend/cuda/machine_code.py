"""The machine code of a module's kernels as one file: a line of JSON that says where each cubin lies, then these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ExecutionError

_MARK = b"deplodock kernels "


@dataclass(frozen=True)
class MachineCode:
    """The cubin in which a kernel is, and what it is called there."""

    cubin: bytes
    entry: str


def pack(kernels: Mapping[str, MachineCode]) -> bytes:
    """One file of them, in which equal cubins lie once."""
    places: dict[bytes, int] = {}
    size = 0
    for code in kernels.values():
        if code.cubin not in places:
            places[code.cubin] = size
            size += len(code.cubin)
    head = {name: [code.entry, places[code.cubin], len(code.cubin)] for name, code in kernels.items()}
    return _MARK + json.dumps(head, sort_keys=True).encode() + b"\n" + b"".join(places)


def unpack(data: bytes) -> dict[str, MachineCode]:
    """The kernels by name. Raises ExecutionError for what `pack` has not made."""
    head, _, cubins = data.removeprefix(_MARK).partition(b"\n")
    try:
        if not data.startswith(_MARK):
            raise ValueError
        found = {n: MachineCode(cubins[begin : begin + size], e) for n, (e, begin, size) in json.loads(head).items()}
        if any(len(found[n].cubin) != size or begin < 0 for n, (_, begin, size) in json.loads(head).items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ExecutionError("is no machine code of deplodock's kernels", operator="cubin") from None
    return found
