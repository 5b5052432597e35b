"""Losses, metrics and steps of optimizers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, program


@program
def cross_entropy_with_smoothing_and_weights() -> Built:
    weight = torch.rand(5) + 0.5

    def run(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, weight=weight, label_smoothing=0.1, ignore_index=3)

    return run, (torch.randn(8, 5), torch.tensor([0, 1, 2, 3, 4, 3, 2, 1]))


@program
def cross_entropy_of_pixels() -> Built:
    return (lambda x, y: F.cross_entropy(x, y)), (torch.randn(2, 4, 5, 5), torch.randint(0, 4, (2, 5, 5)))


@program
def cross_entropy_with_soft_targets() -> Built:
    return (lambda x, y: F.cross_entropy(x, y)), (torch.randn(6, 4), torch.softmax(torch.randn(6, 4), 1))


@program
def shifted_language_model_loss() -> Built:
    def run(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        shifted, target = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        z = torch.logsumexp(shifted, -1)
        loss = F.cross_entropy(shifted.view(-1, 20), target.view(-1), ignore_index=-100, reduction="sum")
        return loss / (target != -100).sum(), 1e-4 * z.pow(2).mean()

    labels = torch.randint(0, 20, (2, 7))
    labels[0, :3] = -100
    return run, (torch.randn(2, 7, 20), labels)


@program
def binary_cross_entropy_with_weights() -> Built:
    def run(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x, y, weight=w, pos_weight=torch.tensor([1.0, 2.0, 3.0]))

    return run, (torch.randn(4, 3), torch.randint(0, 2, (4, 3)).float(), torch.rand(4, 3))


@program
def regression_losses() -> Built:
    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        losses = [F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum"), F.huber_loss(x, y, delta=0.7)]
        return [*losses, F.smooth_l1_loss(x, y, beta=0.3), torch.log(torch.cosh(x - y)).mean()]

    return run, (torch.randn(6, 3), torch.randn(6, 3))


@program
def quantile_loss() -> Built:
    levels = torch.tensor([0.1, 0.5, 0.9])

    def run(guess: Tensor, truth: Tensor) -> Tensor:
        e = truth[:, None] - guess
        return torch.max((levels - 1) * e, levels * e).sum(1).mean()

    return run, (torch.randn(6, 3), torch.randn(6))


@program
def distillation_loss() -> Built:
    def run(student: Tensor, teacher: Tensor) -> Tensor:
        t = 3.0
        return F.kl_div(F.log_softmax(student / t, -1), F.softmax(teacher / t, -1), reduction="batchmean") * t * t

    return run, (torch.randn(5, 8), torch.randn(5, 8))


@program
def jensen_shannon_divergence() -> Built:
    def run(p: Tensor, q: Tensor) -> Tensor:
        p, q = p.softmax(-1), q.softmax(-1)
        m = (0.5 * (p + q)).log()
        return 0.5 * (F.kl_div(m, p, reduction="none") + F.kl_div(m, q, reduction="none")).sum(-1)

    return run, (torch.randn(4, 6), torch.randn(4, 6))


@program
def information_noise_contrast() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        z = F.normalize(torch.cat([a, b]), dim=1)
        n = a.shape[0]
        similar = (z @ z.T / 0.1).masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(similar, (torch.arange(2 * n) + n) % (2 * n))

    return run, (torch.randn(5, 8), torch.randn(5, 8))


@program
def image_and_text_contrast() -> Built:
    def run(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
        logits = scale.exp() * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t()
        truth = torch.arange(image.shape[0])
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.t(), truth)) / 2

    return run, (torch.randn(6, 8), torch.randn(6, 8), torch.tensor(2.6))


@program
def sigmoid_contrast() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * 10 - 10
        return -F.logsigmoid((2 * torch.eye(a.shape[0]) - 1) * logits).sum(-1).mean()

    return run, (torch.randn(6, 8), torch.randn(6, 8))


@program
def triplet_and_margin_losses() -> Built:
    def run(a: Tensor, p: Tensor, n: Tensor) -> list[Tensor]:
        target = torch.tensor([1.0, -1, 1, -1])
        return [
            F.triplet_margin_loss(a, p, n, margin=0.5),
            F.cosine_embedding_loss(a, p, target, margin=0.2),
            F.margin_ranking_loss(a[:, 0], p[:, 0], target),
            F.hinge_embedding_loss(a[:, 0].abs(), target),
            F.soft_margin_loss(a[:, 0], target),
        ]

    return run, tuple(torch.randn(4, 6) for _ in range(3))


@program
def batch_hard_triplets() -> Built:
    def run(z: Tensor, label: Tensor) -> Tensor:
        d = torch.cdist(z, z)
        same = label[:, None] == label[None]
        far = torch.where(same, d, -torch.inf).amax(1)
        near = torch.where(same, torch.inf, d).amin(1)
        return F.relu(far - near + 0.3).mean()

    return run, (torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))


@program
def additive_angular_margin() -> Built:
    weight = torch.randn(5, 8)

    def run(x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(x), F.normalize(weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        margin = torch.cos(torch.acos(cosine) + 0.5)
        one = F.one_hot(label, 5).bool()
        return F.cross_entropy(torch.where(one, margin, cosine) * 30, label)

    return run, (torch.randn(6, 8), torch.randint(0, 5, (6,)))


@program
def center_loss() -> Built:
    centers = torch.randn(5, 4)
    return (lambda x, y: (x - centers[y]).pow(2).sum(1).mean() / 2), (torch.randn(6, 4), torch.randint(0, 5, (6,)))


@program
def gaussian_likelihoods() -> Built:
    def run(x: Tensor, mean: Tensor, variance: Tensor, rate: Tensor) -> list[Tensor]:
        return [
            F.gaussian_nll_loss(mean, x, variance),
            F.poisson_nll_loss(rate, x.abs().round()),
            -torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(x).mean(),
        ]

    return run, (torch.randn(5, 3), torch.randn(5, 3), torch.rand(5, 3) + 0.1, torch.randn(5, 3))


@program
def mixture_density_loss() -> Built:
    def run(weights: Tensor, mean: Tensor, log_scale: Tensor, x: Tensor) -> Tensor:
        z = (x[:, None] - mean) * torch.exp(-log_scale)
        log_p = -0.5 * z.pow(2) - log_scale - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(F.log_softmax(weights, -1) + log_p, -1).mean()

    return run, (torch.randn(5, 4), torch.randn(5, 4), torch.randn(5, 4) * 0.3, torch.randn(5))


@program
def barlow_twins() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        a, b = ((z - z.mean(0)) / z.std(0) for z in (a, b))
        c = a.T @ b / a.shape[0]
        on = (torch.diagonal(c) - 1).pow(2).sum()
        return on + 0.005 * (c.pow(2).sum() - torch.diagonal(c).pow(2).sum())

    return run, (torch.randn(8, 4), torch.randn(8, 4))


@program
def variance_and_covariance_loss() -> Built:
    def run(z: Tensor) -> Tensor:
        z = z - z.mean(0)
        std = torch.sqrt(z.var(0) + 1e-4)
        c = z.T @ z / (z.shape[0] - 1)
        return F.relu(1 - std).mean() + (c - torch.diag(torch.diagonal(c))).pow(2).sum() / z.shape[1]

    return run, (torch.randn(8, 4),)


@program
def gram_matrix_style_loss() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        g, h = (torch.einsum("bihw,bjhw->bij", x, x) / x[0].numel() for x in (a, b))
        return F.mse_loss(g, h)

    return run, (torch.randn(1, 4, 6, 6), torch.randn(1, 4, 6, 6))


@program
def preference_loss() -> Built:
    def run(chosen: Tensor, rejected: Tensor, mask: Tensor) -> Tensor:
        a, b = ((x * mask).sum(-1) for x in (chosen, rejected))
        return -F.logsigmoid(0.1 * (a[0] - a[1] - b[0] + b[1])).mean()

    return run, (-torch.rand(2, 3, 6), -torch.rand(2, 3, 6), (torch.rand(3, 6) > 0.2).float())


@program
def accuracy_and_f_score() -> Built:
    def run(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        guess = logits.argmax(1)
        right = (guess == target).float().mean()
        g, t = F.one_hot(guess, 4), F.one_hot(target, 4)
        both = (g * t).sum(0).float()
        top = (logits.topk(2).indices == target[:, None]).any(1).float().mean()
        return right, (2 * both / (g.sum(0) + t.sum(0)).clamp(min=1)).mean(), top

    return run, (torch.randn(12, 4), torch.randint(0, 4, (12,)))


@program
def calibration_error() -> Built:
    def run(logits: Tensor, target: Tensor) -> Tensor:
        confidence, guess = logits.softmax(-1).max(-1)
        bins = (confidence * 5).long().clamp(max=4)
        one = F.one_hot(bins, 5).float()
        n = one.sum(0)
        gap = (one * ((guess == target).float() - confidence)[:, None]).sum(0)
        return (gap.abs() / n.clamp(min=1) * n / n.sum()).sum()

    return run, (torch.randn(20, 3), torch.randint(0, 3, (20,)))


@program
def adam_step() -> Built:
    def run(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, v = torch.lerp(m, g, 0.1), 0.999 * v + 0.001 * g * g
        scale = (1 - 0.999**step).sqrt() / (1 - 0.9**step)
        return p * (1 - 1e-3 * 0.01) - 1e-3 * scale * m / (v.sqrt() + 1e-8), m, v

    return run, (*(torch.randn(6, 4) for _ in range(3)), torch.rand(6, 4), torch.tensor(3.0))


@program
def lion_and_sign_momentum() -> Built:
    def run(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return p - 1e-3 * torch.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g

    return run, tuple(torch.randn(5, 4) for _ in range(3))


@program
def clip_by_global_norm() -> Built:
    def run(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        norm = torch.stack([x.norm() for x in (a, b, c)]).norm()
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        return [x * scale for x in (a, b, c)]

    return run, (torch.randn(4, 5), torch.randn(7), torch.randn(2, 3))


@program
def layerwise_trust_ratio() -> Built:
    def run(w: Tensor, u: Tensor) -> Tensor:
        a, b = w.norm(), u.norm()
        ratio = torch.where((a > 0) & (b > 0), a / b, 1.0).clamp(max=10)
        return w - 0.01 * ratio * u

    return run, (torch.randn(4, 5), torch.randn(4, 5))


@program
def mixed_up_batch() -> Built:
    def run(x: Tensor, y: Tensor, share: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        one = F.one_hot(y, 4).float()
        mixed = share[:, None] * one + (1 - share)[:, None] * one[order]
        return share[:, None, None] * x + (1 - share)[:, None, None] * x[order], mixed

    return run, (torch.randn(5, 3, 4), torch.randint(0, 4, (5,)), torch.rand(5), torch.randperm(5))


@program
def weight_normalised_layer() -> Built:
    def run(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
        return F.linear(x, v * (g / v.norm(dim=1))[:, None])

    return run, (torch.randn(3, 6), torch.randn(4, 6), torch.rand(4))


@program
def running_batch_statistics() -> Built:
    """A norm in training: the buffers change with the call."""
    norm = nn.BatchNorm1d(5)
    norm.requires_grad_(False)
    return norm, (torch.randn(6, 5),)


@program
def regularised_loss_of_a_module() -> Built:
    net = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.Linear(8, 1)).requires_grad_(False)

    def run(x: Tensor, y: Tensor) -> Tensor:
        penalty = sum(p.pow(2).sum() for p in net.parameters())
        return F.mse_loss(net(x), y) + 1e-3 * penalty

    return run, (torch.randn(5, 6), torch.randn(5, 1))


@program
def sparse_autoencoder() -> Built:
    encode, decode = torch.randn(6, 20), torch.randn(20, 6)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        value, index = torch.topk(F.relu(x @ encode), 4)
        code = torch.zeros(x.shape[0], 20).scatter(1, index, value)
        return code @ decode, code

    return run, (torch.randn(3, 6),)
