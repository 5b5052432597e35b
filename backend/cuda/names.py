"""Names in generated CUDA: minted here, so that nothing written in the input reaches the text as an identifier."""

from __future__ import annotations

import re

from .device import helper_names

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else
enum explicit export extern false float for friend goto half if inline int long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix
main std asm_ smem i j m slice max min abs llabs printf assert malloc free memcpy memset
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma
fmax fmin fmod frexp hypot isfinite isinf isnan j0 j1 jn ldexp lgamma log log10 log1p log2 logb lrint lround modf nan
nearbyint nextafter norm pow remainder rint round rsqrt scalbn signbit sin sincos sinh sqrt tan tanh tgamma trunc y0 y1
yn normcdf cospi sinpi erfcx erfinv rcbrt rhypot clock clock64 trap brkpt index
""".split()

_VECTORS = [
    f"{base}{n}"
    for base in ("char uchar short ushort int uint long ulong longlong ulonglong float double dim").split()
    for n in (1, 2, 3, 4)
]

RESERVED = frozenset(
    [*_WORDS, *(w + "f" for w in _WORDS), *_VECTORS, "uint", "ulong", "ushort", "uchar", "size_t", *helper_names()]
)
"""Words that mean something in CUDA C++, or that the printer itself uses."""


def sanitise(text: str) -> str:
    """`text` as part of a `//` comment: no way out of the comment, one line, plain ASCII, not too long."""
    plain = re.sub(r"[^ -~]", " ", text).replace("\\", " ")
    plain = re.sub(r"[?]{2,}", "?", plain)
    for mark in ("*/", "/*", "//"):
        while mark in plain:
            plain = plain.replace(mark, " ")
    plain = " ".join(plain.split())
    return plain if len(plain) <= 200 else plain[:197] + "..."


class Names:
    """Hands out identifiers, each once. Every one matches `[a-z][a-z0-9_]*` and is no reserved word."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def mint(self, hint: str | None, default: str = "t") -> str:
        """A new name that reminds of `hint`; `default` (a legal name) where nothing of the hint is left."""
        stem = re.sub(r"_+", "_", re.sub(r"[^a-z0-9]", "_", (hint or "").lower())).strip("_")
        stem = stem.lstrip("0123456789_")[:32].rstrip("_") or default
        name, number = stem, 0
        while name in self._taken or name in RESERVED:
            number += 1
            name = f"{stem}_{number}" if stem[-1].isdigit() else f"{stem}{number}"
        self._taken.add(name)
        return name
