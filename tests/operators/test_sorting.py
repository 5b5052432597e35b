"""Sorting long dimensions by a network, and the limits of what is done by looking at all pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import deplodock
from deplodock.backend.launch_plan import make_plan
from deplodock.passes.convert.torch_to_tensor import sort


def _keys(*shape: int) -> torch.Tensor:
    """Numbers with ties, NaN and infinities."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).round(decimals=1)
    x.view(-1)[3::17] = torch.nan
    x.view(-1)[5] = -torch.inf
    return x


CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "sort": (lambda x: x.sort(stable=True), _keys(3, 50)),
    "a power of two, descending, in the middle": (
        lambda x: x.sort(dim=1, descending=True, stable=True),
        _keys(2, 32, 3),
    ),
    "bf16": (lambda x: x.sort(stable=True), _keys(70).bfloat16()),
    "integers": (lambda x: x.argsort(stable=True), torch.arange(60) * 7 % 10),
    "truth values": (lambda x: x.sort(stable=True), _keys(2, 9) > 0),
    "topk": (lambda x: x.topk(4, sorted=True)[0], _keys(3, 21)),
    "kthvalue": (lambda x: x.kthvalue(3)[0], _keys(3, 21)),
    "median": (lambda x: x.median(0)[0], _keys(21, 3)),
    "nanmedian": (lambda x: x.nanmedian(0, keepdim=True)[0], _keys(21, 3)),
}


@pytest.fixture
def _network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short dimensions count as long."""
    monkeypatch.setattr(sort, "COUNTED", 2)
    monkeypatch.setattr(sort, "MOST_COMPARISONS", 0)


@pytest.mark.usefixtures("_network")
@pytest.mark.parametrize("name", CASES)
def test_network(name: str) -> None:
    function, x = CASES[name]
    compiled = deplodock.compile(function, (x,), executor="reference")
    assert "tensor.scan" in compiled.ir("tensor")
    torch.testing.assert_close(tuple(compiled(x)), tuple(function(x)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("_network")
@pytest.mark.parametrize("executor", ["simulator", "emulator"])
def test_network_on_threads(executor: str) -> None:
    x = _keys(2, 7)
    compiled = deplodock.compile(lambda x: x.sort(stable=True), (x,), executor=executor)
    torch.testing.assert_close(tuple(compiled(x)), tuple(x.sort(stable=True)), rtol=0, atol=0, equal_nan=True)


def test_a_long_dimension() -> None:
    """A launch for each step of the network, and a handful besides."""
    x = torch.randint(0, 500, (20_000,))
    compiled = deplodock.compile(lambda x: x.sort(stable=True), (x,), executor="reference")
    assert 15 * 16 / 2 <= len(make_plan(compiled.compilation.at("kernel")).launches) <= 15 * 16 / 2 + 8
    torch.testing.assert_close(tuple(compiled(x)), tuple(x.sort(stable=True)))
    assert "tensor.scan" not in deplodock.compile(lambda x: x.sort(stable=True), (x[:900],)).ir("tensor")


TOO_LARGE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "searchsorted": (lambda x, y: torch.searchsorted(x, y), (torch.empty(600_000), torch.empty(600_000))),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_by_name(name: str) -> None:
    function, args = TOO_LARGE[name]
    with pytest.raises(deplodock.CompileError, match=rf"aten.*{name}.*too large: looks at \d+ pairs"):
        deplodock.compile(function, args)
