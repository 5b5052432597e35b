"""Records: fusion plans and schedules in a file, which a later compilation uses.

A record is a JSON file, or the best plans of a database of measurements (`record_file.py`). Its keys are hashes of
nests and functions, without names and locations. So an entry serves every program that contains the same nest or
function. Plans are checked when a pass uses them, whether the planner, the tuner or a person wrote them. Reading a
record executes no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.hints import isa

from ..dialects.loop import NestOp
from ..dialects.shapes.extents import extents_text
from ..dialects.support.equivalence import structure_with_inputs
from ..dialects.support.printing import value_names
from ..dialects.tensor import ROOT
from ..dialects.tile.schedule import ScheduleAttr
from ..errors import ScheduleError
from ..target.attribute import target_of
from ..target.model import Target
from .analysis.host_memory import MEMORY_LIMIT, SCRATCH_LIMIT
from .analysis.nest_schedule import reduction_groups
from .pass_manager import Observer

FORMAT = "deplodock plans"
VERSION = 1
"""Version of the format. Increase it if keys or entries change their meaning."""

KEY_DIGITS = 24
"""Hexadecimal digits of a key (96 bits)."""

MAX_BYTES = 64 << 20
"""Bytes of the largest JSON file that is read."""

_UNPLANNED = ("schedule", SCRATCH_LIMIT, MEMORY_LIMIT, ROOT, "sym_name")
"""Attributes that a key ignores: plans, limits and names."""


class RecordError(ScheduleError):
    """A record that cannot be read or written, or an entry that is no valid plan of its nest or function."""


@dataclass
class Record:
    """Fusion plans and schedules of a file.

    Attributes:
        path: the file.
        schedules: `Target.name` -> key of a nest -> (text of the schedule, description of the nest for users).
        fusions: key of a function, or `TARGET:` and the key -> positions of the operations whose results are
            materialised.
        options: (`Target.name`, key of a nest) -> (pass, option, value) of passes below `plan-schedules`.
    """

    path: str
    schedules: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict[str, dict[str, tuple[str, str]]])
    fusions: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    options: dict[tuple[str, str], list[tuple[str, str, str]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[str, str, str]]]
    )

    def schedule_for(self, ctx: Context, nest: NestOp, target: Target) -> ScheduleAttr | None:
        """Returns the recorded schedule of a nest, or None.

        Without an entry for the number of multiprocessors of the target, it is the schedule for its architecture.

        Args:
            ctx: context with the registered dialects.
            nest: the nest.
            target: the target.

        Raises:
            RecordError: the text of the entry is no schedule.
        """
        key = plan_key(nest)
        entry = next((e[key] for n in (target.name, target.arch) if key in (e := self.schedules.get(n, {}))), None)
        if entry is None:
            return None
        try:
            parser = Parser(ctx, entry[0], self.path)
            attribute = parser.parse_attribute()
            if parser.pos < len(entry[0].rstrip()):
                raise self.refused(f"schedule {key}: expected the end of the text after {attribute}")
        except (ParseError, VerifyException) as error:
            reason = error.msg if isinstance(error, ParseError) else str(error)
            raise self.refused(f"schedule {key}: {reason}") from None
        if not isinstance(attribute, ScheduleAttr):
            raise self.refused(f"schedule {key}: expected a schedule, but got {attribute}")
        return attribute

    def options_for(self, nest: NestOp, target: Target) -> tuple[tuple[str, str, str], ...]:
        """Returns the recorded options of passes below `plan-schedules` for a nest: (pass, option, value)."""
        key = plan_key(nest)
        name = next((n for n in (target.name, target.arch) if key in self.schedules.get(n, {})), "")
        return tuple(self.options.get((name, key), ()))

    def fusion_for(self, function: FuncOp, target: str | None = None) -> list[Operation] | None:
        """Returns the operations of a function whose results are materialised by the record, or None.

        `target`: name of the target, whose entry precedes the entry for all targets. Raises RecordError for a position
        that the function does not have.
        """
        key = plan_key(function)
        entry = next((k for k in (f"{target}:{key}", key) if k in self.fusions), None)
        try:
            return None if entry is None else operations_at(function, self.fusions[entry])
        except ScheduleError as error:
            raise self.refused(f"the fusion {key} of {self.path} is refused: {error.reason}") from None

    def add_nest(self, nest: NestOp, target: str) -> None:
        entry = str(nest.attributes["schedule"]), describe_nest(nest)
        self.schedules.setdefault(target, {})[plan_key(nest)] = entry

    def text(self) -> str:
        """Returns the record as JSON. Equal plans have equal texts, independently of their order."""
        return json.dumps(json_of(self), indent=1) + "\n"

    def save(self) -> None:
        """Writes the record as JSON to `path`. Raises RecordError if that fails."""
        try:
            Path(self.path).write_text(self.text(), encoding="utf-8")
        except OSError as error:
            raise self.refused(str(error.strerror)) from None

    def refused(self, reason: str) -> RecordError:
        return RecordError(reason, argument="record", location=self.path)


def json_of(record: Record) -> dict[str, Any]:
    """Returns a record as JSON data."""
    schedules = {
        target: {key: {"schedule": s, "nest": description} for key, (s, description) in sorted(entries.items())}
        for target, entries in sorted(record.schedules.items())
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "schedules": schedules,
        "fusions": dict(sorted(record.fusions.items())),
    }


def read_json(path: str) -> Any:
    """Returns the contents of a JSON file. Raises RecordError if the file is too long, unreadable or damaged."""
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise Record(path).refused(f"expected at most {MAX_BYTES} bytes")
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise Record(path).refused(str(error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise Record(path).refused(f"is damaged: {error}") from None


def record_of(data: Any, path: str) -> Record:
    """Returns the record for JSON data (inverse of `json_of`). Raises RecordError for other data."""
    record = Record(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise record.refused("expected a record of plans")
    if data.get("version") != VERSION:  # pyright: ignore[reportUnknownMemberType]
        raise record.refused(f"expected version {VERSION}, but got {data.get('version')}")  # pyright: ignore
    schedules: Any = data.get("schedules")  # pyright: ignore
    fusions: Any = data.get("fusions")  # pyright: ignore
    if not isa(schedules, dict[str, dict[str, dict[str, str]]]) or not isa(fusions, dict[str, list[int]]):
        raise record.refused("is damaged: entries are missing or of another kind")
    record.fusions.update(fusions)
    try:
        for target, entries in schedules.items():
            record.schedules[target] = {key: (e["schedule"], e["nest"]) for key, e in entries.items()}
    except KeyError:
        raise record.refused("is damaged: entries are missing or of another kind") from None
    return record


def operations_at(function: FuncOp, roots: Sequence[int | str]) -> list[Operation]:
    """Returns operations of a function by their positions or by the printed names of their results.

    Raises:
        ScheduleError: the function has no operation with this position or name.
    """
    # All operations except `func.return`.
    by_number: dict[int | str, Operation] = dict(enumerate([*function.body.block.ops][:-1]))
    named = dict[str, Operation]()
    if any(isinstance(root, str) for root in roots):  # Names are expensive, and records have positions.
        owners = ((name, value.owner) for name, value in value_names(function).items())
        named = {n: o for n, o in owners if isinstance(o, Operation) and o.parent_op() is function}

    def operation(root: int | str) -> Operation:
        op = by_number.get(root) if isinstance(root, int) else named.get(f"%{root.removeprefix('%')}")
        if op is None:
            reason = f"expected one of the values {', '.join(named)}, but got {root}"
            if isinstance(root, int):
                reason = f"there is no operation {root} with a result to keep"
            raise ScheduleError(reason, operator=function.name)
        return op

    return [operation(root) for root in roots]


def roots_of(function: FuncOp) -> list[int]:
    return [i for i, op in enumerate(function.body.block.ops) if ROOT in op.attributes]


def describe_nest(nest: NestOp) -> str:
    sums = ", ".join(extents_text(group[0].sizes) for group in reduction_groups(nest))
    return f"a nest over {extents_text(nest.sizes)}" + (f", sums over {sums}" if sums else "")


def plan_key(op: Operation) -> str:
    """Returns the key of a nest or a function: a hash of its structure and of the types of its inputs.

    The key does not depend on names, locations and plans.
    """
    structure, inputs = structure_with_inputs(op, _UNPLANNED)
    types = [str(value.type) for value in inputs]
    return hashlib.sha256(_text((types, structure)).encode()).hexdigest()[:KEY_DIGITS]


def _text(value: object) -> str:
    """Returns a text of a structure. Different structures have different texts."""
    if isinstance(value, tuple | list):
        return f"({' '.join(map(_text, value))})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(str(value) if isinstance(value, Attribute) else value)


@dataclass
class RecordPlans(Observer):
    """Observer that adds the plans of the planning passes to `record`. `record.save()` then writes the file."""

    record: Record

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Adds the plans in `module` to the record, if the pass is a planning pass."""
        if module_pass.name == "tensor-plan-fusion":
            for op in module.body.block.ops:
                if isinstance(op, FuncOp) and not op.is_declaration:
                    self.record.fusions[plan_key(op)] = roots_of(op)
        if module_pass.name == "plan-schedules":
            for op in module.walk():
                if isinstance(op, NestOp):
                    self.record.add_nest(op, target_of(module).name)
