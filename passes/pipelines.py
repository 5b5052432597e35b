"""Named pipelines: the text of every sequence of passes that has a name, and how pipeline text is read.

A name may be used wherever a pass may, also inside another pipeline. Options given to a name are handed to every pass
of it that has such an option: `default{arch="sm_80"}`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from ..errors import CompileError, PluginError
from ..plugins import plugins
from . import OWN_PASSES, get_all_passes
from .pass_options import checked_options

PIPELINES = {
    "cleanup": "canonicalize,cse,dce",
    "torch-to-tensor": "verify-level{level=torch},torch-outline-layers,convert-torch-to-tensor,tensor-emulate-float8,"
    "cse,dce,verify-level{level=tensor}",
    "tensor-to-loop": "tensor-plan-fusion,convert-tensor-to-loop,loop-split-dimensions,loop-fuse-siblings,"
    "loop-hoist-reduction-factors,cse,loop-use-reciprocals,loop-use-exp2,cse,loop-fuse-reductions,cse,dce,"
    "verify-level{level=loop}",
    "loop-to-tile": "plan-schedules,loop-split-f32-operands,loop-split-k,plan-schedules{again},convert-loop-to-tile,"
    "tile-swizzle-grid,tile-persistent-blocks,tile-deduplicate-kernels,tile-cache-rows,cse,"
    "tile-recognize-contractions,dce,tile-select-mma,tile-assign-layouts,tile-stage-dot-operands,tile-split-epilogue,"
    "tile-tma-epilogue,cse,tile-pipeline-loads,tile-warp-specialize,tile-split-masked-loops,tile-pipeline-dots,"
    "verify-level{level=tile}",
    "tile-to-kernel": "convert-tile-to-kernel,kernel-simplify-indices,cse,dce,kernel-allocate-shared,"
    "kernel-insert-barriers,host-horizontal-fusion,dce,host-inline-calls,host-update-in-place,dce,verify-level{level=kernel}",
    "default": "torch-to-tensor,tensor-to-loop,loop-to-tile,tile-to-kernel",
}
"""Name -> text, as for `dl-opt -p`."""


ENTRY_POINT_GROUP = "deplodock.pipelines"
"""Entry points of this group, each naming a string, are third-party pipelines."""


def get_all_pipelines() -> dict[str, str]:
    """Every named pipeline with its text, those of plugins included. A plugin may not take a name that is in use:
    PluginError."""
    found = dict(PIPELINES)
    for name, load in plugins(ENTRY_POINT_GROUP, {*PIPELINES, *OWN_PASSES}, "pipeline").items():
        text: object = load()
        if not isinstance(text, str):
            raise PluginError(f"the pipeline {name!r} of a plugin is not text but {type(text).__name__}")
        found[name] = text
    return found


class PipelineError(CompileError):
    """Pipeline text that cannot be read: its syntax, a pass or an option that does not exist, or a bad value."""


Options = dict[str, ParameterListType]
Registry = dict[str, Callable[[], type[ModulePass]]]


def parse_passes(text: str, options: Mapping[str, ParameterListType] | None = None) -> tuple[ModulePass, ...]:
    """The passes that `text` (`"canonicalize,fuse{cost=2}"`) stands for, with every named pipeline expanded. `options`
    go to every pass that has them and that the text gives no others.

    Raises PipelineError.
    """
    return _parsed(text, tuple(get_all_pipelines().items()), tuple((options or {}).items()))


@lru_cache(256)
def _parsed(
    text: str, pipelines: tuple[tuple[str, str], ...], options: tuple[tuple[str, ParameterListType], ...]
) -> tuple[ModulePass, ...]:
    """The passes of `text`, read once: passes are frozen, and a compilation asks for the same few texts."""
    return tuple(_Expansion(get_all_passes(), dict(pipelines)).expand(text, dict(options), set()))


def pipeline_text(passes: Sequence[ModulePass]) -> str:
    """The text that `parse_passes` reads back to the same passes, and that this function prints the same again."""
    return ",".join(_spec_text(p.spec()) for p in passes)


@dataclass
class _Expansion:
    """Turns text into passes; remembers which named pipelines it is inside of."""

    registry: Registry
    pipelines: dict[str, str]
    within: list[str] = field(default_factory=list[str])

    def expand(self, text: str, inherited: Options, used: set[str]) -> Iterator[ModulePass]:
        """The passes of `text`; `inherited` options go to each pass that has them, and into `used` when one did."""
        for spec in _read(text):
            spec = spec.normalize_parameter_names()
            if spec.name not in self.pipelines:
                yield self.make_pass(spec, inherited, used)
                continue
            if spec.name in self.within:
                raise PipelineError(f"pipeline {spec.name!r} contains itself")
            taken: set[str] = set()
            self.within.append(spec.name)
            yield from self.expand(self.pipelines[spec.name], {**inherited, **spec.parameters}, taken)
            self.within.pop()
            for unknown in sorted(set(spec.parameters) - taken):
                raise PipelineError(f"no pass of this pipeline has the option {unknown!r}", operator=spec.name)
            used |= taken

    def make_pass(self, spec: ArgSpec, inherited: Options, used: set[str]) -> ModulePass:
        """The pass that `spec` describes."""
        if spec.name not in self.registry:
            raise PipelineError(
                f"unknown pass {spec.name!r}{_suggestion(spec.name, [*self.registry, *self.pipelines])}"
            )
        cls = self.registry[spec.name]()
        own = {option.name for option in dataclasses.fields(cls)}
        passed_down = {name: value for name, value in inherited.items() if name in own}
        used |= set(passed_down)
        try:
            return cls.from_spec(ArgSpec(spec.name, checked_options(cls, {**passed_down, **spec.parameters})))
        except (ValueError, TypeError) as error:
            raise PipelineError(str(error), operator=spec.name) from None


def _read(text: str) -> list[ArgSpec]:
    try:
        return list(parse_pipeline("".join(text.split("\n")).strip()))
    except ArgSpecParseError as error:  # a BaseException upstream
        reason = str(error).splitlines()[-1].strip()
        raise PipelineError(f"cannot read the pipeline {text!r}: {reason}") from None


def _suggestion(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _spec_text(spec: ArgSpec) -> str:
    if not spec.parameters:
        return spec.name
    options = " ".join(
        f"{name}={','.join(map(value_text, values))}" if values else name for name, values in spec.parameters.items()
    )
    return f"{spec.name}{{{options}}}"


_BARE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def value_text(value: str | int | bool | float) -> str:
    """The value of an option as `parse_passes` reads it back."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _BARE_WORD.fullmatch(value) and value not in ("true", "false"):
        return value
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float):
        digits, _, exponent = repr(value).partition("e")
        digits = digits if "." in digits else f"{digits}.0"  # the reader takes `1.0e-5` but not `1e-5`
        return f"{digits}e{exponent}" if exponent else digits
    return str(value)
