"""The device functions that combine into memory: the hardware's atomic operation, or a loop around a swap."""

from __future__ import annotations

from ...dialects.tensor import Kind
from .helper import Helper

_OWN = {Kind.ADD: "Add", Kind.MAX: "Max", Kind.MIN: "Min", Kind.AND: "And", Kind.OR: "Or"}
"""What the hardware does to integers in memory; floats it only adds."""

_WORDS = {"int": ("int", "int"), "float": ("int", "int"), "long long": ("unsigned long long", "long long")}
_WORDS["double"] = _WORDS["long long"]
"""Type -> the word that is swapped, and the signed integer of its size."""

_BITS = {"float": ("bits_to_float", "bits_to_int"), "double": ("bits_to_double", "bits_to_long")}


def atomic_helpers() -> dict[str, Helper]:
    """The device functions `atomic_<kind>(p, v)`, by keys such as `atomic_max.float`."""
    found: dict[str, Helper] = {}
    for c in _WORDS:
        for kind in Kind:
            if c not in _BITS or kind not in (Kind.AND, Kind.OR):
                name = f"atomic_{kind.value}"
                body, needs = _body(kind, c)
                text = f"void {name}({c}* p, {c} v) {{ {body} }}"
                found[f"{name}.{c}"] = Helper(name, f"static __device__ {text}", f"static inline {text}", needs)
    return found


def _body(kind: Kind, c: str) -> tuple[str, tuple[str, ...]]:
    """The statements of a helper, and the keys of those that it calls."""
    if kind == Kind.ADD and c in _BITS:
        return "atomicAdd(p, v);", ()
    if kind in _OWN and c not in _BITS:
        signed = kind in (Kind.MAX, Kind.MIN)
        word = c if signed else "unsigned" if c == "int" else "unsigned long long"
        return f"atomic{_OWN[kind]}(({word}*)p, ({word})v);", ()
    word, integer = _WORDS[c]
    combine = "wrap_mul" if c not in _BITS else {Kind.MUL: "", Kind.MAX: "max_nan", Kind.MIN: "min_nan"}[kind]
    to_value, to_bits = _BITS.get(c, ("", ""))
    old = f"{to_value}(({integer})seen)"
    new = f"{combine}({old}, v)" if combine else f"{old} * v"
    swap = f"atomicCAS(({word}*)p, seen, ({word}){to_bits}({new}))"
    needs = (*((f"{combine}.{c}",) if combine else ()), *_BITS.get(c, ()))
    loop = f"do {{ seen = old; old = {swap}; }} while (old != seen);"
    return f"{word} old = atomicCAS(({word}*)p, ({word})0, ({word})0), seen; {loop}", needs
