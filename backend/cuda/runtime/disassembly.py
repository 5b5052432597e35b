"""Disassembles the kernels of a cubin to SASS, by nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ....errors import ExecutionError
from ....target.host import cores
from ...disassembly import Code, Function, Instruction
from ...host.build_cache import cached_bytes, digest
from ..kernel_texts import KERNEL_FILE, kernel_texts, unpack

OPTIONS = ("-c", "-hex", "-gi")
"""Options of nvdisasm: code sections, encodings, and lines with inlined calls."""

_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.([A-Za-z_]\w*)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+((@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*).*?)\s*;")
_CONTROL = re.compile(r"/\* 0x([0-9a-f]{16}) \*/$")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"\b(?:BRA|CALL|JMP)\b.*`\(([.$\w]+)\)")
_CONDITION = re.compile(r"BRA\S* !?UP\d|BRA\.DIV")
_ENDS = {"BRA", "BRX", "JMP", "EXIT", "RET"}
_LINE = re.compile(rf'^\s*//## File "(?:[^"]*/)?{re.escape(KERNEL_FILE)}", line (\d+)(?! inlined)')

_MATMUL = re.compile(r"(?:UTC)?[BDHIOQ]G?MMA")
_ARITHMETIC = set("FFMA FFMA2 HFMA2 DFMA FADD FADD2 HADD2 DADD FMUL FMUL2 HMUL2 DMUL FMNMX MUFU SHFL REDUX".split())
_ACCESS = re.compile(r"(?:LD|ST)(?:[GSL]|SM|GSTS)?|(?:ATOM|RED)[GS]?|UTMA(?:LDG|STG|REDG)|UBLKCP")
_BULK = re.compile(r"UTMA\w+|UBLKCP")


def disassemble(cubin: bytes, source: str | None = None) -> dict[str, Code]:
    """Returns the code of every kernel of a cubin by name.

    Args:
        cubin: Machine code of a module (`compile_cubin`).
        source: CUDA text of the module. The lines of instructions refer to it. None if the machine code was compiled
            without lines.

    Raises:
        ExecutionError: if nvdisasm is missing or fails.
    """
    kernels = unpack(cubin)
    different = list({k.cubin for k in kernels.values()})
    with ThreadPoolExecutor(max(1, min(cores(), len(different))), "nvdisasm") as threads:
        listings = dict(zip(different, map(parse_listing, threads.map(_listing, different)), strict=True))
    texts = () if source is None else kernel_texts(source)
    first = {name: text.line for text in texts for name in text.entries}
    return {name: _named(listings[k.cubin][k.entry], name, first.get(name)) for name, k in kernels.items()}


def _named(code: Code, name: str, first: int | None) -> Code:
    """Returns the code of the kernel `name`, whose text starts at line `first` of the module. None: without lines."""

    def moved(i: Instruction) -> Instruction:
        return replace(i, line=None if first is None or i.line is None else first + i.line - 1)

    return Code.of([replace(f, name=name, instructions=[*map(moved, f.instructions)]) for f in code.functions])


def _listing(cubin: bytes) -> str:
    """Returns the listing of a cubin, from the cache if it was disassembled before."""
    tool = Path(nvdisasm())

    def make() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels.cubin"
            path.write_bytes(cubin)
            result = subprocess.run([tool, *OPTIONS, path], capture_output=True, check=False)
        if result.returncode:
            raise ExecutionError(f"nvdisasm: {(result.stderr.decode().strip() or 'failed').splitlines()[0]}")
        return result.stdout

    key = digest(cubin.hex(), *OPTIONS, str(tool), str(tool.stat().st_mtime_ns))
    return cached_bytes("sass", f"{key}.txt", make).decode()


@dataclass
class _Section:
    """Function that is being read: instructions, targets of jumps by index, and indices of labels."""

    name: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    jumps: dict[int, str] = field(default_factory=dict[int, str])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    line: int | None = None
    has_control: bool = True

    def read(self, line: str) -> None:
        if (label := _LABEL.match(line)) is not None:
            self.labels[label[1]] = len(self.instructions)
        elif (place := _LINE.match(line)) is not None:
            self.line = int(place[1])
        elif (match := _INSTRUCTION.match(line)) is not None:
            address, text, predicate, opcode = match.groups()
            if (jump := _TARGET.search(text)) is not None:
                self.jumps[len(self.instructions)] = jump[1]
            self.instructions.append(replace(_instruction(int(address, 16), text, opcode, predicate), line=self.line))
            self.has_control = False
        elif (control := _CONTROL.search(line)) is not None and not self.has_control:
            self.instructions[-1] = replace(self.instructions[-1], stall=int(control[1], 16) >> 41 & 15)
            self.has_control = True

    def function(self) -> Function:
        """Returns the function with the addresses of jumps. Labels that no instruction jumps to are dropped."""
        instructions, used = list(self.instructions), dict[int, str]()
        for n, label in self.jumps.items():
            if self.labels.get(label, len(instructions)) < len(instructions):
                target = instructions[self.labels[label]].address
                instructions[n] = replace(instructions[n], target=target)
                used[target] = label
        return Function(instructions, self.name, used)


def parse_listing(text: str) -> dict[str, Code]:
    """Returns the code of each kernel from a listing of nvdisasm, with stalls if it has the encodings (`-hex`).

    Instructions have lines of the kernel's text (`KernelText.with_lines`).
    """
    kernels, current = dict[str, _Section](), _Section("")
    for line in text.splitlines():
        if (section := _FUNCTION.match(line)) is not None:
            current = kernels.setdefault(section[1], _Section(section[1]))
        else:
            current.read(line)
    return {name: Code.of([section.function()]) for name, section in kernels.items()}


def _instruction(address: int, text: str, opcode: str, predicate: str | None) -> Instruction:
    base, *modifiers = opcode.split(".")
    access = base if _ACCESS.fullmatch(base) else ""
    operation = base if base in _ARITHMETIC or _MATMUL.fullmatch(base) else ""
    if "-RZ, RZ" in text:  # HFMA2 with zeros loads a constant into a register.
        operation = ""
    return Instruction(
        address,
        text,
        opcode,
        operation,
        access,
        _width(base, modifiers) if access else 0,
        base in ("LDL", "STL"),
        call=base == "CALL",
        ends=base in _ENDS and predicate is None and _CONDITION.match(text) is None,
    )


def _width(base: str, modifiers: Sequence[str]) -> int:
    """Returns the bits that a memory access moves for a thread, or 0 for a bulk copy."""
    if _BULK.fullmatch(base):
        return 0
    if base in ("LDSM", "STSM"):  # The last modifier is the number of 8x8 matrices, each a register of a thread.
        return 32 * next((int(m) for m in modifiers if m in ("2", "4")), 1)
    for modifier in modifiers:
        if modifier in ("128", "64"):
            return int(modifier)
        if match := re.fullmatch(r"[US](8|16)", modifier):
            return int(match[1])
    return 32


@cache
def nvdisasm() -> str:
    """Returns the path of nvdisasm, from the wheel `nvidia-cuda-nvdisasm` or an installed CUDA.

    Raises:
        ExecutionError: if there is none.
    """
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    for root in roots:
        for path in sorted(Path(root).glob("*/bin/nvdisasm")):
            return str(path)
    path = shutil.which("nvdisasm", path=None) or shutil.which("nvdisasm", path=str(Path(sys.executable).parent))
    if path is None:
        raise ExecutionError("nvdisasm is not available: pip install nvidia-cuda-nvdisasm")
    return path
