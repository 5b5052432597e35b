"""Each kernel of a printed module as a text of its own, which is compiled, kept and loaded by itself; and the machine
code of a module's kernels as one file: a line of JSON with the places of cubins, then these.

What does not change machine code is left out: comments, helpers that the kernel does not call, and where in the module
the kernel stands. So equal kernels, of one module or of many, have one text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...errors import ExecutionError
from ..cpp.writer import HELPERS_MARK, KERNELS_MARK
from ..host.build_cache import digest

_HEAD = re.compile(r'^extern "C" __global__ void (?:__\w+__\([^)]*\) )*(\w+)\(', re.MULTILINE)
_DECLARED = re.compile(r"struct (?:__\w+__\(\d+\) )?(\w+)|(\w+)\s*\(")
_WORD = re.compile(r"\w+")

ENTRY = "k_[0-9a-f]{16}"
"""What kernels are called in machine code, where profilers show it: by their text."""


@dataclass(frozen=True)
class KernelText:
    """A text for the compiler, and the names of its kernels in machine code (`entries`), by their names in the module.
    `line`: line of the module's text where `text` without its helpers begins; `helpers`: lines of these."""

    text: str
    entries: Mapping[str, str]
    line: int = 1
    helpers: int = 0

    def with_lines(self, name: str) -> str:
        """Returns the text for a compiler that names lines of the module's text, which is called `name`."""
        lines = self.text.splitlines(keepends=True)
        return "".join([*lines[: self.helpers], f'#line {self.line} "{name}"\n', *lines[self.helpers :]])


@lru_cache(64)
def kernel_texts(source: str) -> tuple[KernelText, ...]:
    """Returns the kernels of a module's text, in order. A text of another source is one kernel text."""
    head, helpers_mark, rest = source.partition(HELPERS_MARK)
    section, kernels_mark, kernels = rest.partition(KERNELS_MARK)
    line = (head + helpers_mark + section + kernels_mark).count("\n") + 1
    found: list[KernelText] = []
    definitions = _definitions(section)
    for kernel in re.split(r"(?<=^}\n)\n", kernels, flags=re.MULTILINE) if kernels_mark else ():
        code = re.sub(r"\A(?://.*\n|\n)+", "", kernel)
        names = _HEAD.findall(code)
        if len(names) != 1:
            found = []
            break
        used = _used(definitions, code)
        anonymous = _HEAD.sub(lambda m: m[0][: m.start(1) - m.start()] + "kernel(", code)
        entry = "k_" + digest(used, anonymous)[:16]
        named = _HEAD.sub(lambda m, entry=entry: m[0][: m.start(1) - m.start()] + f"{entry}(", code)
        begin = line + kernel[: len(kernel) - len(code)].count("\n")
        found.append(KernelText(used + named, {names[0]: entry}, begin, used.count("\n")))
        line += kernel.count("\n") + 1
    return tuple(found) or (KernelText(source, {name: name for name in _HEAD.findall(source)}),)


def entries(source: str) -> dict[str, str]:
    return {name: entry for text in kernel_texts(source) for name, entry in text.entries.items()}


def _definitions(section: str) -> list[tuple[str, str | None]]:
    """Returns the definitions of a section of helpers with the names that they declare; None for what is always
    needed."""
    found: list[tuple[str, str | None]] = []
    current, depth = "", 0
    for line in section.splitlines(keepends=True):
        current, depth = current + line, depth + line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith(("}", ";")):
            match = None if current.startswith("#") else _DECLARED.search(current)
            found.append((current, match and (match[1] or match[2])))
            current = ""
    return [*found, (current, None)] if current.strip() else found


def _used(definitions: list[tuple[str, str | None]], code: str) -> str:
    """Returns the definitions that a kernel needs, directly or through others, in their order."""
    words, todo = set(_WORD.findall(code)), list(definitions)
    while more := [d for d in todo if d[1] is None or d[1] in words]:
        todo = [d for d in todo if d not in more]
        for text, _ in more:
            words |= set(_WORD.findall(text))
    return "".join(d[0] for d in definitions if d not in todo)


_MARK = b"deplodock kernels "


@dataclass(frozen=True)
class MachineCode:
    """The cubin of a kernel, and its name there."""

    cubin: bytes
    entry: str


def pack(kernels: Mapping[str, MachineCode]) -> bytes:
    """Returns one file of all kernels, with equal cubins once."""
    places: dict[bytes, int] = {}
    size = 0
    for code in kernels.values():
        if code.cubin not in places:
            places[code.cubin] = size
            size += len(code.cubin)
    head = {name: [code.entry, places[code.cubin], len(code.cubin)] for name, code in kernels.items()}
    return _MARK + json.dumps(head, sort_keys=True).encode() + b"\n" + b"".join(places)


def unpack(data: bytes) -> dict[str, MachineCode]:
    """Returns the kernels by name. Raises ExecutionError for data that `pack` has not made."""
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
