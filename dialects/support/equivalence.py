"""When two pieces of a program are the same: their structure as a value that can be compared and hashed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue


def structure(op: Operation, numbers: dict[SSAValue, Any], without: Collection[str] = ()) -> object:
    """What `op` is and does, without names of values and places.

    `numbers` gives the values defined so far their numbers, and gets those that `op` defines. Attributes and
    properties whose names are in `without` don't count.
    """
    operands = tuple([numbers.get(v, -1) for v in op.operands])
    for r in op.results:
        numbers[r] = len(numbers)
    regions = tuple([tuple([_block(b.args, b.ops, numbers, without) for b in r.blocks]) for r in op.regions])
    types = tuple([r.type for r in op.results])
    return op.name, _sorted(op.properties, without), _sorted(op.attributes, without), operands, types, regions


def structure_with_inputs(op: Operation, without: Collection[str] = ()) -> tuple[object, list[SSAValue]]:
    """Returns what `op` is and does as `structure` has it, and the values from outside that it uses: these count by
    their positions in the list."""
    inner, inputs = set[SSAValue](), dict[SSAValue, int]()
    for o in op.walk():
        inner.update(o.results, *(block.args for region in o.regions for block in region.blocks))
    for o in op.walk():
        for value in o.operands:
            if value not in inner:
                inputs.setdefault(value, len(inputs))
    return structure(op, {**inputs}, without), [*inputs]


def structure_in_place(op: Operation, number: Callable[[SSAValue], Hashable] = lambda value: value) -> object:
    """Returns what `op` computes where it stands: as `structure`, but values from outside of it count by their
    `number`, which is no integer above -2; by default as themselves."""
    if not op.regions:
        return structure(op, {v: number(v) for v in op.operands})
    used = (v for inner in op.walk() for v in inner.operands)
    return structure(op, {v: number(v) for v in used if not op.is_ancestor(v.owner)})


class Numbering:
    """Numbers of values, below -1: equal ones for what is computed in the same way from the same.

    What a function computes outside of its nests and kernels is the same as itself alone.
    """

    def __init__(self, *alike: Iterable[SSAValue]) -> None:
        """The first values of all lists `alike` count as one, and the second ones, and so on."""
        self._keys: dict[object, int] = {}
        self._values: dict[SSAValue, int] = {}
        for values in alike:
            for place, value in enumerate(values):
                self.identify(value, place)

    def identify(self, value: SSAValue, key: Hashable) -> int:
        """Let all values that are identified by one key be the same; their number."""
        number = self._values[value] = self._number(("key", key))
        return number

    def equate(self, value: SSAValue, other: SSAValue) -> None:
        """Let `value` be the same as `other`."""
        self._values[value] = self.of(other)

    def of(self, value: SSAValue) -> int:
        """The number of a value."""
        if value not in self._values:
            op = value.owner
            if isinstance(op, Block) or (around := op.parent_op()) is None or isinstance(around, FuncOp):
                self._values[value] = self._number(value)
            else:
                number = self.of_op(op)
                self._values.update((r, self._number((number, i))) for i, r in enumerate(op.results))
        return self._values[value]

    def of_op(self, op: Operation) -> int:
        """The number of what an op computes where it stands."""
        return self._number(structure_in_place(op, self.of))

    def _number(self, key: object) -> int:
        return self._keys.setdefault(key, -2 - len(self._keys))


def _block(
    arguments: Collection[SSAValue], ops: object, numbers: dict[SSAValue, Any], without: Collection[str]
) -> object:
    for arg in arguments:
        numbers[arg] = len(numbers)
    inner = tuple([structure(op, numbers, without) for op in ops])  # pyright: ignore
    return tuple([arg.type for arg in arguments]), inner


def _sorted(attributes: dict[str, Attribute], without: Collection[str]) -> tuple[tuple[str, Attribute], ...]:
    return tuple([(name, attributes[name]) for name in sorted(attributes) if name not in without])
