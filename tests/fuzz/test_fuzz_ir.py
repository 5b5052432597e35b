"""Damaged IR text of every level: `dl-opt` succeeds or says in a line what is wrong, and never takes long."""

from __future__ import annotations

import random

import pytest
from fuzz.texts import complaint, damage, texts


@pytest.fixture(scope="module")
def whole() -> list[tuple[str, str]]:
    return texts()


def test_whole_texts_are_taken(whole: list[tuple[str, str]]) -> None:
    assert [p for level, text in whole if (p := complaint(level, text, needs_success=True))] == []


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_damaged_texts(whole: list[tuple[str, str]], first: int) -> None:
    problems: list[str] = []
    for seed in range(first, first + 50):
        level, text = whole[seed % len(whole)]
        text = damage(text, random.Random(seed))
        if (problem := complaint(level, text)) is not None:
            problems.append(f"seed {seed}, {level}: {problem}\n{text}")
    assert problems == []


FOUND = {
    "a map that divides by zero": (
        "loop",
        "%x = tensor.iota 0 : tensor<4xi64>\n%y = tensor.index_map %x[d0 mod 0] : tensor<4xi64> -> tensor<4xi64>",
        "expected a division by a positive number",
    ),
    "integers for an operator of floats": (
        "torch",
        "%x = torch.full(size = [3, 40], fill_value = 1, dtype = i32) : () -> tensor<3x40xi32>\n"
        "%z = torch.leaky_relu(self = %x) : (tensor<3x40xi32>) -> tensor<3x40xi32>",
        "aten.leaky_relu: PyTorch has no kernel for i32",
    ),
    "floats for indices": (
        "torch",
        "%x = torch.full(size = [3, 40], fill_value = 1, dtype = f32) : () -> tensor<3x40xf32>\n"
        "%i = torch.full(size = [2], fill_value = 1, dtype = f32) : () -> tensor<2xf32>\n"
        "%z = torch.index_select(self = %x, dim = 0, index = %i) : (tensor<3x40xf32>, tensor<2xf32>)"
        " -> tensor<2x40xf32>",
        "aten.index_select: does not work on tensors of f32",
    ),
    "a grid that is too large": (
        "tile",
        "tile.kernel @k(%x: memref<4xf32>) blocks (%i) in [4294967296] warps 1 {\n}",
        "2^31 - 1 blocks",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    level, text, message = FOUND[name]
    assert complaint(level, text, says=message) is None
