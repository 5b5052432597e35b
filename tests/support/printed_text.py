"""What can be read off printed CUDA without running it: whether every array is aligned to what helpers take it for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deplodock.backend.cpp.writer import HELPERS_MARK, KERNELS_MARK

BYTES = {"char": 1, "bool": 1, "bf16": 2, "f16": 2, "short": 2, "int": 4, "float": 4, "double": 8, "long long": 8}
"""By the C++ type; unsigned and vector types follow from it."""

_FUNCTION = re.compile(
    r"static __device__ [\w ]*?(\w+)\(([^)]*)\)\s*\{(.*?)(?=\n(?:template|static|struct)|\Z)", re.DOTALL
)
_CAST = re.compile(r"\((?:const )?([\w ]+?)\*\)\s*(\w+)")
_ARRAY = re.compile(r"^ +(?:__align__\((\d+)\) )?([a-z][\w ]*) (\w+)\[(\d+)\](?: = \{\})?;", re.MULTILINE)


def size_of(name: str) -> int:
    """Bytes of a type, to which it has to be aligned."""
    name = name.replace("unsigned ", "").replace("signed ", "").replace("unsigned", "int")
    if name in BYTES:
        return BYTES[name]
    base, count = re.fullmatch(r"u?([a-z]+)(\d)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return BYTES[base.replace("longlong", "long long").replace("uint", "int")] * int(count)


def wants(helpers: str) -> dict[str, dict[tuple[int, str], int]]:
    """To how many bytes each helper wants its arguments aligned, by position and element type: to the types that its
    body takes them for."""
    found: dict[str, dict[tuple[int, str], int]] = {}
    for name, parameters, body in _FUNCTION.findall(helpers):
        given = [p.split("[")[0].strip(" )") for p in parameters.split(",")]
        names = [re.split(r"[ *&()]+", p)[-1] for p in given]
        for kind, p in _CAST.findall(body):
            if p in names:
                position = names.index(p)
                key = position, re.split(r" *[*&(]", given[position].removeprefix("const "))[0]
                wanted = found.setdefault(name, {})
                wanted[key] = max(size_of(kind), wanted.get(key, 0))
    return found


def unaligned_arrays(cuda: str) -> Iterator[str]:
    """Arrays of a printed text that are aligned to less than a helper takes them for, or that one starts inside of."""
    helpers, kernels = cuda.split(KERNELS_MARK)
    wanted = wants(helpers.removeprefix(HELPERS_MARK))
    for kernel in kernels.split("__global__")[1:]:
        aligned = {n: int(a) if a else size_of(kind) for a, kind, n, _ in _ARRAY.findall(kernel)}
        kinds = {n: kind for _, kind, n, _ in _ARRAY.findall(kernel)}
        element = {n: size_of(kind) for n, kind in kinds.items()}
        for name, arguments in re.findall(r"\b(\w+)(?:<\d+>)?\((.*)\);", kernel):
            for (position, kind), bytes_ in wanted.get(name, {}).items():
                start = re.fullmatch(r"&?(\w+)(?:\[(.*)\])?", _split(arguments)[position])
                if start is None or start[1] not in aligned or kind in BYTES and kind != kinds[start[1]]:
                    continue  # `kind` is another overload
                at = int(start[2]) * element[start[1]] if (start[2] or "").isdigit() else 0
                if aligned[start[1]] % bytes_ or at % bytes_:
                    yield f"{name} takes {start[0]} for {bytes_} bytes, but it is aligned to {aligned[start[1]]}"


def _split(arguments: str) -> list[str]:
    """The arguments of a call."""
    found, depth = [""], 0
    for c in arguments:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [a.strip() for a in found]
