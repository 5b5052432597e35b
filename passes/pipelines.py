"""Named pipelines, and the parser of pipeline text and pass options.

Pipeline text such as `"canonicalize,loop-to-tile,dce"` lists passes and named pipelines. Options of a named pipeline
apply to each of its passes that has such an option: `default{record=plans.json}`.

A pass declares an option for `deplodock tune` by `factor: int = searched(4, 1, 2, 8)`, with the default first. `tune`
tries the other values in the passes below `plan-schedules`, unless the user has set the option.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.utils.hints import isa

from ..dialects.support.printing import float_text
from ..errors import CompileError, PluginError
from ..plugins import declared_parts, plugins, registry
from . import OWN_PASSES, UPSTREAM_PASSES

PIPELINES = {
    "cleanup": "canonicalize,cse,dce",
    "torch-to-tensor": "verify-level{level=torch},torch-outline-layers,convert-torch-to-tensor,tensor-emulate-float8,"
    "cse,dce,verify-level{level=tensor}",
    "tensor-to-loop": "tensor-plan-fusion,convert-tensor-to-loop,loop-split-dimensions,loop-separate-masks,"
    "loop-fuse-siblings,loop-hoist-reduction-factors,cse,loop-use-fast-math,cse,loop-fuse-reductions,"
    "plan-unfolding,loop-unfold-operands,loop-collapse-dimensions,cse,dce,verify-level{level=loop}",
    "loop-to-tile": "plan-schedules,loop-remove-guards,loop-split-f32-operands,loop-pack-operands,loop-split-k,"
    "plan-schedules{again},convert-loop-to-tile,tile-swizzle-grid,tile-persistent-blocks,tile-deduplicate-kernels,"
    "tile-cache-rows,tile-fuse-fma,cse,dce,tile-select-mma,tile-assign-layouts,tile-stage-dot-operands,"
    "tile-split-epilogue,tile-tma-epilogue,cse,tile-pipeline-loads,tile-warp-specialize,"
    "tile-defer-lane-sums,tile-delay-dots,tile-split-masked-loops,tile-promote-sums,tile-pipeline-dots,dce,"
    "verify-level{level=tile}",
    "tile-to-kernel": "convert-tile-to-kernel,cse,dce,kernel-allocate-shared,"
    "kernel-insert-barriers,host-horizontal-fusion,dce,host-inline-calls,host-mark-constants,host-update-in-place,dce,"
    "verify-level{level=kernel}",
    "default": "torch-to-tensor,tensor-to-loop,loop-to-tile,tile-to-kernel",
}
"""Name of a pipeline -> its text, as for `dl-opt -p`."""


PASSES_GROUP, PIPELINES_GROUP = "deplodock.passes", "deplodock.pipelines"
"""Groups of entry points for third-party passes (`ModulePass` classes) and pipelines (texts)."""


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Returns name -> a function that imports the pass, for all passes including those of plugins.

    Raises:
        PluginError: a third-party pass uses an existing name.
    """
    return registry(PASSES_GROUP, OWN_PASSES | UPSTREAM_PASSES, "pass")


def get_all_pipelines() -> dict[str, str]:
    """Returns name -> text of all named pipelines. Raises PluginError if a plugin uses an existing name."""
    declared = plugins(PIPELINES_GROUP, {*PIPELINES, *OWN_PASSES}, "pipeline")
    return PIPELINES | {name: _declared_text(name, load()) for name, load in declared.items()}


def _declared_text(name: str, pipeline: object) -> str:
    if not isinstance(pipeline, str):
        raise PluginError(f"expected the pipeline {name!r} of a plugin to be text, but got {type(pipeline).__name__}")
    return pipeline


class PipelineError(CompileError):
    """Invalid pipeline text: wrong syntax, an unknown pass or option, or an invalid value."""


Parameters = dict[str, ParameterListType]


@dataclass(frozen=True)
class Insertion:
    """Passes to insert into the default pipeline.

    `passes`: pipeline text. `anchor`: the pass of the default pipeline before or after which they are inserted.
    `before`: true for before.
    """

    passes: str
    before: bool
    anchor: str


INSERTIONS_GROUP = "deplodock.insertions"
"""Group of entry points that extend the default pipeline. Each value is a text for `read_insertion`."""


def read_insertion(text: str) -> Insertion:
    """Parses `PASSES:after=NAME` or `PASSES:before=NAME`.

    Raises PipelineError for invalid text, and if NAME does not occur exactly once in the default pipeline.
    """
    passes, _, where = text.rpartition(":")
    side, _, anchor = where.partition("=")
    if not passes or side not in ("before", "after"):
        raise PipelineError(f"expected PASSES:after=NAME or PASSES:before=NAME, but got {text!r}", argument="insert")
    names = [p.name for p in _parsed("default", tuple(PIPELINES.items()), (), ())]
    if (times := names.count(anchor)) != 1:
        reason = "is no pass of the default pipeline" + _suggestion(anchor, names)
        if times:
            reason = f"occurs {times} times in the default pipeline; name a pass that occurs once"
        raise PipelineError(f"{anchor!r} {reason}", argument="insert")
    return Insertion(passes, side == "before", anchor)


def parse_passes(
    text: str,
    options: Mapping[str, ParameterListType] | None = None,
    insert: Sequence[str] = (),
    loaded: Sequence[type[ModulePass]] = (),
) -> tuple[ModulePass, ...]:
    """Returns the passes of a pipeline, with every named pipeline expanded.

    Args:
        text: pipeline text, such as `"canonicalize,fuse{cost=2}"`.
        options: options for every pass that has them; options in the text take precedence.
        insert: insertions (`read_insertion`) into the named pipelines, in addition to those of plugins.
        loaded: passes that the text may use in addition to the registered ones (`load_passes`).

    Raises:
        PipelineError: the text or an insertion is invalid, or a pass or an option does not exist.
    """
    insertions = (*(load() for load in plugins(INSERTIONS_GROUP, (), "insertion").values()), *insert)
    pipelines, further = tuple(get_all_pipelines().items()), (*loaded, *declared_parts(PASSES_GROUP))
    return _parsed(text, pipelines, tuple((options or {}).items()), insertions, further)


@lru_cache(256)
def _parsed(
    text: str,
    pipelines: tuple[tuple[str, str], ...],
    options: tuple[tuple[str, ParameterListType], ...],
    insertions: tuple[str, ...],
    loaded: tuple[type[ModulePass], ...] = (),
) -> tuple[ModulePass, ...]:
    """Returns the passes of a text. A cache suffices, because passes are immutable and the texts few."""
    read_insertions = [read_insertion(insertion) for insertion in insertions]
    passes = get_all_passes() | {cls.name: lambda cls=cls: cls for cls in loaded}
    return tuple(_Expansion(passes, dict(pipelines), read_insertions).expand(text, dict(options), set()))


def defined_passes(names: Mapping[str, Any], file: str, declared: Sequence[Any] = ()) -> list[type[ModulePass]]:
    """Returns the passes that a file defines and does not declare, in their order.

    Args:
        names: global names of the file after its execution.
        file: path of the file, for messages.
        declared: the parts that it declares.

    Raises:
        PluginError: the file defines and declares nothing, or a pass has the name of a registered one.
    """
    classes = [c for c in names.values() if isinstance(c, type) and issubclass(c, ModulePass)]
    classes = [c for c in classes if c.__module__ == names["__name__"]]
    classes = [c for c in classes if c not in declared]
    if not classes and not declared:
        raise PluginError(f"{file} defines no pass: expected a subclass of xdsl.passes.ModulePass with a name")
    for cls in classes:
        if not isinstance(getattr(cls, "name", None), str):
            raise PluginError(f'{file}: the pass {cls.__name__} has no name: add a line like name = "my-pass"')
        if cls.name in get_all_passes() or cls.name in get_all_pipelines():
            raise PluginError(f"{file}: the pass {cls.name!r} exists already: choose another name")
    return classes


def pipeline_text(passes: Sequence[ModulePass]) -> str:
    """Returns pipeline text for passes. `parse_passes` of this text returns equal passes."""
    texts = list[str]()
    for spec in (p.spec() for p in passes):
        options = [f"{n}={','.join(map(value_text, v))}" if v else n for n, v in spec.parameters.items()]
        texts.append(f"{spec.name}{{{' '.join(options)}}}" if options else spec.name)
    return ",".join(texts)


@dataclass
class _Expansion:
    """Expansion of pipeline text into passes. `within`: the named pipelines that are being expanded, outermost
    first."""

    registry: dict[str, Callable[[], type[ModulePass]]]
    pipelines: dict[str, str]
    insertions: Sequence[Insertion] = ()
    within: list[str] = field(default_factory=list[str])

    def expand(self, text: str, inherited: Parameters, used: set[str]) -> Iterator[ModulePass]:
        """Yields the passes of a text.

        Args:
            text: pipeline text.
            inherited: options for each pass that has them.
            used: set that receives the names of the inherited options that a pass has.
        """
        for spec in _read(text):
            spec = spec.normalize_parameter_names()
            if spec.name not in self.pipelines:
                module_pass = self.make_pass(spec, inherited, used)
                extended = self.insertions and self.within
                yield from self._extended(module_pass, inherited, used) if extended else (module_pass,)
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

    def _extended(self, anchor: ModulePass, inherited: Parameters, used: set[str]) -> list[ModulePass]:
        """Returns a pass with the passes that insertions add before and after it."""
        before, after = list[ModulePass](), list[ModulePass]()
        for insertion in self.insertions:
            if insertion.anchor == anchor.name:
                passes = _Expansion(self.registry, self.pipelines).expand(insertion.passes, inherited, used)
                (before if insertion.before else after).extend(passes)
        return [*before, anchor, *after]

    def make_pass(self, spec: ArgSpec, inherited: Parameters, used: set[str]) -> ModulePass:
        """Returns the pass that a specification describes.

        Args:
            spec: name and options.
            inherited: options that the pass gets if it has them and `spec` does not set them.
            used: set that receives the names of the inherited options that the pass has.
        """
        if spec.name not in self.registry:
            raise PipelineError(
                f"unknown pass {spec.name!r}{_suggestion(spec.name, [*self.registry, *self.pipelines])}"
            )
        cls = self.registry[spec.name]()
        passed_down = {o.name: inherited[o.name] for o in dataclasses.fields(cls) if o.name in inherited}
        used |= set(passed_down)
        try:
            return cls.from_spec(ArgSpec(spec.name, checked_options(cls, {**passed_down, **spec.parameters})))
        except (ValueError, TypeError) as error:
            raise PipelineError(str(error), operator=spec.name) from None


_VALUE = re.compile(r'"[^"]*"|(?<=[=,])[^\s,={}"<>]+')
_PLAIN = re.compile(r"[A-Za-z][\w-]*|-?\d+(\.\d*)?([eE][+-]?\d+)?")


def _quoted(value: re.Match[str]) -> str:
    return value[0] if value[0][0] == '"' or _PLAIN.fullmatch(value[0]) else f'"{value[0]}"'


def _read(text: str) -> list[ArgSpec]:
    """Parses pipeline text. File names need no quotes. Raises PipelineError."""
    try:
        return list(parse_pipeline(_VALUE.sub(_quoted, "".join(text.split("\n")).strip())))
    except ArgSpecParseError as error:
        # The message has five lines: a title, the location, the text, a caret, and the reason.
        _, place, line, _, reason = str(error).splitlines()
        at = line[int(place.rpartition(":")[2]) - 1 :]
        raise PipelineError(f"cannot read the pipeline {text!r} at {at!r}: {reason.strip()}") from None


def _suggestion(name: str, names: list[str]) -> str:
    return "".join(f", did you mean {close!r}?" for close in get_close_matches(name, names, 1))


_BARE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def value_text(value: str | int | bool | float) -> str:
    """Returns the value of an option as pipeline text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        is_word = _BARE_WORD.fullmatch(value) and value not in ("true", "false")
        return value if is_word else json.dumps(value, ensure_ascii=False)
    return float_text(value) if isinstance(value, float) else str(value)


_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers, as in 1,2"),
    float: ("a number", "numbers, as in 0.5,1"),
    str: ("text", "words, as in a,b"),
    int | str: ("a name or a number", "names or numbers, as in %3,%5"),
}
"""Type of an option -> words for one value, and for several values."""


class OptionError(CompileError):
    """An option of a pass that is unknown, missing, or of the wrong type."""


@dataclass(frozen=True)
class PassOption:
    """Description of an option for `--help-pass`. `type`: words for its values. `default`: words for its default."""

    name: str
    type: str
    default: str


def pass_options(cls: type[ModulePass]) -> tuple[PassOption, ...]:
    hints = get_type_hints(cls)
    return tuple(PassOption(f.name, type_words(hints[f.name]), _default(f)) for f in dataclasses.fields(cls) if f.init)


def type_words(hint: Any) -> str:
    """Returns words for the values of a type hint: `an integer`, `one of a, b`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(type_words(t) for t in inner if t is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return _WORDS.get(inner[0], ("", f"values ({inner[0]})"))[1]
    return _WORDS.get(hint, (str(hint), ""))[0]


def checked_options(cls: type[ModulePass], options: dict[str, ParameterListType]) -> dict[str, ParameterListType]:
    """Checks the options of a pass, and converts integers to floats and flags without a value to `true` by their types.

    Raises:
        OptionError: an option is unknown, missing, or of the wrong type.
    """
    hints = get_type_hints(cls)
    types = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
    if options.keys() - types.keys() or cls.required_fields() - options.keys():
        raise _wrong_options(cls, options, types)
    return {name: _checked(cls.name, name, values, types[name]) for name, values in options.items()}


def _wrong_options(cls: type[ModulePass], options: Mapping[str, object], types: Mapping[str, Any]) -> OptionError:
    if unknown := sorted(options.keys() - types.keys()):
        names = ", ".join(sorted(types)) or "none"
        return OptionError(f"unknown option {unknown[0]!r} (options: {names})", operator=cls.name)
    missing = min(cls.required_fields() - options.keys())
    return OptionError(f"the option {missing!r} is needed: {type_words(types[missing])}", operator=cls.name)


def _checked(owner: str, name: str, values: ParameterListType, hint: Any) -> ParameterListType:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if bool in kinds and not values:
        return (True,)
    if float in kinds:
        values = tuple(float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values)
    if values and isa(values, hint) or len(values) == 1 and isa(values[0], hint) or not values and NoneType in kinds:
        return values
    raise _wrong_value(owner, name, values, hint)


def _wrong_value(owner: str, name: str, values: ParameterListType, hint: Any) -> OptionError:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    shown = ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values) or "no value"
    choices = next((get_args(k) for k in kinds if get_origin(k) is Literal), ())
    reason = f"{shown} is none of {', '.join(map(str, choices))}" if choices else f"{shown} is not {type_words(hint)}"
    return OptionError(reason, operator=owner, argument=name)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if value is None or value == ():
        return "optional"
    return f"{str(value).lower() if isinstance(value, bool) else value} by default"


T = TypeVar("T", int, float, bool, str)

_KEY = "searched"


def searched(default: T, *others: T) -> T:
    """Declares an option of a pass whose `others` values `deplodock tune` tries in addition to the default."""
    return dataclasses.field(default=default, metadata={_KEY: (default, *others)})


Options = Sequence[tuple[str, str, str]]
"""(pass, option, value as text) of each option that differs from its default."""


def searched_options(passes: Iterable[ModulePass]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the options that `deplodock tune` may change: (pass, option) -> values as text, the default first.

    Options that differ from their default in one of the passes are left out.
    """
    searches: dict[tuple[str, str], tuple[Any, ...]] = {}
    for p in passes:
        for option in dataclasses.fields(p):
            if len(values := option.metadata.get(_KEY, ())) > 1:
                searches.setdefault((p.name, option.name), values)
                if getattr(p, option.name) != values[0]:
                    searches[p.name, option.name] = ()
    return {key: tuple(map(value_text, values)) for key, values in searches.items() if values}


def with_options(passes: Iterable[ModulePass], options: Options) -> tuple[ModulePass, ...]:
    """Returns passes with some of their options replaced.

    Raises:
        PipelineError: the pass is not one of `passes`, it does not have the option, or the value is of the wrong type.
    """
    changed = list(passes)
    for name, option, value in options:
        positions = [i for i, p in enumerate(changed) if p.name == name]
        if not positions:
            raise PipelineError("expected a pass of this pipeline", operator=name, argument=option)
        for i in positions:
            (template,) = parse_passes(f"{name}{{{option}={value}}}")
            changed[i] = dataclasses.replace(changed[i], **{option: getattr(template, option)})
    return tuple(changed)
