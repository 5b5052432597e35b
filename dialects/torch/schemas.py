"""How the schemas of ATen operators are read, of which `schemas.txt` has those of the dialect."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from xdsl.dialects.builtin import i64


@dataclass(frozen=True)
class Argument:
    """One argument of a schema. `type` is as written: `Tensor?[]`, `int[2]`, `Scalar?`."""

    name: str
    type: str
    default: object = None
    has_default: bool = False

    @cached_property
    def base(self) -> str:
        """The type without its suffixes: `Tensor`, `Scalar`, `int`, `float`, `bool`, `str`, `ScalarType`, ..."""
        return self.type.partition("[")[0].rstrip("?")

    @cached_property
    def is_list(self) -> bool:
        return "[" in self.type

    @cached_property
    def optional(self) -> bool:
        return self.type.endswith("?")

    @cached_property
    def length(self) -> int:
        """N of `int[N]`, which a lone integer is repeated to; 0 where the schema gives none."""
        size = self.type.partition("[")[2].partition("]")[0]
        return int(size) if size else 0

    def element(self) -> Argument:
        """An element of this list argument, as an argument of the same name."""
        return Argument(self.name, self.type.partition("[")[0])


@dataclass(frozen=True)
class Schema:
    """An overload: its name (`add.Tensor`, `relu`), its arguments in order, and the types of its results.

    A `random` operator takes a `generator`: a tensor of a key and a number, from which all it draws follows.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    text: str
    random: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.arguments)


def aten_schemas() -> dict[str, Schema]:
    """The schemas of the dialect by name."""
    return read_schemas(Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8"))


def read_schemas(text: str) -> dict[str, Schema]:
    """The schemas in `text` by name: one a line, in the format that `schemas.txt` describes."""
    lines = text.replace("\n    ", " ").split("\n")
    schemas = [read_schema(line) for line in lines if line and not line.startswith("#")]
    return {schema.name: schema for schema in schemas}


def read_schema(line: str) -> Schema:
    """The schema in one line: `relu(Tensor self) -> Tensor`, behind `* ` if the operator is random."""
    random, text = line.startswith("* "), line.removeprefix("* ")
    head, _, results = text.rpartition(" -> ")
    name, _, parameters = head.partition("(")
    arguments = [_read_argument(p) for p in _split(parameters.removesuffix(")")) if p != "*"]
    if random and "generator" not in [a.name for a in arguments]:
        arguments.append(Argument("generator", "Generator?", None, True))
    outputs = _split(results[1:-1]) if results.startswith("(") else [results]
    return Schema(name, tuple(arguments), tuple(o.partition(" ")[0] for o in outputs), text, random)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    pieces, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    return [p.strip() for p in pieces if p.strip()]


def _read_argument(text: str) -> Argument:
    type, _, rest = text.partition(" ")
    name, equals, default = rest.partition("=")
    if not equals:
        return Argument(name, type)
    return Argument(name, type, _read_default(default, type), True)


def _read_default(text: str, type: str) -> object:
    if type.startswith("ScalarType") and text == "4":
        return i64
    if type.startswith("MemoryFormat") and text == "0":
        return "contiguous_format"
    value: object = ast.literal_eval(text)
    return float(value) if type.startswith("float") and isinstance(value, int) else value
