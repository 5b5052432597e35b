"""When two pieces of a program are the same: their structure as a value that can be compared and hashed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from xdsl.ir import Attribute, Operation, SSAValue


def structure(op: Operation, numbers: dict[SSAValue, int], without: Collection[str] = ()) -> object:
    """What `op` is and does, without names of values and places.

    `numbers` gives the values defined so far their numbers, and gets those that `op` defines. Attributes and
    properties whose names are in `without` don't count.
    """
    operands = tuple(numbers.get(v, -1) for v in op.operands)
    for r in op.results:
        numbers[r] = len(numbers)
    regions = tuple(
        tuple(_block(block.args, block.ops, numbers, without) for block in region.blocks) for region in op.regions
    )
    types = tuple(r.type for r in op.results)
    return op.name, _sorted(op.properties, without), _sorted(op.attributes, without), operands, types, regions


def structure_in_place(op: Operation, number: Callable[[SSAValue], int]) -> object:
    """What `op` computes where it stands: as `structure`, but values from outside of it count by their `number`, which
    has to be below -1."""
    used = op.operands if not op.regions else [v for inner in op.walk() for v in inner.operands]
    return structure(op, {v: number(v) for v in used if not op.is_ancestor(v.owner)})


def _block(
    arguments: Collection[SSAValue], ops: object, numbers: dict[SSAValue, int], without: Collection[str]
) -> object:
    for arg in arguments:
        numbers[arg] = len(numbers)
    inner = tuple(structure(op, numbers, without) for op in ops)  # pyright: ignore
    return tuple(arg.type for arg in arguments), inner


def _sorted(attributes: dict[str, Attribute], without: Collection[str]) -> tuple[tuple[str, Attribute], ...]:
    return tuple(sorted(((k, v) for k, v in attributes.items() if k not in without), key=lambda item: item[0]))
