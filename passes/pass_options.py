"""The options of passes in plain words: their types, defaults and allowed values, and what is wrong with a value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType
from xdsl.utils.hints import isa

from ..errors import CompileError

_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers, as in 1,2"),
    float: ("a number", "numbers, as in 0.5,1"),
    str: ("text", "words, as in a,b"),
}
"""A base type -> what one value of it is called, and several."""


class OptionError(CompileError):
    """An option of a pass that does not exist, that is missing, or that has a value of another type."""


@dataclass(frozen=True)
class PassOption:
    """An option as `--help-pass` shows it: what its values are, and what it is where it is left out."""

    name: str
    type: str
    default: str


def pass_options(cls: type[ModulePass]) -> tuple[PassOption, ...]:
    """The options of a pass, in the order they were declared."""
    hints = get_type_hints(cls)
    return tuple(PassOption(f.name, type_words(hints[f.name]), _default(f)) for f in dataclasses.fields(cls) if f.init)


def type_words(hint: Any) -> str:
    """What values of a type are called: `an integer`, `one of a, b`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(type_words(t) for t in inner if t is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return _WORDS.get(inner[0], ("", f"values ({inner[0]})"))[1]
    return _WORDS.get(hint, (str(hint), ""))[0]


def checked_options(cls: type[ModulePass], given: dict[str, ParameterListType]) -> dict[str, ParameterListType]:
    """`given` with integers for numbers and `true` for a flag without a value. Raises OptionError naming an option
    that the pass does not have, one without which it cannot be, or one whose value is none of its type."""
    hints = get_type_hints(cls)
    options = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
    for unknown in sorted(set(given) - set(options)):
        known = ", ".join(sorted(options)) or "none"
        raise OptionError(f"unknown option {unknown!r} (options: {known})", operator=cls.name)
    for missing in sorted(cls.required_fields() - set(given)):
        raise OptionError(f"the option {missing!r} is needed: {type_words(options[missing])}", operator=cls.name)
    return {name: _checked(cls.name, name, values, options[name]) for name, values in given.items()}


def _checked(owner: str, name: str, values: ParameterListType, hint: Any) -> ParameterListType:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if bool in kinds and not values:
        return (True,)
    if float in kinds:
        values = tuple(float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values)
    if values and isa(values, hint) or len(values) == 1 and isa(values[0], hint) or not values and NoneType in kinds:
        return values
    shown = ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values) or "no value"
    choices = next((get_args(k) for k in kinds if get_origin(k) is Literal), ())
    reason = f"{shown} is none of {', '.join(map(str, choices))}" if choices else f"{shown} is not {type_words(hint)}"
    raise OptionError(reason, operator=owner, argument=name)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if value is None or value == ():
        return "optional"
    return f"{str(value).lower() if isinstance(value, bool) else value} by default"
