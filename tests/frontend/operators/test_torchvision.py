"""Operators of torchvision: equal to reference implementations that compute element by element."""

from __future__ import annotations

import pytest
import torch
from support import torchvision_operators  # noqa: F401 (registers the operators)

import deplodock

Tensor = torch.Tensor
vision = torch.ops.torchvision


def boxes(count: int, size: float = 20.0) -> Tensor:
    corner = torch.rand(count, 2) * size - 2
    return torch.cat([corner, corner + torch.rand(count, 2) * size / 2 + 0.5], 1)


@pytest.mark.parametrize("count", [1, 23])
def test_nms(count: int) -> None:
    torch.manual_seed(count)
    dets, scores = boxes(count), torch.rand(count).mul(8).floor()
    compiled = deplodock.compile(lambda b, s: vision.nms(b, s, 0.3), (dets, scores), executor="reference")
    for d in (dets, dets * 0 + torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.arange(count)[:, None] * 30 + dets * 0.1):
        assert torch.equal(compiled(d, scores), vision.nms(d, scores, 0.3))


def _postprocessed(dets: Tensor, scores: Tensor) -> Tensor:
    """Returns the best boxes above a score: the number of boxes of nms depends on data, too."""
    chosen = scores > 0.5
    dets, scores = dets[chosen], scores[chosen]
    return dets[vision.nms(dets, scores, 0.4)]


def test_nms_of_a_number_of_boxes_that_depends_on_data() -> None:
    torch.manual_seed(0)
    dets, scores = boxes(20), torch.rand(20)
    compiled = deplodock.compile(_postprocessed, (dets, scores), executor="reference")
    for s in (scores, scores * 0, scores + 1, torch.arange(20) / 20.5 + 0.01):
        torch.testing.assert_close(compiled(dets, s), _postprocessed(dets, s))


ALIGNED = {
    "two samples": (0.5, 3, 2, 2, False),
    "adaptive, aligned": (1.0, 3, 4, -1, True),
}


@pytest.mark.parametrize("options", ALIGNED.values(), ids=ALIGNED)
def test_roi_align(options: tuple[float, int, int, int, bool]) -> None:
    torch.manual_seed(1)
    x, rois = torch.randn(2, 3, 9, 11), torch.cat([torch.tensor([[0.0], [1], [1], [0]]), boxes(4)], 1)
    rois[3, 3:] = rois[3, 1:3] - 1
    compiled = deplodock.compile(lambda x, r: vision.roi_align(x, r, *options), (x, rois), executor="reference")
    torch.testing.assert_close(compiled(x, rois), vision.roi_align(x, rois, *options))


def test_roi_align_gradient() -> None:
    x, rois = torch.randn(2, 3, 8, 8, requires_grad=True), torch.cat([torch.tensor([[0.0], [1]]), boxes(2)], 1)
    function = lambda x: vision.roi_align(x, rois, 0.5, 2, 2, 2, True).square().sum()  # noqa: E731
    compiled = torch.compile(function, backend="deplodock", options={"executor": "reference"}, fullgraph=True)
    (actual,), (expected,) = (torch.autograd.grad(f(x), x) for f in (compiled, function))
    torch.testing.assert_close(actual, expected)


def test_deform_conv2d() -> None:
    torch.manual_seed(2)
    geometry = (2, 1, 1, 0, 1, 2, 2, 2, True)
    x, weight, bias = torch.randn(2, 4, 7, 6), torch.randn(6, 2, 3, 2), torch.randn(6)
    offset, mask = torch.randn(2, 2 * 6 * 2, 4, 4) * 2, torch.rand(2, 2 * 6, 4, 4)
    args = x, weight, offset, mask, bias
    compiled = deplodock.compile(lambda *args: vision.deform_conv2d(*args, *geometry), args, executor="reference")
    torch.testing.assert_close(compiled(*args), vision.deform_conv2d(*args, *geometry), rtol=1e-4, atol=1e-4)
