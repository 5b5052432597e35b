"""Counts the machine instructions and memory accesses of the kernels in a cubin, by nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from deplodock.backend.cuda.kernel_texts import unpack
from deplodock.errors import ExecutionError

_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.([A-Za-z_]\w*)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)")


_CONTROL = re.compile(r"/\* 0x([0-9a-f]{16}) \*/$")
_LABEL = re.compile(r"^(\.L_\w+):")
_BRANCH = re.compile(r"@!?U?P\d+ BRA(?:\.\w+)* .*`\((\.L_\w+)\)")


@dataclass
class KernelCode:
    """Instructions of one kernel, or of one loop.

    Attributes:
        opcodes: Number of instructions by whole mnemonic (`LDG.E.128.CONSTANT`).
        stall_cycles: Sum of the cycles that the instructions stall the next one of their warp, as the compiler has
            encoded them: a lower bound of the issue time of a warp.
    """

    opcodes: Counter[str] = field(default_factory=Counter[str])
    stall_cycles: int = 0

    def count(self, opcode: str) -> int:
        """Returns the number of instructions with an opcode (`"FFMA"`), with any modifiers."""
        return sum(n for name, n in self.opcodes.items() if name.split(".")[0] == opcode)

    def widths(self, opcode: str) -> dict[int, int]:
        """Returns the number of instructions of a memory access (`"LDG"`) by the number of bits that they move."""
        found: Counter[int] = Counter()
        for name, n in self.opcodes.items():
            parts = name.split(".")
            if parts[0] == opcode:
                found[_width(parts)] += n
        return dict(sorted(found.items()))

    @property
    def instructions(self) -> int:
        """Number of instructions."""
        return self.opcodes.total()

    @property
    def local_accesses(self) -> int:
        """Number of accesses to local memory: spilled registers, or arrays whose index the compiler does not know."""
        return self.count("LDL") + self.count("STL")


def _width(parts: list[str]) -> int:
    for part in parts[1:]:
        if part in ("128", "64"):
            return int(part)
        if match := re.fullmatch(r"[US](8|16)", part):
            return int(match[1])
    return 32


def disassemble(cubin: bytes) -> dict[str, KernelCode]:
    """Returns the code of every kernel of a cubin by name. Raises ExecutionError if nvdisasm is missing or fails."""
    code = unpack(cubin)
    listed = {c.cubin: parse_listing(_listing(c.cubin)) for c in code.values()}
    return {name: listed[c.cubin][c.entry] for name, c in code.items()}


def hot_loops(cubin: bytes, opcode: str) -> dict[str, list[KernelCode]]:
    """Returns the innermost loops of each kernel that have an instruction `opcode` (`"HGMMA"`), in their order."""
    code = unpack(cubin)
    listed = {c.cubin: parse_loops(_listing(c.cubin, "-hex"), opcode) for c in code.values()}
    return {name: listed[c.cubin][c.entry] for name, c in code.items()}


def _listing(cubin: bytes, *options: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([_nvdisasm(), "-c", *options, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExecutionError(f"nvdisasm: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return done.stdout


def parse_listing(text: str) -> dict[str, KernelCode]:
    """Returns the code of each kernel from a listing of nvdisasm."""
    kernels: dict[str, KernelCode] = {}
    current = KernelCode()
    for line in text.splitlines():
        if (section := _FUNCTION.match(line)) is not None:
            current = kernels.setdefault(section[1], KernelCode())
        elif (instruction := _INSTRUCTION.match(line)) is not None:
            current.opcodes[instruction[1]] += 1
    return kernels


def parse_loops(text: str, opcode: str) -> dict[str, list[KernelCode]]:
    """Returns the innermost loops with an `opcode` by kernel, from a listing with encodings.

    A loop is the range from a label to a branch back to it under a condition. Code that spins on a barrier is placed
    after the loop and jumps back without a condition.
    """
    loops: dict[str, list[KernelCode]] = {}
    for section in re.split(r"(?m)^(?=\s*\.section\s)", text):
        if (function := _FUNCTION.match(section)) is None:
            continue
        opcodes, stalls, labels, ranges = list[str](), list[int](), dict[str, int](), list[tuple[int, int]]()
        for line in section.splitlines():
            if (label := _LABEL.match(line)) is not None:
                labels[label[1]] = len(opcodes)
            elif (instruction := _INSTRUCTION.match(line)) is not None:
                opcodes.append(instruction[1])
                if (branch := _BRANCH.search(line)) is not None and branch[1] in labels:
                    ranges.append((labels[branch[1]], len(opcodes)))
            elif (control := _CONTROL.search(line)) is not None and len(stalls) < len(opcodes):
                stalls.append(int(control[1], 16) >> 41 & 15)
        chosen: list[tuple[int, int]] = []
        for start, end in sorted(ranges, key=lambda r: r[1] - r[0]):
            here = any(name.split(".")[0] == opcode for name in opcodes[start:end])
            if here and all(end <= first or last <= start for first, last in chosen):
                chosen.append((start, end))
        loops[function[1]] = [KernelCode(Counter(opcodes[a:b]), sum(stalls[a:b])) for a, b in sorted(chosen)]
    return loops


def _nvdisasm() -> str:
    """Returns the path of nvdisasm, from the wheel `nvidia-cuda-nvdisasm` or an installed CUDA."""
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    for root in roots:
        for path in sorted(Path(root).glob("*/bin/nvdisasm")):
            return str(path)
    found = shutil.which("nvdisasm", path=None) or shutil.which("nvdisasm", path=str(Path(sys.executable).parent))
    if found is None:
        raise ExecutionError("nvdisasm is not available: pip install nvidia-cuda-nvdisasm")
    return found
