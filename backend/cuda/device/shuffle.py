"""Device functions that move, or choose, two registers of 16 bits at once; pairs lie at multiples of four bytes."""

from __future__ import annotations

from .helper import Helper

PAIRED = ("bf16", "f16")
"""Types of which two go into one register of the hardware."""

_RESULTS = {
    "shuffle_pair": ("int lane", "__shfl_sync(0xffffffffu, x, lane)"),
    "shuffle_xor_pair": ("int mask", "__shfl_xor_sync(0xffffffffu, x, mask)"),
    "choose_pair": ("const {}* b, bool first", "first ? x : y"),
    "copy_pair": ("", "x"),
}
"""Further parameters, and what becomes of the pair x at `a` and the pair y at `b`."""


def pair_helpers() -> dict[str, Helper]:
    """`r` becomes the pair at `a` of another lane, the one at `a` or at `b`, or just that at `a`."""
    found: dict[str, Helper] = {}
    for element in PAIRED:
        for name, (more, result) in _RESULTS.items():
            parameters = ", ".join(filter(None, (f"{element}* r, const {element}* a", more.format(element))))
            words = {"x": "a", "y": "b"} if "y" in result.split() else {"x": "a"}
            reads = " ".join(f"const unsigned {w} = *(const unsigned*){p};" for w, p in words.items())
            copies = " ".join(f"unsigned {w}; __builtin_memcpy(&{w}, {p}, 4);" for w, p in words.items())
            found[f"{name}.{element}"] = Helper(
                name,
                f"static __device__ void {name}({parameters}) {{ {reads} *(unsigned*)r = {result}; }}",
                f"static inline void {name}({parameters}) "
                f"{{ {copies} const unsigned w = {result}; __builtin_memcpy(r, &w, 4); }}",
                (element,),
            )
    return found
