"""What a program may overwrite: attributes of `@main` that say which result takes the place of which argument.

`updates` pairs a result with the argument that it replaces after the program has run; from the kernel level on, where
results are arguments as well, it pairs two arguments. `in_place` pairs, at the kernel level, an argument that stands
for a result with the one in whose memory that result is: they are one buffer, and the kernels write it.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.dialects.func import FuncOp

from ...errors import CompileError

UPDATES = "updates"
IN_PLACE = "in_place"

Pairs = tuple[tuple[int, int], ...]


def pairs_of(function: FuncOp, name: str) -> Pairs:
    """The pairs in the attribute `name`, none without it. Raises CompileError if it holds something else."""
    found = function.attributes.get(name)
    if found is None:
        return ()
    numbers: list[int] = [int(n) for n in found.get_values()] if isinstance(found, DenseArrayBase) else [-1]
    count = len(function.body.block.args)
    results = len(function.function_type.outputs) or count
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    last = {b for _, b in pairs}
    if len(numbers) % 2 or any(not (0 <= a < results and 0 <= b < count) for a, b in pairs) or len(last) != len(pairs):
        raise CompileError(f"is no list of pairs of a result and an argument of @main: {found}", argument=name)
    return pairs


def set_pairs(function: FuncOp, name: str, pairs: Iterable[tuple[int, int]]) -> None:
    """Write the pairs; without any there is no attribute."""
    numbers = [n for pair in pairs for n in pair]
    function.attributes.pop(name, None)
    if numbers:
        function.attributes[name] = DenseArrayBase.from_list(i64, numbers)
