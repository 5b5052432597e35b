"""Where an op came from, and what it is in: source locations, which the parser of `dl-opt`, the frontend and
`passes.rewriting` write; xDSL stores one on every op, but fills it in nowhere."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar, cast

from xdsl.dialects import builtin
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from ...errors import CompileError, ScheduleError

Op = TypeVar("Op", bound=Operation)


def file_location(file: str, line: int, column: int = 0) -> builtin.FileLineColLoc:
    """The location `file:line:column`. Lines and columns count from 1; column 0 means that it is not known."""
    return builtin.FileLineColLoc(builtin.StringAttr(file), builtin.IntAttr(line), builtin.IntAttr(column))


def named_location(name: str, location: builtin.LocationAttr) -> builtin.NameLoc:
    """Returns `location` with the name of what is there: `loc("torch.mul.Tensor#4"("model.py":7:0))`."""
    return builtin.NameLoc(builtin.StringAttr(name), location)


def fused_location(first: builtin.LocationAttr, second: builtin.LocationAttr) -> builtin.LocationAttr:
    """Returns the location of an op at `first` that computes what another op at `second` computed as well."""
    parts = _origins(first)
    both = tuple(dict.fromkeys((*parts, *_origins(second))))
    if len(both) == len(parts):
        return first
    location = cast(builtin.LocationAttr, both[0] if len(both) == 1 else builtin.FusedLoc(both, builtin.NoneAttr()))
    return read_location(location, inner_locations(first)[-1]) if _is_read(first) else location


def _origins(location: Attribute) -> Sequence[Attribute]:
    origin = origin_of(location)
    if isinstance(origin, builtin.FusedLoc):
        return inner_locations(origin)
    return () if isinstance(origin, builtin.UnknownLoc) else (origin,)


def inner_locations(location: Attribute) -> Sequence[Attribute]:
    """Returns the locations that a fused, a named one or one of a call site is made of."""
    if isinstance(location, builtin.FusedLoc) and isa(location.locations, builtin.ArrayAttr[Attribute]):
        return location.locations.data
    if isinstance(location, builtin.CallSiteLoc):
        return location.callee, location.caller
    return (location.location,) if isinstance(location, builtin.NameLoc) else ()


_READ = builtin.StringAttr("read")


def read_location(origin: builtin.LocationAttr, place: Attribute) -> builtin.FusedLoc:
    """Returns the location of an op that comes from `origin` and was read from text at `place`."""
    return builtin.FusedLoc((origin, place), _READ)


def origin_of(location: Attribute) -> Attribute:
    """Returns a location without the place of the text that it was read from."""
    return inner_locations(location)[0] if _is_read(location) else location


def _is_read(location: Attribute) -> bool:
    return isinstance(location, builtin.FusedLoc) and location.metadata == _READ


def ancestors(op: Operation) -> Iterator[Operation]:
    while (around := op.parent_op()) is not None:
        yield (op := around)


def enclosing(op: Operation, kind: type[Op]) -> Op | None:
    """The nearest op of this kind around `op`; None if there is none."""
    return next((around for around in ancestors(op) if isinstance(around, kind)), None)


def location_of(op: Operation) -> builtin.LocationAttr:
    """The location of `op`, or of the nearest op around it that has one; `UnknownLoc` if there is none."""
    locations = (o.location for o in chain((op,), ancestors(op)))
    return next((at for at in locations if not isinstance(at, builtin.UnknownLoc)), op.location)


def file_line_of(location: Attribute) -> builtin.FileLineColLoc | None:
    """The first file position inside `location` (through names, fusions and call sites), if there is one."""
    if isinstance(location, builtin.FileLineColLoc):
        return location
    return next(filter(None, map(file_line_of, inner_locations(location))), None)


def location_text(op: Operation) -> str | None:
    """`file:line` or `file:line:col` of `op` for an error message, in the text that it was read from if there is one;
    None if the op came from nowhere known."""
    location = location_of(op)
    found = file_line_of(inner_locations(location)[-1] if _is_read(location) else location)
    if found is None:
        return None
    place = f"{found.filename.data}:{found.line.data}"
    return f"{place}:{found.column.data}" if found.column.data else place


def refused(
    op: Operation, why: str, kind: type[CompileError] = ScheduleError, argument: str | None = None
) -> CompileError:
    """The error that says of `op`, at its place, what is wrong with it."""
    return kind(why, operator=op.name, argument=argument, location=location_text(op))


@contextmanager
def blamed(op: Operation) -> Generator[None]:
    """Errors inside of the `with` block that name no operator or no place get those of `op`, others a note of it."""
    try:
        yield
    except CompileError as error:
        error.operator = error.operator or op.name
        error.location = error.location or location_text(op)
        raise
    except Exception as error:
        place = location_text(op)
        error.add_note(f"while rewriting {op.name}" + (f" at {place}" if place else ""))
        raise


def line_text(location: Attribute) -> str | None:
    """`file:line` of a location without folders, for what is printed and kept; None if it is not known."""
    found = file_line_of(location)
    if found is None:
        return None
    name = found.filename.data.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{found.line.data}"


def copy_location(source: Operation, targets: Iterable[Operation]) -> None:
    """Gives every op among and inside `targets` that has no location the one of `source`."""
    location = location_of(source)
    if isinstance(location, builtin.UnknownLoc):
        return
    for target in targets:
        for op in target.walk():
            if isinstance(op.location, builtin.UnknownLoc):
                op.location = location
