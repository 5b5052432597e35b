"""Changing single operands and properties of an operation in place, by their names."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation


def set_fields(op: IRDLOperation, **fields: Attribute | SSAValue | Sequence[SSAValue] | None) -> None:
    """Set operands and properties of `op`: an attribute for a property, a value or a sequence of values for an operand;
    None removes an optional one. Everything else stays. Raises ValueError for a name that the operation does not have.
    """
    definition = op.get_irdl_definition()
    names = [name for name, _ in definition.operands]
    if unknown := fields.keys() - {*names, *definition.properties}:
        raise ValueError(f"{op.name} has no operand or property {unknown.pop()!r}")
    groups: list[tuple[SSAValue, ...]] = []
    for name in names:
        value: SSAValue | Sequence[SSAValue] | None = fields.get(name, getattr(op, name))  # pyright: ignore
        groups.append(() if value is None else (value,) if isinstance(value, SSAValue) else tuple(value))
    op.operands = [value for group in groups for value in group]
    if AttrSizedOperandSegments(as_property=True) in definition.options:
        op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(g) for g in groups])
    for name in definition.properties.keys() & fields.keys():
        if isinstance(attribute := fields[name], Attribute):
            op.properties[name] = attribute
        else:
            op.properties.pop(name, None)
