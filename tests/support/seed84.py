"""The 84 shapes: expressions with input shapes of language models, by which the project is measured.

A case is available at full size, and shrunk to small odd sizes for tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from support import TESTS

CASES: list[dict[str, Any]] = json.loads((TESTS / "data" / "seed84.json").read_text())["cases"]
NAMES = [case["name"] for case in CASES]
BY_NAME = {case["name"]: case for case in CASES}
DISTINCT = list({(c["expression"], str(c["inputs"])): c["name"] for c in reversed(CASES)}.values())[::-1]
"""Names of the distinct cases. Several names can be one program, such as gate and up projections; the first counts."""

# Extent -> shrunk extent. Most are odd, so that they are no multiple of a tile; different extents stay different.
_LENGTHS = {32: 5, 128: 19, 512: 37}
_FEATURES = {2048: 35, 5632: 50, 256: 9, 3584: 45, 18944: 66, 512: 11}
_HEADS = {32: 6, 28: 9, 4: 3}
_HEAD_DIM = {64: 7, 128: 13}


@dataclass(frozen=True)
class Case:
    """A case in one data type: a function of tensors and the shapes of its inputs."""

    name: str
    function: Callable[..., torch.Tensor]
    shapes: dict[str, tuple[int, ...]]
    dtype: torch.dtype

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        """Returns random normal inputs; equal seeds give equal inputs."""
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator).to(self.dtype) for shape in self.shapes.values()]


def text_of(name: str, *, small: bool = False) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Returns the expression of a case and the shapes of its tensors by name; shrunk if `small`."""
    case = BY_NAME[name]
    expression, shapes = case["expression"], {k: tuple(v) for k, v in case["inputs"].items()}
    return _shrunk(case["family"], expression, shapes) if small else (expression, shapes)


def make_case(name: str, dtype: torch.dtype, *, small: bool = False) -> Case:
    """Returns a case.

    Args:
        name: its name.
        dtype: data type of the inputs.
        small: whether its shapes are shrunk.
    """
    expression, shapes = text_of(name, small=small)
    source = f"def function({', '.join(shapes)}): return {expression}"
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(source, namespace)  # The expression is a part of this repository, so it is safe to execute.
    return Case(name, namespace["function"], shapes, dtype)


def _shrunk(family: str, expression: str, shapes: dict[str, tuple[int, ...]]) -> tuple[str, dict[str, tuple[int, ...]]]:
    if family in ("softmax", "sdpa", "naive_attn"):
        _, _, length, width = next(iter(shapes.values()))
        widths = _LENGTHS if family == "softmax" else _HEAD_DIM
        small = {k: (b, _HEADS[h], _LENGTHS[s], widths[d]) for k, (b, h, s, d) in shapes.items()}
        expression = expression.replace(f"({length}, {length})", f"({_LENGTHS[length]}, {_LENGTHS[length]})")
        return expression.replace(f"/ {width}**0.5", f"/ {widths[width]}**0.5"), small
    small = {}
    for name, shape in shapes.items():
        if len(shape) == 3:
            small[name] = (shape[0], _LENGTHS[shape[1]], _FEATURES[shape[2]])
        else:
            small[name] = tuple(_FEATURES[n] for n in shape)
    for n, m in _FEATURES.items():
        expression = expression.replace(f"({n},)", f"({m},)")
    return expression, small
