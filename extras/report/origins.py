"""Origins of operations: the operators and Python lines that they are lowered from, by their locations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute

from ...dialects.support.locations import file_line_of, inner_locations, origin_of


@dataclass(frozen=True)
class Position:
    """A line of a file, from 1."""

    file: str
    line: int


def leaves_of(location: Attribute) -> Iterator[Attribute]:
    """Yields the origins in a location: one, or several for an operation that replaces several."""
    location = origin_of(location)
    if isinstance(location, FusedLoc):
        for part in inner_locations(location):
            yield from leaves_of(part)
    elif isinstance(location, NameLoc | FileLineColLoc | CallSiteLoc):
        yield location


def positions_of(location: Attribute) -> Iterator[Position]:
    """Yields the file positions of the origins in a location."""
    for leaf in leaves_of(location):
        if (place := file_line_of(leaf)) is not None:
            yield Position(place.filename.data, place.line.data)


def name_of(origin: Attribute) -> str:
    """Returns the name of an origin for people: `torch.mul.Tensor#4`, or its file and line."""
    if isinstance(origin, NameLoc):
        return origin.desc.data
    place = file_line_of(origin)
    return "" if place is None else f"{place.filename.data.rsplit('/', 1)[-1]}:{place.line.data}"
