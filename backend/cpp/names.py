"""Names in generated CUDA: minted here, so that nothing written in the input reaches the text as an identifier. What a
value without a name is called is a word that says what it is."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import IndexType, i1
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import LdMatrixOp, ReduceRegistersOp
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import CastOp, element_type
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


_OPERATIONS = {
    "sum": "arith.addf arith.addi math.fma",
    "diff": "arith.subf arith.subi",
    "prod": "arith.mulf arith.muli",
    "quot": "arith.divf",
    "neg": "arith.negf",
    "hi": "arith.maximumf arith.maxnumf arith.maxsi",
    "lo": "arith.minimumf arith.minnumf arith.minsi",
    "e": "math.exp math.exp2",
    "ln": "math.log",
    "inv": "math.rsqrt",
    "root": "math.sqrt",
    "size": "math.absf",
    "sel": "payload.select",
    "acc": "scf.for kernel.outer_fma kernel.mma kernel.accumulators",
    "r": "kernel.shuffle kernel.shuffle_xor kernel.shuffle_registers kernel.permute_registers kernel.indices "
    "payload.cast",
}
WORDS = {name: word for word, names in _OPERATIONS.items() for name in names.split()}
"""A word for the result of an operation, by the operation's name."""

FOLDED = {"add": "total", "mul": "product", "max": "top", "min": "least", "and": "all", "or": "any", "xor": "parity"}


def hint_of(value: SSAValue) -> str:
    """The name of `value`, or a word for what computes it."""
    if value.name_hint is not None:
        return value.name_hint
    op = value.owner
    if not isinstance(op, Operation):
        return "v"
    if element_type(value.type) == i1:
        return "is"
    if isinstance(element_type(value.type), IndexType):
        return "at" if not isinstance(op, CastOp) else "n"
    if isinstance(op, LoadOp | LdMatrixOp):
        return f"{op.memory.name_hint or 'mem'}_in"
    if isinstance(op, ReduceRegistersOp):
        return FOLDED[op.kind.data.value]
    return WORDS.get(op.name, "v")
