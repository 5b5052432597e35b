"""Convolutions as matmuls of unfolded images (im2col), on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.passes.planning.cpu import plan_unfolding
from deplodock.target.host import has_isa

Shapes = tuple[tuple[int, ...], ...]

CASES: dict[str, tuple[Callable[..., torch.Tensor], Shapes]] = {
    "padding": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 5, 7, 7), (6, 5, 3, 3))),
    "strides, residual": (
        lambda x, w, r: F.relu(F.conv2d(x, w, stride=2) + r),
        ((1, 4, 9, 9), (8, 4, 2, 2), (8, 4, 4)),
    ),
    "dilation": (lambda x, w: F.conv2d(x, w, dilation=2, padding=2), ((1, 3, 8, 8), (17, 3, 3, 3))),
    "points": (lambda x, w: F.conv2d(x, w, stride=2), ((2, 6, 8, 8), (20, 6, 1, 1))),
    "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), ((1, 4, 6, 6), (6, 2, 3, 3))),
    "channels last": (
        lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w, padding=1).permute(0, 2, 3, 1),
        ((2, 5, 5, 4), (18, 4, 3, 3)),
    ),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), ((1, 4, 5, 5), (4, 3, 3, 3))),
    "rows": (lambda x, w, b: F.conv1d(x, w, b, padding=2), ((3, 4, 33), (5, 4, 5), (5,))),
}


def compiled(name: str, monkeypatch: pytest.MonkeyPatch, **how: str) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Compiles a case so that its operands are unfolded. Returns its result, that of PyTorch, and the loop IR."""
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", 1e-9)
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    args = tuple(torch.randn(s, generator=generator) for s in shapes)
    program = deplodock.compile(function, args, record="none", **how)  # pyright: ignore[reportArgumentType]
    return program(*args), function(*args), program.ir("loop")


@pytest.mark.parametrize("name", CASES)
def test_unfolded_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected, text = compiled(name, monkeypatch, target="cpu")
    assert "_unfolded = loop.nest" in text
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("isa", "name"), [("avx512", "groups"), ("avx2", "padding"), ("sse", "strides, residual")])
def test_unfolded_operands_on_instruction_sets(isa: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_isa(isa):
        pytest.skip(f"no {isa}")
    found, expected, _ = compiled(name, monkeypatch, target=f"cpu{{isa={isa}}}")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["padding", "points"])
def test_unfolded_operands_in_the_simulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected, _ = compiled(name, monkeypatch, target="cpu", executor="simulator")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_of_small_images_are_read_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 7x7 images with 256 channels only the image is copied, as 49 columns of one matmul; the weights are not."""
    args = torch.randn(1, 256, 7, 7), torch.randn(256, 256, 3, 3)
    program = deplodock.compile(lambda x, w: F.conv2d(x, w, padding=1), args, target="cpu", record="none")
    text = program.ir("loop")
    assert "in [1, 256, 49] -> tensor<1x256x49xf32>" in text
    assert "in [2304] -> f32" in text
