"""What a simulation found out: mistakes, each with the op that made it, and counts of what each kernel moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xdsl.ir import Operation

from ...dialects.support.locations import location_text
from ...dialects.support.printing import quantity
from ...errors import ExecutionError

Kind = Literal[
    "uninitialised", "out-of-bounds", "misaligned", "divergent", "conflict", "unwritten", "deadlock", "protocol"
]
MAX_TEXT = 120


@dataclass
class Finding:
    """One mistake of one op, seen `count` times; `message` describes the first time."""

    kind: Kind
    message: str
    op: str
    location: str | None
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{times}: {self.op}"


@dataclass
class KernelCounts:
    """What one launch did. Bytes and operations are of all blocks that ran; wavefronts and sectors were measured in the
    first block.

    `loaded`, `stored`: bytes by position of the buffer among the kernel's arguments. `load_widths`, `store_widths`: the
    same by the bytes of an access of a thread (TMA copies, which no thread moves, left out). `wavefronts`: passes that
    shared memory needed, `ideal_wavefronts` without bank conflicts. `sectors`: 32-byte pieces of global memory that
    requests touched, `ideal_sectors` with every piece fully used. `flops`: float operations (a fused multiply-add is
    two). `barriers`: barriers a block went through. `duplicates`: stores of what another thread stored there as well.
    """

    kernel: str
    blocks: int = 0
    loaded: dict[int, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    load_widths: dict[int, int] = field(default_factory=dict)
    store_widths: dict[int, int] = field(default_factory=dict)
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    flops: int = 0
    barriers: int = 0
    duplicates: int = 0


def op_text(op: Operation) -> str:
    text = str(op).splitlines()[0].strip()
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


@dataclass
class Report:
    """All findings, each op's mistakes of one kind together, and the counts of every launch in order."""

    launches: list[KernelCounts] = field(default_factory=list)
    _findings: dict[tuple[str, Operation], Finding] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings.values())

    def add(self, kind: Kind, op: Operation, message: str, count: int = 1) -> None:
        """Record that `op` made a mistake `count` times."""
        found = self._findings.get((kind, op))
        if found is not None:
            found.count += count
        else:
            self._findings[kind, op] = Finding(kind, message, op_text(op), location_text(op), count)

    def raise_errors(self) -> None:
        """Raise ExecutionError for the first finding, if there is any."""
        if findings := self.findings:
            others = f"; {quantity(len(findings) - 1, 'more finding')}" if len(findings) > 1 else ""
            raise ExecutionError(f"{findings[0]}{others}", location=findings[0].location)

    def __str__(self) -> str:
        lines = [str(f) for f in self.findings]
        for c in self.launches:
            loaded, stored = sum(c.loaded.values()), sum(c.stored.values())
            lines.append(
                f"{c.kernel}: {c.blocks} blocks, {loaded} bytes loaded, {stored} stored, {c.flops} flops, {c.barriers} "
                f"barriers, wavefronts {c.wavefronts} of {c.ideal_wavefronts}, sectors {c.sectors} of {c.ideal_sectors}"
            )
        return "\n".join(lines)
