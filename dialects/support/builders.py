"""Builders of operations that follow from their definitions, as those of MLIR's ODS do.

`Op(a, b, n=4)` takes operands, properties and regions by name, or by position in the order in which the operation's
`assembly_format` names them (operations without one: in which they are declared), and then the types of those results
that do not follow from constraints on the operands. Properties are given as Python values: numbers, words, lists of
them, affine maps, members of enumerations; `None`, and `False` for a flag, leave an optional one out, and one with a
default has that unless it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from xdsl.dialects import builtin
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, VarOperandDef, VerificationContext
from xdsl.utils.exceptions import VerifyException


def attribute_of(value: Any, kind: type[Attribute]) -> Attribute | None:
    """`value` as an attribute of the class `kind`; None for a flag that is not set. Raises TypeError."""
    if value is None or isinstance(value, Attribute):
        return value
    if kind is builtin.UnitAttr:
        return builtin.UnitAttr() if value else None
    if kind is builtin.DenseArrayBase:  # registers of a tile may be tens of thousands
        return builtin.DenseArrayBase(builtin.i64, builtin.BytesAttr(builtin.i64.pack([*value])))
    if kind is builtin.ArrayAttr:
        return _array(value)
    if issubclass(kind, EnumAttribute):
        return cast(Any, kind)(kind.enum_type(value))
    if kind in (builtin.IntAttr, builtin.StringAttr, builtin.SymbolRefAttr, builtin.AffineMapAttr):
        return cast(Any, kind)(value)
    raise TypeError(f"{value!r} is no {kind.name}")


def _array(values: Iterable[Any]) -> builtin.ArrayAttr[Attribute]:
    """Numbers, words, attributes and lists of them as an attribute."""

    def element(value: Any) -> Attribute:
        if isinstance(value, Attribute):
            return value
        if isinstance(value, int):
            return builtin.IntAttr(value)
        return builtin.StringAttr(value) if isinstance(value, str) else _array(value)

    return builtin.ArrayAttr([element(v) for v in values])


@cache
def _parameters(op: type[IRDLOperation]) -> tuple[tuple[str, ...], dict[str, type[Attribute]]]:
    """What the builder of an operation takes, in order, and the class of every property."""
    definition = op.get_irdl_definition()
    properties: dict[str, type[Attribute]] = {}
    for name, (ir_name, kind) in definition.accessor_names.items():
        if kind == "property":
            properties[name] = next(iter(definition.properties[ir_name].constr.get_bases() or ()), Attribute)
    fields = [*(name for name, _ in (*definition.operands, *definition.regions)), *properties]
    declared = [name for base in reversed(op.mro()) for name in vars(base) if name in fields]
    named = re.findall(r"(?<!type\()(?<!ref\()\$(\w+)", definition.assembly_format or "")
    results = [name for name, _ in definition.results]
    return (*dict.fromkeys([*(n for n in named if n in fields), *declared]), *results), properties


class BuiltOp(IRDLOperation):
    """An operation whose builder follows from its definition: see the module's docstring."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """Raises TypeError for what the operation does not have."""
        parameters, properties = _parameters(type(self))
        given = dict(zip(parameters, values, strict=False))
        if len(values) > len(parameters) or given.keys() & named.keys() or named.keys() - set(parameters):
            raise TypeError(f"{self.name} takes each of ({', '.join(parameters)}) once")
        given |= named
        definition = self.get_irdl_definition()
        operands = [
            given.get(name, ()) if isinstance(operand, VarOperandDef) else given.get(name)
            for name, operand in definition.operands
        ]
        super().__init__(
            operands=operands,
            properties={name: attribute_of(given[name], kind) for name, kind in properties.items() if name in given},
            regions=[given.get(name) for name, _ in definition.regions],
            result_types=[given[n] if n in given else self._infer(n, operands) for n, _ in definition.results],
        )

    def _infer(self, result: str, operands: Sequence[SSAValue | Sequence[SSAValue] | None]) -> Any:
        """The type of a result as the types of the operands determine it. Raises TypeError where they do not."""
        definition, context = self.get_irdl_definition(), VerificationContext()
        constraint = dict(definition.results)[result].constr
        if not constraint.can_infer(set(), length_known=True):
            for (_, operand), values in zip(definition.operands, operands, strict=True):
                found = [values] if isinstance(values, SSAValue) else values or ()
                operand.constr.verify([v.type for v in found], context)
        try:
            return constraint.infer(context, length=1)
        except (ValueError, VerifyException) as error:
            raise TypeError(f"{self.name}: the type of `{result}` does not follow from the operands") from error


def definitions(dialect: str, names: Mapping[str, Any]) -> tuple[list[type[Operation]], list[type[Attribute]]]:
    """The operations and the attributes of a dialect among the `names` of its package, as `Dialect` takes them."""
    own = [v for v in names.values() if isinstance(v, type) and str(getattr(v, "name", "")).startswith(f"{dialect}.")]
    return [o for o in own if issubclass(o, Operation)], [a for a in own if issubclass(a, Attribute)]
