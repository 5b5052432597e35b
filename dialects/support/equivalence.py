"""Structural equality of pieces of a program.

`structure` converts an op to a tuple that can be compared and hashed; two ops with equal structure compute the same.
`Numbering` does this for values: values that are computed in the same way from the same inputs have one number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue


def structure(op: Operation, numbers: dict[SSAValue, Any], without: Collection[str] = ()) -> object:
    """Returns the structure of `op`: its name, attributes, operands, types and regions, without value names and
    locations.

    Args:
        op: the operation.
        numbers: value -> number, for the values defined before; the results of `op` are added.
        without: names of attributes and properties to ignore.
    """
    operands = tuple([numbers.get(v, -1) for v in op.operands])
    for r in op.results:
        numbers[r] = len(numbers)
    regions = tuple([tuple([_block(b.args, b.ops, numbers, without) for b in r.blocks]) for r in op.regions])
    types = tuple([r.type for r in op.results])
    return op.name, _sorted(op.properties, without), _sorted(op.attributes, without), operands, types, regions


def structure_with_inputs(op: Operation, without: Collection[str] = ()) -> tuple[object, list[SSAValue]]:
    """Returns the structure of `op`, and the values from outside that it uses.

    In the structure, these values are represented by their positions in the list.
    """
    inner, inputs = set[SSAValue](), dict[SSAValue, int]()
    for o in op.walk():
        inner.update(o.results, *(block.args for region in o.regions for block in region.blocks))
    for o in op.walk():
        for value in o.operands:
            if value not in inner:
                inputs.setdefault(value, len(inputs))
    return structure(op, {**inputs}, without), [*inputs]


def structure_in_place(op: Operation, number: Callable[[SSAValue], Hashable] = lambda value: value) -> object:
    """Returns the structure of `op`, in which values from outside are represented by `number(value)`.

    By default values represent themselves. `number` must return no integer above -2, because the structure contains -1
    for an unknown value and numbers from 0 for the values that `op` defines.
    """
    if not op.regions:
        return structure(op, {v: number(v) for v in op.operands})
    used = (v for inner in op.walk() for v in inner.operands)
    return structure(op, {v: number(v) for v in used if not op.is_ancestor(v.owner)})


class Numbering:
    """Value numbering: values that are computed in the same way from equal values have one number, at most -2.

    A value computed directly in a function, outside of nests and kernels, is equal to itself only.
    """

    def __init__(self, *equal_lists: Iterable[SSAValue]) -> None:
        """Treats the first values of all lists as equal, the second values, and so on."""
        self._keys: dict[object, int] = {}
        self._values: dict[SSAValue, int] = {}
        for values in equal_lists:
            for position, value in enumerate(values):
                self.identify(value, position)

    def identify(self, value: SSAValue, key: Hashable) -> int:
        """Makes all values with one `key` equal. Returns their number."""
        number = self._values[value] = self._number(("key", key))
        return number

    def equate(self, value: SSAValue, other: SSAValue) -> None:
        """Makes `value` equal to `other`."""
        self._values[value] = self.of(other)

    def of(self, value: SSAValue) -> int:
        """Returns the number of a value."""
        if value not in self._values:
            op = value.owner
            if isinstance(op, Block) or (parent := op.parent_op()) is None or isinstance(parent, FuncOp):
                self._values[value] = self._number(value)
            else:
                number = self.of_op(op)
                self._values.update((r, self._number((number, i))) for i, r in enumerate(op.results))
        return self._values[value]

    def of_op(self, op: Operation) -> int:
        """Returns the number of the computation of an op."""
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
