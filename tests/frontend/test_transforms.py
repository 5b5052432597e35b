"""Programs with transforms of `torch.func`, with gradients inside, and with `torch.cond`, against PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.torch_versions import VERSION, needs_torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.forward_ad import enter_dual_level
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import deplodock
from deplodock.backend.host.calls import building
from deplodock.errors import CompileError, ExecutionError
from deplodock.frontend.capture.tracing import as_before

Tensor = torch.Tensor

torch.manual_seed(0)
W = torch.randn(4, 4)
X = torch.randn(3, 4)
LINEAR = nn.Linear(4, 4)


def vector(x: Tensor) -> Tensor:
    return torch.tanh(x @ W)


def scalar(x: Tensor) -> Tensor:
    return (vector(x) ** 2).sum()


def per_sample(x: Tensor) -> dict[str, Tensor]:
    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(LINEAR, parameters, (one,)).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))({n: p.detach() for n, p in LINEAR.named_parameters()}, x)


def force(x: Tensor) -> Tensor:
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(scalar(at), at)
    return found


def network(x: Tensor) -> Tensor:
    """A network of operators whose gradients are separate operators of PyTorch."""
    image = x.reshape(1, 3, 4)
    weight = W[:3, :3].reshape(3, 3, 1)
    return nn.functional.gelu(nn.functional.layer_norm(nn.functional.conv1d(image, weight), [4])).sum()


def resized(x: Tensor) -> Tensor:
    image = nn.functional.interpolate(x.reshape(1, 1, 3, 4), size=(2, 7), mode="bilinear", antialias=True)
    return nn.functional.grid_sample(image, W.reshape(1, 2, 4, 2), align_corners=False).square().sum()


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "vmap": vmap(scalar),
    "grad": grad(scalar),
    "grad of a network": grad(network),
    "grad of resized images": grad(resized),
    "grad and value": grad_and_value(scalar),
    "grad of grad": grad(lambda x: grad(scalar)(x).sum()),
    "jacrev": jacrev(vector),
    "jacfwd": jacfwd(vector),
    "hessian": hessian(scalar),
    "jvp": lambda x: jvp(vector, (x,), (x * 2,)),
    "vjp": lambda x: vjp(vector, x)[1](x * 3),
    "per sample": per_sample,
    "grad between": lambda x: torch.relu(grad(scalar)(x * 2) - x).t(),
    "autograd": force,
    "autograd's jacobian": lambda x: torch.autograd.functional.jacobian(vector, x),
}
THROUGH_DYNAMO = TRANSFORMS | {"cond in vmap": vmap(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))}
ON_EMULATOR = {"hessian", "per sample"}


NEEDS_FUNC = needs_torch(2, 13, "cannot export derivatives of torch.func")
DERIVED = {"grad", "jvp", "vjp"}
"""Words in the names of transforms that an old PyTorch cannot export."""


def _transforms(names: Iterable[str]) -> list[Any]:
    """Returns the names as parameters of a test. A mark skips those that an old PyTorch cannot export."""
    derived = {name: DERIVED & {*name.split()} for name in names}
    return [pytest.param(name, marks=NEEDS_FUNC) if derived[name] else name for name in names]


@pytest.mark.parametrize("name", _transforms(TRANSFORMS))
def test_transform(name: str) -> None:
    function = TRANSFORMS[name]
    other = torch.randn(3, 4)
    for executor in ("reference", *(["emulator"] if name in ON_EMULATOR else [])):
        compiled = deplodock.compile(function, (X,), executor=executor)
        torch.testing.assert_close(compiled(other), function(other))


@pytest.mark.parametrize("name", _transforms(THROUGH_DYNAMO))
def test_transform_through_dynamo(name: str) -> None:
    torch._dynamo.reset()
    function = THROUGH_DYNAMO[name]
    compiled = torch.compile(lambda x: function(x), backend="deplodock")
    other = torch.randn(3, 4)
    torch.testing.assert_close(compiled(X), function(X))
    torch.testing.assert_close(compiled(other), function(other))


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return grad(lambda at: (self.inner(at) * self.scale).sum())(x)


@NEEDS_FUNC
def test_parameters_of_a_module_with_a_transform() -> None:
    module = Energy()
    compiled = deplodock.compile(module, (X,))
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))
        module.inner[0].weight.mul_(2)  # pyright: ignore
        torch.testing.assert_close(compiled(X), module(X))


@NEEDS_FUNC
def test_transform_of_sizes_that_vary() -> None:
    compiled = deplodock.compile(grad(scalar), (X,), dynamic_shapes=({0: torch.export.Dim("n", max=50)},))
    for n in (1, 3, 20):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), grad(scalar)(x))


@NEEDS_FUNC
def test_changes_in_place_beside_a_transform() -> None:
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.sub_(grad(scalar)(x))
        return x.t(), y * 2

    for through in (
        lambda x, y: deplodock.compile(step, (x, y)),
        lambda x, y: torch.compile(step, backend="deplodock"),
    ):
        torch._dynamo.reset()
        a, b = torch.ones(3, 4), torch.ones(3, 4)
        torch.testing.assert_close(through(X, a.clone())(X, a), step(X, b))
        torch.testing.assert_close(a, b)


def _tangent(function: Callable[[Tensor], Tensor]) -> bool:
    """Returns true if the result has a tangent when the argument has one."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(X, X))).tangent is not None


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_what_is_around_a_program_is_refused(target: str) -> None:
    """Transforms around a compiled program are refused, also for repeated calls without Python."""
    building().result()
    compiled = deplodock.compile(lambda x: x.sin(), (X,), target=target)
    compiled(X), compiled(X)
    with pytest.raises(ExecutionError, match="forward-mode AD around a compiled program"):
        _tangent(compiled)
    for around in (
        grad(lambda x: compiled(x).sum()),
        lambda x: vmap(compiled)(x[None]),
        lambda x: jvp(compiled, (x,), (x,)),
    ):
        with pytest.raises(ExecutionError, match=r"transforms of torch\.func around a compiled program"):
            around(X)
    with forward_ad.dual_level():  # of something else
        torch.testing.assert_close(compiled(X), X.sin())


def test_tangents_are_not_lost_through_dynamo() -> None:
    """Dynamo of PyTorch 2.14 runs functions of tensors with tangents in eager PyTorch. Earlier ones raise an error."""
    torch._dynamo.reset()
    compiled = torch.compile(torch.sin, backend="deplodock")
    if VERSION >= (2, 14):
        assert _tangent(compiled)
        return
    with pytest.raises(ExecutionError, match="forward-mode AD around a compiled program"):
        _tangent(compiled)


def test_gradients_that_are_switched_on() -> None:
    """A program enables gradients that are disabled around its call."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = x.sin() * 2
        return y, x * 2

    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    with torch.no_grad():
        y, z = torch.compile(function, backend="deplodock")(x)
    assert (y.requires_grad, z.requires_grad) == (True, False)
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, 2 * X.cos())


def test_what_is_refused_leaves_no_transform_behind() -> None:
    def fails(x: Tensor) -> Tensor:
        return x.nonzero().sum() * x if x.sum() > 0 else x

    for transformed in (grad(fails), lambda x: jvp(fails, (x,), (x,)), jacfwd(fails)):
        with pytest.raises(CompileError):
            deplodock.compile(transformed, (X,))
        torch.testing.assert_close(jvp(torch.sin, (X,), (X,))[1], X.cos() * X)


def test_transforms_that_are_not_left_are_left() -> None:
    with as_before():
        torch._C._functorch._grad_increment_nesting()  # pyright: ignore
        enter_dual_level()
    assert not torch._C._functorch.get_interpreter_stack()  # pyright: ignore
    torch.testing.assert_close(jvp(torch.sin, (X,), (X,))[1], X.cos() * X)


_COND_FIRST = """
import torch, deplodock
from torch.func import vjp
x = torch.ones(3)
deplodock.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (x,), executor="reference")
compiled = torch.compile(lambda x: vjp(torch.sin, x)[1](x)[0], backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(x), x.cos())
"""


def test_dynamo_knows_its_functions_after_a_cond() -> None:
    """Works in a process in which the first program that Dynamo sees has a `torch.cond`."""
    run = subprocess.run([sys.executable, "-c", _COND_FIRST], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def branches(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    def of_sum(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"a": torch.softmax(x @ y, -1), "b": y.sum(0)}

    def of_difference(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"a": x - x.mean(), "b": torch.log(y[0])}

    return torch.cond(x.sum() > 0, of_sum, of_difference, (x, y))


def nested(x: Tensor, y: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x[0, 0] > 0.5, torch.exp, lambda x: x + y[:1], (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x * W.sum(), (x,))


def known(x: Tensor, y: Tensor) -> Tensor:
    return (
        torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)) + torch.cond(x.dim() > 5, torch.sin, torch.cos, (y,))[:3]
    )


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(x.mean() > 0, self.one, self.two, (x,)) @ y


CONDITIONS = {"results in a dict": branches, "nested": nested, "known": known, "modules": Gated()}


@pytest.mark.parametrize("name", CONDITIONS)
def test_cond(name: str) -> None:
    torch._dynamo.reset()
    function, y = CONDITIONS[name], torch.rand(4, 4)
    programs: list[Callable[..., Any]] = [
        deplodock.compile(function, (X, y)),
        torch.compile(function, backend="deplodock"),
    ]
    if name == "results in a dict":
        programs.append(deplodock.compile(function, (X, y), executor="emulator"))
    with torch.no_grad():
        for compiled in programs:
            for x in (X.abs(), -X.abs(), X.abs() / 10):
                torch.testing.assert_close(compiled(x, y), function(x, y), rtol=1e-5, atol=1e-5)


def test_the_other_branch_does_not_show() -> None:
    def root(x: Tensor) -> Tensor:
        return torch.cond((x >= 0).all(), torch.sqrt, torch.zeros_like, (x,))

    compiled = deplodock.compile(root, (X,))
    for x in (X.abs(), X):
        torch.testing.assert_close(compiled(x), root(x))


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "rank": (lambda x: x.sum(0), "torch.cond, +expected same dim"),
    "shape": (lambda x: x[:2] * 2, r"torch.cond: branches that give float32\[2, 4\] and float32\[3, 4\]"),
    "type": (lambda x: x.double(), "torch.cond, +expected same dtype"),
    "structure": (lambda x: (x * 2, x + 1), "torch.cond"),
    "in place": (lambda x: x.mul_(2) * 1, "torch.cond: a branch that changes its operands"),
    "in place, closed over": (lambda x: W.mul_(2) * x[0], "torch.cond"),
}


IN_PLACE = needs_torch(2, 13, "refuses changes in place with another message")


@pytest.mark.parametrize("name", [pytest.param(n, marks=IN_PLACE) if "in place" in n else n for n in REFUSED])
def test_branches_are_refused(name: str) -> None:
    one, message = REFUSED[name]
    with pytest.raises(CompileError, match=message):
        deplodock.compile(lambda x: torch.cond(x.sum() > 0, one, lambda x: x + 2, (x,)), (X,))


def test_branches_are_not_differentiated() -> None:
    def root(x: Tensor) -> Tensor:
        return torch.cond((x >= 0).all(), torch.sqrt, torch.sin, (x,)).sum()

    def inside(x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            return torch.autograd.grad(root(at), at)[0]

    with pytest.raises(CompileError, match=r"torch\.cond: branches are not differentiated"):
        deplodock.compile(inside, (X,))
