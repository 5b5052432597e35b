"""Source locations of ops, errors that name them, and ancestors of ops.

xDSL stores a location on every op but never sets it. The parser of `dl-opt` (`parsing.py`), the frontend and
`passes.rewriting` do.
"""

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
    """Returns the location `file:line:column`.

    Args:
        file: name of the file.
        line: line, from 1.
        column: column, from 1; 0 if it is unknown.
    """
    return builtin.FileLineColLoc(builtin.StringAttr(file), builtin.IntAttr(line), builtin.IntAttr(column))


def named_location(name: str, location: builtin.LocationAttr) -> builtin.NameLoc:
    """Returns `location` with the name of the op's origin: `loc("torch.mul.Tensor#4"("model.py":7:0))`."""
    return builtin.NameLoc(builtin.StringAttr(name), location)


def fused_location(first: builtin.LocationAttr, second: builtin.LocationAttr) -> builtin.LocationAttr:
    """Returns the location of an op at `first` that also replaces an op at `second`."""
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
    """Returns the locations inside a fused, named or call-site location."""
    if isinstance(location, builtin.FusedLoc) and isa(location.locations, builtin.ArrayAttr[Attribute]):
        return location.locations.data
    if isinstance(location, builtin.CallSiteLoc):
        return location.callee, location.caller
    return (location.location,) if isinstance(location, builtin.NameLoc) else ()


_READ = builtin.StringAttr("read")


def read_location(origin: builtin.LocationAttr, place: Attribute) -> builtin.FusedLoc:
    """Returns the location of an op with the given origin that was parsed from text at `place`."""
    return builtin.FusedLoc((origin, place), _READ)


def origin_of(location: Attribute) -> Attribute:
    """Returns a location without the position in the text that it was parsed from."""
    return inner_locations(location)[0] if _is_read(location) else location


def _is_read(location: Attribute) -> bool:
    return isinstance(location, builtin.FusedLoc) and location.metadata == _READ


def ancestors(op: Operation) -> Iterator[Operation]:
    """Yields the ancestors of `op`, innermost first."""
    while (parent := op.parent_op()) is not None:
        yield (op := parent)


def enclosing(op: Operation, kind: type[Op]) -> Op | None:
    """Returns the innermost ancestor of `op` of class `kind`, or None if there is none."""
    return next((ancestor for ancestor in ancestors(op) if isinstance(ancestor, kind)), None)


def location_of(op: Operation) -> builtin.LocationAttr:
    """Returns the location of `op`, or of its innermost ancestor that has one, or `UnknownLoc`."""
    locations = (o.location for o in chain((op,), ancestors(op)))
    return next((at for at in locations if not isinstance(at, builtin.UnknownLoc)), op.location)


def file_line_of(location: Attribute) -> builtin.FileLineColLoc | None:
    """Returns the first file position inside `location`, or None if there is none."""
    if isinstance(location, builtin.FileLineColLoc):
        return location
    return next(filter(None, map(file_line_of, inner_locations(location))), None)


def location_text(op: Operation) -> str | None:
    """Returns `file:line` or `file:line:col` of `op` for messages, or None if it has no location.

    If the op was parsed from text, this is its position in the text.
    """
    location = location_of(op)
    position = file_line_of(inner_locations(location)[-1] if _is_read(location) else location)
    if position is None:
        return None
    place = f"{position.filename.data}:{position.line.data}"
    return f"{place}:{position.column.data}" if position.column.data else place


def refused(
    op: Operation, reason: str, kind: type[CompileError] = ScheduleError, argument: str | None = None
) -> CompileError:
    """Returns an error about `op`, with its name and location.

    Args:
        op: the operation.
        reason: text of the message.
        kind: class of the error.
        argument: name of the argument that the error is about, or None.
    """
    return kind(reason, operator=op.name, argument=argument, location=location_text(op))


@contextmanager
def blamed(op: Operation) -> Generator[None]:
    """Context manager that attributes errors to `op`.

    A CompileError without operator or location gets the name and location of `op`; other exceptions get a note.
    """
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
    """Returns `file:line` of a location, without folders, or None if it is unknown. For text that is printed or
    stored."""
    position = file_line_of(location)
    if position is None:
        return None
    name = position.filename.data.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{position.line.data}"


def operator_text(location: Attribute) -> str | None:
    """Returns the operator of the source that a location names, such as `torch.softmax.int`, or None if it names
    none."""
    if isinstance(location, builtin.NameLoc):
        return location.desc.data.partition("#")[0]
    return next(filter(None, map(operator_text, inner_locations(location))), None)


def copy_location(source: Operation, targets: Iterable[Operation]) -> None:
    """Sets the location of `source` on every op in `targets` (and inside them) that has none."""
    location = location_of(source)
    if isinstance(location, builtin.UnknownLoc):
        return
    for target in targets:
        for op in target.walk():
            if isinstance(op.location, builtin.UnknownLoc):
                op.location = location
