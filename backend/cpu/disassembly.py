"""Disassembles the kernels of a compiled C++ program, by objdump."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ...errors import ExecutionError
from ..disassembly import Code, Function, Instruction

_SYMBOL = re.compile(r"^([0-9a-f]{8,}) <(.*)>:$")
_INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\t(.*)$")
_PLACE = re.compile(r"^(inlined by )?\S+-part\d+\.cpp:(\d+)(?: |$)")
_OTHER_PLACE = re.compile(r"^(inlined by )?\S+:(?:\d+|\?)(?: |$)")
_FORMAT = re.compile(r"file format (\S+)")
_JUMP = re.compile(r"([0-9a-f]+) <")
_PREFIXES = re.compile(r"^(?:(?:bnd|rep|repz|repnz|lock|notrack|data16|\{evex\}|\{vex\}) )+")

_X86 = "elf64-x86-64"

_SIZES = {"BYTE": 8, "WORD": 16, "DWORD": 32, "QWORD": 64, "XMMWORD": 128, "YMMWORD": 256, "ZMMWORD": 512}
_MEMORY = re.compile(r"(\w+) (?:PTR|BCST) (?:\w\w:)?\[?([^\]]*)\]?")
_VECTORS = (("zmm", 512), ("ymm", 256), ("xmm", 128))
_SCALAR = re.compile(r"(?:ss|sd|sh)$|^v?mov[dq]$|^v?cvt\w*(?:ss|sd|si)")
_READS = re.compile(r"cmp|test|push|call|jmp|bt$|mul|imul|div|idiv|ucomis|comis")
_WRITES = re.compile(r"v?mov|vextract|vcvt|vpmov|set|v?pextr|vpcompress|vcompress|vmask|v?maskmov|stos|pop|fst|kmov")
_OPERATIONS = (
    (re.compile(r"tdp"), "tile dot"),
    (re.compile(r"vdp|vpdp"), "dot"),
    (re.compile(r"vf(n?m)(add|sub)"), "fma"),
    (re.compile(r"v?div[ps]"), "div"),
    (re.compile(r"v?sqrt[ps]"), "sqrt"),
    (re.compile(r"v?(add|sub)[ps]"), "add"),
    (re.compile(r"v?mul[ps]"), "mul"),
    (re.compile(r"v?(max|min)[ps]"), "max"),
    (re.compile(r"vp?gather"), "gather"),
)


def disassemble(library: Path, kernels: Mapping[str, range]) -> dict[str, Code]:
    """Returns the code of kernels of a shared object by name.

    Args:
        library: Shared object of `build`. Instructions have lines if it was built with them.
        kernels: Names of the kernels, with their lines in the text (`build.kernel_lines`).

    Returns:
        for each kernel its functions and those that they call, which the compiler has not inlined.

    Raises:
        ExecutionError: if objdump is missing or fails.
    """
    command = [objdump(), "-d", "-C", "-l", "--inlines", "--no-show-raw-insn", *_syntax(library), str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ExecutionError(f"objdump: {(result.stderr.strip() or 'failed').splitlines()[0]}")
    return parse_listing(result.stdout, kernels)


def parse_listing(text: str, kernels: Mapping[str, range]) -> dict[str, Code]:
    """Returns the code of kernels from a listing of objdump in Intel's syntax. `kernels` is as for `disassemble`."""
    functions = [f for f in _functions(text, {n for lines in kernels.values() for n in lines}) if f.instructions]
    starts = {f.address: f for f in functions}
    codes: dict[str, Code] = {}
    for kernel in kernels:
        pending, shown = [f for f in functions if f.name == kernel], list[Function]()
        if not pending:  # The compiler has inlined the kernel into the code that divides its blocks among threads.
            launch = re.compile(rf"\b{kernel}_grid\b")
            pending = sorted((f for f in functions if launch.search(f.name)), key=lambda f: f.name == f"{kernel}_grid")
        while pending:
            shown.append(f := pending.pop(0))
            for target in dict.fromkeys(i.target for i in f.instructions if i.call):
                callee = starts.get(target or -1)
                if callee is not None and callee not in [*shown, *pending] and "@" not in callee.name:
                    pending.append(callee)
        codes[kernel] = Code.of(shown, _X86 in text[:1000])
    return codes


@dataclass
class _Symbol:
    """Function that is being read.

    Attributes:
        name: Name of the function.
        bodies: Lines of all kernels.
        instructions: Instructions so far.
        line: Line of the kernel for the next instructions. An inlined call has several lines: in helpers, in the
            kernel, and in the code that runs the blocks of the kernel.
    """

    name: str
    bodies: Set[int]
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    line: int | None = None

    def read(self, line: str) -> None:
        if (place := _PLACE.match(line) or _OTHER_PLACE.match(line)) is not None:
            number = int(place[2]) if place.re is _PLACE else 0
            if number in self.bodies:
                self.line = number
            elif not place[1]:
                self.line = None
        elif (match := _INSTRUCTION.match(line)) is not None:
            self.instructions.append(replace(_instruction(int(match[1], 16), match[2]), line=self.line))


def _functions(text: str, bodies: Set[int]) -> list[Function]:
    symbols = list[_Symbol]()
    for line in text.splitlines():
        if (symbol := _SYMBOL.match(line)) is not None:
            symbols.append(_Symbol(_short(symbol[2]), bodies))
        elif symbols:
            symbols[-1].read(line)
    return [Function(_with_stack(s.instructions), s.name) for s in symbols]


def _short(name: str) -> str:
    """Returns the name of a function without its arguments: `panel<8>` for `void panel<8>(long, float*)`."""
    while (shorter := re.sub(r"\([^()]*\)| \[clone [^\]]*\]|::\{lambda#\d+\}", "", name)) != name:
        name = shorter
    return re.sub(r"^(?:static )?(?:void|auto|float|int) ", "", name)


def _with_stack(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Marks the accesses to the stack: by the stack pointer, and by `rbp` in functions in which it is a copy of it."""
    frame = any(i.text.startswith("mov    rbp,rsp") for i in instructions)
    stack = re.compile(r"\[(?:rsp|rbp)\b" if frame else r"\[rsp\b")

    def marked(i: Instruction) -> Instruction:
        on_stack = i.access and stack.search(i.text) is not None
        return replace(i, access=f"stack {i.access}", spills=True) if on_stack else i

    return [marked(i) for i in instructions]


def _instruction(address: int, text: str) -> Instruction:
    """Returns an instruction of x86-64 from its text."""
    text = re.sub(r"\s+# [0-9a-f]+ <.*>$", "", text).rstrip()
    opcode, _, operands = _PREFIXES.sub("", text).partition(" ")
    operands = operands.strip()
    jump = _JUMP.match(operands) if opcode.startswith(("j", "call", "loop")) else None
    access, bits = _access(opcode, operands)
    return Instruction(
        address,
        re.sub(r" <.*>$", "", text) if opcode.startswith(("j", "loop")) else re.sub("<(.*)>$", _short_call, text),
        opcode,
        "call" if opcode == "call" else next((name for p, name in _OPERATIONS if p.match(opcode)), ""),
        access,
        bits,
        vector=_vector(opcode, operands),
        target=None if jump is None else int(jump[1], 16),
        call=opcode == "call",
        ends=opcode in ("jmp", "ret", "hlt", "ud2"),
    )


def _short_call(match: re.Match[str]) -> str:
    return f"<{_short(match[1])}>"


def _vector(opcode: str, operands: str) -> int:
    """Returns the bits of the widest vector register of the operands, or 0 for a scalar instruction."""
    if _SCALAR.search(opcode) is not None:
        return 0
    return next((bits for name, bits in _VECTORS if name in operands), 0)


def _access(opcode: str, operands: str) -> tuple[str, int]:
    """Returns the kind of the memory access of an instruction and its bits, or ("", 0)."""
    if opcode.startswith(("tileload", "tilestore")):
        return ("load" if "load" in opcode else "store"), 0
    if opcode in ("lea", "nop", "nopw", "nopl", "endbr64") or opcode.startswith("prefetch"):
        return "", 0
    match = _MEMORY.search(operands)
    if match is None or match[1] not in _SIZES:
        return "", 0
    bits = _SIZES[match[1]]
    is_destination = match.start() == 0
    if "gather" in opcode or "scatter" in opcode:
        return ("scatter" if "scatter" in opcode else "gather"), bits
    if not is_destination or _READS.match(opcode):
        return "load", bits
    return ("store" if _WRITES.match(opcode) else "update"), bits


def _syntax(library: Path) -> Sequence[str]:
    """Returns the options for Intel's syntax, which names the sizes of memory accesses, if the code is for x86-64."""
    head = subprocess.run([objdump(), "-f", str(library)], capture_output=True, text=True, check=False).stdout
    match = _FORMAT.search(head)
    return ("-M", "intel") if match is not None and match[1] == _X86 else ()


@cache
def objdump() -> str:
    """Returns the path of objdump. Raises ExecutionError if it is not installed."""
    if (path := shutil.which("objdump")) is None:
        raise ExecutionError("objdump is not available: install binutils (apt: binutils)")
    return path
