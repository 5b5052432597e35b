"""Descriptions of operations, attributes and types, read from their definitions and docstrings.

A description has three sources: the class (operands, results, attributes, regions, traits, syntax), its docstring
(summary, example, explanation), and the docstrings of its base classes (text of inherited members). A line
`name: text` of a docstring, or `name  text`, describes the member of that name.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntAttr, UnitAttr
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import AttrOrPropDef, IRDLOperation, OptionalDef, VariadicDef

from ...dialects import get_all_dialects
from ...errors import CompileError
from .constraints import constraint_text, syntax, trait_texts

_ROOT = Path(__file__).parents[2]

SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
"""Properties that xDSL adds for operands or results of variable number."""


@dataclass(frozen=True)
class Member:
    """Operand, result, attribute or region of an operation, or parameter of an attribute.

    name: name in the definition.
    type: constraint as text.
    count: `one`, `optional` or `list`.
    default: default value as text, or None.
    text: description, or empty.
    """

    name: str
    type: str
    count: str = "one"
    default: str | None = None
    text: str = ""

    @property
    def note(self) -> str:
        """Returns the type with the count and the default, such as `integer, default 1`."""
        parts = [f"variadic of {self.type}" if self.count == "list" else self.type]
        parts += ["optional"] if self.count == "optional" else []
        parts += [] if self.default is None else [f"default {self.default}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Description:
    """Description of an operation, an attribute or a type.

    cls: class of the operation or attribute.
    name: name with `#` before attributes and `!` before types.
    summary: first paragraph of the docstring.
    example: first block of code of the docstring, or the first code in it that names an attribute; else empty.
    body: remaining docstring, as Markdown.
    members: `operands`, `results`, `attributes`, `regions` or `parameters` -> members.
    traits: memory effects and other traits of an operation.
    syntax: assembly format of an operation, if it has one.
    """

    cls: type[Operation] | type[Attribute]
    name: str
    summary: str
    example: str
    body: str
    members: dict[str, Sequence[Member]]
    traits: Sequence[str] = ()
    syntax: str | None = None


def describe(cls: type[Operation] | type[Attribute]) -> Description:
    """Returns the description of a class of operations, attributes or types."""
    members: dict[str, Sequence[Member]]
    members = _operation_members(cls) if issubclass(cls, Operation) else _attribute_members(cls)
    names = [member.name for group in members.values() for member in group]
    texts, summary, example, body = _read_docstring(cls, names)
    if discardable := [Member(name, "any attribute", "optional") for name in texts if name not in names]:
        members = {**members, "attributes": [*members["attributes"], *discardable]}
    body = "\n\n".join(filter(None, (body, *_mentioned_bases(cls, names), _enumeration(cls))))
    described: dict[str, Sequence[Member]] = {
        group: [Member(m.name, m.type, m.count, m.default, texts.get(m.name, "")) for m in ms]
        for group, ms in members.items()
        if ms
    }
    if not issubclass(cls, Operation):
        sign = "!" if issubclass(cls, TypeAttribute) else "#"
        if not example:
            codes = re.findall(r"`([^`]*)`", f"{summary}\n{body}")
            example = next((c for c in codes if _mentions(c, cls.name)), "")
        return Description(cls, f"{sign}{cls.name}", summary, example, body, described)
    traits = trait_texts(cls.traits.traits)
    form = syntax(cls.get_irdl_definition()) if issubclass(cls, IRDLOperation) else None
    return Description(cls, cls.name, summary, example, body, described, traits, form)


def _mentioned_bases(cls: type, names: Sequence[str]) -> Iterator[str]:
    """Yields the docstrings of the base classes that a docstring names, without the summaries."""
    for base in cls.mro()[1:]:
        if f"`{base.__name__}`" in _docstring(cls):
            text = _take_entries(_docstring(base), names)[1].strip()
            yield f"`{base.__name__}`: {text[0].lower()}{text[1:]}"


def _enumeration(cls: type) -> str:
    """Returns the values of an enumeration with its docstring, or an empty text."""
    if not issubclass(cls, EnumAttribute):
        return ""
    values = ", ".join(f"`{case.value}`" for case in cls.enum_type)
    return f"Values: {values}. {inspect.cleandoc(cls.enum_type.__doc__ or '')}".strip()


def _mentions(code: str, name: str) -> bool:
    """Returns true if code has an attribute of that name: `#tile.layout<...>` or `#tensor<kind add>`."""
    dialect, _, attribute = name.partition(".")
    return re.search(rf"[#!]{dialect}(\.{attribute}\b|<{attribute}\b)", code) is not None


def _operation_members(cls: type[Operation]) -> dict[str, Sequence[Member]]:
    if not issubclass(cls, IRDLOperation):
        return {}
    if cls.name.startswith("torch."):
        return _schema_members(cls)
    definition = cls.get_irdl_definition()

    def member(name: str, defined: Any) -> Member:
        constraint = getattr(defined, "constr", None)
        count = (
            "optional" if isinstance(defined, OptionalDef) else "list" if isinstance(defined, VariadicDef) else "one"
        )
        text = "one block" if "SingleBlock" in type(defined).__name__ else "blocks"
        default = getattr(defined, "default_value", None)
        kind = text if constraint is None else constraint_text(constraint)
        kind = f"any {'attribute' if isinstance(defined, AttrOrPropDef) else 'type'}" if kind == "any" else kind
        return Member(name, kind, count, None if default is None else _value_text(default))

    accessors = {ir_name: name for name, (ir_name, _) in definition.accessor_names.items()}
    attributes = {**definition.properties, **definition.attributes}
    return {
        "operands": [member(*pair) for pair in definition.operands],
        "attributes": [member(accessors.get(n, n), d) for n, d in attributes.items() if n not in SEGMENTS],
        "results": [member(*pair) for pair in definition.results],
        "regions": [member(*pair) for pair in definition.regions],
    }


def _attribute_members(cls: type[Attribute]) -> dict[str, Sequence[Member]]:
    if issubclass(cls, EnumAttribute):
        return {}
    if issubclass(cls, ParametrizedAttribute):
        parameters = cls.get_irdl_definition().parameters
        return {"parameters": [Member(name, constraint_text(p.constr)) for name, p in parameters]}
    record = _record_of(cls)
    if record is None:
        return {}
    legal: dict[str, Sequence[object]] = getattr(cls, "LEGAL", {})
    documented = re.findall(r"^(\w+)(?::| {2,})", inspect.cleandoc(cls.__doc__ or ""), re.M)
    return {
        "parameters": [
            Member(
                f.name,
                f"one of {', '.join(map(str, legal[f.name]))}" if f.name in legal else _annotation_text(str(f.type)),
                default=None if f.default is MISSING else _value_text(f.default),
            )
            for f in fields(record)
            if f.name in documented
        ]
    }


def _record_of(cls: type[Attribute]) -> Any:
    """Returns the dataclass of the value of an attribute, or None if the value is of another kind."""
    bases = [b for c in cls.mro() for b in getattr(c, "__orig_bases__", ()) if getattr(b, "__origin__", None) is Data]
    record = get_args(bases[0])[0] if bases else None
    return record if is_dataclass(record) else None


def _annotation_text(annotation: str) -> str:
    return {"int": "integer", "str": "word", "tuple[int, ...]": "list of integers"}.get(annotation, annotation)


def _schema_members(cls: type[Operation]) -> dict[str, Sequence[Member]]:
    """Returns the arguments and results of an operation of the torch dialect, by the schema of its ATen operator."""
    from ...dialects.torch import AtenOp

    if not issubclass(cls, AtenOp):
        return {}
    arguments = [
        Member(a.name, a.type, default=_python_text(a.default) if a.has_default else None) for a in cls.SCHEMA.arguments
    ]
    return {"arguments": arguments, "results": [Member(f"result {n}", t) for n, t in enumerate(cls.SCHEMA.results)]}


def _python_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def _value_text(value: object) -> str:
    match value:
        case IntAttr():
            return str(value.data)
        case UnitAttr():
            return "set"
        case ArrayAttr() | DenseArrayBase() if not len(value):
            return "[]"
        case tuple():
            return str(list(value))
        case _:
            return str(value)


_ENTRY = re.compile(r"^( {0,4})([a-z_]\w*(?:, [a-z_]\w*)*)(?::| {2,}) *(\S.*)$")
_SECTION = re.compile(r"^(Operands|Results|Attributes|Regions|Parameters):$")
_CODE = re.compile(r"^```\w*\n(.*?)^```\n?", re.M | re.S)


def _read_docstring(cls: type, names: Sequence[str]) -> tuple[dict[str, str], str, str, str]:
    """Returns the texts of members, the summary, the example and the remaining text of a docstring."""
    texts: dict[str, str] = {}
    for base in reversed(cls.mro()[1:]):
        if base.__module__.partition(".")[0] not in ("xdsl", "builtins"):
            texts |= _take_entries(_docstring(base), names)[0]
    taken, text = _take_entries(_docstring(cls), names)
    texts |= taken
    summary, _, body = text.strip().partition("\n\n")
    code = _CODE.search(f"{body}\n")
    if code is not None:
        body = body[: code.start()] + body[code.end() :]
    return texts, " ".join(summary.split()), code[1].rstrip() if code else "", re.sub(r"\n{3,}", "\n\n", body).strip()


def _docstring(cls: type) -> str:
    """Returns the docstring of a class itself. The signature that a dataclass has instead of one is ignored."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


def _take_entries(text: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Returns the lines of a docstring that describe members, by name, and the text without these lines.

    A section of attributes may have names of discardable attributes, too. The class does not declare them.
    """
    texts: dict[str, str] = {}
    lines: list[str] = []
    entry: tuple[int, list[str]] | None = None
    section, in_code = "", False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        match = None if in_code else _ENTRY.match(line)
        if match is not None and section != "Attributes" and not set(match[2].split(", ")) <= set(names):
            match = None
        if match is not None:
            entry = len(match[1]), match[2].split(", ")
            texts |= dict.fromkeys(entry[1], match[3].strip())
        elif entry is not None and line.strip() and len(line) - len(line.lstrip()) > entry[0]:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in entry[1]}
        elif not in_code and (header := _SECTION.match(line)):
            section, entry = header[1], None
        else:
            section, entry = section if not line.strip() or line.startswith(" ") else "", None
            lines.append(line)
    return texts, "\n".join(lines)


def dialect_of(name: str) -> Dialect | None:
    """Returns the dialect of that name, or None."""
    load = get_all_dialects().get(name)
    return None if load is None else load()


def find(name: str) -> Sequence[type[Operation] | type[Attribute]]:
    """Returns the operation and the attribute or type of a name.

    `tile.ring` names an operation and a type; `#tile.ring` or `!tile.ring` names the type alone.

    Raises:
        CompileError: if the name is unknown. The message has the most similar name.
    """
    plain = name.lstrip("#!")
    prefix, _, member = plain.partition(".")
    dialect = dialect_of(prefix)
    if dialect is None or not member:
        kind, names = ("operation" if member else "dialect"), _all_names() if member else [*get_all_dialects()]
    else:
        classes = [*_members(dialect)]
        if members := [c for c in classes if c.name == plain and (name == plain or not issubclass(c, Operation))]:
            return members
        kind = "operation" if name == plain else "attribute or type"
        names = [c.name if issubclass(c, Operation) else f"{name[: len(name) - len(plain)]}{c.name}" for c in classes]
    close = get_close_matches(name, names, 1)
    raise CompileError(
        f"unknown {kind} {name!r}"
        + (f", did you mean {close[0]!r}?" if close else "; `--help-op tile` lists a dialect")
    )


def _members(dialect: Dialect) -> Iterator[type[Operation] | type[Attribute]]:
    yield from dialect.operations
    yield from dialect.attributes


def _all_names() -> list[str]:
    return [op.name for load in get_all_dialects().values() for op in load().operations]


@dataclass(frozen=True)
class Part:
    """Part of a dialect: the operations and attributes that one file defines.

    file: path of the file in the library, or the name of the module of another package.
    text: docstring of the file.
    members: classes in the order of their definition.
    """

    file: str
    text: str
    members: Sequence[type[Operation] | type[Attribute]]


def parts_of(name: str) -> Sequence[Part]:
    """Returns the parts of a dialect. The first one has the docstring of the dialect, and may have no members."""
    dialect = dialect_of(name)
    assert dialect is not None
    by_module: dict[str, list[type[Operation] | type[Attribute]]] = {}
    if (root := f"{__name__.partition('.')[0]}.dialects.{name}") in sys.modules:
        by_module[root] = []
    for cls in _members(dialect):
        by_module.setdefault(cls.__module__, []).append(cls)
    first, *others = (_part(_module(module), classes) for module, classes in by_module.items())
    # The docstring of a dialect names its files in their order.
    place = {part.file: first.text.find(f"`{part.file.rpartition('/')[2]}`") for part in others}
    return [first, *sorted(others, key=lambda part: (place[part.file] < 0, place[part.file]))]


def file_of(cls: type) -> str:
    """Returns the path of the file that defines a class, or the name of its module if it is of another package."""
    return _file_name(_module(cls.__module__))


def _module(name: str) -> ModuleType:
    """Returns a module, or an empty one for a file that `dl-opt --load` has executed."""
    return sys.modules.get(name) or ModuleType(name)


def _file_name(module: ModuleType) -> str:
    file = Path(getattr(module, "__file__", None) or "")
    return file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else module.__name__


def _part(module: ModuleType, members: Sequence[type[Operation] | type[Attribute]]) -> Part:
    order = {cls: number for number, cls in enumerate(vars(module).values()) if isinstance(cls, type)}
    members = sorted(members, key=lambda cls: (issubclass(cls, Attribute), order.get(cls, 0)))
    return Part(_file_name(module), inspect.getdoc(module) or "", members)
