"""Texts of the constraints, traits and assembly formats of xDSL's definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

from xdsl.dialects import builtin
from xdsl.dialects.builtin import ArrayOfConstraint, SymbolNameConstraint
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, TypeAttribute
from xdsl.irdl import (
    AllOf,
    AnyAttr,
    AnyOf,
    AttrConstraint,
    BaseAttr,
    EqAttrConstraint,
    MessageConstraint,
    OpDef,
    ParamAttrConstraint,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    RangeVarConstraint,
    VarConstraint,
)
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    OpTrait,
    Pure,
    RecursiveMemoryEffect,
    SymbolOpInterface,
    SymbolTable,
)

_WORDS: dict[type[Attribute], str] = {
    builtin.AffineMapAttr: "affine map",
    builtin.ArrayAttr: "list",
    builtin.BoolAttr: "boolean",
    builtin.DenseArrayBase: "list of integers",
    builtin.FloatAttr: "float",
    builtin.IndexType: "index",
    builtin.IntAttr: "integer",
    builtin.IntegerAttr: "integer",
    builtin.IntegerType: "integer type",
    builtin.MemRefType: "memref",
    builtin.StringAttr: "string",
    builtin.SymbolRefAttr: "symbol",
    builtin.TensorType: "tensor",
    builtin.UnitAttr: "flag",
    builtin.VectorType: "vector",
}
"""Attributes and types of xDSL that have a short name."""


def attribute_name(cls: type[Attribute]) -> str:
    """Returns the name of a class of attributes or types, as in IR: `#tile.layout`, `!tile.ring`, `tensor`."""
    if cls in _WORDS:
        return _WORDS[cls]
    if issubclass(cls, EnumAttribute):
        return f"one of {', '.join(case.value for case in cls.enum_type)}"
    name = getattr(cls, "name", cls.__name__)
    return name if "." not in name else f"{'!' if issubclass(cls, TypeAttribute) else '#'}{name}"


def constraint_text(constraint: AttrConstraint | RangeConstraint) -> str:
    """Returns a constraint on a type or an attribute as text.

    The name of a variable follows the constraint: `tensor T`. Members with one variable have one type.
    """
    match constraint:
        case AnyAttr():
            return "any"
        case BaseAttr(cls):
            return attribute_name(cls)
        case EqAttrConstraint(attribute):
            return str(attribute)
        case VarConstraint(name, inner) | RangeVarConstraint(name, inner):
            text = constraint_text(inner)
            return name if text == "any" else f"{text} {name}"
        case ParamAttrConstraint(cls, _) if cls in (builtin.DenseArrayBase, builtin.IntegerAttr, builtin.IntegerType):
            return attribute_name(cls)
        case ParamAttrConstraint(cls, parameters):
            parts = [constraint_text(p) for p in parameters if not isinstance(p, AnyAttr)]
            return f"{attribute_name(cls)} of {', '.join(parts)}"
        case ArrayOfConstraint(inner):
            return f"list of {_plural(constraint_text(inner))}"
        case AnyOf(parts):
            texts = [constraint_text(part) for part in parts]
            floats = [f for f in (t.name for t in get_args(builtin.AnyFloat)) if f in texts]
            texts = texts if len(floats) < len(texts) / 2 else ["float", *(t for t in texts if t not in floats)]
            return " or ".join(dict.fromkeys(texts))
        case AllOf(parts):
            return " and ".join(text for part in parts if (text := constraint_text(part)) != "any") or "any"
        case MessageConstraint(inner) | RangeOf(inner) | RangeLengthConstraint(inner):
            return constraint_text(inner)
        case SymbolNameConstraint():
            return "symbol name"
        case _:
            words = re.findall(r"[A-Z][a-z0-9]*", type(constraint).__name__.removesuffix("Constraint"))
            return " ".join(words).lower()


def _plural(text: str) -> str:
    """Returns the plural of the text of a constraint: `lists of integers`."""
    if text == "any":
        return "any attributes"
    head, separator, tail = text.partition(" or ")
    if separator:
        return f"{_plural(head)} or {_plural(tail)}"
    head, separator, tail = text.partition(" of ")
    return f"{head}s of {tail}" if separator else text if text.startswith(("#", "!")) else f"{text}s"


_TRAITS: dict[type[OpTrait], str] = {
    IsTerminator: "terminates a block",
    NoTerminator: "its regions have no terminator",
    IsolatedFromAbove: "its regions use no values from outside",
    SymbolOpInterface: "defines a symbol",
    RecursiveMemoryEffect: "has the effects of the operations in its regions",
    SymbolTable: "contains symbols",
}
"""Traits that have a short text. Other traits of xDSL, which concern passes, are left out."""


def trait_texts(traits: Iterable[OpTrait]) -> list[str]:
    """Returns the memory effects and other traits of an operation, each as text."""
    traits = sorted(traits, key=lambda trait: type(trait).__name__)
    kinds = {type(trait) for trait in traits}
    texts: list[str] = []
    if Pure in kinds:
        texts.append("has no side effects: erased if unused, merged if equal")
    elif {MemoryReadEffect, MemoryWriteEffect} <= kinds:
        texts.append("reads and writes memory: keeps its order to all memory accesses")
    elif MemoryReadEffect in kinds:
        texts.append("reads memory")
    elif MemoryWriteEffect in kinds:
        texts.append("writes memory")
    for trait in traits:
        kind = type(trait)
        if kind in (Pure, MemoryReadEffect, MemoryWriteEffect):
            continue
        if isinstance(trait, HasParent):
            texts.append(f"is in {' or '.join(op.name for op in trait.op_types)}")
        elif kind in _TRAITS:
            texts.append(_TRAITS[kind])
        elif not kind.__module__.startswith("xdsl."):
            texts.append(" ".join((kind.__doc__ or kind.__name__).split("\n\n")[0].split()).rstrip("."))
    return texts


_DIRECTIVES = {
    "Access": "[coordinates]",
    "Arguments": "(%argument: type, ...)",
    "Bases": "{0}",
    "Body": "{{ {0} }}",
    "Buffers": "(%buffer: type, ...)",
    "Checks": "lower <= %check < upper and ...",
    "ConditionOf": "type({0})",
    "Counts": "{0}",
    "DefinedTypes": "",
    "Domain": "lower <= coordinate < upper and ...",
    "Expression": "expression",
    "Extents": "{0}",
    "Indices": "(%index, ...)",
    "Int": "{0}",
    "LoopAccess": "[coordinates]",
    "Ranked": "type({0})",
    "ResultMap": "[coordinates]",
    "RingTypes": "type({0})",
    "Row": "[coordinate]",
    "View": "[coordinates]",
}
"""Directive of assembly formats -> text for readers; `{0}` is its first variable."""

_TOKEN = re.compile(r"`([^`]*)`|(custom<(\w+)>|[a-z][\w-]*)\(|\$(\w+)|([\w-]+)|(\)\?|[()]|\^)|,")


def syntax(definition: OpDef) -> str | None:
    """Returns the assembly format of an operation for readers, or None if its parser is Python code.

    `%x` is an operand, `<x>` an attribute, `( ... )?` an optional part. The optional dictionary of
    attributes is left out.
    """
    if definition.assembly_format is None:
        return None
    names = {name: f"%{name}" for name, _ in (*definition.operands, *definition.results)}
    for name, (ir_name, kind) in definition.accessor_names.items():
        table = definition.properties if kind == "property" else definition.attributes
        is_flag = table[ir_name].constr == BaseAttr(builtin.UnitAttr)
        names[name] = "" if is_flag else f"<{name}>"
    return f"{definition.name} {_rendered(definition.assembly_format, names)}".strip()


def _rendered(text: str, names: dict[str, str]) -> str:
    """Returns an assembly format with `names` in place of operands and attributes."""
    out, position = "", 0

    def add(part: str) -> None:
        nonlocal out
        if part:
            glued = not out or out.endswith((" ", "[", "(", "\0")) or part in (",", ")", "]")
            out = f"{out}{'' if glued else ' '}{part}"

    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            position += 1
            continue
        position = match.end()
        literal, call, custom, variable, word, mark = match.groups()
        if literal is not None:
            if literal == "":
                out += "\0"
            else:
                add(literal)
        elif call is not None:
            end = _closing(text, position)
            inner, position = text[position:end], end + 1
            add(_directive(call, custom, inner, names))
        elif variable is not None:
            add(names.get(variable, variable))
        elif word is not None and not word.startswith("attr-dict"):
            add(word)
        elif mark == ")?":
            out += ")?"
        elif mark == "(":
            add("(")
        elif mark == ")":
            out += ")"
    return re.sub(r" ?\0 ?", "", out)


def _closing(text: str, position: int) -> int:
    """Returns the position of the parenthesis that closes the one before `position`."""
    depth = 1
    while True:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return position
        position += 1


def _directive(call: str, custom: str | None, inner: str, names: dict[str, str]) -> str:
    variables = [names.get(v, str(v)) for v in re.findall(r"\$(\w+)", inner)]
    if custom is not None:
        return _DIRECTIVES.get(custom, f"<{custom}>").format(*variables)
    if call == "functional-type":
        return "({}) -> {}".format(*(f"type({v})" for v in variables))
    if call in ("qualified", "ref"):
        return variables[0]
    return f"{call}({', '.join(variables)})"
