"""Checks the alignment of arrays in printed CUDA, without running it.

A device function casts some of its pointer arguments to wider types. The arrays that a kernel passes must be aligned to
these types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from deplodock.backend.cpp.writer import HELPERS_MARK, KERNELS_MARK

BYTES = {"char": 1, "bool": 1, "bf16": 2, "f16": 2, "short": 2, "int": 4, "float": 4, "double": 8, "long long": 8}
"""C++ type -> bytes. Unsigned and vector types are derived from it."""

_FUNCTION = re.compile(
    r"static __device__ [\w ]*?(\w+)\(([^)]*)\)\s*\{(.*?)(?=\n(?:template|static|struct)|\Z)", re.DOTALL
)
_CAST = re.compile(r"\((?:const )?([\w ]+?)\*\)\s*(\w+)")
_ARRAY = re.compile(r"^ +(?:__align__\((\d+)\) )?([a-z][\w ]*) (\w+)\[(\d+)\](?: = \{\})?;", re.MULTILINE)


def size_of(name: str) -> int:
    """Returns the bytes of a C++ type, which is also its alignment."""
    name = name.replace("unsigned ", "").replace("signed ", "").replace("unsigned", "int")
    if name in BYTES:
        return BYTES[name]
    base, count = re.fullmatch(r"u?([a-z]+)(\d)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return BYTES[base.replace("longlong", "long long").replace("uint", "int")] * int(count)


def wants(helpers: str) -> dict[str, dict[tuple[int, str], int]]:
    """Returns the alignment that each device function needs for its arguments, in bytes.

    The keys are the function's name, and then the argument's position and declared element type. The alignment is the
    size of the widest type to which the function casts the argument.
    """
    alignments: dict[str, dict[tuple[int, str], int]] = {}
    for name, parameters, body in _FUNCTION.findall(helpers):
        declarations = [p.split("[")[0].strip(" )") for p in parameters.split(",")]
        names = [re.split(r"[ *&()]+", p)[-1] for p in declarations]
        for kind, p in _CAST.findall(body):
            if p in names:
                position = names.index(p)
                key = position, re.split(r" *[*&(]", declarations[position].removeprefix("const "))[0]
                by_argument = alignments.setdefault(name, {})
                by_argument[key] = max(size_of(kind), by_argument.get(key, 0))
    return alignments


def unaligned_arrays(cuda: str) -> Iterator[str]:
    """Yields a message for each array argument whose alignment is too small for the called device function."""
    helpers, kernels = cuda.split(KERNELS_MARK)
    alignments = wants(helpers.removeprefix(HELPERS_MARK))
    for kernel in kernels.split("__global__")[1:]:
        aligned = {n: int(a) if a else size_of(kind) for a, kind, n, _ in _ARRAY.findall(kernel)}
        kinds = {n: kind for _, kind, n, _ in _ARRAY.findall(kernel)}
        element = {n: size_of(kind) for n, kind in kinds.items()}
        for name, arguments in re.findall(r"\b(\w+)(?:<\d+>)?\((.*)\);", kernel):
            for (position, kind), bytes_ in alignments.get(name, {}).items():
                start = re.fullmatch(r"&?(\w+)(?:\[(.*)\])?", _split(arguments)[position])
                if start is None or start[1] not in aligned or kind in BYTES and kind != kinds[start[1]]:
                    continue  # The call is of another overload.
                at = int(start[2]) * element[start[1]] if (start[2] or "").isdigit() else 0
                if aligned[start[1]] % bytes_ or at % bytes_:
                    yield f"{name} takes {start[0]} for {bytes_} bytes, but it is aligned to {aligned[start[1]]}"


def _split(arguments: str) -> list[str]:
    """Splits the text between the parentheses of a call into its arguments."""
    pieces, depth = [""], 0
    for c in arguments:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += c
    return [a.strip() for a in pieces]
