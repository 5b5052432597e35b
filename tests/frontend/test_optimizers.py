"""Steps of every PyTorch optimizer through torch.compile, compared with eager PyTorch.

With `--optimizers all` each option is tried, with `foreach` and without; otherwise the defaults, and the last options
with `foreach`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch._dynamo.utils import counters
from torch.optim import lr_scheduler

STEPS = 10

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{"weight_decay": 0.1, "maximize": True}],
    "Adafactor": [{"weight_decay": 0.1, "maximize": True}, {"lr": 1e-2}],
    "Adagrad": [{"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1}, {"fused": True}],
    "Adam": [
        {"amsgrad": True, "weight_decay": 0.1},
        {"maximize": True, "decoupled_weight_decay": True},
        {"lr": torch.tensor(1e-2), "capturable": True, "foreach": False},
        {"fused": True, "amsgrad": True, "weight_decay": 0.1},
    ],
    "AdamW": [{"amsgrad": True, "maximize": True}, {"capturable": True}, {"fused": True}],
    "Adamax": [{"weight_decay": 0.1, "maximize": True}],
    "ASGD": [{"weight_decay": 0.1, "maximize": True, "t0": 3}],
    "Muon": [{"nesterov": False, "weight_decay": 0.2}],
    "NAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}, {"capturable": True}],
    "RAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}, {"capturable": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9, "weight_decay": 0.1, "maximize": True}, {"differentiable": True}],
    "Rprop": [{"maximize": True}],
    "SGD": [
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.5, "maximize": True},
        {"lr": torch.tensor(1e-2)},
        {"fused": True, "momentum": 0.9, "nesterov": True},
    ],
}
"""Options of every optimizer besides its own defaults."""

ONE_WAY = ("Adafactor", "Muon")
"""Optimizers without the option `foreach`, which the others have except where they are fused or differentiable."""

BY_PYTHON = ("Adafactor",)
"""Optimizers with steps that read numbers in a loop, so that Dynamo leaves them to Python. So it does with those that
are fused: they are a kernel of PyTorch's."""

BY_CLOSURES = ("LBFGS", "SparseAdam")
"""Optimizers whose steps PyTorch does not trace: Dynamo leaves them to Python, and their parts are compiled."""


def ways(wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (optimizer, options) for every variant, with and without `foreach`."""
    for name, variants in VARIANTS.items():
        for options in ({}, *variants) if wanted == "all" else ({}, *variants[-1:]):
            alone = name in ONE_WAY or {"foreach", "fused", "differentiable"} & options.keys()
            for how in ({},) if alone else ({"foreach": False}, {"foreach": True}):
                if wanted == "all" or how != {"foreach": not options}:
                    yield name, {**options, **how}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"name", "options"} <= {*metafunc.fixturenames}:
        found = [*ways(str(metafunc.config.getoption("--optimizers")))]
        metafunc.parametrize(("name", "options"), found, ids=str)


def follow(
    make: Callable[[list[Any]], Any], parameters: list[Any], executor: str = "reference", steps: int = STEPS
) -> None:
    """Takes steps with random gradients, compiled and in eager PyTorch, and compares the parameters.

    Fails if nothing was compiled.

    Args:
        make: returns the optimizer, or the optimizer and its learning-rate schedule, for parameters.
        parameters: tensors of the eager optimizer, copied for the compiled one.
        executor: runs the compiled graphs.
        steps: number of steps.
    """
    torch._dynamo.reset()
    counters.clear()
    copies = copy.deepcopy(parameters)
    eager, traced = (made if isinstance(made := make(p), tuple) else (made,) for p in (parameters, copies))
    for group in eager[0].param_groups:
        group["capturable"] = False  # which eager PyTorch refuses on a CPU
    step = torch.compile(lambda: [part.step() for part in traced], backend="deplodock", options={"executor": executor})
    draw = torch.Generator().manual_seed(0)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(steps):
            for x, y in zip(parameters, copies, strict=True):
                x.grad = torch.randn(x.shape, generator=draw)
                y.grad = x.grad.clone()
            for part in eager:
                part.step()
            step()
            torch.testing.assert_close(copies, parameters, rtol=1e-5, atol=1e-6)
    fused = any(group.get("fused") for group in eager[0].param_groups)
    assert counters["stats"]["unique_graphs"] or fused or type(eager[0]).__name__ in BY_PYTHON


def parameters(name: str) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(2, 3) if name == "Muon" else torch.randn(3))]


def test_every_optimizer_is_here() -> None:
    known = {n for n in dir(optim) if isinstance(o := getattr(optim, n), type) and issubclass(o, optim.Optimizer)}
    assert known - {"Optimizer"} == {*VARIANTS, *BY_CLOSURES}


def test_steps(name: str, options: dict[str, Any]) -> None:
    given = parameters(name)
    if options.get("differentiable"):
        given = [p.detach() for p in given]
    follow(lambda p: getattr(optim, name)(p, **copy.deepcopy(options)), given)


@pytest.mark.parametrize("name", ["Adam", "RMSprop"])
def test_steps_as_cpp(name: str) -> None:
    follow(lambda p: getattr(optim, name)(p, foreach=True), parameters(name), "cpu", 3)


SCHEDULES: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=20),
    lambda o: lr_scheduler.LinearLR(o, total_iters=5),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: lr_scheduler.ExponentialLR(o, 0.9),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_a_learning_rate_that_is_a_tensor(schedule: Callable[[Any], Any]) -> None:
    def make(p: list[Any]) -> Any:
        optimizer = optim.Adam(p, lr=torch.tensor(0.01))
        return optimizer, schedule(optimizer)

    follow(make, parameters("Adam"), steps=6)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False, "norm_type": float("inf")}], ids=str)
def test_gradients_are_clipped(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    given = parameters("SGD")
    copies = copy.deepcopy(given)
    for x, y in zip(given, copies, strict=True):
        x.grad = torch.randn_like(x)
        y.grad = x.grad.clone()
    clip = torch.compile(nn.utils.clip_grad_norm_, backend="deplodock", options={"executor": "reference"})
    torch.testing.assert_close(clip(copies, 0.5, **options), nn.utils.clip_grad_norm_(given, 0.5, **options))
    torch.testing.assert_close([p.grad for p in copies], [p.grad for p in given])


def test_steps_with_closures_and_of_sparse_gradients() -> None:
    torch._dynamo.reset()
    given = [nn.Parameter(torch.tensor([1.0, 2.0, -1.0])), nn.Parameter(torch.randn(5, 2))]
    copies = copy.deepcopy(given)

    def steps(p: list[Any], compiled: bool) -> None:
        first, second = optim.LBFGS(p[:1], max_iter=4, line_search_fn="strong_wolfe"), optim.SparseAdam(p[1:])

        def loss() -> Any:
            first.zero_grad()
            total = ((p[0] - 3) ** 4).sum()
            total.backward()
            return total

        def step() -> None:
            first.step(loss)
            second.step()

        run = torch.compile(step, backend="deplodock", options={"executor": "reference"}) if compiled else step
        for _ in range(3):
            p[1].grad = torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (5, 2))
            run()

    steps(given, False)
    steps(copies, True)
    torch.testing.assert_close(copies, given)
