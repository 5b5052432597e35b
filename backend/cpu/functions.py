"""Functions of vectors: where functions.hpp has them, and how long text is that calls them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...target.model import MAX_LANES

FUNCTION_OPERATIONS = 32
"""Vector operations of one function: from 20 (exp) to 45 (erf)."""

_LIBRARY = "acos acosh asin asinh atan atanh atan2 cbrt cosh log10 pow sinh tan".split()

FUNCTIONS = dict.fromkeys("expf exp2f logf tanhf erff".split(), "vector.{}") | {"expm1f": "vector.expf"}
FUNCTIONS |= dict.fromkeys(("log2f", "log1pf"), "vector.logf") | dict.fromkeys(("sinf", "cosf"), "vector.turn")
FUNCTIONS |= dict.fromkeys("sqrtf rsqrtf fabsf floorf ceilf truncf rintf".split(), "vector.builtin")
FUNCTIONS |= {f"{name}f": "vector.library.f32" for name in _LIBRARY}
FUNCTIONS |= dict.fromkeys((*_LIBRARY, *"cos erf exp exp2 expm1 log log1p log2 sin tanh".split()), "vector.library.f64")
FUNCTIONS |= dict.fromkeys("sqrt rsqrt fabs floor ceil trunc rint".split(), "vector.builtin.f64")
"""Functions of vectors of f32 and f64 by their names in C, and the sections of functions.hpp that have them."""

_FUNCTION = re.compile(rf"\b(?:{'|'.join(name for name, section in FUNCTIONS.items() if 'builtin' not in section)})\(")


def operations(lines: Sequence[str]) -> int:
    """Returns how many vector operations lines of C++ are: one for each, more for functions and loops over lanes."""
    text = "\n".join(lines)
    by_lanes = text.count("each<") + text.count("PER_LANE")
    return len(lines) + MAX_LANES * by_lanes + FUNCTION_OPERATIONS * len(_FUNCTION.findall(text))
