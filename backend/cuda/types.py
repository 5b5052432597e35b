"""C++ types, literals and expressions' precedence."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute

from ...dialects.kernel.mbarrier import MbarrierType
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.payload import element_type
from ...errors import CompileError
from ..dtypes import STRUCTS, dtype_of

ATOM, UNARY, MUL, ADD, SHIFT, RELATION, EQUALITY, BIT_AND, BIT_XOR, BIT_OR, AND, OR, TERNARY = range(100, 35, -5)
"""How tightly an expression binds: the precedence levels of C++."""


class Expr(NamedTuple):
    """A piece of C++ and how tightly it binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def c_type(t: Attribute, index: str = "int") -> str:
    """The C++ type of the scalar inside `t`; `index` is the type of indices. Raises CompileError."""
    e = element_type(t.registers if isinstance(t, AsyncAccumulatorsType) else t)
    if isinstance(e, IndexType):
        return index
    return "unsigned long long" if isinstance(e, MbarrierType) else dtype_of(e).c or _refused(e)


def _refused(e: Attribute) -> str:
    raise CompileError(f"no CUDA type for {e}")


def c_size(t: Attribute) -> int:
    """Bytes of one element of `t` in memory."""
    return dtype_of(t.registers if isinstance(t, AsyncAccumulatorsType) else t).bytes


def literal(value: float | int, t: Attribute, index: str = "int") -> tuple[Expr, str | None]:
    """A constant of type `t` that reads back exactly, and the key of the helper that it needs, if any."""
    name = c_type(t, index)
    if name in STRUCTS:
        number = np.float32(abs(value) if value != value else value)
        with np.errstate(over="ignore"):
            bits = number.astype(dtype_of(t).numpy).tobytes()[::-1].hex()
        return Expr(f"{name}{{0x{bits}}}"), name
    if name in ("float", "double"):
        return _float_literal(float(value), name)
    if name == "bool":
        return Expr("true" if value else "false"), None
    number = int(value)
    suffix = "ll" if name == "long long" and not isinstance(element_type(t), IndexType) else ""
    if number in (-(2**63), -(2**31)):
        return Expr(f"(-{-number - 1}{suffix} - 1)"), None
    if name == "unsigned int" or name == "unsigned long long":
        number, suffix = number % (1 << 8 * c_size(t)), "u" if name == "unsigned int" else "ull"
    return Expr(f"{number}{suffix}", ATOM if number >= 0 else UNARY), None


def _float_literal(value: float, name: str) -> tuple[Expr, str | None]:
    width, suffix = ("32", "f") if name == "float" else ("64", "")
    if math.isnan(value):
        return Expr(f"nan{width}()"), f"nan{width}"
    if math.isinf(value):
        return Expr(f"inf{width}()") if value > 0 else Expr(f"-inf{width}()", UNARY), f"inf{width}"
    text = str(np.float32(value)) if name == "float" else repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    return Expr(text + suffix, UNARY if text.startswith("-") else ATOM), None
