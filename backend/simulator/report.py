"""Report of a simulation: errors with the responsible op, and counts of each launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xdsl.ir import Operation

from ...dialects.support.locations import location_text
from ...dialects.support.printing import quantity
from ...errors import ExecutionError

Kind = Literal[
    "uninitialised", "out-of-bounds", "misaligned", "divergent", "conflict", "unwritten", "deadlock", "protocol", "race"
]
MAX_TEXT = 120


@dataclass
class Finding:
    """Error of an op.

    Attributes:
        kind: kind of the error.
        message: description of the first occurrence.
        op: text of the op.
        location: location of the op, if known.
        count: number of occurrences.
    """

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
    """Counts of one launch. Wavefronts, sectors and barriers are counted in the first block, the rest in all blocks.

    Attributes:
        kernel: name of the kernel.
        blocks: number of blocks.
        loaded, stored: bytes by number of the kernel argument.
        load_widths, store_widths: bytes by width in bytes of an access of a thread, without TMA copies.
        wavefronts, ideal_wavefronts: wavefronts of shared memory, and their number without bank conflicts.
        sectors, ideal_sectors: touched 32-byte sectors of global memory, and their number if all bytes were used.
        flops: floating-point operations. A fused multiply-add counts as two.
        barriers: barriers of the block.
        duplicates: stores of a value that another thread stores to the same element.
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
    """Findings, one for each op and kind, and the counts of the launches in order."""

    launches: list[KernelCounts] = field(default_factory=list)
    _findings: dict[tuple[str, Operation], Finding] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings.values())

    def add(self, kind: Kind, op: Operation, message: str, count: int = 1) -> None:
        """Records errors of an op.

        Args:
            kind: kind of the error.
            op: the op.
            message: description of the first occurrence.
            count: number of occurrences.
        """
        finding = self._findings.get((kind, op))
        if finding is not None:
            finding.count += count
        else:
            self._findings[kind, op] = Finding(kind, message, op_text(op), location_text(op), count)

    def raise_errors(self) -> None:
        """Raises ExecutionError for the first finding, if there is one."""
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
