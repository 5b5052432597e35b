"""Judges of layouts: programs of tiles, lowered and executed by the simulator, and accesses of shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from .....backend.check_each import input_types, interpret, make_inputs
from .....backend.simulator import KernelCounts, simulate
from .....dialects import kernel, tile
from .....dialects.layouts import linear_of, shared_of
from .....dialects.layouts.linear import Bases, Linear, Reader, Shared, combine, pack, unpack
from .....dialects.payload import element_bytes, shape_of
from .....passes.analysis.tile_layouts import readers
from ...differences import describe
from ...judges import lowered, require_equal
from ...verdicts import Wrong

PIECE = 16
"""Bytes of the widest access of a thread."""


def require_simulated(program: ModuleOp, expected: ModuleOp) -> tuple[ModuleOp, KernelCounts]:
    """Requires that the kernel of a program of tiles runs without errors and computes the right results.

    Args:
        program: the program of the reader.
        expected: a right program with the same `@main`.

    Returns:
        the program at the kernel level, and the counts of its only launch.

    Raises:
        Wrong: a result is wrong, or the simulator reports an error.
    """

    require_equal(program, expected)
    module, inputs = lowered(program.clone(), "tile-to-kernel"), make_inputs(input_types(expected))
    results, report = simulate(module, inputs)
    if report.findings:
        raise Wrong(f"the simulator reports {report.findings[0]}")
    for i, (a, e) in enumerate(zip(results, interpret(expected, inputs, "real"), strict=True)):
        actual = a.astype(np.float64)
        same = np.isclose(actual, e, rtol=1e-4, atol=1e-4)
        if text := describe(actual, e, same, f"result {i} of the kernel"):
            raise Wrong(text)
    if len(report.launches) != 1:
        raise Wrong(f"expected one launch, but got {len(report.launches)}")
    return module, report.launches[0]


def require_pieces(program: ModuleOp, counts: KernelCounts) -> None:
    """Requires that every thread loads 16 bytes at once, and that no sector of 32 bytes is read in part.

    Args:
        program: a program of tiles.
        counts: counts of its launch.

    Raises:
        Wrong: an access is narrower, with the reason in the layout of the loaded tile.
    """
    if (width := min(counts.load_widths)) < PIECE:
        raise Wrong(
            f"the program is right, but a lane loads {width} bytes at once: {PIECE // width} instructions where one is "
            f"enough; {_narrow(program)}"
        )
    if counts.sectors > counts.ideal_sectors:
        raise Wrong(
            f"a lane loads {PIECE} bytes at once, but the instructions touch {counts.sectors} sectors of 32 bytes "
            f"where {counts.ideal_sectors} are enough: neighbouring lanes must load neighbouring pieces"
        )


def _narrow(program: ModuleOp) -> str:
    """Returns the reason why the loads of the first loaded tile are narrow."""
    op = next(op for op in program.walk() if isinstance(op, tile.LoadOp))
    layout = linear_of(op.result.type)
    assert layout is not None
    last = [0] * (len(layout.shape) - 1)
    for bit in range(min(3, len(layout.reg))):
        if layout.reg[bit] != (*last, 1 << bit):
            here, expected = [*layout.reg[bit]], [*last, 1 << bit]
            return f"register {1 << bit} of lane 0 holds element {here}, but the next one in memory is {expected}"
    if len(layout.reg) < 3:
        return f"a lane has {layout.registers} registers, and a piece has 8 elements"
    for name, bases in (("lane", layout.lane), ("warp", layout.warp)):
        for bit, basis in enumerate(bases):
            if basis[-1] % 8:
                return f"{name} {1 << bit} begins at element {[*basis]}, which is inside of a piece of 8 elements"
    return "the pieces of 8 elements do not begin at multiples of 8"


def shuffles(module: ModuleOp) -> int:
    """Returns the shuffle instructions of a warp: one for each register of a `kernel.shuffle_xor`."""
    ops = (op for op in module.walk() if isinstance(op, kernel.ShuffleXorOp))
    return sum(math.prod(shape_of(op.result.type)) for op in ops)


def bases_of_list(name: str, value: Any, shape: Sequence[int], count: int) -> Bases:
    """Returns bases that a reader wrote as lists.

    Args:
        name: name of the list in messages.
        value: the list.
        shape: extents of the tile.
        count: number of bases.

    Raises:
        Wrong: the value is no list of `count` elements of the tile.
    """
    if not isinstance(value, list | tuple) or len(value) != count:
        raise Wrong(f"expected {name} to be a list of {count} bases, one for each bit, but got {value!r}")
    bases: list[tuple[int, ...]] = []
    for bit, basis in enumerate(value):
        if not is_element(basis, shape):
            raise Wrong(f"expected {name}[{bit}] to be an element {_example(shape)} of the tile, but got {basis!r}")
        bases.append(tuple(basis))
    return tuple(bases)


def is_element(value: Any, shape: Sequence[int]) -> bool:
    """Returns true if a value is a coordinate of a tile."""
    pair = isinstance(value, list | tuple) and len(value) == len(shape)
    return pair and all(isinstance(c, int) and 0 <= c < n for c, n in zip(value, shape, strict=True))


def _example(shape: Sequence[int]) -> str:
    return str([n - 1 for n in shape]).replace("[", "from [0, 0] to [")


def require_bijective(layout: Shared) -> None:
    """Requires that a shared layout has one offset for each element.

    Raises:
        Wrong: two offsets hold the same element. The message names them.
    """
    seen: dict[int, int] = {}
    images = [pack(layout.shape, b) for b in layout.offset]
    for offset in range(layout.size):
        position = combine(images, offset)
        if position in seen:
            element = [*unpack(layout.shape, position)]
            raise Wrong(f"offsets {seen[position]} and {offset} both hold element {element}: each needs its own")
        seen[position] = offset


def require_free(shared: Shared, accesses: Iterable[tuple[str, Linear]], itemsize: int) -> None:
    """Requires that accesses of shared memory have no bank conflicts.

    Args:
        shared: the layout in shared memory.
        accesses: a description, and the layout of the registers of a warp, for each access.
        itemsize: bytes of an element.

    Raises:
        Wrong: an access has conflicts. The message names two lanes and their bank.
    """
    faults: list[str] = []
    for name, layout in accesses:
        reader = Reader(layout, itemsize)
        count, least = reader.wavefronts(shared), reader.least_wavefronts(shared)
        if count > least:
            enough = f"{least} {'is' if least == 1 else 'are'} enough"
            faults.append(f"{name} needs {count} wavefronts where {enough}{_conflict(shared, layout, itemsize)}")
    if faults:
        raise Wrong("; ".join(faults))


def dot_faults(program: ModuleOp) -> list[str]:
    """Returns texts about the accesses of the left operands of dots that are narrow or have bank conflicts."""
    faults: list[str] = []
    for op in program.walk():
        if not isinstance(op, tile.DotOp) or not isinstance(stage := op.lhs.owner, tile.StageOp):
            continue
        shared, writer, acc = shared_of(op.lhs.type), linear_of(stage.source.type), linear_of(op.acc.type)
        assert shared is not None
        assert writer is not None
        assert acc is not None
        size = element_bytes(op.lhs.type)
        choices = readers(op, acc, 0)
        reads = min(choices, key=lambda r, shared=shared: r.cost(shared)[0])
        for name, access in (("tile.stage writes", Reader(writer, size)), ("tile.dot reads", reads)):
            width, count, least = access.width(shared), access.wavefronts(shared), access.least_wavefronts(shared)
            if width * size < PIECE:
                faults.append(f"{name} pieces of {width * size} bytes in place of {PIECE}")
            elif count > least:
                faults.append(f"{name} {PIECE} bytes of each lane in {count} wavefronts in place of {least}")
    return faults


def _conflict(shared: Shared, layout: Linear, itemsize: int) -> str:
    """Returns a text about the first two lanes whose elements are in different words of one bank."""
    seen: dict[int, tuple[int, int]] = {}
    for lane in range(layout.lanes):
        word = shared.place(layout.apply(0, lane, 0)) * itemsize // 4
        other, first = seen.setdefault(word % 32, (lane, word))
        if first != word:
            return f": lanes {other} and {lane} access words {first} and {word}, both in bank {word % 32}"
    return ""
