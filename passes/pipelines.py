"""Named pipelines: the text of every sequence of passes that has a name, and how pipeline text is read.

A name may be used wherever a pass may, also inside another pipeline. Options given to a name are handed to every pass
of it that has such an option: `default{arch="sm_80"}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from ..errors import CompileError
from . import get_all_passes

PIPELINES = {
    "cleanup": "canonicalize,cse,dce",
}
"""Name -> text, as for `dl-opt -p`."""


class PipelineError(CompileError):
    """Pipeline text that cannot be read: its syntax, a pass or an option that does not exist, or a bad value."""


def parse_passes(text: str) -> tuple[ModulePass, ...]:
    """The passes that `text` (`"canonicalize,fuse{cost=2}"`) stands for, with every named pipeline expanded.

    Raises PipelineError.
    """
    return tuple(_expand(text, (), {}, set()))


def pipeline_text(passes: tuple[ModulePass, ...]) -> str:
    """The text that `parse_passes` reads back to the same passes, and that this function prints the same again."""
    return ",".join(_spec_text(p.spec()) for p in passes)


def _expand(
    text: str, within: tuple[str, ...], inherited: dict[str, tuple[object, ...]], used: set[str]
) -> Iterator[ModulePass]:
    for spec in _read(text):
        if spec.name in PIPELINES:
            if spec.name in within:
                raise PipelineError(f"pipeline {spec.name!r} contains itself")
            options = {**inherited, **spec.normalize_parameter_names().parameters}
            taken: set[str] = set()
            yield from _expand(PIPELINES[spec.name], (*within, spec.name), options, taken)
            unknown = sorted(set(spec.normalize_parameter_names().parameters) - taken)
            if unknown:
                raise PipelineError(f"no pass of this pipeline has the option {unknown[0]!r}", operator=spec.name)
            used |= taken
        else:
            yield _make_pass(spec, inherited, used)


def _read(text: str) -> list[ArgSpec]:
    try:
        return list(parse_pipeline(text.strip()))
    except ArgSpecParseError as error:  # a BaseException upstream
        reason = str(error).splitlines()[-1].strip()
        raise PipelineError(f"cannot read the pipeline {text!r}: {reason}") from None


def _make_pass(spec: ArgSpec, inherited: dict[str, tuple[object, ...]], used: set[str]) -> ModulePass:
    available = get_all_passes()
    if spec.name not in available:
        raise PipelineError(f"unknown pass {spec.name!r}{_suggestion(spec.name, [*available, *PIPELINES])}")
    cls = available[spec.name]()
    own = {field.name for field in dataclasses.fields(cls)} - {"name"}
    given = spec.normalize_parameter_names()
    unknown = [name for name in given.parameters if name not in own]
    if unknown:
        known = ", ".join(sorted(own)) or "none"
        raise PipelineError(f"unknown option {unknown[0]!r} (options: {known})", operator=spec.name)
    passed_down = {name: value for name, value in inherited.items() if name in own}
    used |= set(passed_down)
    try:
        return cls.from_spec(ArgSpec(spec.name, {**passed_down, **given.parameters}))  # pyright: ignore[reportArgumentType]
    except (ValueError, TypeError) as error:
        raise PipelineError(str(error), operator=spec.name) from None


def _suggestion(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _spec_text(spec: ArgSpec) -> str:
    if not spec.parameters:
        return spec.name
    options = " ".join(
        f"{name}={','.join(map(_value_text, values))}" if values else name for name, values in spec.parameters.items()
    )
    return f"{spec.name}{{{options}}}"


def _value_text(value: str | int | bool | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float):
        digits, _, exponent = repr(value).partition("e")
        digits = digits if "." in digits else f"{digits}.0"  # the reader takes `1.0e-5` but not `1e-5`
        return f"{digits}e{exponent}" if exponent else digits
    return str(value)
