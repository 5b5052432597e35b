"""Uses with gradients: results that require them, losses, and steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .checking import Compile, quick, use
from .inference import r

Tensor = torch.Tensor


def gradients(compile: Compile, make: Callable[[], nn.Module], *args: Tensor, **options: Any) -> Any:
    """Returns the result of a module, and the gradients of its parameters and arguments."""
    torch.manual_seed(1)
    module = make()
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    y = compile(module, **options)(*given)
    y.float().pow(2).mean().backward()
    return y.detach(), [p.grad for p in (*module.parameters(), *given)]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Sampled(nn.Module):
    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def seq(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


quick(
    "gradients",
    linear=lambda c: gradients(c, lambda: nn.Linear(3, 2), r(4, 3)),
    mlp=lambda c: gradients(c, lambda: seq(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), r(4, 3)),
    layer_norm=lambda c: gradients(c, lambda: seq(nn.LayerNorm(4), nn.SiLU()), r(3, 4)),
    conv=lambda c: gradients(c, lambda: nn.Conv2d(2, 3, 3, padding=1), r(1, 2, 4, 4)),
    conv_with_stride_and_groups=lambda c: gradients(c, lambda: nn.Conv1d(4, 4, 3, 2, 1, 1, groups=2), r(2, 4, 6)),
    transposed_conv=lambda c: gradients(c, lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1, 1), r(2, 2, 4)),
    batch_norm=lambda c: gradients(c, lambda: nn.BatchNorm1d(3), r(4, 3)),
    group_norm=lambda c: gradients(c, lambda: nn.GroupNorm(2, 4), r(2, 4, 3)),
    embedding=lambda c: gradients(c, lambda: nn.Embedding(5, 3), torch.tensor([0, 2, 2])),
    grid_sample=lambda c: gradients(c, lambda: Sampled(), r(1, 2, 3, 4), r(1, 2, 2, 2).tanh()),
    embedding_bag=lambda c: gradients(c, lambda: nn.EmbeddingBag(5, 3, mode="mean"), torch.tensor([[0, 2], [2, 4]])),
    average_pool=lambda c: gradients(c, lambda: nn.AvgPool2d(3, 2, 1), r(1, 2, 5, 5)),
    max_pool=lambda c: gradients(c, lambda: seq(nn.MaxPool1d(2), nn.Tanh()), r(1, 2, 6)),
    attention=lambda c: gradients(c, Attention, r(1, 3, 4)),
    mode_and_gradients=lambda c: gradients(c, lambda: nn.Linear(3, 2), r(4, 3), mode="max-autotune"),
)


@use("gradients", "left to PyTorch")
def fallback_eager_with_gradients(compile: Compile) -> Any:
    f = compile(lambda x: torch.linalg.inv(x @ x.T + 3 * torch.eye(3)).sin(), options={"fallback": "eager"})
    x = torch.eye(3).requires_grad_()
    y = f(x)
    y.sum().backward()
    return y, x.grad


@use("gradients", "not supported", True)
def unsupported_gradient(compile: Compile) -> Any:
    x = r(2, 3).requires_grad_()
    f = compile(lambda x: torch.linalg.svdvals(x) * 2)
    f(x).sum().backward()
    return x.grad


@use("gradients")
def sizes_that_change_often(compile: Compile) -> Any:
    module = nn.Linear(2, 2)
    f = compile(module)
    for n in range(2, 6):
        f(torch.ones(n, 2)).sum().backward()
    return module.weight.grad


@use("gradients")
def regulariser_and_loss(compile: Compile) -> Any:
    module, x = nn.Linear(3, 2), r(4, 3)
    (compile(module)(x).pow(2).mean() + 1e-3 * module.weight.pow(2).sum()).backward()
    return module.weight.grad, module.bias.grad


@use("gradients")
def result_requires_gradient(compile: Compile) -> Any:
    y = compile(nn.Linear(2, 2))(r(3, 2))
    return y, y.requires_grad


@use("gradients")
def frozen_module(compile: Compile) -> Any:
    y = compile(nn.Linear(2, 2).requires_grad_(False))(r(3, 2))
    return y, y.requires_grad


@use("gradients")
def with_and_without_gradients(compile: Compile) -> Any:
    module, x = nn.Linear(2, 2), r(3, 2)
    f = compile(module)
    with torch.no_grad():
        first = f(x)
    return first, f(x)


@use("gradients")
def sizes_that_change(compile: Compile) -> Any:
    module = nn.Linear(2, 2)
    f = compile(module)
    for n in (3, 5, 4):
        f(torch.ones(n, 2)).sum().backward()
    return module.weight.grad


@use("gradients")
def view_of_a_parameter(compile: Compile) -> Any:
    module = nn.Linear(2, 3)
    y = compile(lambda: module.weight.t())()
    y.sum().backward()
    return y, module.weight.grad


@use("gradients")
def detached_part(compile: Compile) -> Any:
    x = r(3).requires_grad_()
    y, z = compile(lambda x: (x * 2, (x * 3).detach()))(x)
    y.sum().backward()
    return y, z, x.grad


@use("gradients")
def cross_entropy(compile: Compile) -> Any:
    module, x, y = nn.Linear(3, 4), r(5, 3), torch.tensor([0, 3, 1, 1, 2])
    loss = compile(lambda x, y: F.cross_entropy(module(x), y))(x, y)
    loss.backward()
    return loss, module.weight.grad


@use("gradients")
def graph_break_between(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x.tanh()
        torch._dynamo.graph_break()
        return y * 2

    x = r(3).requires_grad_()
    compile(f)(x).sum().backward()
    return x.grad


@use("gradients")
def autocast_with_gradients(compile: Compile) -> Any:
    module = nn.Linear(2, 2)
    f = compile(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(torch.eye(2))
    y.float().sum().backward()
    return y, module.weight.grad


@use("gradients")
def dropout_has_one_mask(compile: Compile) -> Any:
    x = torch.ones(50).requires_grad_()
    y = compile(lambda x: F.dropout(x, 0.5))(x)
    y.sum().backward()
    return bool((y == x.grad).all()), y.requires_grad


def batches(compile: Compile) -> Any:
    """Trains a network with batch norms for three steps. Returns the losses and the running statistics."""
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    f, given = compile(module), torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        given.zero_grad()
        loss = F.cross_entropy(f(r(4, 1, 6, 6)), torch.tensor([0, 1, 1, 0]))
        loss.backward()
        given.step()
        losses.append(loss.detach())
    return losses, [b.clone() for b in module.buffers()]


def steps(compile: Compile, optimizer: Any, count: int = 3, **how: Any) -> Any:
    """Trains a small network on one batch. Returns the losses and the weights."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    f, given = compile(module), optimizer(module.parameters(), **how)
    x, y, losses = r(6, 3), r(6, 1), []
    for _ in range(count):
        given.zero_grad()
        loss = F.mse_loss(f(x), y)
        loss.backward()
        given.step()
        losses.append(loss.detach())
    return losses, [p.detach() for p in module.parameters()]


quick(
    "training",
    sgd=lambda c: steps(c, torch.optim.SGD, lr=0.1),
    momentum=lambda c: steps(c, torch.optim.SGD, lr=0.1, momentum=0.9),
    adam=lambda c: steps(c, torch.optim.Adam, lr=0.01),
    batch_norm=batches,
)


@use("training")
def whole_step_in_one_function(compile: Compile) -> Any:
    module = nn.Linear(3, 1)
    x, y = r(6, 3), r(6, 1)
    loss = compile(lambda x, y: F.mse_loss(module(x), y))
    for _ in range(2):
        loss(x, y).backward()
        with torch.no_grad():
            for p in module.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
                p.grad = None
    return module.weight.detach()


@use("training")
def gradients_are_accumulated(compile: Compile) -> Any:
    module = nn.Linear(2, 1)
    f = compile(module)
    for _ in range(3):
        f(torch.ones(4, 2)).mean().backward()
    return module.weight.grad


@use("training")
def checkpointed(compile: Compile) -> Any:
    from torch.utils.checkpoint import checkpoint

    module = nn.Linear(2, 2)
    f = compile(lambda x: checkpoint(lambda y: module(y).tanh(), x, use_reentrant=False))
    f(torch.ones(3, 2)).sum().backward()
    return module.weight.grad


@use("training")
def checkpointed_with_dropout(compile: Compile) -> Any:
    """The checkpoint recomputes the dropout with the same mask in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(50).requires_grad_()
    f = compile(lambda x: checkpoint(lambda y: F.dropout(y * 2, 0.5).sin(), x, use_reentrant=False))
    y = f(x)
    y.sum().backward()
    return bool(((y == 0) == (x.grad == 0)).all()), y.requires_grad


@use("training")
def frozen_layer(compile: Compile) -> Any:
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    compile(module)(torch.ones(3, 2)).sum().backward()
    return [p.grad for p in module[1].parameters()], module[0].weight.grad
