"""Heads of detectors and segmenters: boxes, anchors, masks, keypoints and their losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


def boxes(n: int) -> Tensor:
    corner = torch.rand(n, 2) * 20
    return torch.cat([corner, corner + 1 + torch.rand(n, 2) * 10], 1)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(1) for x in (a, b))
    low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    overlap = (high - low).clamp(min=0).prod(2)
    return overlap / (area_a[:, None] + area_b[None, :] - overlap)


@program
def intersection_over_union() -> Built:
    return pairwise_iou, (boxes(7), boxes(5))


@program
def generalised_iou_loss() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        overlap = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
        union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - overlap
        hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
        return (1 - overlap / union + (hull - union) / hull).mean()

    return run, (boxes(6), boxes(6))


@program
def decode_boxes() -> Built:
    def run(anchors: Tensor, deltas: Tensor) -> Tensor:
        size, center = anchors[:, 2:] - anchors[:, :2], (anchors[:, 2:] + anchors[:, :2]) / 2
        center = center + deltas[:, :2] * size
        size = size * deltas[:, 2:].clamp(max=4.0).exp()
        return torch.cat([center - size / 2, center + size / 2], 1).clamp(0, 31)

    return run, (boxes(9), torch.randn(9, 4))


@program
def yolo_head() -> Built:
    head, anchors = inference(nn.Conv2d(8, 3 * 7, 1)), torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]])

    def run(x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        y = head(x).view(b, 3, 7, h, w).permute(0, 1, 3, 4, 2).contiguous()
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((gx, gy), -1).float()
        xy = (y[..., :2].sigmoid() * 2 - 0.5 + grid) * 8
        wh = (y[..., 2:4].sigmoid() * 2) ** 2 * anchors[None, :, None, None]
        return torch.cat((xy, wh, y[..., 4:].sigmoid()), -1).view(b, -1, 7)

    return run, (torch.randn(1, 8, 5, 4),)


@program
def anchors_of_a_grid() -> Built:
    def run(features: Tensor) -> Tensor:
        h, w = features.shape[-2:]
        ratios, scales = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([8.0, 16.0])
        hs, ws = (ratios.sqrt()[:, None] * scales).view(-1), (scales / ratios.sqrt()[:, None]).view(-1)
        base = torch.stack([-ws, -hs, ws, hs], 1) / 2
        y, x = torch.meshgrid(torch.arange(h) * 4.0, torch.arange(w) * 4.0, indexing="ij")
        shifts = torch.stack([x, y, x, y], -1).view(-1, 1, 4)
        return (shifts + base).view(-1, 4) + features.mean() * 0

    return run, (torch.randn(1, 2, 3, 4),)


@program
def focal_loss() -> Built:
    def run(logits: Tensor, targets: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        return ((0.25 * targets + 0.75 * (1 - targets)) * (1 - p_t) ** 2 * ce).sum() / targets.sum().clamp(min=1)

    return run, (torch.randn(8, 5), torch.randint(0, 2, (8, 5)).float())


@program
def dice_loss() -> Built:
    def run(logits: Tensor, target: Tensor) -> Tensor:
        p, t = torch.softmax(logits, 1).flatten(2), F.one_hot(target, 4).permute(0, 3, 1, 2).flatten(2).float()
        return 1 - ((2 * (p * t).sum(2) + 1) / (p.sum(2) + t.sum(2) + 1)).mean()

    return run, (torch.randn(2, 4, 8, 8), torch.randint(0, 4, (2, 8, 8)))


@program
def segmentation_confusion_matrix() -> Built:
    def run(logits: Tensor, target: Tensor) -> Tensor:
        guess = logits.argmax(1).flatten()
        return torch.bincount(target.flatten() * 4 + guess, minlength=16).view(4, 4)

    return run, (torch.randn(2, 4, 6, 6), torch.randint(0, 4, (2, 6, 6)))


@program
def soft_arg_max_keypoints() -> Built:
    def run(heat: Tensor) -> Tensor:
        b, k, h, w = heat.shape
        p = torch.softmax(heat.view(b, k, -1), -1).view(b, k, h, w)
        x, y = (p.sum(2) * torch.arange(w)).sum(-1), (p.sum(3) * torch.arange(h)).sum(-1)
        return torch.stack([x, y], -1)

    return run, (torch.randn(2, 3, 8, 6),)


@program
def heat_map_peaks() -> Built:
    def run(heat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heat = heat.sigmoid()
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        score, index = heat.flatten(1).topk(5)
        return score, index // 64 % 8, index % 8

    return run, (torch.randn(2, 3, 8, 8),)


@program
def detection_transformer_head() -> Built:
    layer = inference(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True))
    queries, classes, box = torch.randn(1, 6, 16), inference(nn.Linear(16, 5)), inference(nn.Linear(16, 4))

    def run(memory: Tensor) -> tuple[Tensor, Tensor]:
        y = layer(queries.expand(memory.shape[0], -1, -1), memory)
        return classes(y).softmax(-1)[..., :-1].max(-1).values, box(y).sigmoid()

    return run, (torch.randn(2, 9, 16),)


@program
def matching_costs() -> Built:
    def run(logits: Tensor, guess: Tensor, labels: Tensor, truth: Tensor) -> Tensor:
        return -logits.softmax(-1)[:, labels] + 5 * torch.cdist(guess, truth, p=1) - 2 * pairwise_iou(guess, truth)

    return run, (torch.randn(6, 4), boxes(6), torch.tensor([0, 3, 1]), boxes(3))


@program
def crops_by_bilinear_sampling() -> Built:
    """Regions of interest as grids for grid_sample."""

    def run(features: Tensor, rois: Tensor) -> Tensor:
        steps = (torch.arange(4) + 0.5) / 4
        x = rois[:, 0, None] + (rois[:, 2] - rois[:, 0])[:, None] * steps
        y = rois[:, 1, None] + (rois[:, 3] - rois[:, 1])[:, None] * steps
        grid = torch.stack([x[:, None, :].expand(-1, 4, 4), y[:, :, None].expand(-1, 4, 4)], -1) / 16 - 1
        return F.grid_sample(features.expand(rois.shape[0], -1, -1, -1), grid, align_corners=False)

    return run, (torch.randn(1, 3, 8, 8), boxes(4))


@program
def hard_negative_mining() -> Built:
    def run(loss: Tensor, positive: Tensor) -> Tensor:
        negatives = loss.masked_fill(positive, 0.0)
        rank = negatives.argsort(1, descending=True).argsort(1)
        keep = rank < 3 * positive.sum(1, keepdim=True)
        return (loss * (positive | keep)).sum()

    return run, (torch.rand(2, 12), torch.rand(2, 12) > 0.8)
