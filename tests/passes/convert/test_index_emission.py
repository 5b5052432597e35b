"""Index arithmetic in the lowering to threads: the emitted operations, evaluated for every thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce
from operator import xor

import pytest
from xdsl.dialects import arith
from xdsl.ir import Block, SSAValue

from deplodock.dialects import kernel, payload
from deplodock.passes.convert.tile_to_kernel.emitter import Emitter, Index

OPERATIONS: dict[type, Callable[[int, int], int]] = {
    arith.AddiOp: lambda a, b: a + b,
    arith.MuliOp: lambda a, b: a * b,
    arith.AndIOp: lambda a, b: a & b,
    arith.XOrIOp: lambda a, b: a ^ b,
    arith.ShRUIOp: lambda a, b: a >> b,
    arith.DivUIOp: lambda a, b: a // b,
    arith.RemUIOp: lambda a, b: a % b,
}


def evaluate(index: Index, thread: int, block: int = 0) -> int:
    """Returns the value of an index in one thread."""
    if not isinstance(index, SSAValue):
        return index
    op = index.owner
    if isinstance(op, kernel.IdOp):
        return {"thread": thread, "lane": thread % 32, "warp": thread // 32, "block": block}[op.kind.data.value]
    if isinstance(op, payload.ConstantOp):
        return int(op.scalar)
    assert type(op) in OPERATIONS, op
    return OPERATIONS[type(op)](*(evaluate(v, thread, block) for v in op.operands))  # pyright: ignore


def combined(images: list[int], number: int) -> int:
    return reduce(xor, (image for bit, image in enumerate(images) if number >> bit & 1), 0)


RANDOM = random.Random(1)
DISJOINT = [
    [1, 2, 4, 8, 16, 32],
    [4, 8, 0, 0, 1, 2],
    [0, 0, 0, 0, 0],
    [64, 1, 2, 4, 8, 16, 32],
    [0, 3, 0, 4, 8, 16, 32, 64],
]
MIXED = [[9, 18, 36, 72, 144], [1, 2, 4, 8, 24], [3, 6, 12, 24, 48, 96, 5], [RANDOM.randrange(64) for _ in range(8)]]


@pytest.mark.parametrize("images", DISJOINT + MIXED, ids=str)
def test_thread_bits_combine_images(images: list[int]) -> None:
    out = Emitter(Block(), [1], 1 << len(images) - 5)
    index = out.thread_bits(images, 3)
    for thread in range(1 << len(images)):
        assert evaluate(index, thread) == 3 * combined(images, thread)


@pytest.mark.parametrize("images", DISJOINT + MIXED, ids=str)
def test_bits_of_an_index_combine_images(images: list[int]) -> None:
    out = Emitter(Block(), [1], 32)
    index = out.bits_of(out.id("thread"), images)
    for thread in range(1 << len(images)):
        assert evaluate(index, thread) == combined(images, thread)


@pytest.mark.parametrize("grid", [[7], [3, 4], [1, 5, 1, 2], [2, 3, 4]], ids=str)
def test_block_indices_are_mixed_radix(grid: list[int]) -> None:
    out = Emitter(Block(), grid, 1)
    indices = out.block_indices([True] * len(grid))
    count = reduce(lambda a, b: a * b, grid)
    found = [tuple(evaluate(i, 0, block) for i in indices) for block in range(count)]
    assert found == sorted(set(found))
    assert all(0 <= i < n for t in found for i, n in zip(t, grid, strict=True))
    assert len(found) == count


def test_arithmetic_of_threads_and_blocks_is_emitted_at_the_head() -> None:
    entry, body = Block(), Block()
    out = Emitter(entry, [8], 2)
    with out.inside(body):
        out.add(out.mul(out.id("thread"), 4), out.id("block"))
    assert not list(body.ops)
    assert [op.name for op in entry.ops].count("arith.muli") == 1
