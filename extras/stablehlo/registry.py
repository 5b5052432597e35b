"""Rules: for each operation of StableHLO and CHLO a function that builds operations of the tensor dialect.

A rule takes a `Builder`, the operation and its operands, and returns the results:

```
@rule("stablehlo.negate")
def negate(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return b.cast(b.neg(b.working(x)), op.element)
```

The element types and shapes of the results must be those that the operation declares. The modules of `rules/` are
found automatically.

Unsigned integers are signless integers with the same bits, as in MLIR's `arith`. A rule whose result depends on the
sign reads `HloOperation.unsigned`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias, TypeVar

from xdsl.ir import SSAValue

from ...dialects import tensor
from ...dialects.payload import ConstantOp, element_type
from ...dialects.tensor.builder import Builder
from .operation import Body, HloOperation, HloType

__all__ = ["Body", "Builder", "HloOperation", "HloType", "Results", "is_identity", "number_of", "rule"]

Results: TypeAlias = SSAValue | Sequence[SSAValue]
Rule: TypeAlias = Callable[..., Results]
Function = TypeVar("Function", bound=Rule)

_RULES: dict[str, Rule] = {}


def rule(*operations: str) -> Callable[[Function], Function]:
    """Registers the decorated function as the rule of operations, such as `stablehlo.add`.

    Raises ValueError if one of them has a rule.
    """

    def register(function: Function) -> Function:
        for name in operations:
            if name in _RULES:
                raise ValueError(f"expected one rule of {name}, but got two")
            _RULES[name] = function
        return function

    return register


@cache
def rules() -> dict[str, Rule]:
    """Returns the rules of all modules of `rules/` by the names of the operations."""
    package = import_module(f"{__package__}.rules")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _RULES


def number_of(x: SSAValue) -> float | int | None:
    """Returns the number that all elements of a tensor have, or None if it is not constant."""
    op = x.owner
    while isinstance(op, tensor.IndexMapOp) and op.fill is None:
        op = op.source.owner
    return op.scalar if isinstance(op, ConstantOp) else None


def is_identity(kind: str, x: SSAValue) -> bool:
    """Returns true if all elements of a tensor are the identity of a reduction kind; both zeros for a sum."""
    return number_of(x) == tensor.identity(tensor.ReductionKind(kind), element_type(x.type))
