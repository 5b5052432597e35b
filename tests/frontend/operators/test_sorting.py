"""Sorting long dimensions by a sorting network, and short ones by comparing all pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.tensor_level import check

import deplodock
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects.loop.work import count_work
from deplodock.dialects.tensor import sorting


def _keys(*shape: int) -> torch.Tensor:
    """Returns numbers with ties, NaN and infinities."""
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
    "topk": (lambda x: x.topk(14, sorted=True)[0], _keys(3, 21)),
    "kthvalue": (lambda x: x.kthvalue(15)[0], _keys(3, 21)),
    "median": (lambda x: x.median(0)[0], _keys(21, 3)),
    "nanmedian": (lambda x: x.nanmedian(0, keepdim=True)[0], _keys(21, 3)),
}


@pytest.fixture
def _network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes short dimensions use the sorting network."""
    monkeypatch.setattr(sorting, "MAX_COUNTED_ELEMENTS", 2)
    monkeypatch.setattr(sorting, "MAX_COUNTING_COMPARISONS", 0)


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
    """There is one launch for each step of the network, and at most eight others."""
    x = torch.randint(0, 500, (20_000,))
    compiled = deplodock.compile(lambda x: x.sort(stable=True), (x,), executor="reference")
    assert 15 * 16 / 2 <= len(make_plan(compiled.compilation.at("kernel")).launches) <= 15 * 16 / 2 + 8
    torch.testing.assert_close(tuple(compiled(x)), tuple(x.sort(stable=True)))
    assert "tensor.scan" not in deplodock.compile(lambda x: x.sort(stable=True), (x[:900],)).ir("tensor")


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).repeat(2, 40)


SELECTED: dict[str, tuple[torch.Tensor, int, int]] = {
    "a few": (_keys(3, 90), 1, 4),
    "one": (_keys(90, 3), 0, 1),
    "by a fold": (_keys(2, 1500), 1, 12),
    "zeros of both signs": (_keys(3, 90).sign() * 0, 1, 5),
    "bf16": (_keys(3, 90).bfloat16(), 1, 4),
    "integers at the ends of their type": (_ints(-(1 << 31), 0, (1 << 31) - 1, 5), 1, 6),
    "in the middle": (_keys(2, 80, 3), 1, 3),
}


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", SELECTED)
def test_selection(name: str, largest: bool, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`topk` returns the first elements of the stable order without sorting."""
    monkeypatch.setattr(sorting, "COMPARISONS_PER_LAUNCH", 0)
    x, dim, count = SELECTED[name]
    target = "cpu" if executor == "cpu" else "sm_90a"
    compiled = deplodock.compile(lambda x: x.topk(count, dim, largest), (x,), executor=executor, target=target)
    assert ("tensor.scan" in compiled.ir("tensor")) == (name == "by a fold")
    expected = tuple(v.narrow(dim, 0, count) for v in x.sort(dim=dim, descending=largest, stable=True))
    torch.testing.assert_close(tuple(compiled(x)), expected, rtol=0, atol=0, equal_nan=True)


def test_selection_looks_at_each_element_as_often_as_it_selects() -> None:
    x = torch.randn(64, 4096)
    work = count_work(deplodock.compile(lambda x: x.topk(4)[1], (x,)).compilation.at("loop"))
    assert sum(w.flops for w in work) <= 4 * 16 * x.numel()


TOO_LARGE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "searchsorted": (lambda x, y: torch.searchsorted(x, y), (torch.empty(600_000), torch.empty(600_000))),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_by_name(name: str) -> None:
    function, args = TOO_LARGE[name]
    with pytest.raises(deplodock.CompileError, match=rf"torch\.{name}: .*too large: looks at \d+ pairs"):
        deplodock.compile(function, args)


NAN, INF = float("nan"), float("inf")


def test_searches_among_numbers_that_end_with_nan() -> None:
    """PyTorch bisects, so how far it goes depends on which NaN it meets first."""
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 3, -4, 1.5])
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    for n in (1, 2, 5):
        for nans in sorted({0, 1, n // 2, n - 1, n}):
            edges = torch.randint(-4, 5, (2, n), generator=generator).float()
            edges[0, 0], edges[1, -1] = -INF, INF
            edges[:, n - nans :] = NAN
            calls.append((edges.sort(-1).values, torch.randperm(n, generator=generator)))

    def program(x: torch.Tensor, *args: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for edges, order in zip(args[::2], args[1::2], strict=True):
            shuffled = torch.empty_like(edges).index_copy(1, order, edges)
            for right in (False, True):
                found.append(torch.searchsorted(edges, x.expand(2, -1).contiguous(), right=right))
                found.append(torch.searchsorted(shuffled, x.expand(2, -1).contiguous(), sorter=order.repeat(2, 1)))
                found.append(torch.bucketize(x, edges[0].contiguous(), right=right, out_int32=True))
        return found

    args = (values, *(t for call in calls for t in call))
    check(program, *args, rtol=0, atol=0)


def test_a_search_among_a_varying_number() -> None:
    def search(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(edges, x)

    edges, x = torch.tensor([1.0, 2, 4, NAN, NAN]), torch.tensor([0.0, 3, 5, NAN, INF])
    sizes = ({0: torch.export.Dim("n", min=2, max=100)}, None)
    compiled = deplodock.compile(search, (edges, x), dynamic_shapes=sizes, target="sm_90a", executor="reference")
    for e in (edges, edges[:4].contiguous(), torch.cat([torch.arange(20.0), edges[3:]])):
        assert torch.equal(compiled(e, x), search(e, x))
