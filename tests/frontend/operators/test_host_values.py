"""Programs that read a tensor's contents during tracing, as an index or for a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.torch_versions import needs_torch
from torch import Tensor

import deplodock
from deplodock.errors import CompileError, ExecutionError


def write(x: Tensor, t: Tensor) -> Tensor:
    y = x * 2
    y[:, t].add_(1)
    return y


def write_to_argument(x: Tensor, t: Tensor) -> Tensor:
    return x[t].mul_(3) + 1


READS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, t: x[t] * 2,
    lambda x, t: (x * 2)[t],
    lambda x, t: (x[:, t] + 1, x[None, ..., t] + 1),
    lambda x, t: x.select(1, t.item()) + x[t, t],
    write,
    write_to_argument,
]


NEEDS_INDICES = needs_torch(2, 13, "exports no index that is the value of a tensor")


@NEEDS_INDICES
@pytest.mark.parametrize("executor", ["reference", "emulator"])
@pytest.mark.parametrize("function", READS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_tensors_as_indices(function: Callable[..., Any], dtype: torch.dtype, executor: str) -> None:
    if executor == "emulator" and dtype != torch.int32:
        return
    x = torch.randn(4, 4)
    compiled = deplodock.compile(function, (x, torch.tensor(3, dtype=dtype)), executor=executor)
    for place in (1, -1):
        t, one, other = torch.tensor(place, dtype=dtype), x.clone(), x.clone()
        torch.testing.assert_close(compiled(one, t), function(other, t))
        torch.testing.assert_close(one, other)


@NEEDS_INDICES
def test_views_at_a_place_that_is_computed_are_refused() -> None:
    with pytest.raises(CompileError, match="view of an argument at a place that is computed"):
        deplodock.compile(lambda x, t: x[t], (torch.randn(4, 4), torch.tensor(1)))


@NEEDS_INDICES
def test_bytes_are_a_mask_to_pytorch() -> None:
    with pytest.raises(CompileError, match=r"x\[t\]: .* depends on data"):
        deplodock.compile(lambda x, t: x[t] * 2, (torch.randn(4, 4), torch.tensor(1, dtype=torch.uint8)))


def raises(x: Tensor) -> Tensor:
    if torch.isnan(x).any():
        raise ValueError("NaN is given")
    if (x < 0).any().item():
        raise ValueError("less than 0")
    return x.sqrt()


def asserts(x: Tensor) -> Tensor:
    assert not torch.isnan(x).any(), "NaN is given"
    assert (x >= 0).all(), "less than 0"
    return x.sqrt()


@pytest.mark.parametrize("function", [raises, asserts])
def test_checks_in_python_hold_or_raise(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([1.0, 4.0])
    compiled = deplodock.compile(function, (x,), executor="reference")
    torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(ExecutionError, match="Error: NaN is given"):
        compiled(torch.tensor([1.0, float("nan")]))
    with pytest.raises(ExecutionError, match="Error: less than 0"):
        compiled(torch.tensor([1.0, -4.0]))


def test_checks_of_pytorch_itself() -> None:
    x, target, variance = torch.randn(3, 4, 2).unbind(-1)[0], torch.randn(3, 4), torch.rand(3, 4)
    compiled = deplodock.compile(F.gaussian_nll_loss, (x, target, variance), executor="reference")
    torch.testing.assert_close(compiled(x, target, variance), F.gaussian_nll_loss(x, target, variance))
    with pytest.raises(ExecutionError, match="var has negative entry"):
        compiled(x, target, -variance)


def branches(x: Tensor) -> Tensor:
    return x * 2 if (x > 0).any() else x


def always_fails(x: Tensor) -> Tensor:
    if (x > 0).any():
        raise ValueError("greater than 0")
    raise ValueError("not greater than 0")


@pytest.mark.parametrize("function", [branches, always_fails])
def test_branches_by_contents_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CompileError, match="data-dependent|greater than 0"):
        deplodock.compile(function, (torch.randn(3),))
    assert "__bool__" not in torch.Tensor.__dict__  # as PyTorch has it
