"""The device functions that generated kernels call: the only place with inline assembly and intrinsics.

A helper with inline assembly also has a host text with the same meaning in plain C++, which the emulator puts in its
place; what the others call, the emulator defines. Only helpers that a module uses are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from string import Template

from ... import dtypes
from .generated import CASES, Helper, access_helper, atomic_helpers, wgmma_helper, wgmma_names


def _cases(text: str) -> list[dict[str, str]]:
    """What words stand for: the name of a table of generated.py, or `t = int; u = unsigned | t = long long; ...`."""
    if text in CASES:
        return CASES[text]
    parts = ([word.partition("=") for word in case.split(";") if word] for case in text.split(" | "))
    return [{name.strip(): value.strip() for name, _, value in words} for words in parts]


def read_helpers(text: str) -> dict[str, Helper]:
    """The helpers of the sections of a text, as functions.cuh says, by key."""
    found: dict[str, Helper] = {}
    for section in re.split(r"^//// (?!host)", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        head, _, cases = head.partition(" for ")
        key, _, needs = head.partition(" needs ")
        # Comments may stand in front of a function and behind the section, for what follows.
        cuda, _, host = re.sub(r"^// .*\n", "", body, flags=re.MULTILINE).strip().partition("\n//// host\n")
        for words in _cases(cases):
            own, device, same = (Template(t).safe_substitute(words) for t in (key, cuda, host))
            inline = device.replace("__device__ __forceinline__", "inline").replace("__device__", "inline")
            same = inline[: inline.index("{")] + same if same.startswith("{") else same
            keys = tuple(k for n in needs.split("; ") if (k := Template(n).substitute(words)))
            found[own] = Helper(own.split(".")[0], device, keys, same)
    return found


HELPERS = read_helpers((Path(__file__).parent / "functions.cuh").read_text(encoding="utf-8"))
HELPERS.update(atomic_helpers())

STRUCTS = {
    "TensorMap": "struct __align__(64) TensorMap { unsigned long long words[16]; };",
    **{c: f"struct {c} {{ {word} bits; }};" for c, word in sorted(dtypes.STRUCTS.items())},
}
"""Storage types, sixteen bits on which nothing is computed, and what the host passes. They come first in both texts."""


def get_helper(key: str) -> Helper:
    """The helper of a key of `HELPERS`, a wide access (`ld4.float.4`) or a product (`wgmma_128kk.bf16`)."""
    if key in HELPERS:
        return HELPERS[key]
    return wgmma_helper(key) if key.startswith("wgmma_") else access_helper(key)


@cache
def _assembly() -> dict[str, str]:
    """The host text for the text of every fixed helper with inline assembly."""
    return {h.cuda: h.host for h in HELPERS.values() if h.host}


def host_text_of(cuda: str) -> str | None:
    """The host text of a helper, from its CUDA text; None for what is no helper."""
    product = re.search(r"(wgmma_(?:tf32_)?\d+[krt][kt])\(.*k\d+\.f32\.(bf16|f16|tf32)\.", cuda, re.DOTALL)
    if product is None:
        return _assembly().get(cuda)
    helper = wgmma_helper(f"{product[1]}.{product[2].replace('tf32', 'float')}")
    return helper.host if helper.cuda == cuda else None


def helper_names() -> frozenset[str]:
    """Every C++ name that a helper may have."""
    wide = {f"{kind}{1 << n}" for kind in ("ld", "st", "fill") for n in range(1, 5)}
    return frozenset({h.name for h in HELPERS.values()} | wide | set(STRUCTS) | wgmma_names())


def helper_section(keys: Iterable[str]) -> str:
    """The definitions of the helpers in `keys` and of what they need."""
    wanted: set[str] = set()
    todo = list(keys)
    while todo:
        key = todo.pop()
        if key not in wanted:
            wanted.add(key)
            todo += () if key in STRUCTS else get_helper(key).needs
    lines = [STRUCTS[key] for key in STRUCTS if key in wanted]
    # Those that need another one come last.
    order = sorted(wanted - set(STRUCTS), key=lambda k: (not set(get_helper(k).needs) <= set(STRUCTS), k))
    lines += [get_helper(key).cuda for key in order]
    return "\n".join(lines) + "\n" if lines else ""
