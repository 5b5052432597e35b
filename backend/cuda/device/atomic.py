"""The device functions that combine into memory: the hardware's atomic operation, or a loop around a swap."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i32

from ....dialects.tensor.reduction_kinds import MONOIDS, Monoid
from .helper import Helper

_WORDS = {"int": ("int", "int"), "float": ("int", "int"), "long long": ("unsigned long long", "long long")}
_WORDS["double"] = _WORDS["long long"]
"""Type -> the word that is swapped, and the signed integer of its size."""

_BITS = {"float": ("bits_to_float", "bits_to_int"), "double": ("bits_to_double", "bits_to_long")}


def atomic_helpers() -> dict[str, Helper]:
    """The device functions `atomic_<kind>(p, v)`, by keys such as `atomic_max.float`."""
    found: dict[str, Helper] = {}
    for c in _WORDS:
        for kind, monoid in MONOIDS.items():
            if c not in _BITS or monoid.floats is not None:
                name = f"atomic_{kind.value}"
                body, needs = _body(monoid, c)
                text = f"void {name}({c}* p, {c} v) {{ {body} }}"
                found[f"{name}.{c}"] = Helper(name, f"static __device__ {text}", f"static inline {text}", needs)
    return found


_COMBINE = {"arith.mulf": "", "arith.maximumf": "max_nan", "arith.minimumf": "min_nan", "arith.muli": "wrap_mul"}
"""The helper that computes an operation; `*` without."""


def _body(monoid: Monoid, c: str) -> tuple[str, tuple[str, ...]]:
    """The statements of a helper, and the keys of those that it calls. The hardware only adds floats."""
    if monoid.floats is arith.AddfOp and c in _BITS:
        return "atomicAdd(p, v);", ()
    if monoid.atomic is not None and c not in _BITS:
        word = c if monoid.atomic_is_signed else "unsigned" if c == "int" else "unsigned long long"
        return f"atomic{monoid.atomic}(({word}*)p, ({word})v);", ()
    word, integer = _WORDS[c]
    combine = _COMBINE[monoid.combiner(f32 if c in _BITS else i32).name]
    to_value, to_bits = _BITS.get(c, ("", ""))
    old = f"{to_value}(({integer})seen)"
    new = f"{combine}({old}, v)" if combine else f"{old} * v"
    swap = f"atomicCAS(({word}*)p, seen, ({word}){to_bits}({new}))"
    needs = (*((f"{combine}.{c}",) if combine else ()), *_BITS.get(c, ()))
    loop = f"do {{ seen = old; old = {swap}; }} while (old != seen);"
    return f"{word} old = atomicCAS(({word}*)p, ({word})0, ({word})0), seen; {loop}", needs
